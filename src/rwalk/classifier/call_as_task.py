"""A call of `partial_fit` as one task: the state it leaves, and how a fleet continues from that state.

The training loop walks through a stream of tasks. An estimator gets one task per call, and only the exemplars are
left of earlier calls. So every call has a stream of its own, in which the exemplars stand for the tasks they came
from, and a fleet that is put before its last task. Held-out examples determine how long a call trains, and λ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rwalk.closed_form.features.vectors import moments
from rwalk.data.memory import Group
from rwalk.data.streams import Stream, Task
from rwalk.engine import architectures, snapshots
from rwalk.engine.architectures import Factory
from rwalk.engine.fleet import Fleet
from rwalk.engine.parameter_matrix import Layout
from rwalk.engine.progress import Progress
from rwalk.errors import InputError
from rwalk.learners import LAMS, Learner, with_lam
from rwalk.methods import Method
from rwalk.methods.method import State
from rwalk.seeds import generator, seeded
from rwalk.training import Training, steps_per_epoch

SHARE, SPARE = 0.1, 20  # held out of every class to see when training no longer pays, if it has so many
FOR_JUDGES = 0.2  # held out of every class, at most, to choose λ by
EVERY = 25  # steps between two looks at the examples held out
PATIENCE = 4  # looks without progress before training stops
PROGRESS = 0.01  # relative to the loss: less is none
LEARNED = 0.1  # a loss below which progress is relative to this one
AT_MOST = 1000  # examples looked at
CALIBRATED_BY = 50  # examples at least
STEPS, PASSES, SOON, MOST = 200, 20, 2, 5000  # see `longest`


@dataclass(frozen=True)
class Settings:
    """How calls are learned.

    every_lam  learn with every λ, and have one chosen
    measured   train as long as it pays, not for a fixed number of epochs
    """

    network: str | Factory
    learner: Learner
    training: Training
    device: torch.device
    every_lam: bool
    measured: bool

    def training_on(self, examples: int) -> Training:
        """The training of a call with so many examples, exemplars included; if it is measured, the longest one."""
        if not self.measured:
            return self.training
        return replace(self.training, steps=longest(examples, self.training.batch))


@dataclass(frozen=True)
class Knowledge:
    """All that was learned; classes are columns of the head."""

    seed: int
    tasks: int = 0
    last_seen: list[int] = field(default_factory=list)  # the task that last brought each class, −1 for none yet
    exemplars: dict[int, Tensor] = field(default_factory=dict)  # copies of inputs [m, *shape], by class
    theta: Tensor = field(default_factory=lambda: torch.empty(1, 0))  # the parameters [R, P], a run for every λ
    method: State = field(default_factory=dict)  # the method's vectors [R, P]
    buffer: State = field(default_factory=dict)  # the network's buffers [R, …]
    scale: State = field(default_factory=dict)  # what inputs are brought to scale by; nothing, if they are not
    judges: dict[int, Tensor] = field(default_factory=dict)  # inputs never trained on, by class, to choose λ by
    best: int = 0  # the run that is used
    sharpness: float = 1.0  # what its logits are multiplied by to be probabilities

    def moved(self, moves: Sequence[int], total: int) -> Knowledge:
        """The same with class c at column moves[c] of `total`; its tensors stay, `take_up` moves them."""
        last_seen = [-1] * total
        for column, task in zip(moves, self.last_seen, strict=True):
            last_seen[column] = task
        exemplars, judges = ({moves[c]: x for c, x in each.items()} for each in (self.exemplars, self.judges))
        return replace(self, last_seen=last_seen, exemplars=exemplars, judges=judges)

    def after(self, fleet: Fleet, inputs: Tensor, best: int = 0) -> Knowledge:
        """The knowledge after the fleet has learned the last task of its stream, these inputs.

        Runs share the exemplars that the best of them has chosen.
        """
        now = snapshots.take(fleet)
        lesson = fleet.stream.tasks[-1]
        kept = {}
        for group in now.groups:
            if group.label in lesson.classes:  # chosen anew; the others lose at most their last ones
                kept[group.label] = inputs[group.examples[best]]
            else:
                assert fleet.memory is not None
                kept[group.label] = self.exemplars[group.label][: fleet.memory.spec.quota(len(now.groups))]
        last_seen = [self.tasks if c in lesson.classes else task for c, task in enumerate(self.last_seen)]
        if fleet.memory is not None and fleet.memory.spec.total is not None:
            # Fewer exemplars than classes: the classes seen last have one each.
            latest = sorted(kept, key=lambda label: last_seen[label], reverse=True)
            kept = {label: kept[label] for label in sorted(latest[: fleet.memory.spec.total])}
        return replace(
            self,
            tasks=self.tasks + 1,
            last_seen=last_seen,
            exemplars=kept,
            theta=now.theta,
            method=now.method,
            buffer=now.buffer,
            best=best,
        )

    def scaled(self, x: Tensor) -> Tensor:
        """Inputs, scaled as the network expects them."""
        return (x - self.scale["centre"]) / self.scale["deviation"] if self.scale else x


@dataclass(frozen=True)
class Call:
    """The data of one call: its own examples and the knowledge so far, exemplars included."""

    x: Tensor
    y: Tensor  # columns of the head
    past: Knowledge

    @property
    def returning(self) -> list[int]:
        """The classes of this call that have exemplars already."""
        return [column for column in self.past.exemplars if column in self.y]

    @property
    def inputs(self) -> Tensor:
        """All that the exemplars of its classes are chosen from: its own examples, then the exemplars so far."""
        return torch.cat([self.x, *(self.past.exemplars[column] for column in self.returning)])


class Scaling(nn.Module):
    """Scales inputs as those that a network was trained on."""

    centre: Tensor
    deviation: Tensor

    def __init__(self, centre: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.register_buffer("centre", centre.clone())
        self.register_buffer("deviation", deviation.clone())

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.centre) / self.deviation


def stream_of(call: Call) -> tuple[Stream, list[Group]]:
    """A call's data as the last task of a stream, and the exemplars as the tasks before it.

    A class that returns brings its exemplars along: they are data of the new task, and the sampler chooses again
    from all of them. So every class is in one task, with one share of a batch and of the memory.
    """
    x, y, past = call.x, call.y, call.past
    present = set(y.tolist())
    returning = call.returning
    resting = sorted((past.last_seen[column], column) for column in past.exemplars if column not in present)
    columns = [*returning, *(column for _, column in resting)]
    counts = [len(past.exemplars[column]) for column in columns]
    numbers = torch.arange(len(x) + sum(counts)).split([len(x), *counts])
    new, old = numbers[: 1 + len(returning)], numbers[1 + len(returning) :]

    origins = sorted({task for task, _ in resting})
    groups = [
        Group(origins.index(task), column, examples[None])
        for (task, column), examples in zip(resting, old, strict=True)
    ]
    tasks = []
    for number in range(len(origins)):
        own = [group for group in groups if group.task == number]
        tasks.append(_task([group.label for group in own], torch.cat([group.examples[0] for group in own])))
    tasks.append(_task(sorted(present), torch.cat(new)))

    x = past.scaled(torch.cat([call.inputs, *(past.exemplars[column] for _, column in resting)]))
    y = torch.cat([y, *(torch.full((count,), column) for column, count in zip(columns, counts, strict=True))])
    names = tuple(str(column) for column in range(len(past.last_seen)))
    return Stream(x, y, x, y, tuple(tasks), names, "lessons"), groups


def _task(classes: list[int], examples: Tensor) -> Task:
    # There is no test data: the loop's accuracies at a task's end are those in training.
    return Task(tuple(classes), examples, examples)


def take_up(fleet: Fleet, past: Knowledge, layout: Layout, moves: Sequence[int], groups: list[Group]) -> None:
    """Put a fresh fleet where the last call ended, before the last task of its stream.

    `layout` is that of the network so far. Rows of its head go where their classes went. Rows of new classes stay
    as they begin, in θ and in the method's vectors. If the method begins without a vector, they are zero:
    importance 0 means no penalty. If there was one run so far, all runs continue from it.
    """
    check_method(fleet.learner.method, past)
    if layout.names != fleet.net.layout.names or past.buffer.keys() != fleet.net.buffers.keys():
        raise InputError("the network is not the one that learned so far: keep that, or call fit anew")
    begin = snapshots.take(fleet)
    for name in past.method:
        begin.method.setdefault(name, torch.zeros_like(begin.theta))
    vectors = [(past.theta, begin.theta), *((old, begin.method[name]) for name, old in past.method.items())]
    for run in range(fleet.runs):
        source = run if len(past.theta) > 1 else 0
        for name, old in past.buffer.items():
            _move_rows(old[source], begin.buffer[name][run], moves)
        for before, after in vectors:
            parts = zip(
                layout.split(before[source]).values(), fleet.net.layout.split(after[run]).values(), strict=True
            )
            for old_part, new_part in parts:
                _move_rows(old_part, new_part, moves)
    groups = [replace(group, examples=group.examples.expand(fleet.runs, -1).contiguous()) for group in groups]
    snapshots.restore(fleet, replace(begin, task=len(fleet.stream) - 1, groups=groups))


def _move_rows(old: Tensor, new: Tensor, moves: Sequence[int]) -> None:
    """Write `old` into `new`, which may have grown along one dimension: the one with one row per class."""
    if old.shape == new.shape:
        new.copy_(old)
        return
    grown = [d for d, (was, now) in enumerate(zip(old.shape, new.shape, strict=False)) if was != now]
    if old.ndim != new.ndim or len(grown) != 1 or old.shape[grown[0]] != len(moves):
        raise InputError(
            f"a parameter of the network goes from {list(old.shape)} to {list(new.shape)} as classes arrive, "
            "where only a dimension with one row per class can grow: announce all classes in the first partial_fit"
        )
    new.index_copy_(grown[0], torch.tensor(moves), old)


def check_method(method: Method, past: Knowledge) -> None:
    """The vectors held must be those this method makes, or it would misread them."""
    held = set(past.method)
    theta = torch.zeros(1, 1)
    made = method.start(theta)
    # A task may add vectors (EWC's do): one round more than there are vectors shows all that there can be.
    for _ in range(min(past.tasks, len(held) + 1)):
        method.consolidate(made, theta, theta)
    if held != set(made):
        name = type(method).__name__
        raise InputError(f"{name} is not the method that learned so far: keep that, or call fit anew")


# ── a trained network ──────────────────────────────────────────────────────────────────────────────────────────


def trained_network(network: str | Factory, shape: tuple[int, ...], classes: int, past: Knowledge) -> nn.Module:
    """The network as it was trained, a plain module with parameters of its own."""
    build = architectures.builder(network, shape, classes)
    with seeded(past.seed):
        module = build()
    values = Layout.of(module).split(past.theta[past.best])
    values |= {name: each[past.best] for name, each in past.buffer.items()}
    with torch.no_grad():
        for name, held in (*module.named_parameters(), *module.named_buffers()):
            held.copy_(values[name])
    return module.eval()


# ── learning a call ────────────────────────────────────────────────────────────────────────────────────────────


class Place(NamedTuple):
    """Where the classes of a network so far go in the one that learns now."""

    layout: Layout  # of the network so far
    moves: Sequence[int]


class Learned(NamedTuple):
    """The result of a call: the knowledge after it, and how training went."""

    knowledge: Knowledge
    lam: float
    steps: int
    right: Sequence[float]  # shares of the exemplars of earlier calls and, last, of the call's own data


def learned(call: Call, settings: Settings, so_far: Place | None) -> Learned:
    """Learn a call, and return the knowledge after it."""
    recipe = settings.learner
    held_out: HeldOut | None
    if settings.every_lam:
        assert recipe.memory is not None
        rest, held_out = with_judges(call, recipe.memory.quota(len(call.past.last_seen)))
        lams = LAMS if call.past.tasks else (1.0,)  # with nothing to hold yet, all would be the same
        recipes = [with_lam(recipe, lam) for lam in lams]
    else:
        rest, held_out = without(call) if settings.measured else (call, None)
        recipes = [recipe]
    fleet, steps = _trained(rest, recipes, settings, so_far, held_out if settings.measured else None)
    # Every run keeps its own λ from call to call: another one may be best in the long run.
    run = held_out.best_run(fleet) if held_out is not None and fleet.runs > 1 else 0
    if reason := fleet.stopped[run]:
        raise InputError(reason)
    before = replace(rest.past, exemplars=call.past.exemplars)  # those held out are kept like the others
    if held_out is not None:
        before = replace(before, sharpness=held_out.sharpness(fleet, run))
    right = fleet.accuracy["single"][run, -1].tolist()
    return Learned(before.after(fleet, rest.inputs, run), fleet.learners[run].lam, steps, right)


def scale_of(x: Tensor) -> dict[str, Tensor]:
    """Centre and deviation of every column, or of an image's every channel."""
    rows = x.movedim(1, -1).flatten(0, -2) if x.ndim > 2 else x
    centre, deviation = moments(rows.double(), torch.ones(len(rows), dtype=torch.float64))
    shape = (-1, *(1 for _ in x.shape[2:]))
    return {"centre": centre.float().view(shape), "deviation": deviation.float().view(shape)}


