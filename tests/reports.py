"""Results as studies write them, with accuracies drawn instead of trained: for tests of reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rwalk import metrics
from rwalk.atomic_files import with_checksum
from rwalk.data.memory import MemorySpec
from rwalk.parts import defaults
from rwalk.report.html_page import write_report
from rwalk.studies import rows as rows_of_studies
from rwalk.studies.json_records import content_hash
from rwalk.studies.rows import SCHEMA, Description
from rwalk.studies.specs import RunSpec, StreamSpec

HOSTILE = "<img src=x onerror='window.boom=1'></script><script>window.boom=1</script>&amp;<b>bold</b>"
HEADS = ("single", "multi")

Row = dict[str, Any]


def made_row(spec: RunSpec, tasks: int = 3, stopped: str | None = None) -> Row:
    """A row as a study writes it, with accuracies drawn instead of trained."""
    draw = np.random.default_rng(int(spec.hash()[:8], 16))
    row: Row = {"schema": SCHEMA, "hash": spec.hash(), "method": spec.method, "seed": spec.seed}
    row["lam"] = spec.numbers.get("lam", defaults(spec.method).get("lam", 0.0))
    row["accuracy"] = {}
    for head in HEADS:
        a = np.where(np.tri(tasks, dtype=bool), draw.integers(500, 1000, (tasks, tasks)) / 1000, np.nan)
        if stopped:
            a[1:] = np.nan
        measures = {"A": metrics.average_accuracy(a), "F": metrics.forgetting(a), "I": 0.7 - a[-1, -1]}
        row[head] = {name: None if np.isnan(value) else float(value) for name, value in measures.items()}
        row["accuracy"][head] = [[None if np.isnan(value) else value for value in line] for line in a.tolist()]
    row["reference"] = {head: [None] * (tasks - 1) + [0.7] for head in HEADS}
    row["stopped"] = stopped
    row["spec"] = spec.to_json()
    row["made"] = {"rwalk": "0.1.0", "numerics": 1}
    return row


def made_rows() -> list[Row]:
    """λ's, memory sizes, samplers, two datasets, a stopped run, and text that would like to be markup."""
    runs = []
    for seed in range(2):
        base = RunSpec(stream=StreamSpec("digits"), seed=seed)
        runs.append(base)
        runs += [replace(base, method="rwalk", numbers={"lam": lam}) for lam in (0.1, 1.0, 10.0)]
        runs += [
            replace(base, method=method, numbers={"lam": 1.0} if method == "rwalk" else {}, memory=memory)
            for method in ("vanilla", "rwalk")
            for memory in (MemorySpec(per_class=m, sampler=s) for m in (5, 10) for s in ("mof", "uniform"))
        ]
        named = tuple((f"{HOSTILE}{k}", "plain") for k in range(3))
        runs.append(RunSpec(stream=StreamSpec(HOSTILE, tasks=named), method=HOSTILE, network=HOSTILE, seed=seed))
    stopped = RunSpec(stream=StreamSpec("digits"), seed=2)
    return [*map(made_row, runs), made_row(stopped, stopped=f"the loss is not finite {HOSTILE}")]


def records(rows: Sequence[Row]) -> list[rows_of_studies.Row]:
    """Rows as the report reads them from a file."""
    return [rows_of_studies.Row.from_json(json.loads(json.dumps(row)), sealed=True).shown() for row in rows]


def write_rows(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(with_checksum(row) + "\n" for row in rows))


def write_study(folder: Path, runs: Sequence[Any] = (), **record: Any) -> None:
    found = tuple(RunSpec.from_json(run) for run in runs)
    written = Description(
        content_hash({"runs": [run.hash() for run in found], "reference": "none"}), found, "none"
    )
    (folder / "study.json").write_text(with_checksum({**written.to_json(), **record}))


def hostile_page(folder: Path) -> Path:
    """The report of `made_rows`, in a folder whose name, too, would like to be markup."""
    folder = folder / "<i>results"
    write_rows(folder / "runs.jsonl", made_rows())
    environment = {"python": "3.11", "torch": HOSTILE}
    write_study(folder, environment=environment)
    (folder / "commands.txt").write_text(f"rwalk run {HOSTILE}\n")
    hashes = [row["hash"] for row in made_rows()]
    curves = [f"{key},{step},{1 / step}" for key in hashes[:8] for step in range(1, 30)]
    (folder / "losses.csv").write_text("\n".join(curves) + "\n")
    return write_report([folder])
