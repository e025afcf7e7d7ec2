"""lam="auto" in studies: chosen by trials on training data, trained once more on all of them, said in the row."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import little
from rwalk import InputError, MemorySpec
from rwalk.cli import app
from rwalk.studies import Study, lambda_choice
from rwalk.studies.lambda_choice import FIRST_TASKS, best_lam, trials_of
from rwalk.studies.rows import Made, Outcome, ReferenceOutcome
from rwalk.studies.specs import RunSpec, StreamSpec, Trial
from rwalk.studies.study_events import Event, Started, Stepped, Trained
from rwalk.studies.study_folder import Store
from rwalk.training import Training

STEPS = Training(steps=8, batch=16, lr=0.03)
LAMS = (0.0, 1.0, 1e3)  # few, to be quick


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lambda_choice, "LAMS", LAMS)
    monkeypatch.setenv("RWALK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(little.__file__), prepend=os.pathsep)
    return tmp_path / "cache"


def data(path: Path, test_seed: int = 1, last_seed: int = 2, classes: int = 8) -> str:
    """Blobs in four tasks of two classes; test data and the last task's training data have seeds of their own."""

    def blobs(seed: int, columns: range, n: int = 15) -> tuple[Any, Any]:
        draw, centres = np.random.default_rng(seed), np.random.default_rng(0).normal(size=(classes, 6))
        y = np.repeat(np.array(columns), n)
        return (centres[y] + 0.6 * draw.normal(size=(len(y), 6))).astype(np.float32), y

    parts = blobs(3, range(classes - 2)), blobs(last_seed, range(classes - 2, classes))
    x, y = (np.concatenate(each) for each in zip(*parts, strict=True))
    x_test, y_test = blobs(test_seed, range(classes))
    np.savez(path, x=x, y=y, x_test=x_test, y_test=y_test)
    return str(path)


def auto(dataset: str, memory: MemorySpec | None = None, **others: Any) -> RunSpec:
    numbers = {"lam": "auto"}
    return RunSpec(StreamSpec(dataset), "little:Network", "rwalk", numbers, memory, STEPS, **others)


def executed(runs: Sequence[RunSpec], folder: Path | None = None, **how: Any) -> list[Any]:
    study = Study(tuple(runs), reference="none", workers=1)
    if folder is None:
        return study.execute(**how)
    with Store(folder).opened(study.describe()) as store:
        return study.execute(store, **how)


@pytest.mark.parametrize("memory", [MemorySpec(2), None], ids=["exemplars", "none"])
def test_the_row_is_that_of_the_best_lam_on_training_data_held_out(
    memory: MemorySpec | None, tmp_path: Path
) -> None:
    run = auto(data(tmp_path / "a.npz"), memory)
    (row,) = executed([run])
    stream = run.stream.build()
    trials = trials_of(run, stream)
    assert [trial.lam for trial in trials] == list(LAMS)
    by_hand = {trial.lam: trial.single.A for trial in executed(trials)}
    assert row.tried == {f"{lam:g}": accuracy for lam, accuracy in by_hand.items()}
    assert by_hand[row.lam] == max(by_hand.values())
    (fixed,) = executed([run.with_lam(row.lam)])
    assert row.accuracy == fixed.accuracy
    assert row.spec == run and row.hash == run.hash() != fixed.hash


@pytest.mark.parametrize("memory", [MemorySpec(2), None], ids=["exemplars", "none"])
def test_test_data_have_no_say(memory: MemorySpec | None, tmp_path: Path) -> None:
    rows = [executed([auto(data(tmp_path / f"{seed}.npz", seed), memory)])[0] for seed in (1, 5)]
    assert rows[0].tried == rows[1].tried and rows[0].lam == rows[1].lam
    assert rows[0].accuracy != rows[1].accuracy


def test_a_run_that_keeps_nothing_chooses_by_its_first_tasks(tmp_path: Path) -> None:
    rows = [executed([auto(data(tmp_path / f"{seed}.npz", last_seed=seed))])[0] for seed in (2, 6)]
    assert rows[0].tried == rows[1].tried
    kept = [executed([auto(str(tmp_path / f"{seed}.npz"), MemorySpec(3))])[0] for seed in (2, 6)]
    assert kept[0].tried != kept[1].tried  # whoever keeps exemplars may look at all tasks


def test_judges_are_no_more_than_exemplars_and_nobody_learns_from_them(tmp_path: Path) -> None:
    run = auto(data(tmp_path / "a.npz"), MemorySpec(2))
    whole, part = run.stream.build(), trials_of(run, run.stream.build())[0].stream.build()
    assert part.y_test.bincount().tolist() == [2] * 8
    rows = {row.numpy().tobytes() for row in part.x_test}
    assert rows <= {row.numpy().tobytes() for row in whole.x}
    assert not rows & {row.numpy().tobytes() for row in part.x} and len(part.x) + 16 == len(whole.x)
    first = StreamSpec(run.stream.dataset, trial=Trial(first=FIRST_TASKS)).build()
    assert len(first) == FIRST_TASKS and first.y_test.bincount(minlength=8).tolist() == [3] * 6 + [0, 0]


