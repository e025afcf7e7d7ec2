"""A part in training: small fleets on a small stream, and the checks for each of them."""

from __future__ import annotations

import json
import pickle
import random
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rwalk.classifier.estimator import IncrementalClassifier
from rwalk.data.splits import from_arrays
from rwalk.data.streams import Stream
from rwalk.engine import architectures, snapshots
from rwalk.engine.fleet import Fleet
from rwalk.engine.snapshots import Snapshot
from rwalk.engine.task_plan import batches_of
from rwalk.errors import InputError
from rwalk.learners import Learner
from rwalk.studies.checkpoint import Checkpointer
from rwalk.testing.check_tools import claim, claim_close
from rwalk.training import Training

SHAPE = (8,)
BRIEF = Training(steps=5, batch=8)
LEARNED = 0.75  # of the test examples of two classes: half of them are right by chance
INTERRUPTIONS = ((0, 2), (1, 0), (1, 3))  # (task, step): within the first task, at its end, within the second


class Tiny(nn.Module):
    """What makes fleets and resuming hard: batch statistics, which move while training, and dropout."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        # No bias before the norm: its gradient is zero up to rounding, which Adam turns into whole steps.
        self.body = nn.Linear(torch.Size(shape).numel(), 12, bias=False)
        self.norm = nn.BatchNorm1d(12)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(12, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.dropout(torch.relu(self.norm(self.body(x.flatten(1))))))
        return out


@cache
def cloud_stream(shape: tuple[int, ...] = SHAPE, tasks: int = 2) -> Stream:
    """Tasks of two classes, each a cloud around a point of its own: easy, but not trivial."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(2 * tasks).repeat_interleave(20)
    x = torch.randn(len(y), *shape, generator=draw) + 2 * torch.randn(2 * tasks, *shape, generator=draw)[y]
    return from_arrays(x, y, classes_per_task=2)


@dataclass(frozen=True)
class FleetRecipe:
    """What fleets are made from here; one learner per run."""

    learners: Sequence[Learner] = (Learner(), Learner())
    network: str | architectures.Factory = Tiny
    stream: Stream = field(default_factory=cloud_stream)
    training: Training = BRIEF

    def fleet(self, runs: Sequence[int] | None = None, **how: Any) -> Fleet:
        """All runs together, or some of them; in float64 by default."""
        chosen = range(len(self.learners)) if runs is None else runs
        learners, seeds = [self.learners[run] for run in chosen], [3 + run for run in chosen]
        return Fleet(self.stream, self.network, learners, seeds, self.training, **{"dtype": torch.float64, **how})

    def trained(self, runs: Sequence[int] | None = None, **how: Any) -> Fleet:
        fleet = self.fleet(runs, **how)
        fleet.train()
        for reason in fleet.stopped:
            claim(reason is None, f"training does not stay finite: {reason}")
        return fleet


def rounding(trial: FleetRecipe) -> float:
    """How far rounding may drive apart two trainings in float64 that differ only in the order of their sums.

    A gradient, a sum of some hundred terms of size one at most, is good to a hundred ε. SGD makes a step of lr
    times that. Adam divides by √v + 1e-8 first: where a gradient is next to zero, its step is off by up to lr /
    1e-8 times that. A mistake moves parameters by far more.
    """
    training, stream = trial.training, trial.stream
    steps = sum(trial.learners[0].steps(training, stream, k) for k in range(len(stream)))
    steepest = training.lr / (1e-8 if training.optimizer == "adam" else 1.0)
    return 100 * torch.finfo(torch.float64).eps * steepest * steps


def a_fleet_equals_its_runs_alone(trial: FleetRecipe) -> None:
    near, together = rounding(trial), trial.trained()
    for run in range(together.runs):
        alone = trial.trained([run])
        who = f"run {run} ends differently in a fleet than alone: something crosses runs, or draws for all of them"
        claim_close(together.theta[run], alone.theta[0], near, who)
        for name, buffer in alone.net.buffers.items():
            if buffer.is_floating_point():
                claim_close(together.net.buffers[name][run], buffer[0], near, f"{who}; see its buffer {name}")
            else:
                claim(together.net.buffers[name][run].equal(buffer[0]), f"{who}; see its buffer {name}")
        ours, theirs = together.state_of(run), alone.state
        claim(ours.keys() == theirs.keys(), f"{who}; it knows {sorted(ours)} there, and {sorted(theirs)} alone")
        for name, vector in theirs.items():
            claim_close(
                ours[name], vector, 1e-4 * (1 + float(vector.abs().max())), f"{who}; see its vector {name}"
            )
        if alone.memory and together.memory:
            kept = zip(alone.memory.groups, together.memory.groups, strict=True)
            same = all(one.examples[0].equal(both.examples[run]) for one, both in kept)
            claim(same, f"run {run} keeps other exemplars in a fleet than alone")


