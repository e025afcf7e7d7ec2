"""λ chosen by a run for itself (`lam="auto"`), from its training data alone.

A run that keeps exemplars may keep judges too, as `IncrementalClassifier(lam="auto")` does: of every class a fifth
of the training examples, but no more than it keeps exemplars, are learned by none of the trials, one per λ, and
asked about after the last task. A run that keeps nothing must not look back: its trials learn the first tasks
alone, and a fifth of their examples judge. The run itself then learns everything, with the λ that was best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from rwalk import metrics
from rwalk.data.streams import Stream
from rwalk.learners import LAMS
from rwalk.metrics import HEADS
from rwalk.studies.events import Event, Stepped, TaskMeasured, Trained, Watch
from rwalk.studies.executors import Executor
from rwalk.studies.references import ReferenceCache
from rwalk.studies.specs import RunSpec, StreamSpec, Trial

Streams = Callable[[StreamSpec], Stream]
FIRST_TASKS = 3  # that a run without exemplars chooses by
PROXIMAL = 1e3  # the proximal form needs a λ about so many times larger


class Choice(NamedTuple):
    """The λ of a run, and the average accuracy of every λ tried, on the judges."""

    lam: float
    judged: dict[str, float]


def trials_of(run: RunSpec, stream: Stream) -> list[RunSpec]:
    """What has to be trained before the run: itself with every λ, on a part of its training data."""
    trial = Trial(first=min(FIRST_TASKS, len(stream)))
    if run.memory is not None:
        trial = Trial(most=run.memory.quota(stream.classes))
    part = replace(run, stream=replace(run.stream, trial=trial), measure_every=None, calibration=False)
    times = PROXIMAL if run.numbers.get("penalty") == "proximal" else 1.0
    return [part.with_lam(times * lam) for lam in LAMS]


def judged_by(outcome: Mapping[str, Any]) -> dict[str, float]:
    """A trial's average accuracy after its last task, by head; one that diverged knows nothing."""
    if outcome["stopped"]:
        return dict.fromkeys(HEADS, 0.0)
    return {head: float(metrics.average_accuracy(np.array(outcome["accuracy"][head], float))) for head in HEADS}


def choose(run: RunSpec, trials: Sequence[RunSpec], judged: Mapping[str, Mapping[str, float]]) -> Choice:
    """The λ of the best trial; of equals the one nearest to the method's own."""
    head = "multi" if run.stream.scenario == "task" else "single"
    found = {trial.lam: judged[trial.hash()][head] for trial in trials}
    own = run.without_lam().lam

    def decades(lam: float) -> float:
        return abs(math.log10(lam / own)) if lam and own else math.inf

    best = max(found, key=lambda lam: (round(found[lam], 9), -decades(lam)))
    return Choice(best, {f"{lam:g}": accuracy for lam, accuracy in found.items()})


def trials_for(runs: Iterable[RunSpec], stream_of: Streams) -> list[RunSpec]:
    """The trials of those runs that seek their λ, each once; their data are built."""
    seeking = [run for run in runs if run.seeks_lam]
    found = [trial for run in seeking for trial in trials_of(run, stream_of(run.stream))]
    for trial in found:
        stream_of(trial.stream)
    return list({trial.hash(): trial for trial in found}.values())


def chosen(
    runs: Iterable[RunSpec], stream_of: Streams, judged: Mapping[str, Mapping[str, float]]
) -> dict[str, Choice]:
    """The choice of every run that seeks its λ, by the run's hash."""
    seeking = [run for run in runs if run.seeks_lam]
    return {run.hash(): choose(run, trials_of(run, stream_of(run.stream)), judged) for run in seeking}


def ready(
    runs: Iterable[RunSpec], choices: Mapping[str, Choice]
) -> tuple[list[RunSpec], dict[str, list[RunSpec]]]:
    """What is trained, with its λ; and by its hash the runs it is trained for: two may come to the same λ."""
    trained, owners = dict[str, RunSpec](), dict[str, list[RunSpec]]()
    for run in runs:
        spec = run.with_lam(choices[run.hash()].lam) if run.seeks_lam else run
        trained[spec.hash()] = spec
        owners.setdefault(spec.hash(), []).append(run)
    return list(trained.values()), owners


def train(trials: Sequence[RunSpec], executor: Executor, cache: ReferenceCache, watch: Watch) -> dict[str, Any]:
    """The accuracies of these trials on their judges, by hash; kept for the next study that asks."""
    judged = {}
    for job, outcomes in executor(trials, watch):
        for trial, outcome in zip(job, outcomes, strict=True):
            judged[trial.hash()] = judged_by(outcome)
            cache.remember(trial, judged[trial.hash()])
        executor.forget(job)
    return judged


def renamed(watch: Watch, names: Mapping[str, Sequence[RunSpec]]) -> Watch:
    """Tells of runs under the names of those they are trained for."""

    def tell(event: Event) -> None:
        if isinstance(event, Stepped | TaskMeasured | Trained):
            event = event._replace(runs=tuple(names.get(run.hash(), [run])[0] for run in event.runs))
        watch(event)

    return tell