def test_a_run_on_validation_data_does_not_judge_by_them(tmp_path: Path) -> None:
    run = replace(auto(""), stream=StreamSpec(data(tmp_path / "a.npz"), validation=0.2))
    asked = {row.numpy().tobytes() for row in run.stream.build().x_test}
    trial = trials_of(run, run.stream.build())[0].stream.build()
    seen = {row.numpy().tobytes() for row in (*trial.x, *trial.x_test)}
    assert not asked & seen


def test_an_interrupted_study_ends_where_it_would_have_ended(tmp_path: Path) -> None:
    runs = [auto(data(tmp_path / "a.npz"), MemorySpec(2))]
    whole = executed(runs, tmp_path / "whole")
    for path in (tmp_path / "cache" / "references").iterdir():
        path.unlink()
    finished, interruptions = list[str](), 0
    for _ in range(100):
        seen = list[Event]()
        try:
            rows = executed(runs, tmp_path / "parts", watch=seen.append, stop=lambda seen=seen: len(seen) > 8)
            break
        except KeyboardInterrupt:
            interruptions += 1
        finally:
            finished += [each.runs[0].hash() for each in seen if isinstance(each, Trained)]
    assert interruptions > 1 and rows == whole
    assert len(finished) == len(set(finished)) == len(LAMS) + 1  # what was tried is not tried again


def test_trials_are_shared_between_studies(tmp_path: Path) -> None:
    run = auto(data(tmp_path / "a.npz"))
    first, second = list[Event](), list[Event]()
    rows = executed([run], watch=first.append)
    assert executed([run], watch=second.append) == rows
    counts = [len(next(each for each in events if isinstance(each, Started)).runs) for events in (first, second)]
    assert counts == [len(LAMS) + 1, 1]


def test_beside_a_run_of_the_same_lam_it_is_trained_once(tmp_path: Path) -> None:
    run = auto(data(tmp_path / "a.npz"))
    (alone,) = executed([run])
    seen = list[Event]()
    both = executed([run, run.with_lam(alone.lam)], tmp_path / "both", watch=seen.append)
    assert both[0] == alone and both[0].accuracy == both[1].accuracy
    assert len({each.runs[0].hash() for each in seen if isinstance(each, Stepped)}) == 1


def test_of_equals_the_one_nearest_to_the_methods_own_is_taken(tmp_path: Path) -> None:
    run = auto(data(tmp_path / "a.npz"))
    trials = trials_of(run, run.stream.build())
    judged = {trial.hash(): ReferenceOutcome(0.5, place / 10) for place, trial in enumerate(trials)}
    assert best_lam(run, trials, judged).lam == run.without_lam().lam
    by_task = replace(run, stream=replace(run.stream, scenario="task"))
    assert best_lam(by_task, trials, judged).lam == max(LAMS)


def test_the_proximal_form_tries_larger_ones(tmp_path: Path) -> None:
    run = auto(data(tmp_path / "a.npz"))
    run = replace(run, numbers={"lam": "auto", "penalty": "proximal"})
    assert [trial.lam for trial in trials_of(run, run.stream.build())] == [1e3 * lam for lam in LAMS]


def test_the_command_line(tmp_path: Path) -> None:
    words = ["run", "--dataset", data(tmp_path / "a.npz"), "--methods", "rwalk,vanilla", "--steps", "4", "--quiet"]
    words += ["--seeds", "1", "--workers", "1", "--reference", "none", "--out", str(tmp_path / "study")]
    done = CliRunner().invoke(app, [*words, "--lam", "auto,10"], env={"COLUMNS": "120"})
    assert done.exit_code == 0 and "auto: " in done.output, done.output
    rows = Store(tmp_path / "study").rows()
    assert [row.spec.numbers.get("lam") for row in rows] == ["auto", 10.0, None]
    assert [(row.tried is not None) for row in rows] == [True, False, False]


def test_what_has_no_lam_cannot_seek_one() -> None:
    with pytest.raises(InputError, match="no 'lam'"):
        Study((RunSpec(method="er", numbers={"lam": "auto"}, memory=MemorySpec(2)),))


def test_trial_without_a_compiler_is_kept_apart_as_a_reference_is() -> None:
    matrix = [[0.5, None], [0.25, 1.0]]
    made = Made(execution="eager (no working compiler)")
    outcome = Outcome(accuracy={"single": matrix, "multi": matrix}, stopped=None, made=made)
    assert lambda_choice.tested(outcome) == ReferenceOutcome(0.625, 0.625, execution="eager (no working compiler)")
