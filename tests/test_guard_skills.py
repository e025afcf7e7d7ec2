"""The benchmark of guards: every task and way runs, rows are kept, and tables follow from rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import guard_languages, guard_skills
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


def test_language_model_learns_a_text_with_tiny_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(guard_skills, "main_ways", lambda: [Way("none"), Way("anchor", every=2)])
    monkeypatch.setattr(guard_languages, "installed", lambda: None)
    (tmp_path / "en-US.txt").write_text("the dog and the cat walk through the house " * 40)
    (tmp_path / "it-IT").mkdir()
    page = "<html><head><title>no</title></head><body><p>il cane e il gatto</p></body></html>"
    (tmp_path / "it-IT" / "one.html").write_text(page * 60)
    sizes = ["--steps=4", "--batch=2", "--tokens=16", "--probes=2", "--held-out=2", "--probe-tokens=8", "--test=2"]
    words = ["it-IT", "--lm", "--texts", str(tmp_path), "--only", "ways", "--seeds", "1", *sizes]
    guard_skills.main([*words, "--out", str(tmp_path / "out")])
    rows = json.loads((tmp_path / "out" / "rows.json").read_text())
    assert [row["unit"] for row in rows] == ["loss", "loss"]
    assert all(0 < row["new"] < 6 and row["drift"] >= 0 for row in rows)

    guard_skills.main([*words, "--prepare", str(tmp_path / "prepared")])
    for name in ("en-US.txt", "it-IT/one.html"):
        (tmp_path / name).unlink()
    guard_skills.main([*words, "--prepared", str(tmp_path / "prepared"), "--out", str(tmp_path / "again")])
    again = json.loads((tmp_path / "again" / "rows.json").read_text())
    timed = ("step_ms", "fastest_ms")
    assert [{key: value for key, value in row.items() if key not in timed} for row in again] == [
        {key: value for key, value in row.items() if key not in timed} for row in rows
    ]


@pytest.mark.parametrize(("bits", "levels"), [(4, 16), (8, 255)])
def test_packed_weights_of_quantized_blocks_are_exact(bits: int, levels: int) -> None:
    codes = torch.randint(levels, (6, 32)).float()
    codes[:, 0], codes[:, 1] = 0, levels - 1
    low, step = torch.tensor([-0.08, 0.0107]).half().float()
    weight = step * codes + (low if bits == 4 else -127 * step)
    found = guard_languages.packed(weight)
    assert found["codes"].shape == (6, 16 if bits == 4 else 32)
    assert torch.allclose(guard_languages.unpacked(found), weight, rtol=1e-5, atol=1e-6)
    plain = torch.randn(6, 32)
    assert torch.equal(guard_languages.unpacked(guard_languages.packed(plain)), plain)


def test_default_plan_measures_all_languages_at_the_first_seed_first() -> None:
    plan = guard_skills.planned(["a", "b"], 2, "default")
    assert [at[:2] for at in plan] == [(0, "a"), (0, "b"), (1, "a"), (1, "b"), (0, "a")]
    assert [way.method for way in plan[0][2]] == ["none", "anchor"]
    assert all(way.rate == 1 and way != Way("anchor") for way in plan[-1][2])


def test_text_of_a_page_is_read_without_tags(tmp_path: Path) -> None:
    (tmp_path / "xx").mkdir()
    (tmp_path / "xx" / "a.html").write_text(
        "<head>no</head><p>uno  <b>due</b></p>\n\n<script>no</script><p>tre</p>"
    )
    assert guard_languages.read_text(tmp_path, "xx") == "uno due\ntre"


def test_divergence_is_zero_for_equal_outputs() -> None:
    outputs = torch.randn(3, 4, 5)
    for name in ("kl", "cosine"):
        assert torch.allclose(guard_skills.divergence(name, outputs, outputs), torch.zeros(3, 4), atol=1e-6)
