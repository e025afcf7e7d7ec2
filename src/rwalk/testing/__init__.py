"""Checks that a part keeps its promises: ours go through them, and so can yours, with one call.

>>> from rwalk.testing import check_sampler
>>> check_sampler("uniform")

A broken promise is reported in one sentence, as an AssertionError. `checks_of` returns the single checks, for
pytest:

    @pytest.mark.parametrize("check", [pytest.param(check, id=name) for name, check in checks_of("mine:Method")])
    def test_my_method_keeps_its_promises(check):
        check()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn

from rwalk import parts
from rwalk.augmentations import AUGMENTATIONS, Augmentation
from rwalk.data.memory import MemorySpec
from rwalk.data.samplers import SAMPLERS, Sampler
from rwalk.engine.architectures import NETWORKS, Factory
from rwalk.errors import InputError
from rwalk.parts import Part
from rwalk.registry import imported
from rwalk.testing.augmentation_checks import checks_of_augmentation
from rwalk.testing.check_tools import Check
from rwalk.testing.learner_checks import CheckedPart, checks_of_learner
from rwalk.testing.network_checks import checks_of_network
from rwalk.testing.sampler_checks import checks_of_sampler
from rwalk.threads import few_threads

__all__ = ["check_augmentation", "check_learner", "check_network", "check_sampler", "checks_of"]


def check_learner(part: str | Part | type[Part], memory: MemorySpec | None = None) -> None:
    """Check a method, a loss, a projector or a solver: by name, by `package.module:Name`, a class or an instance.

    If it needs exemplars, it is tried with a small memory, unless one is given.
    """
    _all(checks_of_learner(CheckedPart.of(part, memory)))


def check_sampler(sampler: str | Sampler) -> None:
    """Check a sampler; one that is given by name also in training."""
    _all(checks_of_sampler(sampler))


def check_augmentation(
    augmentation: str | Augmentation | type[Augmentation], shape: tuple[int, ...] | None = None
) -> None:
    """Check an augmentation, on inputs of this shape; one that is given by name also in training."""
    _all(checks_of_augmentation(augmentation, shape))


def check_network(network: str | Factory, shape: tuple[int, ...] = (1, 8, 8)) -> None:
    """Check a network: a name, `package.module:factory`, or a function (input_shape, classes) → nn.Module."""
    _all(checks_of_network(network, shape))


def checks_of(part: Any, **how: Any) -> Iterator[Check]:
    """The checks of a part of any kind, as (name, check); `how` are the options of its check: memory, shape."""
    yield from _checks_for(part)(part, **how)


def _checks_for(part: Any) -> Callable[..., Iterator[Check]]:
    """Which checks a part goes through."""
    kind: Any = part
    if isinstance(part, str):
        ours: tuple[tuple[Any, Any], ...] = (
            (parts.parts(), _learner),
            (SAMPLERS, checks_of_sampler),
            (AUGMENTATIONS, checks_of_augmentation),
            (NETWORKS, checks_of_network),
        )
        for known, checks in ours:
            if part in known:
                return checks  # type: ignore[no-any-return]
        if ":" not in part:
            raise InputError(f"{part!r} is not one of rwalk's parts: name your own as package.module:Name")
        kind = imported(part, "part")
    if isinstance(kind, Sampler):
        return checks_of_sampler
    kind = kind if isinstance(kind, type) else type(kind)
    if issubclass(kind, Part):
        return _learner
    if issubclass(kind, Augmentation):
        return checks_of_augmentation
    if issubclass(kind, nn.Module) or callable(part) or isinstance(part, str):
        return checks_of_network
    raise InputError(f"{part!r} is not a part that can be checked: give a method, loss, projector, sampler …")


def _learner(part: str | Part | type[Part], memory: MemorySpec | None = None) -> Iterator[Check]:
    return checks_of_learner(CheckedPart.of(part, memory))


@few_threads(1)
def _all(checks: Iterable[Check]) -> None:
    """In one thread: the networks here are tiny, and a second thread would only wait."""
    for _, check in checks:
        check()
