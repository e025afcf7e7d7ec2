"""Studies: runs, executors that train them, the folder of results, and their provenance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rwalk.studies.study import Study

__all__ = ["Study"]


def __getattr__(name: str) -> Any:
    """Import on first use: the records beside it need no torch."""
    if name != "Study":
        raise AttributeError(f"module 'rwalk.studies' has no attribute {name!r}")
    from rwalk.studies.study import Study

    return Study
