"""Where runs are trained. One file each: a file that is put here is found by itself, under its executor's name."""

from __future__ import annotations

from rwalk.errors import InputError, unknown
from rwalk.registry import discovered, imported
from rwalk.studies.executors.base import DTYPES, Context, Executor, Job, Outcomes, fleet_of

EXECUTORS: dict[str, type[Executor]] = discovered(__name__, Executor)

__all__ = ["DTYPES", "EXECUTORS", "Context", "Executor", "Job", "Outcomes", "find", "fleet_of"]


def find(name: str) -> type[Executor]:
    """An executor by its name, or by `package.module:Name`."""
    if name in EXECUTORS:
        return EXECUTORS[name]
    if ":" not in name:
        raise unknown("executor", name, [*EXECUTORS, "package.module:Name"])
    kind = imported(name, "executor")
    if not (isinstance(kind, type) and issubclass(kind, Executor)):
        raise InputError(f"executor {name!r} is not an Executor of rwalk: make it a subclass")
    return kind
