"""Many specs → fleets → rows: what is already there is not run again.

On CUDA all runs that can share a fleet are one program; on a CPU runs are spread over worker processes.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rwalk import metrics
from rwalk.data import splits
from rwalk.data.streams import Stream
from rwalk.errors import InputError, first_line, unknown
from rwalk.files import write_atomically
from rwalk.metrics import HEADS
from rwalk.studies import provenance
from rwalk.studies.environment import environment
from rwalk.studies.events import Finished, RowDone, Started, Stopped, Watch
from rwalk.studies.executors import DTYPES, Context, Executor, fleet_of
from rwalk.studies.executors import find as find_executor
from rwalk.studies.specs import RunSpec, StreamSpec, content_hash, reference_of
from rwalk.studies.store import SCHEMA, Row, Store
from rwalk.studies.workers import Stop
from rwalk.threads import available_cores

UNREADABLE = (TypeError, ValueError, KeyError, AttributeError)  # what a record of the wrong form raises
REFERENCES = ("final", "all", "none")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Study:
    """Runs to compare, on one machine, with the references their intransigence is measured against.

    checkpoint_every  steps between checkpoints of a run; without it, as often as costs 2 % of the time
    executor          where runs are trained: the name of one, or `package.module:Name`
    """

    runs: tuple[RunSpec, ...]
    reference: str = "final"
    data: Path | str | None = None
    device: str = "cpu"
    workers: int | None = None
    cache: Path | None = None
    checkpoint_every: int | None = None
    executor: str = "local"
    _streams: dict[StreamSpec, Stream] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.reference not in REFERENCES:
            raise unknown("reference", self.reference, REFERENCES)
        if not self.runs:
            raise InputError("a study needs at least one run")
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers must be at least 1, not {self.workers}")
        if self.checkpoint_every is not None and self.checkpoint_every < 1:
            raise InputError(f"checkpoints are made every 1 step or more, not every {self.checkpoint_every}")
        _check_device(self.device)
        find_executor(self.executor)
        names: dict[str, RunSpec] = {}
        for run in self.runs:
            if run.dtype not in DTYPES:
                raise unknown("dtype", run.dtype, DTYPES)
            run.learner()
            if names.setdefault(run.hash(), run) is not run:
                raise InputError(f"{run.method} with λ = {run.lam:g} and seed {run.seed} is there twice: drop one")

    @classmethod
    def from_json(cls, record: Mapping[str, Any], **where: Any) -> Study:
        """The study that a study.json describes; `where` it is to run (data, device, workers …) is not in it."""
        runs = runs_of(record)
        try:
            study = cls(runs, record["reference"], **where)
            # Of a file without a schema the hash covers every setting that there was.
            as_written = {"runs": record["runs"], "reference": record["reference"]}
            expected = content_hash(as_written) if record.get("schema", 1) == 1 else study.hash()
        except InputError:
            raise
        except UNREADABLE as error:
            raise _unreadable(error) from None
        if record.get("hash") != expected:
            raise InputError("study.json was altered (its settings are not those of its hash): restore it")
        return study

    def hash(self) -> str:
        """What the study is: its runs and references; not where it runs."""
        return content_hash({"runs": [run.hash() for run in self.runs], "reference": self.reference})

    def stream(self, spec: StreamSpec) -> Stream:
        if spec not in self._streams:
            self._streams[spec] = spec.build(self.data)
        return self._streams[spec]

    def prepare(self) -> None:
        """Load the data and build a fleet of every kind: what is wrong with a study shows here."""
        for spec in {run.fleet_key(): run for run in self.runs}.values():
            fleet_of("cpu", self.stream(spec.stream), [spec])

    def describe(self) -> dict[str, Any]:
        """What study.json says."""
        distinct = dict.fromkeys(run.stream for run in self.runs)
        data = [{"dataset": spec.dataset, "sha256": self.stream(spec).fingerprint()} for spec in distinct]
        return {
            "schema": SCHEMA,
            "hash": self.hash(),
            "runs": [run.to_json() for run in self.runs],
            "reference": self.reference,
            "data": data,  # a folder of images may change under its name
            "environment": environment(self.device),
        }

    def current(self, rows: Iterable[Row], tell: Callable[[str], None] = lambda line: None) -> dict[str, Row]:
        """Those rows, by hash, that this study's runs would give today; of the others, `tell` why not."""
        runs = {run.hash(): run for run in self.runs}
        found, reasons = {}, Counter[str]()
        for row in rows:
            if (run := runs.get(row["hash"])) is None:
                continue
            # Data are compared only where they are loaded: looking at finished rows does not need them.
            loaded = self._streams.get(run.stream)
            data = None if loaded is None else loaded.fingerprint()
            outdated = provenance.outdated(row["made"], run, data)
            if outdated:
                reasons["; ".join(outdated)] += 1
            else:
                found[row["hash"]] = row
        for reason, count in reasons.items():
            tell(f"{count} finished run{'s are' if count > 1 else ' is'} trained anew: {reason}")
        return found

    def missing(self, done: Collection[str], only: Collection[str] | None = None) -> list[RunSpec]:
        """The runs whose hashes are not among those done; `only` of these methods, where it is given."""
        return [run for run in self.runs if run.hash() not in done and (not only or run.method in only)]

    def references(self, runs: Sequence[RunSpec] | None = None) -> list[RunSpec]:
        """The reference runs that this study needs, or some of its runs."""
        if self.reference == "none":
            return []
        wanted = {}
        for run in self.runs if runs is None else runs:
            last = len(self.stream(run.stream)) - 1
            for k in range(last + 1) if self.reference == "all" else [last]:
                spec = reference_of(run, k)
                wanted[spec.hash()] = spec
        return list(wanted.values())

    def unknown_references(self, runs: Sequence[RunSpec]) -> list[RunSpec]:
        """Those of these runs' references that no earlier study has trained."""
        return [spec for spec in self.references(runs) if self._recall(spec) is None]

    def steps(self, spec: RunSpec) -> int:
        """All steps of a run, for time estimates."""
        stream = self.stream(spec.stream)
        if spec.reference is not None:
            stream = splits.union(stream, spec.reference)
        return sum(spec.learner().steps(spec.training, stream, k) for k in range(len(stream)))

    def execute(
        self,
        store: Store | None = None,
        watch: Watch = lambda event: None,
        stop: Stop = lambda: False,
        only: Collection[str] | None = None,
    ) -> list[Row]:
        """Run what is missing; rows in the order of `runs`, written to the store as they finish.

        Unfinished runs go on from their checkpoints in the store. `stop` is asked all the time: on a yes, runs at
        work are saved and KeyboardInterrupt is raised. Where `only` is given, runs of these methods alone are run,
        and the rows that are there then are returned.
        """
        done = self.current(store.rows() if store else [], tell=logger.warning)
        missing = self.missing(done, only)
        try:
            self._train_missing(missing, done, store, watch, stop)
        except BaseException as error:
            watch(Stopped(len(done), len(self.runs), str(error) or type(error).__name__))
            raise
        rows = [done[known] for known in (run.hash() for run in self.runs) if known in done]
        if store and len(rows) == len(self.runs):
            store.settle(rows)
        watch(Finished(tuple(rows)))
        return rows

    def _train_missing(
        self, missing: list[RunSpec], done: dict[str, Row], store: Store | None, watch: Watch, stop: Stop
    ) -> None:
        """Train these runs and the references that nobody has trained; their rows are added to `done`."""
        if missing:
            references = self.references(missing)
            cached = {spec.hash(): self._recall(spec) for spec in references}
            lost = [spec for spec in references if cached[spec.hash()] is None]
            watch(Started((*lost, *missing), len(self.runs)))
            with self._executor(len(lost) + len(missing), store, stop) as executor:
                for job, outcomes in executor(lost, watch):
                    for spec, outcome in zip(job, outcomes, strict=True):
                        if reason := outcome["stopped"]:
                            logger.warning("%s has no reference, so I is not known: %s", _named(spec), reason)
                        else:
                            self._remember(spec, outcome)
                            cached[spec.hash()] = outcome
                    executor.forget(job)
                for job, outcomes in executor(missing, watch):
                    rows = [self._row(spec, outcome, cached) for spec, outcome in zip(job, outcomes, strict=True)]
                    if store:
                        store.add(*rows)
                    executor.forget(job)
                    done.update({row["hash"]: row for row in rows})
                    for row in rows:
                        watch(RowDone(row))

    # ── running ───────────────────────────────────────────────────────────────────────────────────────────

    def _executor(self, jobs: int, store: Store | None, stop: Stop) -> Executor:
        for spec in self.runs:
            self.stream(spec.stream)
        workers = 1 if self.device != "cpu" else min(self.workers or available_cores(), jobs)
        return find_executor(self.executor)(self._context(store), workers, stop)

    def _context(self, store: Store | None) -> Context:
        checkpoints = store.checkpoints if store else None
        return Context(self.device, dict(self._streams), checkpoints, self.checkpoint_every)

    def _row(self, spec: RunSpec, outcome: Mapping[str, Any], references: Mapping[str, Any]) -> Row:
        tasks = len(outcome["accuracy"]["single"])
        row: Row = {"schema": SCHEMA, "hash": spec.hash()}
        row |= {"method": spec.method, "lam": spec.lam, "seed": spec.seed}
        reference = {head: np.full(tasks, np.nan) for head in HEADS}
        for k in range(tasks):
            found = references.get(reference_of(spec, k).hash())
            if found:
                for head in HEADS:
                    reference[head][k] = found[head]
        for head in HEADS:
            a = np.array(outcome["accuracy"][head], dtype=float)
            row[head] = {
                "A": _number(metrics.average_accuracy(a)),
                "F": _number(metrics.forgetting(a)),
                "I": _number(metrics.intransigence(a, reference[head])),
            }
        row["accuracy"] = outcome["accuracy"]
        row |= {name: outcome[name] for name in ("within", "calibration") if name in outcome}
        row["reference"] = {head: [_number(value) for value in reference[head]] for head in HEADS}
        row["stopped"] = outcome["stopped"]
        row["spec"] = spec.to_json()
        row["made"] = outcome["made"]
        return row

    # ── references are the same for every method, so they are kept between studies ────────────────────────────

    def _reference_file(self, spec: RunSpec) -> Path:
        folder = self.cache or Path(os.environ.get("RWALK_CACHE", Path.home() / ".cache" / "rwalk"))
        self.stream(spec.stream)
        around = environment(self.device)
        key = [self._context(None).identity([spec]), around["torch"], self.device, around.get("gpu")]
        return folder / "references" / f"{content_hash(key)}.json"

    def _recall(self, spec: RunSpec) -> Mapping[str, Any] | None:
        try:
            outcome = json.loads(self._reference_file(spec).read_text())
            return {head: float(outcome[head]) for head in HEADS}
        except (OSError, ValueError, KeyError, TypeError):
            return None  # not there, or not ours: it is trained (again)

    def _remember(self, spec: RunSpec, outcome: Mapping[str, Any]) -> None:
        try:
            write_atomically(self._reference_file(spec), json.dumps(outcome))
        except OSError:
            return  # a cache that cannot be written must not stop a study


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


def _number(value: Any) -> float | None:
    """JSON has no NaN."""
    return None if np.isnan(value) else float(value)


def _check_device(name: str) -> None:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = first_line(error)
        raise InputError(f"device {name!r} cannot be used: {reason}") from None