def _trained(
    call: Call, recipes: list[Learner], settings: Settings, so_far: Place | None, enough: HeldOut | None
) -> tuple[Fleet, int]:
    """A fleet that has learned the call, with as many runs as there are recipes; and its steps."""
    stream, exemplars = stream_of(call)
    training = settings.training_on(len(call.x) + sum(len(kept) for kept in call.past.exemplars.values()))
    seeds, gone = [call.past.seed] * len(recipes), call.past.tasks - (len(stream) - 1)
    known = [column for column, task in enumerate(call.past.last_seen) if task >= 0]
    fleet = Fleet(stream, settings.network, recipes, seeds, training, settings.device, past=gone, known=known)
    if so_far is not None:
        take_up(fleet, call.past, so_far.layout, so_far.moves, exemplars)
    news: list[Progress] = []
    fleet.train(news.append, enough=enough)
    return fleet, news[-1].step


# ── examples held out ──────────────────────────────────────────────────────────────────────────────────────────


class HeldOut:
    """Examples that are not trained on: training stops once their loss no longer falls."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y
        self.least = math.inf
        self.waited = 0

    def __len__(self) -> int:
        return len(self.x)

    def __call__(self, fleet: Fleet) -> bool:
        if not len(self) or fleet.step % EVERY:
            return False
        loss = float(self.losses(fleet).min())  # of several runs the best counts
        if loss < self.least - PROGRESS * max(self.least if self.least < math.inf else 0.0, LEARNED):
            self.least, self.waited = loss, 0
        else:
            self.waited += 1
        return self.waited >= PATIENCE

    def losses(self, fleet: Fleet) -> Tensor:
        """The mean over classes of their mean cross entropy, per run [R]."""
        return _losses(*self._outputs(fleet))

    def best_run(self, fleet: Fleet) -> int:
        """The run that recognises most, in the mean over classes; of equals the one of the least loss."""
        logits, y, share = self._outputs(fleet)
        right = ((logits.argmax(-1) == y) * share).sum(1).tolist()
        losses = _losses(logits, y, share).tolist()
        return max(range(fleet.runs), key=lambda run: (round(right[run], 9), -losses[run]))

    def sharpness(self, fleet: Fleet, run: int) -> float:
        """What logits are multiplied by to be most probable here: networks are surer than they should be."""
        if len(self) < CALIBRATED_BY or fleet.learner.classifier.needs_exemplars:
            return 1.0
        logits, y, share = self._outputs(fleet)
        factors = torch.logspace(-1.5, 0.5, 81).tolist()
        losses = [
            (cross_entropy(factor * logits[run], y[run], reduction="none") * share).sum() for factor in factors
        ]
        return float(factors[int(torch.stack(losses).argmin())])

    @torch.no_grad()
    def _outputs(self, fleet: Fleet) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [R, n, C] over the classes seen, labels [R, n], and what every example counts [n]."""
        x = self.x.to(fleet.theta)
        logits = fleet.net.forward_with_features(x.expand(fleet.runs, *x.shape), train=False)[1]
        seen = fleet.task_plan.new | fleet.task_plan.old
        y = self.y.to(logits.device)
        share = 1 / torch.bincount(y)[y] / len(y.unique())
        return logits.masked_fill(~seen, -torch.inf), y.expand(fleet.runs, -1), share


