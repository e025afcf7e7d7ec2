"""Studies: runs, executors that train them, the folder of results, and their provenance."""

from __future__ import annotations

from rwalk.studies.study import Study

__all__ = ["Study"]
