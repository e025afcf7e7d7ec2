"""300 random corruptions of each kind of file: none passes with another result or is a traceback."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import little
from corruption import forged, survey
from rwalk import Fleet, Guard, IncrementalClassifier, InputError, MemorySpec, Training, learner, model_file
from rwalk.atomic_files import with_checksum
from rwalk.report import result_folders
from rwalk.report.html_page import render
from rwalk.studies import Study
from rwalk.studies.checkpoint import Checkpointer, load
from rwalk.studies.reference_cache import ReferenceCache
from rwalk.studies.rows import ReferenceOutcome
from rwalk.studies.shared_folder import OUTCOMES, Join, read_outcomes
from rwalk.studies.study_folder import SharedStore, Store, read_rows
from rwalk.studies.work_claims import CLAIMS, Claims

NUMBER = 300
STUDY = little.study(methods=["vanilla"], seeds=2, executor=Join)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that two processes could have joined, with its rows and outcomes."""
    folder = tmp_path_factory.mktemp("sound") / "study"
    with SharedStore(folder).opened(STUDY.describe()) as store:
        STUDY.execute(store)
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "study"))


def test_corrupt_study_file_is_refused_by_every_reader(folder: Path) -> None:
    store = Store(folder)

    def read() -> Any:
        record = store.study()
        assert result_folders.read(folder).planned == {run.hash() for run in STUDY.runs}
        return record, Study.of(record).runs

    counts = survey(store.study_file, read, NUMBER)
    assert counts.total() == NUMBER


def test_corrupt_rows_are_refused_or_dropped_as_torn(folder: Path) -> None:
    rows_file = Store(folder).rows_file

    def among(sound: list[Any], found: list[Any]) -> bool:
        return all(row in sound for row in found)  # a last row that is torn is trained again

    counts = survey(rows_file, lambda: read_rows(rows_file), NUMBER, among)
    assert counts["refused"] > NUMBER / 2
    report = survey(rows_file, lambda: result_folders.read(folder).rows, 50, among, seed=1)
    assert report.total() == 50


