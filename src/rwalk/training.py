"""How long a task is trained, and with what: a pure record."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rwalk.errors import InputError, unknown
from rwalk.option_fields import option

OPTIMIZERS = ("adam", "sgd")
ONLINE_BATCH = 10


@dataclass(frozen=True)
class Training:
    """`steps` per task, or else `epochs` over its data; `augment` names an augmentation of the inputs, if any.

    The optimizer starts every task afresh, unless `keep_optimizer` lets it keep its moments. With `keep_debias`
    they start afresh but Adam's bias correction does not (as in RWalk's public code of 2018): from the second task
    on, the first steps are several times longer.
    """

    epochs: int = option(1, "passes over a task's data (default 1; 20 for digits)", depends=True)
    steps: int | None = option(None, "steps per task, instead of epochs")
    batch: int = option(64, "examples per step (default 64)", depends=True)
    lr: float = option(1e-3, "learning rate")
    optimizer: str = option("adam", "adam or sgd")
    augment: str = option("", "change training inputs at random: an augmentation's name, or package.module:Name")
    keep_optimizer: bool = option(False, "keep its moments from task to task instead of starting afresh")
    keep_debias: bool = False

    @classmethod
    def online(cls, **others: Any) -> Training:
        """Every example is used once, ten at a time; a few fill up a task's last batch.

        >>> Training.online(lr=0.1, optimizer="sgd").steps_of(125)
        13
        """
        return cls(epochs=1, batch=ONLINE_BATCH, **others)

    def __post_init__(self) -> None:
        for name, words in (("epochs", "epochs"), ("steps", "steps"), ("batch", "the batch size")):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InputError(f"{words} must be a whole number, at least 1, not {value!r}")
        if not (isinstance(self.lr, int | float) and 0 < self.lr < math.inf):
            raise InputError(f"the learning rate must be greater than 0, not {self.lr!r}")
        if self.optimizer not in OPTIMIZERS:
            raise unknown("optimizer", self.optimizer, OPTIMIZERS)
        if self.keep_debias and (self.optimizer != "adam" or self.keep_optimizer):
            raise InputError("keep_debias is about Adam's moments beginning afresh: drop it, or keep_optimizer")

    def steps_of(self, examples: int) -> int:
        """All steps of a task of so many examples."""
        return self.steps or self.epochs * steps_per_epoch(examples, self.batch)


def batch_size(examples: int, batch: int) -> int:
    """A task smaller than a batch is a single batch."""
    return min(batch, examples)


def steps_per_epoch(examples: int, batch: int) -> int:
    """An epoch passes over the task's own data, however many exemplars there are."""
    return -(-examples // batch_size(examples, batch))
