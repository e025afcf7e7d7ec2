"""A learner is a record: a method, and where it has them a memory, a projector, a loss and a classifier.

Most of them are absent. `vanilla-S`, `ewc-S`, `rwalk-S` are a method and a memory, not new classes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from rwalk.batches import Replay
from rwalk.errors import InputError, unknown
from rwalk.memory import MemorySpec
from rwalk.methods import METHODS, Method, Vanilla
from rwalk.methods.gem import AGEM, GEM


@dataclass(frozen=True)
class Learner:
    """What the training loop needs to know of an algorithm."""

    method: Method = Vanilla()  # noqa: RUF009 - frozen, and without state of its own
    memory: MemorySpec | None = None
    projector: GEM | AGEM | None = None
    distills: bool = False  # iCaRL's loss in place of cross entropy
    classifier: Literal["logits", "nearest-mean"] = "logits"

    def __post_init__(self) -> None:
        if self.memory is None and (self.projector or self.distills):
            raise InputError("iCaRL and GEM need exemplars: give them a memory (memory=10, --memory 10)")


LEARNERS: dict[str, str] = {
    **{name: method.summary for name, method in METHODS.items()},
    "icarl": "iCaRL: distillation, herded exemplars, nearest mean of exemplars",
    "icarl-hb1": "iCaRL, hybrid 1: as iCaRL, but classified by the network's own outputs",
    "gem": "gradient episodic memory: gradients projected so that no old task's loss rises",
    "a-gem": "averaged GEM: one constraint in closed form",
}


PROJECTORS: dict[str, type[GEM | AGEM]] = {"gem": GEM, "a-gem": AGEM}

# Rebuffi et al. train on the union of new data and exemplars. GEM's exemplars only constrain: training on them as
# well would be another algorithm.
OWN_REPLAY: dict[str, Replay] = {"icarl": "concat", "icarl-hb1": "concat", "gem": "none", "a-gem": "none"}


def learner(name: str, memory: MemorySpec | None = None, **numbers: Any) -> Learner:
    """A learner by name; `numbers` are fields of its method (lam, alpha …) or of its projector (margin …)."""
    if not isinstance(name, str):
        raise InputError(f"method must be a name, or a method such as RWalk(lam=1.0), not {name!r}")
    if name in METHODS:
        return Learner(_made(METHODS[name], name, numbers), memory)
    memory = memory_of(name, memory)
    if name in ("icarl", "icarl-hb1"):
        _made(Vanilla, name, numbers)
        classifier: Literal["logits", "nearest-mean"] = "nearest-mean" if name == "icarl" else "logits"
        return Learner(memory=memory, distills=True, classifier=classifier)
    if name in ("gem", "a-gem"):
        return Learner(memory=memory, projector=_made(PROJECTORS[name], name, numbers))
    raise unknown("method", name, LEARNERS)


def memory_of(name: str, memory: MemorySpec | None) -> MemorySpec | None:
    """The memory as a learner uses it: some say themselves how exemplars are replayed."""
    if memory is None or name not in OWN_REPLAY or memory.replay == OWN_REPLAY[name]:
        return memory
    return replace(memory, replay=OWN_REPLAY[name])


def defaults(name: str) -> dict[str, Any]:
    """The numbers of a learner that need not be given; none of one that is not known by name."""
    kind: Any = METHODS.get(name) or PROJECTORS.get(name)
    return {} if kind is None else {each.name: each.default for each in fields(kind)}


def _made(kind: Any, name: str, numbers: dict[str, Any]) -> Any:
    known = [field.name for field in fields(kind)]
    for number in numbers:
        if number not in known:
            raise InputError(f"{name} has no {number!r} (it has: {', '.join(known) or 'nothing to set'})")
    return kind(**numbers)
