"""Anchor: hold a model in function space, by what it says on probes instead of by where its parameters are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rwalk.errors import InputError
from rwalk.methods.base import require


@dataclass(frozen=True)
class Anchor:
    """Penalty: weight · KL(old ‖ new) of the predictions on a batch of probes, another batch every time.

    weight  its strength; a guard's budget= finds it
    probes  inputs, as a Guard's; those of the guard, where it has some
    every   steps from one pull to the next: each is that much stronger
    batch   probes per pull; without a number, as many as have some two thousand tokens, or 64

    It costs a forward and a backward pass of `batch` probes every `every` steps.
    """

    name: ClassVar[str] = "anchor"

    weight: float = 1.0
    probes: Any = None
    every: int = 1
    batch: int | None = None

    def __post_init__(self) -> None:
        require(self.weight, "weight", minimum=0.0)
        for name, number in (("every", self.every), ("batch", 1 if self.batch is None else self.batch)):
            if type(number) is not int or number < 1:
                raise InputError(f"{name} must be a whole number, at least 1, not {number!r}")
