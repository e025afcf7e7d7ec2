"""The benchmark of guards: every task and way runs, rows are kept, and tables follow from rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import guard_skills
from benchmarks.guard_skills import Run, Way
from benchmarks.guard_tasks import TASKS


@pytest.mark.parametrize("name", TASKS)
def test_small_task_is_learned_in_every_way_that_trains(name: str) -> None:
    run = Run(TASKS[name](0, quick=True), 0)
    ways = [Way("none"), Way("wise-ft", share=0.5), Way("anchor"), Way("replay", share=0.25)]
    rows = [run.row(way) for way in ways]
    plain, half, anchored, _ = rows
    assert all(row["drift"] >= -1e-6 and row["step_ms"] > 0 for row in rows)
    assert half["drift"] < plain["drift"]
    assert anchored["drift"] != plain["drift"]


def test_interpolation_keeps_its_budget_on_the_probes() -> None:
    task = TASKS["rotated"](0, quick=True)
    run = Run(task, 0)
    budget = run._drift(run._train(Way("none"))[0], task.probes) / 3
    for method, budgets in (("rewind", (budget, 10.0)), ("anchor, rewind", (budget / 10,))):
        for allowed in budgets:
            way = Way(method, budget=allowed)
            model, _ = run._train(way.training)
            trained = run._drift(model, task.probes)
            run._interpolate(model, way)
            found = run._drift(model, task.probes)
            assert found <= allowed
            assert found > 0.9 * min(allowed, trained), "as little as is needed"
            run._trained = {}


def test_rows_are_measured_once_and_a_stopped_run_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        guard_skills, "main_ways", lambda: [Way("none"), Way("rewind", budget=0.001), Way("anchor")]
    )
    words = ["digits", "--quick", "--out", str(tmp_path)]
    guard_skills.main([*words, "--minutes", "0"])
    assert "time is up" in capsys.readouterr().out
    guard_skills.main(words)
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["method"] for row in rows] == ["none", "rewind", "anchor", "anchor"]
    guard_skills.main(words)
    assert "seed 0" not in capsys.readouterr().out.split("## digits")[-2]
    assert json.loads((tmp_path / "rows.json").read_text()) == rows
    assert (tmp_path / "tables.md").read_text().count("| `Guard(probes)`") == 3


def row(method: str, new: float, drift: float, seed: int = 0, **way: float) -> dict[str, Any]:
    chosen = {name: getattr(Way(method, **way), name) for name in Way.__dataclass_fields__}  # type: ignore[arg-type]
    return {**chosen, "task": "t", "seed": seed, "old": 1.0, "new": new, "drift": drift, "step_ms": 2.0 - seed}


def test_table_has_means_deviations_and_ratios_by_seed() -> None:
    rows = [row("none", 2.0, 0.4), row("none", 3.0, 0.2, 1), row("anchor", 1.0, 0.1), row("anchor", 2.0, 0.1, 1)]
    lines = guard_skills.table("t", rows, "loss").splitlines()
    assert lines[-1] == "| `Guard(probes)` | 1.000 ± 0.000 | 1.500 ± 0.707 | 0.1000 ± 0.0000 | 0.38 | 1.00 |"


def test_budgets_are_compared_with_fixed_weights_of_the_same_drift() -> None:
    rows = [row("none", 2.0, 0.4), row("anchor", 3.0, 0.1), row("anchor", 2.6, 0.2, budget=0.1)]
    assert "| `Guard(probes)`, budget 0.1 | 2.00 | 0.100 |" in guard_skills.budgets("t", rows, "loss")


def test_divergence_is_zero_for_equal_outputs() -> None:
    outputs = torch.randn(3, 4, 5)
    for name in ("kl", "cosine"):
        assert torch.allclose(guard_skills.divergence(name, outputs, outputs), torch.zeros(3, 4), atol=1e-6)