def without(call: Call) -> tuple[Call, HeldOut]:
    """The call without a share of every class's examples, old and new, and those examples."""
    draw = generator(call.past.seed, "held out", call.past.tasks)
    out = some_of_each(call.y, SHARE, SPARE, draw)
    kept, aside = {}, {}
    for column, x in call.past.exemplars.items():
        spared = some_of_each(torch.full((len(x),), column), SHARE, SPARE, draw)
        kept[column], aside[column] = x[~spared], x[spared]
    rest = Call(call.x[~out], call.y[~out], replace(call.past, exemplars=kept))
    return rest, _held_out(call, out, aside, draw)


def with_judges(call: Call, quota: int) -> tuple[Call, HeldOut]:
    """The call without some of its examples, which join the judges: examples of every class, never trained on.

    Exemplars were trained on in their own call, so they favour the run that changes least.
    """
    draw = generator(call.past.seed, "judges", call.past.tasks)
    out = some_of_each(call.y, FOR_JUDGES, 2, draw, at_most=quota)
    held_out = _held_out(call, out, call.past.judges, draw)
    judges = {column: x[:quota] for column, x in call.past.judges.items()}
    for column in call.y[out].unique().tolist():
        own = torch.cat([call.x[out & (call.y == column)], judges.get(column, call.x[:0])])
        judges[column] = own[torch.randperm(len(own), generator=draw)[:quota]]
    return Call(call.x[~out], call.y[~out], replace(call.past, judges=judges)), held_out


