"""Many runs, compared: what they are, where they are trained, how results are stored and what made them."""

from __future__ import annotations

from rwalk.studies.study import Study

__all__ = ["Study"]
