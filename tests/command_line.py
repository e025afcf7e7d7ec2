"""The command line in the process of the tests: what it prints, and how it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Rwalk = Callable[..., Outcome]  # the fixture `rwalk` of conftest.py


def refused(outcome: Outcome, *fragments: str) -> None:
    """Check that a command ended with exit code 2 and one line that holds the fragments."""
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("rwalk: ") and outcome.err.count("\n") == 1, outcome.err
    for fragment in fragments:
        assert fragment in outcome.err