def _losses(logits: Tensor, y: Tensor, share: Tensor) -> Tensor:
    loss = cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
    return (loss.view_as(y).nan_to_num(torch.inf) * share).sum(1)


def _held_out(call: Call, out: Tensor, others: Mapping[int, Tensor], draw: torch.Generator) -> HeldOut:
    x = torch.cat([call.x[out], *others.values()])
    y = torch.cat([call.y[out], *(torch.full((len(x),), column) for column, x in others.items())])
    some = torch.randperm(len(x), generator=draw)[:AT_MOST]
    return HeldOut(call.past.scaled(x[some]), y[some])


def longest(examples: int, batch: int) -> int:
    """Steps of a call at most: many passes over everything, but a few examples are soon learned."""
    steps = PASSES * steps_per_epoch(examples, batch)
    return min(max(steps, min(STEPS, SOON * examples)), MOST)


def some_of_each(y: Tensor, share: float, least: int, draw: torch.Generator, at_most: int | None = None) -> Tensor:
    """Which examples [n] are held out: of every class the share, of those with fewer than the least none."""
    out = torch.zeros(len(y), dtype=torch.bool)
    for label in y.unique():
        own = (y == label).nonzero()[:, 0]
        if len(own) >= least:
            count = max(1, round(share * len(own)))
            out[own[torch.randperm(len(own), generator=draw)[: min(count, at_most or count)]]] = True
    return out
