"""Why two studies differ: their settings, data and machines, and which rows by how much."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rwalk.metrics import HEADS
from rwalk.studies import numerics_history, provenance
from rwalk.studies.json_records import flat, to_json
from rwalk.studies.rows import Row
from rwalk.studies.study_folder import Store

Flat = dict[str, str]  # a setting's dotted name → its value, as JSON


def compare(a: Store, b: Store) -> list[str]:
    """One line per difference; none if the studies hold the same results."""
    first, second = a.study(), b.study()
    specs = ([_texts(run.to_json()) for run in each.runs] for each in (first, second))
    settings = list(_settings(*specs))
    changed = {name for name, one, other in settings if len(one) == len(other) == 1}
    lines = [f"setting {name}: {_listed(one)} → {_listed(other)}" for name, one, other in settings]
    for part in ("reference", "data", "environment"):
        one, other = (_texts(to_json(getattr(each, part)), part) for each in (first, second))
        lines += [
            f"{name}: {one.get(name, 'absent')} → {other.get(name, 'absent')}"
            for name in dict.fromkeys([*one, *other])
            if one.get(name) != other.get(name)
        ]
    ours, theirs = a.rows(), b.rows()
    before, after = (provenance.makers(row.made for row in rows) for rows in (ours, theirs))
    if before != after:
        lines.append(f"made by: {'; '.join(before) or 'nobody yet'} → {'; '.join(after) or 'nobody yet'}")
    elif len(before) > 1:
        lines.append(f"made by, in both: {'; '.join(before)}")
    rows = _paired(ours, changed), _paired(theirs, changed)
    return [*lines, *_causes(*rows), *_means(*rows), *_rows(*rows)]


def _texts(value: Any, name: str = "") -> Flat:
    """A JSON value as texts by dotted names; records in a list are numbered."""
    if isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        value = dict(enumerate(value))
    return {key: json.dumps(each) for key, each in flat(value, name).items()}


def _settings(ours: Sequence[Flat], theirs: Sequence[Flat]) -> Iterator[tuple[str, list[str], list[str]]]:
    """The settings whose values, over all runs, are not the same in both studies."""
    for name in dict.fromkeys(name for spec in [*ours, *theirs] for name in spec):
        before, after = (
            list(dict.fromkeys(spec.get(name, "absent") for spec in specs)) for specs in (ours, theirs)
        )
        if set(before) != set(after):
            yield name, before, after


def _listed(values: list[str]) -> str:
    return ", ".join(values) or "none"


def _paired(rows: Sequence[Row], changed: set[str]) -> dict[str, Row]:
    """Rows by their settings, without the settings in which the two studies differ as a whole."""
    specs = ((row, _texts(row.spec.to_json())) for row in rows)
    return {json.dumps({k: v for k, v in spec.items() if k not in changed}): row for row, spec in specs}


def _causes(ours: Mapping[str, Row], theirs: Mapping[str, Row]) -> Iterator[str]:
    """The differences in computation and execution of rows that both studies have."""
    causes, executions = Counter[str](), Counter[str]()
    for key in filter(theirs.__contains__, ours):
        one, other = (rows[key].made.numerics or numerics_history.FIRST for rows in (ours, theirs))
        causes.update(numerics_history.changes_between(one, other, ours[key].spec))
        before, after = (rows[key].made.execution for rows in (ours, theirs))
        if before != after and before and after:
            executions[f"{before} → {after}"] += 1
    for name, counts in (("numerics", causes), ("execution", executions)):
        for what, count in sorted(counts.items()):
            yield f"{name} of {count} row{'s' * (count > 1)}: {what}"


def _means(ours: Mapping[str, Row], theirs: Mapping[str, Row]) -> Iterator[str]:
    """Per method and λ: the measures' means over the rows that both studies have, where they differ."""
    groups: dict[str, list[tuple[Row, Row]]] = {}
    for key in filter(theirs.__contains__, ours):
        groups.setdefault(_method(ours[key]), []).append((ours[key], theirs[key]))
    for name, pairs in sorted(groups.items()):
        changes = [change for head in HEADS for measure in "AFI" if (change := _change(pairs, head, measure))]
        if len(pairs) > 1 and changes:
            yield f"mean of {name} over {len(pairs)} rows: {', '.join(changes)}"


def _change(pairs: Sequence[tuple[Row, Row]], head: str, measure: str) -> str:
    """From which mean to which; nothing where it is the same, or not known of every row."""
    values = np.array([[getattr(row.measures(head), measure) for row in pair] for pair in pairs], dtype=float)
    before, after = values.mean(0)
    known = np.isfinite(values).all()
    return (
        f"{head} {measure} {before:.4f} → {after:.4f} ({after - before:+.2g})" if known and before != after else ""
    )


def _rows(ours: Mapping[str, Row], theirs: Mapping[str, Row]) -> Iterator[str]:
    for key in dict.fromkeys([*ours, *theirs]):
        if key not in theirs:
            yield f"row {_title(ours[key])}: only in the first"
        elif key not in ours:
            yield f"row {_title(theirs[key])}: only in the second"
        elif distance := ", ".join(_distances(ours[key], theirs[key])):
            yield f"row {_title(ours[key])}: {distance}"


def _method(row: Row) -> str:
    return f"{row.method} λ={row.lam:g}" if row.lam else row.method


def _title(row: Row) -> str:
    return f"{_method(row)} seed {row.seed}"


def _distances(one: Row, other: Row) -> Iterator[str]:
    if one.stopped != other.stopped:
        yield f"stopped {one.stopped!r} → {other.stopped!r}"
    for head in HEADS:
        for measure in "AFI":
            before, after = (getattr(row.measures(head), measure) for row in (one, other))
            if before != after:
                both = before is not None and after is not None
                yield f"{head} {measure} {f'{after - before:+.2g}' if both else f'{before} → {after}'}"
        a, b = (np.array(row.accuracy[head], dtype=float) for row in (one, other))
        if a.shape != b.shape:
            yield f"{head} tasks {len(a)} → {len(b)}"
        elif not np.array_equal(a, b, equal_nan=True):
            yield f"{head} accuracies by up to {np.nanmax(np.abs(a - b), initial=0.0):.2g}"
