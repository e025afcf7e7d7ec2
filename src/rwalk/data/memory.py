"""The exemplars: a few examples of every class seen, as indices of the stream's training examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from rwalk.errors import InputError, unknown
from rwalk.option_fields import documented, option

if TYPE_CHECKING:  # `rwalk run --help` reads the record, and must not wait for torch
    from torch import Tensor

RESERVOIR = "reservoir"  # no choice among a class's examples: see reservoir.py
Replay = Literal["balanced", "concat", "half", "beside", "alone", "none"]
REPLAYS = {
    "balanced": "every batch holds all classes seen in equal parts",
    "concat": "task data and exemplars are one dataset",
    "half": "half of every batch is exemplars",
    "beside": "as many exemplars follow the task's own examples in every batch, all equally likely (ER, DER)",
    "alone": "exemplars of this task and of all before it, and nothing else (GDumb)",
    "none": "exemplars are not trained on (GEM only constrains with them)",
}


@documented
@dataclass(frozen=True)
class MemorySpec:
    """How many exemplars are kept, per class or in total, and how they are used.

    A total budget is shared by the classes seen: each shrinks as others arrive. A sampler chooses exemplars at
    their task's end; a reservoir keeps examples as they pass, and replays them from the next step on.
    """

    per_class: int | None = option(None, "exemplars kept per class", name="memory")
    total: int | None = option(None, "exemplars kept in total, shared by the classes seen", name="memory_total")
    sampler: str = option(
        "mof",
        "uniform, plane, entropy, mof, mof-plain, plane-top, entropy-top, reservoir, or package.module:NAME",
    )
    replay: Replay = option(  # noqa: RUF009 - a field
        "balanced",
        "how exemplars are replayed: balanced (default), concat, half, beside (a reservoir's); some methods "
        "prescribe it",
        depends=True,
    )
    beside: int | None = option(None, "exemplars added to every batch (default: as many as new examples)")

    def __post_init__(self) -> None:
        if (self.per_class is None) == (self.total is None):
            raise InputError(
                "give a memory's size per class or in total (memory or memory_total; in a MemorySpec per_class or "
                "total), and not both"
            )
        size = self.per_class if self.per_class is not None else self.total
        if not isinstance(size, int) or size < 1:
            raise InputError(f"a memory must hold at least 1 exemplar, not {size!r}")
        from rwalk.data.samplers import check_name

        object.__setattr__(self, "sampler", check_name(self.sampler))
        if self.replay not in REPLAYS:
            raise unknown("replay", self.replay, REPLAYS)
        if self.beside is not None and (not isinstance(self.beside, int) or self.beside < 1):
            raise InputError(f"beside must be a whole number of exemplars, at least 1, not {self.beside!r}")
        if self.is_reservoir and (self.total is None or self.replay != "beside"):
            raise InputError(
                "a reservoir has a total budget and is replayed beside the task's own examples: set memory_total "
                "and replay='beside', or take another sampler"
            )

    @property
    def is_reservoir(self) -> bool:
        """Whether examples are kept as they pass, not class by class at a task's end."""
        return self.sampler == RESERVOIR

    @property
    def is_all(self) -> bool:
        """Whether exemplars are all that is learned from: they are chosen before a task is learned, not after."""
        return self.replay == "alone"

    def size(self, held: Sequence[int]) -> int:
        """Exemplars kept of classes that have so many examples each."""
        quota = self.quota(len(held))
        return sum(min(quota, each) for each in held)

    def quota(self, groups: int) -> int:
        """The number of exemplars per class, for so many classes."""
        if self.per_class is not None:
            return self.per_class
        assert self.total is not None
        return max(1, self.total // groups)


@dataclass(frozen=True)
class Group:
    """The exemplars of one class of one task, best first: examples [R, m], and the tensors stored with each."""

    task: int
    label: int
    examples: Tensor = field(repr=False)
    stored: dict[str, Tensor] = field(default_factory=dict, repr=False)  # [R, m, …]

    def first(self, count: int) -> Group:
        """The best `count` of them, in new tensors, so that those dropped are neither held nor saved."""
        stored = {name: each[:, :count].contiguous() for name, each in self.stored.items()}
        return Group(self.task, self.label, self.examples[:, :count].contiguous(), stored)


@dataclass
class Memory:
    """The exemplars so far. Runs of a fleet keep different examples, but equally many."""

    spec: MemorySpec
    groups: list[Group] = field(default_factory=list)

    def keep(self, arrivals: list[Group]) -> None:
        """Add a task's groups; under a total budget every class shrinks to the new quota."""
        everyone = [*self.groups, *arrivals]
        quota = self.spec.quota(len(everyone))
        self.groups = [group.first(quota) for group in everyone]

    def of_run(self, run: int) -> list[Tensor]:
        """One run's exemplars, class by class."""
        return [group.examples[run] for group in self.groups]

    def of_task(self, task: int) -> list[Group]:
        return [group for group in self.groups if group.task == task]
