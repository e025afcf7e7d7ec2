"""Python's garbage collector, at rest where it would do harm or only cost time."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_changing = threading.Lock()
_inside = 0  # how many threads are in `gc_paused`
_collecting = True  # before the first of them came


@contextmanager
def gc_paused() -> Iterator[None]:
    """Nothing is collected in here, in the whole process; the last thread to leave restores what was before."""
    global _inside, _collecting
    with _changing:
        if _inside == 0:
            _collecting = gc.isenabled()
            gc.disable()
        _inside += 1
    try:
        yield
    finally:
        with _changing:
            _inside -= 1
            if _inside == 0 and _collecting:
                gc.enable()
