"""Published variants: trained where Python finds the reproduction, read everywhere."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

import little
from reproduction import packed_rows
from rwalk import MemorySpec, Study, parts
from rwalk.data import samplers
from rwalk.engine import architectures
from rwalk.errors import InputError
from rwalk.registry import MOVED
from rwalk.report.html_page import write_report
from rwalk.report.seed_summaries import summarise
from rwalk.studies.specs import RunSpec
from rwalk.studies.study_folder import Store

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def without_reproduction(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the package alone is installed."""
    monkeypatch.setitem(sys.modules, "reproduction.variants", None)
    parts.variant.cache_clear()


def run_of(method: str) -> RunSpec:
    memory = MemorySpec(per_class=2, sampler="mof-plain")
    return replace(little.study(methods=["vanilla"], seeds=1).runs[0], method=method, memory=memory)


def test_every_old_name_is_its_class_in_the_reproduction() -> None:
    for name in parts.VARIANTS:
        assert getattr(parts.find(name), "name") == name  # noqa: B009 - every kind of part has one
        assert f"{parts.find(name).__module__}:{parts.find(name).__qualname__}" == MOVED[name]
    assert "unit length" in samplers.find("mof-plain").description
    for name in ("cnn-5", "cnn-5-normal"):
        assert architectures.find(name)((3, 8, 8), 4).head.in_features == 512 * 2 * 2


def test_settings_of_a_variant_are_those_of_its_base() -> None:
    for name, base in parts.VARIANTS.items():
        variant = {each.name: each.default for each in fields(parts.find(name))}
        assert variant == parts.defaults(name) == parts.defaults(base)


def test_a_study_of_variants_opens_and_reports_without_the_reproduction(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    runs = tuple(run_of(name) for name in ("rwalk-2018", "icarl-2020", "er-tasks"))
    study = Study(runs, "none", workers=1, cache=tmp_path / "cache")
    with Store(tmp_path / "study").opened(study.describe()) as store:
        rows = study.execute(store)
    request.getfixturevalue("without_reproduction")
    again = Store(tmp_path / "study")
    assert again.rows() == rows
    assert again.study().hashes() == [run.hash() for run in runs]
    page = write_report([tmp_path / "study"]).read_text()
    assert all(run.method in page for run in runs)
    assert [each.label for each in summarise(rows)] == [
        "rwalk-2018-S",
        "icarl-2020",
        "er-tasks",
    ]


@pytest.mark.usefixtures("without_reproduction")
def test_training_a_variant_without_the_reproduction_names_its_place(tmp_path: Path) -> None:
    for run in (run_of("rwalk-2018"), run_of("vanilla"), replace(run_of("vanilla"), network="cnn-5", memory=None)):
        with pytest.raises(InputError, match=r"is reproduction\.variants:\w+ now: use it in a clone"):
            Study((run,), "none", workers=1, cache=tmp_path).execute()


def test_hashes_of_committed_rows_are_those_of_their_settings() -> None:
    counted = 0
    for name in set(packed_rows.packed(RESULTS)) - set(packed_rows.OF_OTHERS):
        for row in map(json.loads, packed_rows.text(RESULTS, name).splitlines()):
            if row.get("schema", 1) > 1 and row["method"] in parts.VARIANTS:
                assert RunSpec.from_json(row["spec"]).hash() == row["hash"]
                counted += 1
    assert counted > 100
