"""Executors: where runs are trained.

One file each; a new file in this folder is found automatically, by its executor's name.
"""

from __future__ import annotations

from rwalk.registry import discovered, found
from rwalk.studies.executors.executor import DTYPES, Context, Executor, Job, Outcomes, Result, fleet_of

EXECUTORS: dict[str, type[Executor]] = discovered(__name__, Executor)

__all__ = ["DTYPES", "EXECUTORS", "Context", "Executor", "Job", "Outcomes", "Result", "find", "fleet_of"]


def find(name: str) -> type[Executor]:
    """An executor by its name, or by `package.module:Name`."""
    return found("executor", name, EXECUTORS, Executor)
