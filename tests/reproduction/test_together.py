"""Experiments that are trained as one study, on a device: with the rows that each has alone."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reproduction import pooled_study
from reproduction.__main__ import app
from reproduction.paper_experiments import EXPERIMENTS, Entry, Experiment
from reproduction.planned_studies import plan
from rwalk.cli import main
from rwalk.data.memory import MemorySpec
from rwalk.errors import InputError
from rwalk.studies import Study
from rwalk.studies.losses_and_costs import Costs
from rwalk.studies.rows import Description
from rwalk.studies.specs import RunSpec, StreamSpec
from rwalk.training import Training

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a page about two λ's
RUN = RunSpec(StreamSpec("digits"), training=Training(steps=3))
DEVICE = "cpu:0"  # not "cpu" by name: what is trained there is trained in fleets, as on a GPU


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[str, str]:
    """Two experiments that share vanilla; intransigence is measured in the second alone."""
    for name, methods, reference in (
        ("tableS1", ("vanilla", "rwalk"), "none"),
        ("tableS2-mnist", ("vanilla", "pi"), "final"),
    ):
        entries = [Entry(method, replace(RUN, method=method), "single", "tiny") for method in methods]
        experiment = Experiment(name, "Tiny", "seconds", lambda entries=entries: iter(entries), 2, reference)  # type: ignore[misc]
        monkeypatch.setitem(EXPERIMENTS, name, experiment)
    monkeypatch.setenv("RWALK_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return "tableS1", "tableS2-mnist"


def reproduce(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    flags = ["--workers=1", f"--device={DEVICE}", "--quiet"]
    monkeypatch.setattr(sys, "argv", ["reproduction", *arguments, *flags])
    try:
        main(app)
    except SystemExit as error:
        return int(error.code or 0)
    return 0


def rows_in(folder: Path | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder, "runs.jsonl").read_text().splitlines()]


def test_each_has_the_rows_that_it_has_by_itself(
    tables: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in tables:
        assert reproduce(monkeypatch, name, f"--out={name}/results") == 0
    capsys.readouterr()
    assert reproduce(monkeypatch, *tables) == 0
    assert "together: the runs of tableS1, tableS2-mnist" in capsys.readouterr().out
    for name in tables:
        found, alone = rows_in(f"results/{name}"), rows_in(f"{name}/results/{name}")
        assert [row["hash"] for row in found] == [row["hash"] for row in alone], "its own runs, in its own order"
        for ours, its in zip(found, alone, strict=True):
            assert ours["single"]["A"] == pytest.approx(its["single"]["A"], abs=0.02), "but for rounding"
        assert Costs(Path("results", name)).read().keys() == {row["hash"] for row in found}
    measured = [row["single"]["I"] is not None for row in rows_in("results/tableS2-mnist")]
    assert all(measured), "a run that both have too"
    assert [row["single"]["I"] is None for row in rows_in("results/tableS1")] == [False, False, True, True]
    assert not Path("results/together").exists(), "nothing else is left"
    assert reproduce(monkeypatch, *tables) == 0
    assert "together: " not in capsys.readouterr().out, "there is nothing to train"


def test_what_was_begun_as_one_goes_on_as_one(tables: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped when all was trained, before the experiments had their rows."""

    def stopped(*_: object) -> None:
        raise InputError("stopped")

    assert reproduce(monkeypatch, *tables, "--only=vanilla") == 0
    assert [row["method"] for row in rows_in("results/tableS2-mnist")] == ["vanilla", "vanilla"]
    with monkeypatch.context() as patch:
        patch.setattr(pooled_study, "dissolve", stopped)
        assert reproduce(monkeypatch, *tables) == 2
    kept = Path("results/together/runs.jsonl").read_bytes()
    assert len(kept.splitlines()) == 6
    Path("results/tableS1/runs.jsonl").write_text("")
    with monkeypatch.context() as patch:
        patch.setattr(Study, "_executor", lambda self, *_: pytest.fail("runs are missing"))
        assert reproduce(monkeypatch, *tables) == 0, "no run is trained twice"
    assert len(rows_in("results/tableS1")) == 4 and not Path("results/together").exists()


def test_a_folder_of_that_name_that_is_not_ours_stays(
    tables: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Path("results/together/thesis.tex")
    mine.parent.mkdir(parents=True)
    mine.write_text("years of work")
    assert reproduce(monkeypatch, *tables) == 2, "it is not empty, and holds no study"
    assert mine.read_text() == "years of work"
    assert reproduce(monkeypatch, tables[0]) == 0 and mine.exists(), "one experiment needs no such folder"


def test_references_are_of_each_run_and_survive_the_file(tables: tuple[str, str], tmp_path: Path) -> None:
    pool = pooled_study.as_one(plan(tables, tmp_path), tmp_path).study
    assert pool.reference == ("final", "final", "none", "none", "final", "final")
    assert {spec.seed for spec in pool.references()} == {0, 1} and len(pool.references()) == 2
    rwalk = [run for run in pool.runs if run.method == "rwalk"]
    assert pool.references(rwalk) == []
    again = Study.of(Description.from_json(pool.describe().to_json(), sealed=True))
    assert (again.reference, again.hash()) == (pool.reference, pool.hash())
    with pytest.raises(InputError, match="1 references for 6 runs: give one, or one each"):
        replace(pool, reference=("final",))


def test_of_all_fleets_the_longest_begins_first() -> None:
    """GEM's steps are few, and each passes over the exemplars of every earlier task."""
    training = Training(steps=3, batch=2)
    short = replace(RUN, method="gem", memory=MemorySpec(20), training=training)
    long = replace(RUN, training=replace(training, steps=9))
    with Study((long, short), "none", device=DEVICE, workers=2)._executor(2, None, lambda: False) as executor:
        assert executor.jobs_of([long, short]) == [(short,), (long,)]
        assert executor.jobs_of([long, replace(short, method="vanilla")])[0] == (long,)
