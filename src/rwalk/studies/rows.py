"""The records of results: outcomes of trained runs, rows, and the content of study.json.

A row is made from an outcome, and checked when it is read: a row whose parts contradict each other is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rwalk import metrics, parts
from rwalk.atomic_files import with_checksum
from rwalk.errors import InputError
from rwalk.escaping import all_shown
from rwalk.metrics import HEADS
from rwalk.studies.json_records import UNREADABLE, content_hash, from_json, to_json
from rwalk.studies.specs import RunSpec, reference_of

# The schema of study.json and of rows. Schema 2, of rwalk 0.2.0: a hash covers the settings that differ from the
# defaults. Schema 3: a checksum covers every byte.
SCHEMA = 3
OLDEST = 2
MACHINE = ("device", "gpu", "processor", "instructions", "torch")  # these decide how floating point rounds
ROUNDING = 1e-9  # between a measure as it was written and as it is computed again
MEASURED = {"within": 3, "calibration": 2}  # optional measurements, and the dimensions that they have per head

ByHead = Mapping[str, Any]  # head → nested lists; None stands for a missing value


@dataclass(frozen=True)
class Made:
    """What made a result: version, commit, machine, data and the user's code; None where a row does not name it.

    execution  how the steps were executed (`rwalk.engine.choose_execution.executed`).
    code       a digest of the source of every `package.module:name`.
    data       the first 16 digits of the stream's fingerprint.
    """

    rwalk: str | None = None
    commit: str | None = None
    numerics: int | None = None
    code: Mapping[str, str] | None = None
    data: str | None = None
    execution: str | None = None
    device: str | None = None
    gpu: str | None = None
    processor: str | None = None
    instructions: str | None = None
    torch: str | None = None

    def to_json(self) -> dict[str, Any]:
        """A missing commit is null in a row that names its numerics; other missing values are left out."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        null = {"commit"} if self.numerics is not None else set()
        return {name: to_json(value) for name, value in found.items() if value is not None or name in null}


