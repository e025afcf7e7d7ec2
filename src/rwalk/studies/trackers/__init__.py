"""Tools that show a study, beside its own folder: off unless named.

One file each; a new file in this folder is found automatically, by its tracker's name.
"""

from __future__ import annotations

from rwalk.registry import discovered, found
from rwalk.studies.trackers.tracker import Shows, Subject, Tracker, export

TRACKERS: dict[str, type[Tracker]] = discovered(__name__, Tracker)

__all__ = ["TRACKERS", "Shows", "Subject", "Tracker", "export", "find"]


def find(name: str) -> type[Tracker]:
    """A tracker by its name, or by `package.module:Name`."""
    return found("tracker", name, TRACKERS, Tracker)
