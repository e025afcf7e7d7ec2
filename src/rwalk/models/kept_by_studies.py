"""The trained networks of a study, kept as classifiers for `IncrementalClassifier.load` and `rwalk predict`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rwalk import model_file, parts
from rwalk.atomic_files import parse_json, replacing, write_atomically, writing
from rwalk.classifier.call_as_task import Knowledge
from rwalk.classifier.network import FORMAT, NetworkClassifier, contents
from rwalk.engine import snapshots
from rwalk.engine.fleet import Fleet
from rwalk.engine.snapshots import Snapshot
from rwalk.errors import InputError, unknown
from rwalk.solvers import Solver
from rwalk.studies.rows import Row, Rows
from rwalk.studies.specs import RunSpec
from rwalk.studies.study_events import Event, RowDone

WHICH = ("best", "all")
INDEX = "models.json"


@dataclass(frozen=True)
class Keeper:
    """Writes the networks of a study's runs into a folder, as they are trained.

    which  "best": each method's run with the highest average single-head accuracy; "all": every run
    """

    folder: Path
    which: str = "best"

    def __post_init__(self) -> None:
        if self.which not in WHICH:
            raise unknown("choice of models to keep", self.which, WHICH)

    @classmethod
    def of(cls, study_folder: Path, which: str) -> Keeper | None:
        """The choice given now; without one, the choice recorded when the study was started."""
        folder = study_folder / "models"
        if which:
            return cls(folder, which)
        try:
            return cls(folder, str(parse_json((folder / INDEX).read_bytes())["keep"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError):
            raise InputError(f"{folder / INDEX} cannot be read: remove it, and name what to --keep") from None

    def __call__(self, job: Sequence[RunSpec], fleet: Fleet) -> None:
        """A fleet has learned its last task: write its networks."""
        now = snapshots.take(fleet)
        for run, spec in enumerate(job):
            if fleet.stopped[run] is None and refusal(spec) is None:
                write_model(self.path_of(spec), spec, fleet, run, now)

    def path_of(self, spec: RunSpec) -> Path:
        method = re.sub(r"[^\w.+-]+", "-", spec.method)
        strength = f"-lam{spec.lam:g}" if spec.lam else ""
        return self.folder / f"{method}{strength}-seed{spec.seed}-{spec.hash()[:8]}.safetensors"

    def wanted(self, rows: Iterable[Row]) -> list[Row]:
        """Those of these rows whose models are kept."""
        sound = [row for row in rows if row.single.A is not None and not row.stopped]
        sound = [row for row in sound if refusal(trained_as(row)) is None]
        if self.which == "all":
            return sound
        best: dict[str, Row] = {}
        for row in sorted(sound, key=lambda row: (-(row.single.A or 0.0), row.hash)):
            best.setdefault(row.method, row)
        return [row for row in sound if row is best[row.method]]

    def begin(self) -> None:
        """Record the choice, so that a resumed study keeps the same models."""
        if Keeper.of(self.folder.parent, "") != self:
            self._write_index([])

    def lacking(self, rows: Iterable[Row]) -> tuple[RunSpec, ...]:
        """The runs whose models are wanted but missing: these runs had ended before models were kept."""
        specs = (trained_as(row) for row in self.wanted(rows))
        return tuple(spec for spec in specs if not self.path_of(spec).exists())

    def differing(self, rows: Iterable[Row], again: Rows) -> int:
        """How many runs that were trained again, for their models, have other accuracies than their rows."""
        trained = again.by_hash()
        pairs = ((row, trained.get(trained_as(row).hash())) for row in rows)
        return sum(other is not None and row.accuracy != other.accuracy for row, other in pairs)

    def settle(self, rows: Sequence[Row]) -> list[Path]:
        """The study is complete: delete models that are not wanted, and list the others."""
        wanted = self.wanted(rows)
        kept = {row.hash: self.path_of(trained_as(row)) for row in wanted}
        self._drop(rows, wanted)
        self._write_index(
            [
                {"file": kept[row.hash].name, "method": row.method, "lam": row.lam, "seed": row.seed,
                 "A": row.single.A, "hash": row.hash}
                for row in wanted
            ]
        )  # fmt: skip
        return list(kept.values())

    def _drop(self, rows: Iterable[Row], wanted: Iterable[Row]) -> None:
        """Delete the models that are not wanted: runs share one if one chose the λ that another was given."""
        stay = {self.path_of(trained_as(row)) for row in wanted}
        for path in {self.path_of(trained_as(row)) for row in rows} - stay:
            path.unlink(missing_ok=True)

    def _write_index(self, models: list[dict[str, Any]]) -> None:
        content = json.dumps({"keep": self.which, "models": models}, indent=1) + "\n"
        with writing(f"to {self.folder}"):
            write_atomically(self.folder / INDEX, content)


class Pruner:
    """Listens to a study: a model is deleted as soon as a better one of its method exists."""

    def __init__(self, keeper: Keeper, rows: Iterable[Row]) -> None:
        self.keeper = keeper
        self.rows: dict[str, Row] = {row.hash: row for row in rows}

    def watch(self, event: Event) -> None:
        if isinstance(event, RowDone) and self.keeper.which != "all":
            self.rows[event.row.hash] = event.row
            rivals = [row for row in self.rows.values() if row.method == event.row.method]
            wanted = self.keeper.wanted(rivals)
            self.keeper._drop(rivals, wanted)
            self.rows = {key: row for key, row in self.rows.items() if row in wanted or row not in rivals}


def trained_as(row: Row) -> RunSpec:
    """The run of a row, with the λ that it chose if it chose one."""
    return row.spec.with_lam(row.lam) if row.spec.seeks_lam else row.spec


def refusal(spec: RunSpec) -> str | None:
    """Why the estimator could not continue this run's network; None if it can."""
    learner = spec.learner()
    if learner.solver is not None:
        return f"{spec.method} trains no network"
    if learner.loss.everything:
        return f"{spec.method} learns from all data together, the classifier only from new data"
    if learner.reservoir is not None:
        return "a reservoir keeps examples as they pass, the classifier class by class"
    if learner.loss.keeps:
        stored = ", ".join(learner.loss.keeps)
        return f"{spec.method} stores {stored} beside its exemplars, which the classifier cannot"
    if spec.stream.permuted is not None or spec.stream.rotated is not None:
        return "permuted and rotated streams show inputs in many ways, a classifier in one"
    return None if spec.dtype == "float32" else "the classifier computes in float32"


