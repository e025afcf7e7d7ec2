"""One contract for every part, ours and a user's own; and a test that it finds broken parts."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

import broken_parts
import own_parts
from rwalk import Method, RWalk, testing
from rwalk.augmentations import AUGMENTATIONS
from rwalk.compiled_programs import compiler_works
from rwalk.data.samplers import SAMPLERS
from rwalk.errors import InputError
from rwalk.parts import parts
from rwalk.registry import MOVED
from rwalk.testing import checks_of

OWN = ("MAS", "DERpp", "Orthogonal", "FARTHEST", "Noise", "Convolutions")
PUBLISHED = [place for name, place in MOVED.items() if not name.startswith(("mlp", "cnn"))]  # networks take long
SET = [RWalk(dt=3, fisher_at="start")]  # with settings other than the defaults
EVERY_PART = [*parts(), *SAMPLERS, *AUGMENTATIONS, "mlp", *PUBLISHED, *(f"own_parts:{name}" for name in OWN), *SET]


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=f"{part}: {name.replace('_', ' ')}")
        for part in EVERY_PART
        for name, check in checks_of(part)
    ],
)
def test_every_part_keeps_its_promises(check: Callable[[], None]) -> None:
    check()


def first_failure(part: str) -> str:
    """The first failure of the checks; empty if the part keeps all its promises."""
    for _, check in checks_of(part):
        try:
            check()
        except AssertionError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("name", broken_parts.BROKEN)
def test_a_part_that_breaks_a_promise_is_told_in_one_line(name: str) -> None:
    if name == "CannotBeRecorded" and not compiler_works():
        pytest.skip("needs a C++ compiler")
    said = first_failure(f"broken_parts:{name}")
    assert said.startswith(f"broken_parts:{name}: ") and "\n" not in said
    assert re.search(broken_parts.BROKEN[name], said), said


@pytest.mark.parametrize("name", broken_parts.BROKEN_IN)
def test_a_part_that_breaks_one_promise_fails_that_check(name: str) -> None:
    check = dict(checks_of(f"broken_parts:{name}"))[broken_parts.BROKEN_IN[name]]
    with pytest.raises(AssertionError, match=f"^broken_parts:{name}"):
        check()


def test_one_call_checks_a_part_however_it_is_given() -> None:
    testing.check_learner(own_parts.MAS(lam=3.0))
    testing.check_sampler(own_parts.FARTHEST)
    testing.check_augmentation(own_parts.Noise, shape=(3, 4, 4))
    testing.check_network(own_parts.Convolutions, shape=(2, 5, 5))
    with pytest.raises(AssertionError, match="PullsTooHard: pull is not"):
        testing.check_learner(broken_parts.PullsTooHard())


def test_a_part_that_no_other_process_could_find_is_told_so() -> None:
    class Local(Method):
        pass

    with pytest.raises(AssertionError, match=r"Python does not find .*Local.*: define it in a module"):
        testing.check_learner(Local())


@pytest.mark.parametrize("name", ["rwlk", "own_parts:Nobody", "nowhere:Part"])
def test_names_that_lead_nowhere_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=name):
        list(checks_of(name))
