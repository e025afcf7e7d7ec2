"""A learner is a record of parts: a method, a loss, and optionally a memory, a projector and a solver.

Most parts are the plain ones. `rwalk` is a method; `rwalk-S` the same with a memory; iCaRL a loss with its own
classifier; GEM a projector; ridge regression a solver, which needs no gradient. None of them is a new class of
learner, and the training loop names none of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from rwalk import parts
from rwalk.data.memory import MemorySpec
from rwalk.data.streams import Stream, Task
from rwalk.decision_rules import Classifier
from rwalk.errors import InputError
from rwalk.losses import CrossEntropy, Loss
from rwalk.methods import Method, Vanilla
from rwalk.parts import Part
from rwalk.projectors import Projector
from rwalk.solvers import Solver
from rwalk.training import Training, steps_per_epoch

LAMS = (0.0, 0.01, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4)  # tried where λ is to be chosen


@dataclass(frozen=True)
class Learner:
    """An algorithm, as the training loop uses it.

    Args:
        method: The penalty on parameters.
        memory: The exemplars kept, if any.
        projector: Changes the gradient with the gradients of exemplars, if any.
        loss: The loss of a batch.
        solver: Learns without gradients, if given.

    Raises:
        InputError: The projector or the loss needs exemplars, and there is no memory.
    """

    method: Method = Vanilla()  # noqa: RUF009 - frozen, and without state of its own
    memory: MemorySpec | None = None
    projector: Projector | None = None
    loss: Loss = CrossEntropy()  # noqa: RUF009 - likewise
    solver: Solver | None = None

    def __post_init__(self) -> None:
        for part in (self.projector, self.loss):
            if part is not None and part.needs_memory and self.memory is None:
                raise InputError(f"{part.name} needs exemplars: give it a memory (memory=10, --memory 10)")

    @property
    def classifier(self) -> Classifier:
        """The rule that turns outputs into a class."""
        return self.loss.classifier

    def examples(self, stream: Stream, k: int) -> int:
        """How many examples an epoch of task k passes over."""
        if self.loss.everything:
            return sum(len(task.train) for task in stream.tasks[: k + 1])
        if self.memory is not None and self.memory.is_all:
            return self.memory.size([each for task in stream.tasks[: k + 1] for each in _counts(stream, task)])
        return len(stream.tasks[k].train)

    def steps(self, training: Training, stream: Stream, k: int) -> int:
        """How many steps task k takes: where all tasks so far are learned again, as many for each of them."""
        if self.solver is not None:  # each example once, however long others train
            return steps_per_epoch(self.examples(stream, k), training.batch)
        times = k + 1 if self.loss.everything and training.steps is not None else 1
        return times * training.steps_of(self.examples(stream, k))

    @property
    def reservoir(self) -> int | None:
        """How many examples it keeps as they pass; None where it keeps none so."""
        return self.memory.total if self.memory is not None and self.memory.is_reservoir else None

    @property
    def lam(self) -> float:
        """How strongly old tasks are protected: the λ of whichever part has one."""
        held = (getattr(part, "lam", 0.0) for part in (self.method, self.loss, self.projector))
        return float(next((lam for lam in held if lam), 0.0))


def learner(name: str | Part, memory: MemorySpec | None = None, **settings: Any) -> Learner:
    """A learner by name, by `package.module:Name`, or from a part.

    Args:
        name: A method, a loss, a projector or a solver, or its name.
        memory: The exemplars kept, if any; some algorithms prescribe their replay.
        settings: Hyper-parameters, such as `lam`.

    Returns:
        The learner.

    Raises:
        InputError: The name or a setting is unknown.
    """
    if isinstance(name, str):
        part = parts.made(name, settings)
    elif isinstance(name, Part):
        part = replace(name, **settings)
    else:
        raise InputError(f"method must be a name, or a method such as RWalk(lam=1.0), not {name!r}")
    if isinstance(part, Method):
        return Learner(part, memory)
    memory = as_used(part, memory)
    if isinstance(part, Solver):
        return Learner(memory=memory, solver=part)
    return (
        Learner(memory=memory, projector=part)
        if isinstance(part, Projector)
        else Learner(memory=memory, loss=part)
    )


def with_lam(recipe: Learner, lam: float) -> Learner:
    """The same learner, holding on so strongly."""
    for name in ("method", "loss", "projector"):
        part = getattr(recipe, name)
        if part not in (None, Vanilla()) and "lam" in [each.name for each in fields(part)]:
            return replace(recipe, **{name: replace(part, lam=lam)})
    raise InputError("nothing here has a λ: leave lam out, or take a method that has one, such as 'rwalk'")


def _counts(stream: Stream, task: Task) -> list[int]:
    """Training examples of each of a task's classes."""
    counts = stream.labels(task.train).bincount(minlength=stream.classes).tolist()
    return [counts[label] for label in task.classes]


def as_used(part: Any, memory: MemorySpec | None) -> MemorySpec | None:
    """The memory as a part uses it: some parts prescribe how exemplars are replayed, and some need none."""
    if getattr(part, "memoryless", False):
        return None
    own = getattr(part, "replay", None)
    if memory is not None and memory.is_reservoir and own not in (None, memory.replay):
        raise InputError(f"{part.name} does not replay a reservoir: run it alone, with another sampler")
    return memory if memory is None or own in (None, memory.replay) else replace(memory, replay=own)
