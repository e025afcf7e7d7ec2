"""Checks of a learner, by the part that defines it: a method, a loss, a projector or a solver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from rwalk import parts
from rwalk.data.memory import MemorySpec
from rwalk.engine.method_groups import can_be_mixed
from rwalk.errors import InputError
from rwalk.learners import Learner, learner
from rwalk.losses import Loss
from rwalk.methods import Method
from rwalk.parts import Part, per_run
from rwalk.projectors import Projector
from rwalk.registry import imported
from rwalk.solvers import Solver
from rwalk.studies.executor import fleets
from rwalk.studies.specs import RunSpec
from rwalk.testing.check_tools import Check, as_json, claim, named_checks, others
from rwalk.testing.fleet_checks import (
    FLEET_CHECKS,
    FleetRecipe,
    a_fleet_equals_its_runs_alone,
    an_interrupted_fleet_ends_as_if_it_had_not_been,
    an_interrupted_run_ends_as_if_it_had_not_been,
    two_calls_of_an_estimator_may_have_a_file_between_them,
    what_is_unpickled_trains_the_same,
)
from rwalk.testing.loss_checks import LOSS_CHECKS, a_compiled_step_is_the_eager_one
from rwalk.testing.method_checks import METHOD_CHECKS, PROJECTOR_CHECKS
from rwalk.training import Training

MEMORY = MemorySpec(per_class=3, sampler="uniform")
FEATURES = 12  # of a solver
SHORT = Training(steps=2, batch=8)


@dataclass(frozen=True)
class CheckedPart:
    """A part, the name it is found by, and the memory it is tried with."""

    part: Part
    name: str
    memory: MemorySpec | None

    @classmethod
    def of(cls, given: str | Part | type[Part], memory: MemorySpec | None = None) -> CheckedPart:
        part = parts.find(given) if isinstance(given, str) else given
        part = part() if isinstance(part, type) else part
        if not isinstance(part, Part):
            raise InputError(f"{given!r} is no Method, Loss, Projector or Solver of rwalk: make it one")
        if isinstance(part, Solver) and part.size is None:
            part = replace(part, size=FEATURES)
        if memory is None and (isinstance(part, Projector | Loss) and (part.needs_memory or _uses_memory(part))):
            memory = MEMORY
        name = given if isinstance(given, str) else _name_of(type(part))
        return cls(part, name, memory)

    def learner(self, **changes: Any) -> Learner:
        return learner(self.part, self.memory, **changes)

    def spec(self, **changes: Any) -> RunSpec:
        """A run of it, with its own hyper-parameters and these."""
        own = {each.name: (getattr(self.part, each.name), each.default) for each in fields(self.part)}
        unusual = {name: value for name, (value, default) in own.items() if value != default}
        return RunSpec(method=self.name, numbers={**unusual, **changes}, memory=self.memory, training=SHORT)

    @cached_property
    def others(self) -> dict[str, Any]:
        return others(self.part)

    @property
    def trial(self) -> FleetRecipe:
        """Runs that differ in everything that runs of a fleet may differ in, and one that does not."""
        own = {name: value for name, value in self.others.items() if name in per_run(type(self.part))}
        return FleetRecipe((self.learner(), self.learner(**own), self.learner()))


def checks_of_learner(subject: CheckedPart) -> Iterator[Check]:
    """The most specific checks come first."""
    part, trial = subject.part, subject.trial
    if isinstance(part, Method):
        yield from named_checks(part, subject.name, *METHOD_CHECKS)
    elif isinstance(part, Projector):
        yield from named_checks(part, subject.name, *PROJECTOR_CHECKS)
    yield from named_checks(trial, subject.name, *(LOSS_CHECKS if isinstance(part, Loss) else ()), *FLEET_CHECKS)
    twice = (a_fleet_equals_its_runs_alone, an_interrupted_run_ends_as_if_it_had_not_been)
    several = [(what, form.trial, twice) for what, form in _forms(subject)]
    if isinstance(part, Method) and can_be_mixed(part):
        together = (a_fleet_equals_its_runs_alone, an_interrupted_fleet_ends_as_if_it_had_not_been)
        several.append(("other methods", _mixed(subject), together))
    for what, each, checks in several:
        for name, check in named_checks(each, f"{subject.name} with {what}", *checks):
            yield f"{name} with {what}", check
    calls = (what_is_unpickled_trains_the_same, two_calls_of_an_estimator_may_have_a_file_between_them)
    yield from named_checks(subject, subject.name, every_hyper_parameter_can_be_swept)
    yield from named_checks(trial, subject.name, *calls)
    if isinstance(part, Loss):
        yield from named_checks(trial, subject.name, a_compiled_step_is_the_eager_one)


def every_hyper_parameter_can_be_swept(subject: CheckedPart) -> None:
    """By `RunSpec(numbers=…)`: to JSON and back, under a hash of its own, and in training."""
    claim(
        _found(subject) is type(subject.part), f"Python does not find it as {subject.name}: define it in a module"
    )
    kind = type(subject.part)
    for name, hint in vars(kind).get("__annotations__", {}).items():
        claim(
            "ClassVar" in str(hint) or name in [each.name for each in fields(kind)],
            f"{name} cannot be set: decorate {kind.__name__} with @dataclass(frozen=True)",
        )
    for name, other in subject.others.items():
        value = getattr(subject.part, name)
        run, usual = subject.spec(**{name: other}), subject.spec(**{name: value})
        again = RunSpec.from_json(as_json(run.to_json()))
        claim(again == run and again.hash() == run.hash(), f"{name} = {other!r} does not come back from JSON")
        claim(run.hash() != usual.hash(), f"runs with {name} = {value!r} and {other!r} have the same hash")
        set_to = _part_of(run.learner(), subject)
        claim(getattr(set_to, name) == other, f"{name} = {other!r} is not what its learner has")
        for job in fleets([usual, run]):
            trial = FleetRecipe([spec.learner() for spec in job], training=SHORT)
            trial.trained()


def _forms(subject: CheckedPart) -> Iterator[tuple[str, CheckedPart]]:
    """A method also works with the proximal penalty, with per-example squares, and with a memory."""
    if isinstance(subject.part, Method):
        yield "penalty=proximal", replace(subject, part=replace(subject.part, penalty="proximal"))
        if subject.part.data_pass or "square" in subject.part.wants:
            yield "fisher=example", replace(subject, part=replace(subject.part, fisher="example"))
        yield "memory", replace(subject, memory=MEMORY)


def _mixed(subject: CheckedPart) -> FleetRecipe:
    """Runs of other methods before, between and after its own, as where methods share a fleet on a GPU."""
    one, two, three = subject.trial.learners
    others = [learner(name, subject.memory) for name in ("pi", "ewc++", "vanilla")]
    before, between = [each for each in others if type(each.method) is not type(subject.part)][:2]
    return FleetRecipe((before, one, two, between, three))


def _uses_memory(part: Loss | Projector) -> bool:
    """Whether it behaves differently with exemplars."""
    return part.replay is not None or (isinstance(part, Loss) and bool(part.tells_kept or part.keeps))


def _name_of(kind: type[Part]) -> str:
    own = vars(kind).get("name", "")
    return own if parts.parts().get(own) is kind else f"{kind.__module__}:{kind.__qualname__}"


def _found(subject: CheckedPart) -> Any:
    try:
        return parts.parts().get(subject.name) or imported(subject.name, "method")
    except InputError:
        return None


def _part_of(made: Learner, subject: CheckedPart) -> Any:
    if isinstance(subject.part, Method):
        return made.method
    if isinstance(subject.part, Solver):
        return made.solver
    return made.loss if isinstance(subject.part, Loss) else made.projector