def test_corrupt_outcome_is_trained_again(folder: Path) -> None:
    for path in (folder / OUTCOMES).iterdir():
        jobs = [(run,) for run in STUDY.runs]
        job = next(each for each in jobs if read_outcomes(path, each) is not None)
        counts = survey(path, lambda path=path, job=job: read_outcomes(path, job), NUMBER // 2)  # type: ignore[misc]
        assert counts["ignored"] > NUMBER / 4


def test_corrupt_reference_is_trained_again(tmp_path: Path) -> None:
    study = little.study(methods=["vanilla"], seeds=1, reference="final", cache=tmp_path)
    study.execute()
    (spec,) = study.references()
    cache = ReferenceCache(study._context(None), tmp_path)
    (path,) = (tmp_path / "references").iterdir()
    counts = survey(path, lambda: cache.recall(spec), NUMBER)
    assert counts["ignored"] > NUMBER * 0.9


@pytest.mark.parametrize(
    "content", ['{"single": 2.66, "multi": 0.5, "stopped": null}', '{"single": 0.5}', "[]", "7"]
)
def test_reference_out_of_range_is_trained_again(content: str, tmp_path: Path) -> None:
    study = little.study(methods=["vanilla"], seeds=1, reference="final", cache=tmp_path)
    (spec,) = study.references()
    cache = ReferenceCache(study._context(None), tmp_path)
    path = cache._file(spec, without=False)
    path.parent.mkdir()
    path.write_text(content)
    assert cache.recall(spec) is None
    path.write_text('{"single": 0.75, "multi": 0.5, "stopped": null}')
    assert cache.recall(spec) == ReferenceOutcome(0.75, 0.5), "as 0.2.0 wrote it"


@pytest.mark.parametrize("named", ["", "~/references", None])
def test_references_are_kept_in_the_users_home_or_not_at_all(
    named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user of a container may have no home, and variables are set without a shell that expands them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RWALK_CACHE", raising=False)
    if named is not None:
        monkeypatch.setenv("RWALK_CACHE", named)
    study = little.study(methods=["vanilla"], seeds=1, reference="final")
    (spec,) = study.references()
    cache, outcome = ReferenceCache(study._context(None)), ReferenceOutcome(0.5, 0.25)
    for home in (str(tmp_path / "home"), "~"):
        monkeypatch.setattr(os.path, "expanduser", lambda path, home=home: str(path).replace("~", home, 1))
        cache.remember(spec, outcome)
        assert cache.recall(spec) == (None if home == "~" else outcome)
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize("part", ["record", "tensors"])
def test_corrupt_checkpoint_is_refused_and_changes_nothing(part: str, tmp_path: Path) -> None:
    def fleet() -> Fleet:
        chosen = learner("rwalk", MemorySpec(per_class=2))
        return Fleet(little.stream(), little.Network, [chosen], [0], Training(epochs=1, batch=16))

    class Enough(Exception):
        """It has saved itself."""

    class Once(Checkpointer):
        def save(self, fleet: Fleet) -> None:
            super().save(fleet)
            raise Enough

    with pytest.raises(Enough):
        fleet().train(checkpoints=Once(tmp_path, "run", every=3))
    (record,) = tmp_path.glob("*.json")
    path = record if part == "record" else record.with_suffix(".safetensors")
    victim = fleet()
    untouched = victim.theta.clone()

    def read() -> Any:
        victim.theta.copy_(untouched)
        written_in = load(record, victim, "run")
        return written_in, victim.task, victim.step, victim.theta.tolist()

    counts = survey(path, read, NUMBER)
    assert counts["refused"] > NUMBER * 0.9
    victim.theta.copy_(untouched)
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(InputError):
        load(record, victim, "run")
    assert torch.equal(victim.theta, untouched)


LEARNERS: dict[str, dict[str, Any]] = {
    "closed form": {"size": 8, "warm_up": 20},
    "closed form that holds examples": {"size": 8, "warm_up": 100},
    "network": {"method": "rwalk", "network": little.Network, "memory": 1, "epochs": 1},
    "texts": {"size": 16},
    "chosen": {"method": "auto", "network": little.Network, "memory": 1, "epochs": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LEARNERS)
@pytest.mark.filterwarnings("ignore")
def test_corrupt_classifier_is_refused(kind: str, tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    x = np.array([f"{'ab'[each % 2]} c{each}" for each in range(40)]) if kind == "texts" else numbers
    path = tmp_path / "classifier.safetensors"
    IncrementalClassifier(random_state=0, **LEARNERS[kind]).fit(x, ["a", "b"] * 20).save(path)
    own = {name: value for name, value in LEARNERS[kind].items() if name == "network"}

    def read() -> Any:
        learned = IncrementalClassifier.load(path, **own)
        return learned.predict_proba(x).tolist(), learned.classes_.tolist()

    counts = survey(path, read, NUMBER)
    assert counts["refused"] > NUMBER * 0.9


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rwalk", "ewc"])
def test_corrupt_guard_is_refused(method: str, tmp_path: Path) -> None:
    model, path = nn.Linear(2, 2), tmp_path / "guard.safetensors"

    def optimizer() -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    guard = Guard(model, optimizer(), method)
    model(torch.ones(2)).square().sum().backward()
    guard.optimizer.step()
    guard.consolidate([model(torch.ones(2)).square().sum()] if method == "ewc" else None)
    guard.save(path)
    guard.detach()

    def read() -> Any:
        found = Guard.load(path, model, optimizer())
        try:
            found.save(tmp_path / "again.safetensors")
        finally:
            found.detach()
        return model_file.read(tmp_path / "again.safetensors")[0]["sha256"]

    counts = survey(path, read, NUMBER)
    assert counts["refused"] > NUMBER * 0.9


def test_corrupt_claim_is_taken_over_or_respected(folder: Path) -> None:
    claims = Claims(folder / CLAIMS, lease=60)
    assert claims.take("run") is not None
    (path,) = (folder / CLAIMS).iterdir()
    other = Claims(folder / CLAIMS, lease=60)

    def read() -> bool:
        assert other.take("run") is None, "it has only just changed"
        return True

    assert survey(path, read, NUMBER)["the same"] == NUMBER


@pytest.mark.parametrize("kind", ["rows", "study"])
def test_forged_record_with_the_right_checksum_is_refused_or_shown(kind: str, folder: Path) -> None:
    """Whoever forges a checksum too may lie, but does not make a reader fail."""
    store, chance, refused = Store(folder), random.Random(0), 0
    rows, study = [row.to_json() for row in store.rows()], store.study().to_json()
    for attempt in range(NUMBER):
        if kind == "rows":
            lines = [with_checksum(forged(rows[0], chance)), with_checksum(rows[1])]
            store.rows_file.write_text("\n".join(lines) + "\n")
        else:
            store.study_file.write_text(with_checksum(forged(study, chance), indent=1))
        try:
            found = result_folders.read(folder)
            _use(kind, folder)
            if attempt % 10 == 0:
                render([found], "forged")
        except InputError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > NUMBER / 4


def _use(kind: str, folder: Path) -> None:
    readers: dict[str, Callable[[], object]] = {
        "rows": lambda: STUDY.current(Store(folder).rows()),
        "study": lambda: Study.of(Store(folder).study()),
    }
    readers[kind]()
