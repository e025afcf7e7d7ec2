"""Specs → trained runs → rows; runs that are already finished are not trained again."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rwalk.data.streams import Stream
from rwalk.engine.choose_execution import lacked
from rwalk.errors import InputError, unknown
from rwalk.studies import lambda_choice, provenance
from rwalk.studies.executor import DTYPES, Context, Executor, Outcomes, Result, fleet_of
from rwalk.studies.json_records import content_hash
from rwalk.studies.provenance import environment
from rwalk.studies.reference_cache import ReferenceCache
from rwalk.studies.rows import Description, ReferenceOutcome, Row, Rows
from rwalk.studies.specs import RunSpec, StreamSpec, learned_by, reference_of, steps_of
from rwalk.studies.study_events import RowDone, Started, Watch
from rwalk.studies.study_folder import Store
from rwalk.studies.worker_pool import Stop

REFERENCES = ("final", "all", "none")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Study:
    """Runs to compare, on one machine, with the references their intransigence is measured against.

    Args:
        runs: The runs, each listed once.
        reference: The tasks with a reference model: "final", "all" or "none".
        data: The folder of a dataset's files, or a file of your own.
        device: "cpu", "cuda" …
        workers: Processes that train; by default as many as the executor can use.
        cache: The folder of references shared by studies.
        checkpoint_every: Steps between checkpoints of a run; by default as often as 2 % of the time allows.
        executor: The class that trains runs.

    Raises:
        InputError: A run is listed twice, or a setting is unknown.
    """

    runs: tuple[RunSpec, ...]
    reference: str = "final"
    data: Path | str | None = None
    device: str = "cpu"
    workers: int | None = None
    cache: Path | None = None
    checkpoint_every: int | None = None
    executor: type[Executor] = Executor
    _streams: dict[StreamSpec, Stream] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.runs:
            raise InputError("a study needs at least one run")
        if self.reference not in REFERENCES:
            raise unknown("reference", self.reference, REFERENCES)
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers must be at least 1, not {self.workers}")
        if self.checkpoint_every is not None and self.checkpoint_every < 1:
            raise InputError(f"checkpoint_every must be at least 1, not {self.checkpoint_every}")
        self.executor.check_device(self.device)
        named = "cpu" if torch.device(self.device).type == "cpu" else str(self.device)  # not "cpu:0"
        object.__setattr__(self, "device", named)
        listed = set[str]()
        for run in self.runs:
            if run.dtype not in DTYPES:
                raise unknown("dtype", run.dtype, DTYPES)
            run.learner()
            if run.hash() in listed:
                strength = f" with λ = {run.lam:g}" if run.lam else ""
                raise InputError(f"{run.method}{strength}, seed {run.seed}, is listed twice: drop one")
            listed.add(run.hash())

    @classmethod
    def of(cls, description: Description, **where: Any) -> Study:
        """The study of a study.json; `where` it is to run (data, device, workers …) is not in the file."""
        return cls(description.runs, description.reference, **where)

    def hash(self) -> str:
        """A hash of the runs and references; the place of execution is not part of it."""
        return content_hash({"runs": [run.hash() for run in self.runs], "reference": self.reference})

    def stream(self, spec: StreamSpec) -> Stream:
        """The stream of a description, built once."""
        if spec not in self._streams:
            self._streams[spec] = spec.build(self.data)
        return self._streams[spec]

    def prepare(self) -> None:
        """Load the data and build a fleet of every kind, so that all its errors are raised now."""
        for spec in {(run.fleet_key(), run.group_key()): run for run in self.runs}.values():
            fleet_of("cpu", self.stream(spec.stream), [spec], fuse=False)  # without trying the compiler

    def describe(self) -> Description:
        """The content of study.json."""
        distinct = dict.fromkeys(run.stream for run in self.runs)
        data = tuple({"dataset": spec.dataset, "sha256": self.stream(spec).fingerprint()} for spec in distinct)
        return Description(self.hash(), self.runs, self.reference, data, environment(self.device))

    def current(self, rows: Iterable[Row], tell: Callable[[str], None] = lambda line: None) -> dict[str, Row]:
        """The rows, by hash, that this study's runs would give today; `tell` why not, for the others."""
        runs = {run.hash(): run for run in self.runs}
        found, reasons = {}, Counter[str]()
        for row in rows:
            if (run := runs.get(row.hash)) is None:
                continue
            # Data are compared only if they are loaded: looking at finished rows does not need them.
            loaded = self._streams.get(run.stream)
            data = None if loaded is None else loaded.fingerprint()
            outdated = provenance.outdated(row.made, run, data, self.device)
            if outdated:
                reasons["; ".join(outdated)] += 1
            else:
                found[row.hash] = row
        for reason, count in reasons.items():
            tell(f"{count} finished run{'s are' if count > 1 else ' is'} trained again: {reason}")
        return found

    def missing(self, done: Collection[str]) -> list[RunSpec]:
        """The runs whose hashes are not among those done."""
        return [run for run in self.runs if run.hash() not in done]

    def references(self, runs: Sequence[RunSpec] | None = None) -> list[RunSpec]:
        """The reference runs that this study needs, or some of its runs."""
        wanted: dict[str, RunSpec] = {}
        for run in () if self.reference == "none" else self.runs if runs is None else runs:
            last = len(self.stream(run.stream)) - 1
            for k in range(last + 1) if self.reference == "all" else [last]:
                spec = reference_of(run, k)
                wanted[spec.hash()] = spec
        return list(wanted.values())

    def steps(self, spec: RunSpec) -> int:
        """All steps of a run, for time estimates."""
        stream = learned_by(spec, self.stream(spec.stream))
        return steps_of(spec, stream, len(stream))

    def execute(
        self,
        store: Store | None = None,
        watch: Watch = lambda event: None,
        stop: Stop = lambda: False,
    ) -> Rows:
        """Train the missing runs; unfinished ones resume from their checkpoints in the store.

        Args:
            store: Rows are written to it as they finish.
            watch: Takes the events.
            stop: Checked continually; once it is true, all runs are saved and KeyboardInterrupt is raised.

        Returns:
            The rows that exist now, in the order of the runs.
        """
        if store is not None and not (isinstance(store, Store) and store.is_open):
            raise InputError("open the folder first: `with Store(folder).opened(study.describe()) as store: ...`")
        done = self.current(store.rows() if store else [], tell=logger.warning)
        if missing := self.missing(done):
            references, trials = self.references(missing), lambda_choice.trials_for(missing, self.stream)
            cache = ReferenceCache(self._context(None), self.cache)  # once the data of trials are built
            tried = {trial.hash(): trial for each in trials.values() for trial in each}
            known, accuracies = cache.recall_all(references), cache.recall_all(tried.values())
            untrained = [spec for spec in references if spec.hash() not in known]
            untried = [spec for spec in tried.values() if spec.hash() not in accuracies]
            watch(Started((*untrained, *untried, *missing), len(self.runs)))
            with self._executor(len(untrained) + len(untried) + len(missing), store, stop) as executor:
                for job, outcomes in executor.train(untried, watch):
                    for trial, outcome in zip(job, outcomes, strict=True):
                        accuracies[trial.hash()] = lambda_choice.tested(outcome)  # type: ignore[arg-type]
                        cache.remember(trial, accuracies[trial.hash()])
                    executor.forget(job)
                seeking = [run for run in missing if run.seeks_lam]
                choices = {
                    run.hash(): lambda_choice.best_lam(run, trials[run.hash()], accuracies) for run in seeking
                }
                ready, owners = lambda_choice.ready(missing, choices)
                # References and runs together, so that no worker waits for the last reference.
                finished = executor.train([*untrained, *ready], lambda_choice.renamed(watch, owners))
                for job, outcomes in self._with_references(finished, untrained, known, cache, executor):
                    pairs = zip(job, outcomes, strict=True)
                    new = [self._row(run, o, known, choices) for spec, o in pairs for run in owners[spec.hash()]]
                    if store:
                        store.add(*new)
                    executor.forget(job)
                    for row in new:
                        done[row.hash] = row
                        watch(RowDone(row))
        rows = Rows(done[known] for known in (run.hash() for run in self.runs) if known in done)
        without = sum(bool(lacked(row.made.execution or "")) for row in rows)
        if missing and 0 < without < len(rows):
            logger.warning(
                "%d of %d runs were trained without a compiler: results differ from compiled runs",
                without,
                len(rows),
            )
        if store:
            store.settle(rows, stop)
        return rows

    def _row(
        self,
        run: RunSpec,
        outcome: Result,
        known: Mapping[str, ReferenceOutcome],
        choices: Mapping[str, lambda_choice.Choice],
    ) -> Row:
        """The row of a run, with the references that it needs: other runs may need more of the same models."""
        own = {each.hash(): known.get(each.hash()) for each in self.references([run])}
        return Row.of(run, outcome, own, *choices.get(run.hash(), ()))  # type: ignore[arg-type]

    def _with_references(
        self,
        finished: Iterable[Outcomes],
        untrained: Sequence[RunSpec],
        known: dict[str, ReferenceOutcome],
        cache: ReferenceCache,
        executor: Executor,
    ) -> Iterator[Outcomes]:
        """The runs among runs and references that were trained together, once all their references are `known`."""
        awaited, held = {spec.hash() for spec in untrained}, list[Outcomes]()
        for job, outcomes in finished:
            if job[0].reference is None:
                held.append((job, outcomes))
            else:
                awaited -= {spec.hash() for spec in job}
                for spec, outcome in zip(job, outcomes, strict=True):
                    if outcome.stopped:
                        logger.warning("%s has no reference, so I is unknown: %s", _named(spec), outcome.stopped)
                    else:
                        known[spec.hash()] = outcome  # type: ignore[assignment]
                        cache.remember(spec, known[spec.hash()])
                executor.forget(job)
            waits = [any(spec.hash() in awaited for spec in self.references(runs)) for runs, _ in held]
            yield from [each for each, waiting in zip(held, waits, strict=True) if not waiting]
            held = [each for each, waiting in zip(held, waits, strict=True) if waiting]

    def _executor(self, jobs: int, store: Store | None, stop: Stop) -> Executor:
        workers = self.executor.workers_for(jobs, self.device, self.workers)
        return self.executor(self._context(store), workers, stop)

    def _context(self, store: Store | None) -> Context:
        for spec in self.runs:
            self.stream(spec.stream)
        checkpoints = store.checkpoints if store else None
        where = (self.device, dict(self._streams), checkpoints, self.checkpoint_every)
        return Context(*where, provenance.commit())


def _named(spec: RunSpec) -> str:
    return f"seed {spec.seed} on {spec.stream.dataset}, tasks 1 to {(spec.reference or 0) + 1},"
