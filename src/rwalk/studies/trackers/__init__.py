"""Where a study shows itself, beside its own folder: off unless named.

One file each: a file that is put here is found by itself, under its tracker's name.
"""

from __future__ import annotations

from rwalk.errors import InputError, unknown
from rwalk.registry import discovered, imported
from rwalk.studies.trackers.base import Tracker

TRACKERS: dict[str, type[Tracker]] = discovered(__name__, Tracker)

__all__ = ["TRACKERS", "Tracker", "find"]


def find(name: str) -> type[Tracker]:
    """A tracker by its name, or by `package.module:Name`."""
    if name in TRACKERS:
        return TRACKERS[name]
    if ":" not in name:
        raise unknown("tracker", name, [*TRACKERS, "package.module:Name"])
    kind = imported(name, "tracker")
    if not (isinstance(kind, type) and issubclass(kind, Tracker)):
        raise InputError(f"tracker {name!r} is no Tracker of rwalk: make it one")
    return kind
