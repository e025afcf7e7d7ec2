"""Specs → trained runs → rows; runs that are already finished are not trained again."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rwalk.data.streams import Stream
from rwalk.engine.execution import lacked
from rwalk.errors import InputError, unknown
from rwalk.studies import lams, provenance
from rwalk.studies.environment import environment
from rwalk.studies.events import Finished, RowDone, Started, Stopped, Watch
from rwalk.studies.executors import DTYPES, Context, Executor, Job, Keep, fleet_of
from rwalk.studies.executors import find as find_executor
from rwalk.studies.references import ReferenceCache, once_known
from rwalk.studies.rows import SCHEMA, Row, row_of
from rwalk.studies.specs import RunSpec, StreamSpec, content_hash, learned_by, reference_of, steps_of
from rwalk.studies.store import Store, hash_of
from rwalk.studies.workers import Stop

UNREADABLE = (TypeError, ValueError, KeyError, AttributeError)  # what a malformed record raises
REFERENCES = ("final", "all", "none")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Study:
    """Runs to compare, on one machine, with the references their intransigence is measured against.

    reference         of which tasks: final, all or none, for all runs or for each
    checkpoint_every  steps between checkpoints of a run; by default as often as 2 % of the time allows
    executor          where runs are trained: an executor's name, or `package.module:Name`
    keep              called with the runs of a fleet, and the fleet, once it has learned all its tasks:
                      `rwalk.models.Keeper` writes their networks
    """

    runs: tuple[RunSpec, ...]
    reference: str | tuple[str, ...] = "final"
    data: Path | str | None = None
    device: str = "cpu"
    workers: int | None = None
    cache: Path | None = None
    checkpoint_every: int | None = None
    executor: str = "local"
    keep: Keep | None = None
    _streams: dict[StreamSpec, Stream] = field(default_factory=dict, repr=False)
    _kinds: dict[str, str] = field(default_factory=dict, init=False, repr=False)  # of reference, by a run's hash

    def __post_init__(self) -> None:
        if not self.runs:
            raise InputError("a study needs at least one run")
        kinds = (self.reference,) * len(self.runs) if isinstance(self.reference, str) else self.reference
        if len(kinds) != len(self.runs):
            raise InputError(f"{len(kinds)} references for {len(self.runs)} runs: give one, or one each")
        for run, kind in zip(self.runs, kinds, strict=True):
            if kind not in REFERENCES:
                raise unknown("reference", kind, REFERENCES)
            self._kinds[run.hash()] = kind
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers must be at least 1, not {self.workers}")
        if self.checkpoint_every is not None and self.checkpoint_every < 1:
            raise InputError(f"checkpoint_every must be at least 1, not {self.checkpoint_every}")
        find_executor(self.executor).check_device(self.device)
        names: dict[str, RunSpec] = {}
        for run in self.runs:
            if run.dtype not in DTYPES:
                raise unknown("dtype", run.dtype, DTYPES)
            run.learner()
            if names.setdefault(run.hash(), run) is not run:
                strength = f" with λ = {run.lam:g}" if run.lam else ""
                raise InputError(f"{run.method}{strength}, seed {run.seed}, is listed twice: drop one")

    @classmethod
    def from_json(cls, record: Mapping[str, Any], **where: Any) -> Study:
        """The study that a study.json describes; `where` it is to run (data, device, workers …) is not in it."""
        runs = runs_of(record)
        try:
            reference = record["reference"]
            study = cls(runs, tuple(reference) if isinstance(reference, list) else reference, **where)
            expected = hash_of(record)
        except InputError:
            raise
        except UNREADABLE as error:
            raise _unreadable(error) from None
        if record.get("hash") != expected:
            raise InputError("study.json was altered (its settings do not match its hash): restore it")
        return study

    def hash(self) -> str:
        """A hash of what the study is, its runs and references, but not of where it runs."""
        return content_hash({"runs": [run.hash() for run in self.runs], "reference": self.reference})

    def stream(self, spec: StreamSpec) -> Stream:
        if spec not in self._streams:
            self._streams[spec] = spec.build(self.data)
        return self._streams[spec]

    def prepare(self) -> None:
        """Load the data and build a fleet of every kind, so that whatever is wrong with the study is found now."""
        for spec in {(run.fleet_key(), run.walker_key()): run for run in self.runs}.values():
            fleet_of("cpu", self.stream(spec.stream), [spec], fuse=False)  # to be looked at: no compiler is tried

    def describe(self) -> dict[str, Any]:
        """The content of study.json."""
        distinct = dict.fromkeys(run.stream for run in self.runs)
        data = [{"dataset": spec.dataset, "sha256": self.stream(spec).fingerprint()} for spec in distinct]
        return {
            "schema": SCHEMA,
            "hash": self.hash(),
            "runs": [run.to_json() for run in self.runs],
            "reference": self.reference,
            "data": data,  # a folder of images may change without changing its name
            "environment": environment(self.device),
        }

    def current(self, rows: Iterable[Row], tell: Callable[[str], None] = lambda line: None) -> dict[str, Row]:
        """The rows, by hash, that this study's runs would give today; `tell` why not, for the others."""
        runs = {run.hash(): run for run in self.runs}
        found, reasons = {}, Counter[str]()
        for row in rows:
            if (run := runs.get(row["hash"])) is None:
                continue
            # Data are compared only if they are loaded: looking at finished rows does not need them.
            loaded = self._streams.get(run.stream)
            data = None if loaded is None else loaded.fingerprint()
            outdated = provenance.outdated(row["made"], run, data, self.device)
            if outdated:
                reasons["; ".join(outdated)] += 1
            else:
                found[row["hash"]] = row
        for reason, count in reasons.items():
            tell(f"{count} finished run{'s are' if count > 1 else ' is'} trained again: {reason}")
        return found

    def missing(self, done: Collection[str], only: Collection[str] | None = None) -> list[RunSpec]:
        """The runs whose hashes are not among those done; `only` those of these methods, if given."""
        return [run for run in self.runs if run.hash() not in done and (not only or run.method in only)]

    def references(self, runs: Sequence[RunSpec] | None = None) -> list[RunSpec]:
        """The reference runs that this study needs, or some of its runs."""
        wanted = {}
        for run in self.runs if runs is None else runs:
            # A run that goes by a λ it chose is none of `runs`: it may wait for any of its references.
            kind = self._kinds.get(run.hash(), "all" if isinstance(self.reference, tuple) else self.reference)
            if kind == "none":
                continue
            last = len(self.stream(run.stream)) - 1
            for k in range(last + 1) if kind == "all" else [last]:
                spec = reference_of(run, k)
                wanted[spec.hash()] = spec
        return list(wanted.values())

    def unknown_references(self, runs: Sequence[RunSpec]) -> list[RunSpec]:
        """The references of these runs that no earlier study has trained."""
        cache = ReferenceCache(self._context(None), self.cache)
        return [spec for spec in self.references(runs) if cache.recall(spec) is None]

    def steps(self, spec: RunSpec) -> int:
        """All steps of a run, for time estimates."""
        stream = learned_by(spec, self.stream(spec.stream))
        return steps_of(spec, stream, len(stream))

    def execute(
        self,
        store: Store | None = None,
        watch: Watch = lambda event: None,
        stop: Stop = lambda: False,
        only: Collection[str] | None = None,
    ) -> list[Row]:
        """Run what is missing; rows in the order of `runs`, written to the store as they finish.

        Unfinished runs resume from their checkpoints in the store. `stop` is asked continually: once it says yes,
        runs in progress are saved and KeyboardInterrupt is raised. If `only` is given, only runs of these methods
        are run, and the rows that exist afterwards are returned.
        """
        done = self.current(store.rows() if store else [], tell=logger.warning)
        missing = self.missing(done, only)
        try:
            self._train_missing(missing, done, store, watch, stop)
        except BaseException as error:
            watch(Stopped(len(done), len(self.runs), str(error) or type(error).__name__))
            raise
        rows = [done[known] for known in (run.hash() for run in self.runs) if known in done]
        without = sum(bool(lacked(row["made"].get("execution", ""))) for row in rows)
        if missing and 0 < without < len(rows):
            logger.warning(
                "%d of %d runs were trained without a compiler: results differ from compiled runs",
                without,
                len(rows),
            )
        if store:
            (store.settle if len(rows) == len(self.runs) else store.rest)(rows)
        watch(Finished(tuple(rows)))
        return rows

    def _train_missing(
        self, missing: list[RunSpec], done: dict[str, Row], store: Store | None, watch: Watch, stop: Stop
    ) -> None:
        """Train these runs, and their references where necessary; their rows are added to `done`."""
        if not missing:
            return
        trials = lams.trials_for(missing, self.stream)
        references, cache = self.references(missing), ReferenceCache(self._context(None), self.cache)
        known = {spec.hash(): cache.recall(spec) for spec in references}
        untrained = [spec for spec in references if known[spec.hash()] is None]
        judged = {spec.hash(): found for spec in trials if (found := cache.recall(spec)) is not None}
        untried = [spec for spec in trials if spec.hash() not in judged]
        watch(Started((*untrained, *untried, *missing), len(self.runs)))
        with self._executor(len(untrained) + len(untried) + len(missing), store, stop) as executor:
            judged |= lams.train(untried, executor, cache, watch)
            choices = lams.chosen(missing, self.stream, judged)
            ready, owners = lams.ready(missing, choices)

            def learn(job: Job, outcomes: Sequence[Any]) -> None:
                for spec, outcome in zip(job, outcomes, strict=True):
                    if reason := outcome["stopped"]:
                        logger.warning("%s has no reference, so I is unknown: %s", _named(spec), reason)
                    else:
                        cache.remember(spec, outcome)
                        known[spec.hash()] = outcome
                executor.forget(job)

            def of_its_own(run: RunSpec) -> dict[str, Any]:
                """The references it asks for: others may have asked for more of the same models."""
                return {spec.hash(): known[spec.hash()] for spec in self.references([run])}

            # References and runs together, so that no worker waits for the last reference.
            trained = executor([*untrained, *ready], lams.renamed(watch, owners))
            for job, outcomes in once_known(trained, untrained, self.references, learn):
                rows = [
                    row_of(run, outcome, of_its_own(run), choices.get(run.hash()))
                    for spec, outcome in zip(job, outcomes, strict=True)
                    for run in owners[spec.hash()]
                ]
                if store:
                    store.add(*rows)
                executor.forget(job)
                for row in rows:
                    done[row["hash"]] = row
                    watch(RowDone(row))

    def _executor(self, jobs: int, store: Store | None, stop: Stop) -> Executor:
        several = self.device == "cuda" and torch.cuda.device_count() > 1
        kind = find_executor("gpus" if several and self.executor == "local" else self.executor)
        return kind(self._context(store), kind.workers_for(jobs, self.device, self.workers), stop)

    def _context(self, store: Store | None) -> Context:
        for spec in self.runs:
            self.stream(spec.stream)
        checkpoints = store.checkpoints if store else None
        code = tuple(dict.fromkeys(name for run in self.runs for name in run.own_code()))
        return Context(self.device, dict(self._streams), checkpoints, self.checkpoint_every, self.keep, code)


def runs_of(record: Mapping[str, Any]) -> tuple[RunSpec, ...]:
    """The runs that a study.json describes; nothing they name is imported yet."""
    try:
        return tuple(RunSpec.from_json(run) for run in record["runs"])
    except InputError:
        raise
    except UNREADABLE as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> InputError:
    return InputError(f"study.json cannot be read by this version of rwalk ({error})")


def _named(spec: RunSpec) -> str:
    return f"seed {spec.seed} on {spec.stream.dataset}, tasks 1 to {(spec.reference or 0) + 1},"