def write_model(path: Path, spec: RunSpec, fleet: Fleet, run: int, now: Snapshot) -> None:
    """One run of a fleet that has learned all its tasks, as a classifier's file."""
    classifier, stream = as_classifier(spec), fleet.stream
    classifier.classes_, classifier.input_shape_ = _labels(stream.class_names), tuple(stream.shape)
    note = None if stream.form is None else {"form": stream.form.to_json()}
    with writing(path), replacing(path) as beside:
        model_file.write(beside, FORMAT, *contents(classifier, known_to(fleet, run, now)), note)


def as_classifier(spec: RunSpec) -> NetworkClassifier:
    """The estimator that would have learned like this run, as far as it has the settings."""
    memory = spec.memory
    method = parts.made(spec.method, dict(spec.numbers))
    assert not isinstance(method, Solver), "refused: it trains no network"
    return NetworkClassifier(
        standardize=False,  # the run saw its inputs as they are
        method=method,
        memory=memory.per_class if memory else None,
        memory_total=memory.total if memory else None,
        sampler=memory.sampler if memory else "mof",
        network=spec.network,
        epochs=None if spec.training.steps is not None else spec.training.epochs,
        batch_size=spec.training.batch,
        learning_rate=spec.training.lr,
        random_state=spec.seed,
    )


def known_to(fleet: Fleet, run: int, now: Snapshot) -> Knowledge:
    """All that one run of a fleet has learned."""
    last_seen = [-1] * fleet.stream.classes
    for number, task in enumerate(fleet.stream.tasks):
        for column in task.classes:
            last_seen[column] = number
    exemplars: dict[int, list[Tensor]] = {}
    for group in now.groups:
        exemplars.setdefault(group.label, []).append(fleet.stream.x[group.examples[run]].cpu())

    def own(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: each[run : run + 1].clone() for name, each in state.items()}

    return Knowledge(
        seed=fleet.seeds[run],
        tasks=len(fleet.stream),
        last_seen=last_seen,
        exemplars={label: torch.cat(each) for label, each in exemplars.items()},
        theta=now.theta[run : run + 1].clone(),
        method={name: each.to("cpu", copy=True) for name, each in fleet.state_of(run).items()},
        buffer=own(now.buffer),
    )


def _labels(names: Sequence[str]) -> NDArray[Any]:
    """Class labels as the user gave them: numbers, if their names are."""
    whole = all(re.fullmatch(r"-?\d{1,18}", name) and str(int(name)) == name for name in names)
    return np.array([int(name) for name in names]) if whole else np.array(names)