@dataclass(frozen=True)
class Measures:
    """A, F and I of a run by one head; None where a run stopped or has no reference."""

    A: float | None
    F: float | None
    I: float | None  # noqa: E741 - the paper's name


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one trained run.

    accuracy     a[k][j] by head.
    stopped      why the run stopped before its end; None if it did not.
    within       a[k][m][j] by head, if accuracies were measured within tasks.
    calibration  errors [k][j] by head, if they were measured.
    """

    accuracy: ByHead
    stopped: str | None
    made: Made
    within: ByHead | None = None
    calibration: ByHead | None = None

    def __post_init__(self) -> None:
        """Refuse values that are no result of a run."""
        tasks = len(self.accuracy.get(HEADS[0], ()))
        for head in HEADS:
            matrix = self.accuracy.get(head)
            square = (
                isinstance(matrix, list)
                and len(matrix) == tasks > 0
                and all(_is_line(line, tasks) for line in matrix)
            )
            _need(square, f"no square accuracy matrix of the {head} head")
        for name, dimensions in MEASURED.items():
            values = getattr(self, name)
            _need(values is None or _has_shares(values, tasks, dimensions), f"no {name} of its tasks")

    @property
    def tasks(self) -> int:
        return len(self.accuracy[HEADS[0]])

    def to_json(self) -> dict[str, Any]:
        record = {"made": self.made.to_json(), "accuracy": self.accuracy, "stopped": self.stopped}
        return record | _present(self, MEASURED)


@dataclass(frozen=True)
class ReferenceOutcome:
    """The accuracies of a reference model by head; None if it diverged."""

    single: float | None
    multi: float | None
    stopped: str | None = None
    execution: str = ""

    def __post_init__(self) -> None:
        found = (self.single, self.multi)
        sound = self.stopped is not None or all(each is not None and 0 <= each <= 1 for each in found)
        _need(sound, "no accuracies of a reference")

    def to_json(self) -> dict[str, Any]:
        return dict(to_json(self))


@dataclass(frozen=True, kw_only=True)
class Row(Outcome):
    """The result of one run as it stands in a study: an outcome, the run, and A, F and I by both heads.

    hash       the run's.
    lam        its λ, or the λ that it chose.
    reference  a*_k by head.
    tried      the average accuracy of every λ tried, where the run chose its own.
    """

    spec: RunSpec
    hash: str
    lam: float
    single: Measures
    multi: Measures
    reference: ByHead
    tried: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for head in HEADS:
            _need(_is_line(self.reference.get(head), self.tasks), f"no references of the {head} head")
        _need(all(map(_is_share, (self.tried or {}).values())), "no tried λs")

    @property
    def method(self) -> str:
        return self.spec.method

    @property
    def seed(self) -> int:
        return self.spec.seed

    def measures(self, head: str) -> Measures:
        """A, F and I by one head."""
        return self.single if head == "single" else self.multi

    @classmethod
    def of(
        cls,
        spec: RunSpec,
        outcome: Outcome,
        references: Mapping[str, ReferenceOutcome | None],
        lam: float | None = None,
        tried: Mapping[str, float] | None = None,
    ) -> Row:
        """The row of a trained run, and the λ it chose among those `tried`, if it chose one."""
        known = [references.get(reference_of(spec, k).hash()) for k in range(outcome.tasks)]
        reference = {head: [getattr(each, head, None) for each in known] for head in HEADS}
        found: dict[str, Any] = {each.name: getattr(outcome, each.name) for each in fields(outcome)}
        for head in HEADS:
            measured = _measured(outcome.accuracy[head], reference[head])
            found[head] = Measures(*(None if np.isnan(value) else float(value) for value in measured.values()))
        lam = spec.lam if lam is None else lam
        return cls(spec=spec, hash=spec.hash(), lam=lam, reference=reference, tried=tried, **found)

    def to_json(self) -> dict[str, Any]:
        """The row as it is written."""
        record = {"schema": SCHEMA, "hash": self.hash, "method": self.method, "lam": self.lam, "seed": self.seed}
        record |= _present(self, ("tried",))
        record |= {head: to_json(self.measures(head)) for head in HEADS} | {"accuracy": self.accuracy}
        record |= _present(self, (*MEASURED, "reference")) | {"stopped": self.stopped}
        return record | {"spec": self.spec.to_json(), "made": self.made.to_json()}

    @classmethod
    def from_json(cls, record: Any, sealed: bool = False) -> Row:
        """A row from a file; settings that did not exist when it was written have their defaults.

        Args:
            record: The JSON value.
            sealed: Whether it came with a checksum, which was right.

        Raises:
            InputError: The record is not a row.
        """
        found = from_json(cls, _of_schema(record, sealed, without=("method", "seed")), "it")
        run = found.spec
        _need(run.hash() == found.hash, "its settings are not those of its hash")
        named = (record.get("method"), record.get("seed")) == (run.method, run.seed)
        named = named and _is_lam_of(run, found.lam, found.tried or {})
        _need(named, "its method, λ or seed are not those of its settings")
        return found

    def shown(self) -> Row:
        """The row to show: texts of a file or a user are escaped. Its hash stays the run's."""
        spec, made = self.spec.to_json(), self.made.to_json()
        if all_shown([spec, made, self.stopped]) == [spec, made, self.stopped]:
            return self
        escaped = from_json(Made, all_shown(made), "it")
        return replace(
            self, spec=RunSpec.from_json(all_shown(spec)), made=escaped, stopped=all_shown(self.stopped)
        )


class Rows(list[Row]):
    """Rows of a study, in its order."""

    def by_hash(self) -> dict[str, Row]:
        return {row.hash: row for row in self}

    def to_frame(self) -> Any:
        """A pandas data frame with one line per run: measures by head, and all settings by dotted names.

        Example:
            >>> frame = Study(runs).execute().to_frame()  # doctest: +SKIP
            >>> frame.groupby("method")["single.A"].mean()  # doctest: +SKIP
        """
        import pandas  # type: ignore[import-untyped]

        lines = []
        for row in self:
            line = row.spec.settings() | {"lam": row.lam, "stopped": row.stopped, "hash": row.hash}
            for head in HEADS:
                line |= {f"{head}.{name}": value for name, value in to_json(row.measures(head)).items()}
            lines.append(line)
        return pandas.DataFrame(lines)


@dataclass(frozen=True)
class Description:
    """The content of study.json: the runs of a study, its references, and the data and machine it was begun with.

    hash  as it was written: of the runs and references, as the file's schema has it.
    data  by dataset a fingerprint: the images of a folder may change without its name.
    """

    hash: str
    runs: tuple[RunSpec, ...]
    reference: str
    data: tuple[Mapping[str, Any], ...] = ()
    environment: Mapping[str, str] | None = None

    def to_json(self) -> dict[str, Any]:
        record = {"schema": SCHEMA, "hash": self.hash, "runs": [run.to_json() for run in self.runs]}
        record |= {"reference": self.reference, "data": to_json(self.data)}
        return record | {"environment": dict(self.environment or {})}

    @classmethod
    def from_json(cls, record: Any, sealed: bool = False) -> Description:
        """The description in a file; the code that its runs name is not imported."""
        found = from_json(cls, _of_schema(record, sealed), "it")
        hashed = content_hash({"runs": found.hashes(), "reference": found.reference})
        _need(found.hash == hashed, "its settings do not match its hash: the file was altered")
        return found

    def hashes(self) -> list[str]:
        """The hashes of its runs, in their order."""
        return [run.hash() for run in self.runs]

    def contains(self, other: Description) -> bool:
        """Whether this study is the other one, or only adds runs to it."""
        there = set(other.hashes())
        return self.reference == other.reference and bool(there) and there <= set(self.hashes())