def an_interrupted_run_ends_as_if_it_had_not_been(trial: FleetRecipe) -> None:
    """Bit for bit, through checkpoint files, of a run alone and of a fleet."""
    _claim_it_resumes(trial, [0])
    _claim_it_resumes(trial, None)


def an_interrupted_fleet_ends_as_if_it_had_not_been(trial: FleetRecipe) -> None:
    _claim_it_resumes(trial, None)


class _Moments:
    """Writes a checkpoint at every one of the INTERRUPTIONS, while training continues."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def at(self, task: int, step: int) -> Checkpointer:
        return Checkpointer(self.folder / f"{task}-{step}", "check")

    def due(self, fleet: Fleet) -> bool:
        return (fleet.task, fleet.step) in INTERRUPTIONS

    def save(self, fleet: Fleet) -> None:
        self.at(fleet.task, fleet.step).save(fleet)


def _claim_it_resumes(trial: FleetRecipe, runs: Sequence[int] | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        moments = _Moments(Path(folder))
        fleet = trial.fleet(runs)
        fleet.train(checkpoints=moments)
        whole = snapshots.take(fleet)
        for at in INTERRUPTIONS:
            where = f"task {at[0] + 1}, step {at[1]}" if at[1] else f"the end of task {at[0]}"
            rest = trial.fleet(runs)
            for remark in moments.at(*at).resume(rest):
                raise AssertionError(f"its checkpoint at {where} is refused: {remark}")
            reached = (rest.task, rest.step)
            claim(reached == at, f"a checkpoint at {where} leads to task {reached[0] + 1}, step {reached[1]}")
            rest.train()
            different = _first_difference(snapshots.take(rest), whole)
            claim(
                different is None,
                f"a run interrupted at {where} ends differently: {different} differs, so it depends on something "
                "that is not in the state",
            )


def _first_difference(one: Snapshot, other: Snapshot) -> str | None:
    ours, theirs = one.tensors(), other.tensors()
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs:
            return name
        if ours[name].shape != theirs[name].shape or not _same_bits(ours[name], theirs[name]):
            return name
    return None if one.counters() == other.counters() else "a counter"


def _same_bits(one: Tensor, other: Tensor) -> bool:
    both_nan = one.isnan() & other.isnan()
    return one.dtype == other.dtype and bool(((one == other) | both_nan).all())


def no_global_random_state_is_consumed(trial: FleetRecipe) -> None:
    def states() -> dict[str, bytes]:
        numpys: Any = np.random.get_state()  # noqa: NPY002 - it is looked at, not used
        return {
            "torch": torch.get_rng_state().numpy().tobytes(),
            "numpy": pickle.dumps(numpys),
            "random": pickle.dumps(random.getstate()),
        }

    before = states()
    trial.trained()
    for name, state in states().items():
        claim(
            state == before[name],
            f"it draws from the global random state of {name}, so that no run can be repeated: draw from the "
            "generators that are given, or from rwalk.seeds.generator",
        )


def its_state_goes_through_a_snapshot_unchanged(trial: FleetRecipe) -> None:
    fleet = trial.trained()
    for name, vector in fleet.state.items():
        claim(
            vector.shape == fleet.theta.shape and vector.dtype == fleet.theta.dtype,
            f"its vector {name!r} is {vector.dtype} {list(vector.shape)}, not like θ {list(fleet.theta.shape)}",
        )
    for name, tensor in fleet.loss_state.items():
        rows = tensor.dim() == 0 or len(tensor) == fleet.runs
        claim(rows, f"its state {name!r} is {list(tensor.shape)}: the first dimension must be the runs'")
    taken = snapshots.take(fleet)
    counters = json.loads(json.dumps(taken.counters()))
    different = _first_difference(Snapshot.of(taken.tensors(), counters), taken)
    claim(different is None, f"{different} does not come back from a snapshot's tensors and counters")


def other_types_of_numbers_stay_what_they_are(trial: FleetRecipe) -> None:
    """Checks elsewhere compute in float64; most training is in float32."""
    fleet = trial.trained(dtype=torch.float32)
    states = (fleet.state, fleet.loss_state, fleet.optimizer.state, fleet.net.buffers)
    for name, tensor in (item for state in states for item in state.items()):
        claim(tensor.dtype != torch.float64, f"{name!r} is in float64 where the network is in float32")
    claim(fleet.theta.dtype == torch.float32, f"the network becomes {fleet.theta.dtype}")


def what_is_unpickled_trains_the_same(trial: FleetRecipe) -> None:
    """As in a worker process, or in a classifier that was pickled."""
    learners: Sequence[Learner] = pickle.loads(pickle.dumps(list(trial.learners)))
    runs = [0, min(1, len(learners) - 1)][: len(learners)]
    again = replace(trial, learners=learners).trained(runs)
    different = _first_difference(snapshots.take(again), snapshots.take(trial.trained(runs)))
    claim(different is None, f"it trains differently after it was pickled: {different} differs")


def two_calls_of_an_estimator_may_have_a_file_between_them(trial: FleetRecipe) -> None:
    """New classes arrive in the second call. Between the calls nothing happens, or it is pickled, or saved."""
    first = trial.learners[0]
    part = next((each for each in (first.projector, first.loss) if each is not None and each.name), first.method)
    memory = first.memory.per_class if first.memory else None
    x, y, half = trial.stream.x.numpy(), trial.stream.y.numpy(), 2
    params: dict[str, Any] = {"method": part, "network": trial.network, "memory": memory, "sampler": "uniform"}
    params |= {"batch_size": 8, "epochs": 1, "random_state": 3}

    def pickled(classifier: IncrementalClassifier) -> IncrementalClassifier:
        return pickle.loads(pickle.dumps(classifier))  # type: ignore[no-any-return]

    def saved(classifier: IncrementalClassifier) -> IncrementalClassifier:
        with tempfile.TemporaryDirectory() as folder:
            classifier.save(Path(folder, "file"))
            return IncrementalClassifier.load(Path(folder, "file"), method=part, network=trial.network)

    answers = []
    for between in (lambda classifier: classifier, pickled, saved):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that learning without exemplars is hard
            classifier = IncrementalClassifier(**params)
            try:
                classifier.partial_fit(x[y < half], y[y < half])
            except InputError:  # some methods cannot learn one call at a time, which the estimator refuses
                return
            classifier = between(classifier)
            classifier.partial_fit(x[y >= half], y[y >= half])
        answers.append(classifier.predict_proba(x))
    for answer, what in zip(answers[1:], ("pickled", "saved"), strict=True):
        claim(
            np.array_equal(answer, answers[0]),
            f"a classifier that was {what} between two calls continues differently: it depends on something that "
            "is not in the state",
        )


def it_learns(trial: FleetRecipe) -> None:
    """The first task, which is easy: the loss falls, and the classes are distinguished."""
    longer = Training(steps=40, batch=16, lr=0.01, augment=trial.training.augment)
    fleet = FleetRecipe(trial.learners[:1], trial.network, trial.stream, longer).fleet()
    fleet.begin_task()
    losses = []
    for batch in batches_of(fleet):
        losses.append(float(fleet.execution.step(*batch)[0]))
        fleet.step += 1
    fleet.end_task()
    first, last = float(np.mean(losses[:5])), float(np.mean(losses[-5:]))
    if fleet.learner.solver is None:  # a solver takes no steps
        what = f"an easy task's loss goes from {first:.3g} to {last:.3g} in 40 steps"
        claim(last < first, f"it does not learn: {what}")
    right = float(fleet.accuracy["multi"][0, 0, 0])
    claim(right >= LEARNED, f"it does not learn: of an easy task of two classes it gets {right:.0%} right")


FLEET_CHECKS = (
    no_global_random_state_is_consumed,
    its_state_goes_through_a_snapshot_unchanged,
    a_fleet_equals_its_runs_alone,
    an_interrupted_run_ends_as_if_it_had_not_been,
    other_types_of_numbers_stay_what_they_are,
    it_learns,
)
