"""Checks of an augmentation: its draws, its effect on inputs, and training with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from rwalk import augmentations
from rwalk.augmentations import Augmentation
from rwalk.errors import InputError
from rwalk.testing.check_tools import Check, claim, draws, named_checks
from rwalk.testing.fleet_checks import FLEET_CHECKS, FleetRecipe, cloud_stream
from rwalk.training import Training

RUNS, STEPS, BATCH = 2, 3, 5
SHAPES: tuple[tuple[int, ...], ...] = ((3, 8, 8), (1, 8, 8), (8,))  # tried in turn


@dataclass(frozen=True)
class Augmenting:
    """An augmentation, and the shape of the inputs it is tried on."""

    augmentation: Augmentation
    shape: tuple[int, ...]

    def draws(self) -> Tensor:
        """[RUNS, BATCH, k] of an epoch's first step."""
        return torch.stack([self._epoch(run)[0] for run in range(RUNS)])

    def _epoch(self, run: int) -> Tensor:
        return self.augmentation.draw(STEPS, BATCH, Generator().manual_seed(run))


def its_draws_are_rows_by_step_and_example(augmenting: Augmenting) -> None:
    state = torch.get_rng_state()
    drawn, again = (augmenting._epoch(run=0) for _ in range(2))
    claim(
        drawn.dim() == 3 and drawn.shape[:2] == (STEPS, BATCH),
        f"the draws of {STEPS} steps of {BATCH} examples are {list(drawn.shape)}, not [{STEPS}, {BATCH}, k]",
    )
    claim(drawn.equal(again), "the same generator draws other numbers the second time")
    claim(torch.get_rng_state().equal(state), "it draws from torch's global random state: use the generator")


def it_keeps_shape_and_type_and_changes_nothing_else(augmenting: Augmenting) -> None:
    drawn, state = augmenting.draws(), torch.get_rng_state()
    for dtype in (torch.float32, torch.float64):
        x = draws(RUNS, BATCH, *augmenting.shape, seed=1).to(dtype)
        before, once = x.clone(), augmenting.augmentation.apply(x, drawn)
        claim(once.shape == x.shape, f"inputs {list(x.shape)} become {list(once.shape)}")
        claim(once.dtype == dtype, f"inputs of {dtype} become {once.dtype}")
        claim(x.equal(before), "apply changes the inputs that it is given")
        claim(
            once.equal(augmenting.augmentation.apply(x, drawn)),
            "the same draws change inputs differently the second time",
        )
    claim(torch.get_rng_state().equal(state), "apply draws random numbers of its own: take them in draw")


def an_example_is_changed_by_its_own_draw(augmenting: Augmenting) -> None:
    """It does not depend on the rest of the batch or of the fleet."""
    x, drawn = draws(RUNS, BATCH, *augmenting.shape, seed=1), augmenting.draws()
    together = augmenting.augmentation.apply(x, drawn)
    for run in range(RUNS):
        for place in range(BATCH):
            one = (slice(run, run + 1), slice(place, place + 1))
            alone = augmenting.augmentation.apply(x[one], drawn[one])
            claim(together[one].equal(alone), "an example is changed differently alone than with others")


AUGMENTING_CHECKS = (
    its_draws_are_rows_by_step_and_example,
    it_keeps_shape_and_type_and_changes_nothing_else,
    an_example_is_changed_by_its_own_draw,
)


def checks_of_augmentation(
    given: str | Augmentation | type[Augmentation], shape: tuple[int, ...] | None = None
) -> Iterator[Check]:
    """On inputs of this shape, or of the first of several shapes that it accepts; by name, also in training."""
    if isinstance(given, str):
        augmentation = augmentations.find(given)
    else:
        augmentation = given() if isinstance(given, type) else given
    name = given if isinstance(given, str) else type(augmentation).__name__
    shape = shape or _shape_for(augmentation)
    yield from named_checks(Augmenting(augmentation, shape), name, *AUGMENTING_CHECKS)
    if isinstance(given, str):
        training = Training(steps=5, batch=8, augment=given)
        yield from named_checks(FleetRecipe(stream=cloud_stream(shape), training=training), name, *FLEET_CHECKS)


def _shape_for(augmentation: Augmentation) -> tuple[int, ...]:
    refusal = ""
    for shape in SHAPES:
        try:
            augmentation.check(shape)
        except InputError as error:
            refusal = str(error)
        else:
            return shape
    raise InputError(f"say which inputs it takes, shape=(channels, height, width): {refusal}")
