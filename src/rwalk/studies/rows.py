"""What a row is: a run's settings, its accuracies, A, F and I by both heads, and what made it.

Rows are made from outcomes, and checked when they are read: a row whose parts contradict each other is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rwalk import metrics, parts
from rwalk.errors import InputError
from rwalk.metrics import HEADS
from rwalk.showing import all_shown
from rwalk.studies.specs import RunSpec, content_hash, reference_of

if TYPE_CHECKING:
    from rwalk.studies.lams import Choice

Row = dict[str, Any]
# Of study.json and of rows. 1, which files do not name: a hash covers all settings; rows have no provenance. 2: a
# hash covers what differs from the defaults, and rows record what made them. 3: a checksum covers every byte.
SCHEMA = 3
SEALED_SINCE = 3
MACHINE = ("device", "gpu", "processor", "instructions", "torch")  # what decides how floating point rounds
MADE = ("rwalk", "commit", "data", *MACHINE)  # texts that say what made a row
ROUNDING = 1e-9  # between a measure as it was written and as it is computed again


def row_of(
    spec: RunSpec, outcome: Mapping[str, Any], references: Mapping[str, Any], choice: Choice | None = None
) -> Row:
    """The row of a trained run; `references` are the accuracies of reference models by their runs' hashes.

    Where the run chose its λ, the row names it, and how all that were tried did on the judges.
    """
    reference = _reference_of(spec, references, tasks=len(outcome["accuracy"]["single"]))
    row: Row = {"schema": SCHEMA, "hash": spec.hash()}
    row |= {"method": spec.method, "lam": spec.lam if choice is None else choice.lam, "seed": spec.seed}
    row |= {} if choice is None else {"tried": choice.judged}
    for head in HEADS:
        measured = _measures(np.array(outcome["accuracy"][head], dtype=float), reference[head])
        row[head] = {name: _number(value) for name, value in measured.items()}
    row["accuracy"] = outcome["accuracy"]
    row |= {name: outcome[name] for name in ("within", "calibration") if name in outcome}
    row["reference"] = {head: [_number(value) for value in reference[head]] for head in HEADS}
    row["stopped"] = outcome["stopped"]
    row["spec"] = spec.to_json()
    row["made"] = outcome["made"]
    return row


def _reference_of(spec: RunSpec, references: Mapping[str, Any], tasks: int) -> dict[str, NDArray[np.float64]]:
    """a*_k by head, NaN where no reference was trained."""
    found = [references.get(reference_of(spec, k).hash()) for k in range(tasks)]
    return {head: np.array([each[head] if each else np.nan for each in found]) for head in HEADS}


def _measures(a: NDArray[np.float64], reference: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    return {
        "A": metrics.average_accuracy(a),
        "F": metrics.forgetting(a),
        "I": metrics.intransigence(a, reference),
    }


def _number(value: Any) -> float | None:
    """JSON has no NaN."""
    return None if np.isnan(value) else float(value)


def as_shown(row: Row) -> Row:
    """A row to show: whatever a file or a user may have put into its texts is escaped."""
    return {**row, **{name: all_shown(row[name]) for name in ("method", "stopped", "spec", "made")}}


# ── rows that are read ──────────────────────────────────────────────────────────────────────────────────────────


def checked(row: Any, sealed: bool) -> Row:
    """A row as this version writes it, or InputError with what is wrong with it.

    Settings that did not exist when it was written get their defaults, and the hash is today's. `sealed` says that
    it came with a checksum, which was right.
    """
    if fault := _fault(row):
        raise InputError(fault)
    if row.get("schema", 1) >= SEALED_SINCE and not sealed:
        raise InputError("it has no checksum")
    try:
        run = RunSpec.from_json(row["spec"])
        written_as = content_hash(row["spec"]) if row.get("schema", 1) == 1 else run.hash()
        named = (row["method"], row["seed"]) == (run.method, run.seed) and _is_lam_of(run, row)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(f"its settings cannot be read: {error}") from None
    if written_as != row["hash"]:
        raise InputError("its settings are not those of its hash")
    if not named:
        raise InputError("its method, λ or seed are not those of its settings")
    return {**row, "schema": SCHEMA, "hash": run.hash(), "spec": run.to_json(), "made": row.get("made", {})}


def check_measures(rows: Sequence[Row]) -> int | None:
    """The first row whose A, F or I are not those of its accuracies, if there is one.

    All rows of one length are computed together: one by one takes longer than reading them.
    """
    lengths: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        lengths.setdefault(len(row["accuracy"][HEADS[0]]), []).append(number)
    wrong = [
        alike[number]
        for tasks, alike in lengths.items()
        for head in HEADS
        for number in np.flatnonzero(_contradicted([rows[each] for each in alike], head, tasks)).tolist()
    ]
    return min(wrong, default=None)


def _contradicted(rows: Sequence[Row], head: str, tasks: int) -> NDArray[np.bool_]:
    unknown = {head: [None] * tasks}
    accuracy = np.array([row["accuracy"][head] for row in rows], dtype=float)
    reference = np.array([row.get("reference", unknown)[head] for row in rows], dtype=float)
    wrong = np.zeros(len(rows), dtype=bool)
    for name, expected in _measures(accuracy, reference).items():
        written = np.array([row[head][name] for row in rows], dtype=float)
        same = np.isclose(written, expected, rtol=0, atol=ROUNDING, equal_nan=True)
        without = np.array([name == "I" and "reference" not in row for row in rows])
        wrong |= ~(same | without)
    return wrong


def _is_lam_of(run: RunSpec, row: Row) -> bool:
    """Whether a row's λ is the one of its run; a user's own part, which is not imported, may have any default."""
    if run.seeks_lam:
        return f"{row['lam']:g}" in row.get("tried", {})
    if run.method not in parts.parts():
        return bool(row["lam"] == run.numbers.get("lam", row["lam"]))
    return bool(row["lam"] == _lam_of(run.method, tuple(sorted(run.numbers.items()))))


@cache
def _lam_of(method: str, numbers: tuple[tuple[str, Any], ...]) -> float:
    return float(getattr(parts.made(method, dict(numbers)), "lam", 0.0) or 0.0)


def _fault(row: Any) -> str | None:
    """What is wrong with a row, if anything its readers rely on."""
    if not isinstance(row, dict):
        return "not a JSON object"
    if type(row.get("schema", 1)) is not int or row.get("schema", 1) not in range(1, SCHEMA + 1):
        return "written by a newer version of rwalk"
    for key, kinds in (("hash", str), ("method", str), ("lam", (int, float)), ("seed", int), ("spec", dict)):
        if not isinstance(row.get(key), kinds) or isinstance(row[key], bool):
            return f"no {key}"
    if not row["method"].isprintable():  # it is printed, and a terminal obeys what it is told
        return "no printable method"
    if fault := fault_of(row):
        return fault
    tasks = len(row["accuracy"][HEADS[0]])
    for head in HEADS:
        measures, reference = row.get(head), row.get("reference", {head: [None] * tasks})  # the first had none
        if not isinstance(measures, dict) or not all(_is_number(measures.get(name, "")) for name in "AFI"):
            return f"no measures of the {head} head"
        if not isinstance(reference, dict) or not _is_line(reference.get(head), tasks):
            return f"no references of the {head} head"
    tried = row.get("tried", {})  # only where λ was chosen
    if not isinstance(tried, dict) or not all(map(_is_share, tried.values())):
        return "no tried λs"
    return None


def fault_of(outcome: Mapping[str, Any]) -> str | None:
    """What is wrong with an outcome, or with the part of a row that was one."""
    made = outcome.get("made", {})
    if not isinstance(made, dict) or not isinstance(made.get("code", {}), dict):
        return "no record of what made it"
    if not all(isinstance(made.get(name), str | None) for name in MADE):
        return "no record of what made it"
    if type(made.get("numerics", 0)) is not int:
        return "no record of the numerics that made it"
    if not all(isinstance(each, str) for each in made.get("code", {}).values()):
        return "no record of the code that made it"
    if not isinstance(outcome.get("stopped", 0), str | None):
        return "no stopped"
    accuracy = outcome.get("accuracy")
    if not isinstance(accuracy, dict):
        return "no accuracy"
    for head in HEADS:
        matrix = accuracy.get(head)
        if not isinstance(matrix, list) or not all(_is_line(line, len(matrix)) for line in matrix):
            return f"no square accuracy matrix of the {head} head"
    tasks = len(accuracy[HEADS[0]])
    if not tasks or any(len(accuracy[head]) != tasks for head in HEADS):
        return "its heads must have the same tasks"
    for name, dimensions in (("within", 3), ("calibration", 2)):  # only where they were asked for
        if name in outcome and not _is_measured(outcome[name], tasks, dimensions):
            return f"no {name} of its tasks"
    return None


def _is_measured(values: Any, tasks: int, dimensions: int) -> bool:
    """Whether these are fractions by head, [task, …, task]."""
    try:
        found = [np.array(values[head], dtype=float) for head in HEADS]
    except (ArithmeticError, LookupError, TypeError, ValueError):
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
    """Whether it can be an accuracy; None stands for what was not measured."""
    return value is None or (_is_number(value) and 0 <= value <= 1)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