def lines_of(rows: Sequence[Row]) -> bytes:
    """Rows as the lines of a file."""
    return b"".join(with_checksum(row.to_json()).encode() + b"\n" for row in rows)


def check_measures(rows: Sequence[Row]) -> int | None:
    """The first row whose A, F or I are not those of its accuracies, if there is one.

    All rows of one length are computed together: one by one takes longer than reading them.
    """
    lengths: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        lengths.setdefault(row.tasks, []).append(number)
    wrong = [
        alike[number]
        for alike in lengths.values()
        for head in HEADS
        for number in np.flatnonzero(_contradicted([rows[each] for each in alike], head)).tolist()
    ]
    return min(wrong, default=None)


def _contradicted(rows: Sequence[Row], head: str) -> NDArray[np.bool_]:
    wrong = np.zeros(len(rows), dtype=bool)
    expected = _measured([row.accuracy[head] for row in rows], [row.reference[head] for row in rows])
    for name, values in expected.items():
        written = np.array([getattr(row.measures(head), name) for row in rows], dtype=float)
        wrong |= ~np.isclose(written, values, rtol=0, atol=ROUNDING, equal_nan=True)
    return wrong


def _measured(accuracy: Any, reference: Any) -> dict[str, NDArray[np.float64]]:
    a, best = np.array(accuracy, dtype=float), np.array(reference, dtype=float)
    return {"A": metrics.average_accuracy(a), "F": metrics.forgetting(a), "I": metrics.intransigence(a, best)}


def _is_lam_of(run: RunSpec, lam: float, tried: Mapping[str, float]) -> bool:
    """Whether a row's λ is the one of its run; a user's own part, which is not imported, may have any default."""
    if run.seeks_lam:
        return f"{lam:g}" in tried
    if run.method not in parts.parts():
        return bool(lam == run.numbers.get("lam", lam))
    return bool(lam == _lam_of(run.method, tuple(sorted(run.numbers.items()))))


@cache
def _lam_of(method: str, numbers: tuple[tuple[str, Any], ...]) -> float:
    return float(getattr(parts.made(method, dict(numbers)), "lam", 0.0) or 0.0)


# ── checks of records that are read ─────────────────────────────────────────────────────────────────────────────


def _need(condition: bool, fault: str) -> None:
    if not condition:
        raise InputError(fault)


def _present(record: Outcome, names: Sequence[str] | Mapping[str, int]) -> dict[str, Any]:
    """The optional fields that a record has."""
    return {name: value for name in names if (value := getattr(record, name)) is not None}


def _of_schema(record: Any, sealed: bool, without: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of a record from a file, if this version reads its schema."""
    _need(isinstance(record, dict), "it is not a JSON object")
    schema = record.get("schema", 1)
    _need(type(schema) is int and schema <= SCHEMA, "it was written by a newer version of rwalk")
    _need(schema >= OLDEST, "it is not of rwalk 0.2.0 or later")
    _need(sealed or schema == OLDEST, "it has no checksum")
    return {name: value for name, value in record.items() if name not in ("schema", *without)}


def _has_shares(values: Any, tasks: int, dimensions: int) -> bool:
    """Whether these are fractions by head, [task, …, task]."""
    try:
        found = [np.array(values[head], dtype=float) for head in HEADS]
    except UNREADABLE:
        return False
    return all(
        each.ndim == dimensions
        and each.shape[0] == each.shape[-1] == tasks
        and bool((np.isnan(each) | ((each >= 0) & (each <= 1))).all())
        for each in found
    )


def _is_line(line: Any, length: int) -> bool:
    return isinstance(line, list) and len(line) == length and all(map(_is_share, line))


def _is_share(value: Any) -> bool:
    """Whether it can be an accuracy; None stands for a missing one."""
    return value is None or (type(value) in (int, float) and 0 <= value <= 1)
