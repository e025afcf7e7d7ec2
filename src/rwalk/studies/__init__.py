"""Many runs, compared: what they are, where they are trained, what is kept of them and what made it."""

from __future__ import annotations

from rwalk.studies.study import Study

__all__ = ["Study"]
