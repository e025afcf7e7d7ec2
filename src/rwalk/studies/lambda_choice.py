"""λ chosen by a run for itself (`lam="auto"`), from its training data alone.

A run with a memory holds out examples beside its exemplars, as `IncrementalClassifier(lam="auto")` does: a
fifth of every class's training examples, at most as many as exemplars. One trial per λ learns the rest, and is
tested on them after the last task. A run without a memory must not look back: its trials learn the first tasks
alone, and a fifth of the examples of those is held out. The run then learns everything, with the best λ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rwalk import metrics
from rwalk.data.streams import Stream
from rwalk.learners import LAMS
from rwalk.metrics import HEADS
from rwalk.studies.rows import Outcome, ReferenceOutcome
from rwalk.studies.specs import RunSpec, StreamSpec, Trial
from rwalk.studies.study_events import Event, Stepped, Trained, Watch

Streams = Callable[[StreamSpec], Stream]
FIRST_TASKS = 3  # that a run without exemplars chooses by
PROXIMAL = 1e3  # the proximal form needs a λ about so many times larger


class Choice(NamedTuple):
    """The λ of a run, and the average accuracy of every λ tried, on held-out examples."""

    lam: float
    tried: dict[str, float]


def trials_of(run: RunSpec, stream: Stream) -> list[RunSpec]:
    """The trials of a run: the run itself with every λ, on a part of its training data."""
    trial = Trial(first=min(FIRST_TASKS, len(stream)))
    if run.memory is not None:
        trial = Trial(most=run.memory.quota(stream.classes))
    part = replace(run, stream=replace(run.stream, trial=trial), measure_every=None, calibration=False)
    times = PROXIMAL if run.numbers.get("penalty") == "proximal" else 1.0
    return [part.with_lam(times * lam) for lam in LAMS]


def tested(outcome: Outcome) -> ReferenceOutcome:
    """A trial's average accuracies after its last task; 0 if it diverged."""
    matrices = (np.array(outcome.accuracy[head], dtype=float) for head in HEADS)
    single, multi = (0.0 if outcome.stopped else float(metrics.average_accuracy(a)) for a in matrices)
    return ReferenceOutcome(single, multi, execution=outcome.made.execution or "")


def best_lam(run: RunSpec, trials: Sequence[RunSpec], accuracies: Mapping[str, ReferenceOutcome]) -> Choice:
    """The λ of the best trial; of equals the one nearest to the method's own."""
    head = "multi" if run.stream.scenario == "task" else "single"
    found = {trial.lam: float(getattr(accuracies[trial.hash()], head)) for trial in trials}
    own = run.without_lam().lam

    def decades(lam: float) -> float:
        return abs(math.log10(lam / own)) if lam and own else math.inf

    best = max(found, key=lambda lam: (round(found[lam], 9), -decades(lam)))
    return Choice(best, {f"{lam:g}": accuracy for lam, accuracy in found.items()})


def trials_for(runs: Iterable[RunSpec], stream_of: Streams) -> dict[str, list[RunSpec]]:
    """The trials of those runs that seek their λ, by the runs' hashes; their data are built."""
    found = {run.hash(): trials_of(run, stream_of(run.stream)) for run in runs if run.seeks_lam}
    for trials in found.values():
        stream_of(trials[0].stream)
    return found


def ready(
    runs: Iterable[RunSpec], choices: Mapping[str, Choice]
) -> tuple[list[RunSpec], dict[str, list[RunSpec]]]:
    """The runs to train, each with its λ, and by their hashes their owners: two runs may choose the same λ."""
    trained, owners = dict[str, RunSpec](), dict[str, list[RunSpec]]()
    for run in runs:
        spec = run.with_lam(choices[run.hash()].lam) if run.seeks_lam else run
        trained[spec.hash()] = spec
        owners.setdefault(spec.hash(), []).append(run)
    return list(trained.values()), owners


def renamed(watch: Watch, names: Mapping[str, Sequence[RunSpec]]) -> Watch:
    """Passes events on, with the owners instead of the runs that are trained for them."""

    def tell(event: Event) -> None:
        if isinstance(event, Stepped | Trained):
            event = event._replace(runs=tuple(names.get(run.hash(), [run])[0] for run in event.runs))
        watch(event)

    return tell
