"""The command line, from end to end: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import little
from command_line import Outcome, Rwalk, refused
from reports import write_study
from rwalk import Fleet, MemorySpec, Training, __version__, cli
from rwalk.atomic_files import with_checksum
from rwalk.cli import command_options, run_study, sweep
from rwalk.option_fields import option
from rwalk.part_names import spelled
from rwalk.parts import parts
from rwalk.studies.json_records import content_hash
from rwalk.studies.loss_curves import commands
from rwalk.studies.rows import Description
from rwalk.studies.specs import RunSpec, StreamSpec
from rwalk.studies.study_folder import Store

TESTS = os.path.dirname(little.__file__)
PROGRAM = [sys.executable, "-m", "rwalk"]
TINY = ["run", "--epochs=1", "--seeds=2"]
LITTLE = ["run", "--network=little:Network", "--seeds=1", "--reference=none", "--workers=1"]


@pytest.fixture(autouse=True)
def surroundings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, away from the user's data and cache."""
    folder = tmp_path_factory.mktemp("work")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RWALK_CACHE", str(folder / "cache"))
    monkeypatch.setenv("PYTHONPATH", TESTS, prepend=os.pathsep)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("RWALK_DATA", raising=False)
    return folder


# ── a study, in processes of its own ──────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome, Path, Outcome]:
    """The same study in two new processes: by two workers with tables, by one worker as JSON."""
    outcomes = []
    for number, how in enumerate((["--workers=2"], ["--workers=1", "--json"])):
        folder = tmp_path_factory.mktemp("twice")
        environ = {**os.environ, "RWALK_CACHE": str(folder / "cache"), "COLUMNS": "100"}
        command = [*PROGRAM, *TINY, *how, "--out", str(folder / "study")]
        done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=folder)
        outcomes += [folder / "study", Outcome(done.returncode, done.stdout, done.stderr)]
        assert done.returncode == 0, (number, done.stderr)
    return tuple(outcomes)


def test_reproduce_prints_where_the_experiments_are(rwalk: Rwalk) -> None:
    code, out, err = rwalk("reproduce", "table1-mnist", "--dry-run")
    assert (code, out, err.count("\n")) == (2, "", 1) and "python -m reproduction" in err


def test_a_study_prints_a_table_a_head_and_writes_its_folder(twice: tuple[Any, ...]) -> None:
    folder, outcome, _, _ = twice
    single, multi = outcome.out.index("Single-head"), outcome.out.index("Multi-head")
    assert single < multi
    for table in (outcome.out[single:multi], outcome.out[multi:]):
        for method in cli.DEFAULT_METHODS.split(","):
            assert f" {spelled(method)} " in table
    assert str(folder) in outcome.out.replace("\n", "")
    assert {"study.json", "runs.jsonl"} <= {path.name for path in folder.iterdir()}
    assert len((folder / "runs.jsonl").read_text().splitlines()) == 10
    assert "Traceback" not in outcome.err


def test_new_processes_and_any_number_of_workers_give_the_same_bytes(twice: tuple[Any, ...]) -> None:
    first, _, second, _ = twice
    for name in ("study.json", "runs.jsonl"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_json_has_the_promised_form(twice: tuple[Any, ...]) -> None:
    result = json.loads(twice[3].out)
    assert set(result) == {"rows", "study"}
    assert len(result["rows"]) == 10
    for row in result["rows"]:
        assert isinstance(row["method"], str) and isinstance(row["lam"], float) and isinstance(row["seed"], int)
        for head in ("single", "multi"):
            assert set(row[head]) == {"A", "F", "I"}
            assert 0 <= row[head]["A"] <= 1 and -1 <= row[head]["F"] <= 1 and -1 <= row[head]["I"] <= 1
            matrix = np.array(row["accuracy"][head], dtype=float)
            assert matrix.shape == (5, 5)
            assert np.isnan(matrix[np.triu_indices(5, 1)]).all()
            assert ((matrix[np.tril_indices(5)] >= 0) & (matrix[np.tril_indices(5)] <= 1)).all()
    assert [(row["method"], row["seed"]) for row in result["rows"]] == [
        (method, seed) for method in cli.DEFAULT_METHODS.split(",") for seed in (0, 1)
    ]
    assert result["study"] == Store(twice[2]).study().to_json()


def test_a_second_call_runs_nothing_again(
    twice: tuple[Any, ...], rwalk: Rwalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fleet, "train", None)
    again = rwalk(*TINY, "--out", twice[0])
    assert again.code == 0
    assert again.out == twice[1].out
    assert rwalk("resume", twice[0]).out == twice[1].out


def test_ctrl_c_ends_all_workers_and_resume_goes_on(surroundings: Path, rwalk: Rwalk) -> None:
    little_run = [each for each in LITTLE if "workers" not in each]
    options = [*little_run, "--methods=rwalk,pi", "--memory=2", "--epochs=4", "--batch=16", "--checkpoint-every=3"]
    Path("my data").mkdir()
    command = [*PROGRAM, *options, "--workers=2", "--out=parts", "--data=my data"]
    environ = {**os.environ, "LITTLE_PAUSE": "0.02"}  # it is inside its runs when it is interrupted
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True, env=environ)
    deadline = time.monotonic() + little.PATIENCE
    while not any(Path("parts").glob("checkpoints/*/*.json")):  # a worker is inside a run
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, said = process.communicate(timeout=little.PATIENCE)
    assert process.returncode == 130, said
    assert "of 2 runs are kept in parts, and those in progress are saved" in said and "Traceback" not in said
    while group_is_alive(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (told,) = re.findall("`(.*)`", said)
    assert told == "rwalk resume parts --data 'my data' --trust little:Network"
    assert rwalk(*shlex.split(told)[1:], "--workers=1", "--quiet").code == 0
    assert rwalk(*options, "--workers=1", "--out=whole", "--quiet").code == 0
    assert Path("parts/runs.jsonl").read_bytes() == Path("whole/runs.jsonl").read_bytes()


def group_is_alive(leader: int) -> bool:
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    return True


# ── in this process ───────────────────────────────────────────────────────────────────────────────────────


def test_methods_and_datasets_are_listed(rwalk: Rwalk) -> None:
    listed = rwalk("methods")
    assert listed.code == 0
    assert all(name in listed.out for name in parts())
    listed = rwalk("datasets")
    assert listed.code == 0
    assert all(name in listed.out for name in ("digits", "mnist", "cifar100", "FOLDER", "FILE.csv", "FILE.npz"))


def test_quiet_and_json_leave_stderr_empty(rwalk: Rwalk) -> None:
    options = [*LITTLE, "--methods=vanilla", "--epochs=1"]
    assert rwalk(*options, "--quiet", "--out=a").err == ""
    outcome = rwalk(*options, "--json", "--out=b")
    assert outcome.err == ""
    assert json.loads(outcome.out)["rows"][0]["single"]["I"] is None  # --reference none


def test_without_out_the_folder_is_named_by_its_content(rwalk: Rwalk) -> None:
    options = [*LITTLE, "--methods=vanilla", "--epochs=1", "--quiet"]
    assert rwalk(*options).code == rwalk(*options).code == 0
    assert rwalk(*options, "--lr=0.1").code == 0
    assert len(list(Path("rwalk-studies").glob("digits-*"))) == 2


def test_a_folder_whose_name_is_not_utf8_holds_a_study(rwalk: Rwalk) -> None:
    folder = Path("caf\udce9")
    options = (
        "--methods=vanilla",
        "--classes-per-task=5",
        "--steps=2",
        "--seeds=1",
        "--workers=1",
        "--quiet",
        "--out",
    )
    done = rwalk("run", *options, folder)
    assert done.code == 0 and "caf\\udce9: study.json" in done.out
    (folder / "runs.jsonl").unlink()
    assert rwalk("run", *options, folder).code == 0
    assert commands(folder) == [f"rwalk run {' '.join(options)} '{folder}'"], "the same command, once"
    assert rwalk("report", folder).code == 0


def test_a_study_may_grow(rwalk: Rwalk, monkeypatch: pytest.MonkeyPatch) -> None:
    options = [*LITTLE[:2], *LITTLE[3:], "--epochs=1", "--quiet", "--out=study"]
    assert rwalk(*options, "--methods=vanilla", "--seeds=1").code == 0
    (first,) = Path("study/runs.jsonl").read_text().splitlines()
    refused(rwalk(*options, "--methods=rwalk", "--seeds=2"), "which is not part of this one")
    assert rwalk(*options, "--methods=rwalk,vanilla", "--seeds=2").code == 0
    rows = Path("study/runs.jsonl").read_text().splitlines()
    assert len(rows) == 4 and rows[2] == first, "what was there is not trained again"
    monkeypatch.setattr(Fleet, "train", None)
    assert rwalk("resume", "study", "--network=little:Network", "--workers=1", "--quiet").code == 0
    refused(rwalk(*options, "--methods=vanilla", "--seeds=1"), "which is not part of this one")


def test_replay_is_recorded_as_it_is_done_and_a_method_with_its_own_says_so(rwalk: Rwalk) -> None:
    outcome = rwalk(*LITTLE, "--methods=vanilla,icarl", "--memory=2", "--replay=half", "--steps=1", "--out=study")
    assert outcome.code == 0
    assert "--replay half is ignored for icarl, which prescribes its own replay" in outcome.err
    rows = [json.loads(line) for line in Path("study/runs.jsonl").read_text().splitlines()]
    assert [row["spec"]["memory"]["replay"] for row in rows] == ["half", "concat"]
    refused(rwalk(*LITTLE, "--replay=half"), "--memory")


def test_the_version_is_told(rwalk: Rwalk) -> None:
    assert rwalk("--version") == (0, f"rwalk {__version__}\n", "")


def test_a_stopped_run_is_reported(rwalk: Rwalk) -> None:
    outcome = rwalk(*LITTLE, "--methods=ewc", "--epochs=1", "--lr=1e30", "--quiet", "--out=out")
    assert outcome.code == 0
    assert "stopped: ewc, seed 0: the loss is not finite" in " ".join(outcome.out.split())


def test_brackets_are_printed_as_they_are(rwalk: Rwalk) -> None:
    """A terminal's markup is in brackets, and perhaps a folder's name."""
    said = rwalk(*LITTLE, "--steps=1", "--methods=vanilla", "--out=study[old]").out
    assert "study[old]: study.json, runs.jsonl" in said


def test_what_changes_nothing_is_said(rwalk: Rwalk) -> None:
    options = [*LITTLE, "--steps=1", "--classes-per-task=10"]
    said = rwalk(*options, "--methods=vanilla", "--lam=0.1,1", "--out=a").err
    assert "--lam is ignored: vanilla has no λ" in said
    assert "there is only one task, so nothing can be forgotten" in said
    assert (
        "--lam is ignored: vanilla, er have no λ"
        in rwalk(*options, "--memory=1", "--methods=vanilla,er", "--lam=auto", "--out=c").err
    )
    assert "--lam" not in rwalk(*options, "--methods=vanilla,rwalk", "--lam=1", "--out=b").err
    closed = rwalk(*options, "--methods=ridge", "--memory=2", "--lr=0.5", "--out=d").err
    for remark in (
        "exemplars are ignored: ridge cannot use any",
        "--steps is ignored: ridge takes no gradient",
        "--lr is ignored: ridge takes no gradient",
    ):
        assert remark in closed
    assert "--optimizer" not in closed and "--epochs" not in closed
    assert "ignored" not in rwalk(*options, "--methods=ridge,vanilla", "--memory=2", "--lr=0.5", "--out=e").err
    plain = rwalk(*options, "--methods=vanilla,gem", "--memory=2", "--replay=none", "--batch=2000", "--out=f").err
    assert "--replay none: vanilla keeps exemplars and uses none" in plain and ": gem" not in plain
    assert "no task has 2,000 examples, so a batch is a whole task" in plain
    sgd = rwalk(*LITTLE, "--methods=vanilla", "--steps=1", "--optimizer=sgd", "--keep-optimizer", "--permuted=1")
    assert (
        "--keep-optimizer is ignored: sgd has nothing to keep" in sgd.err
        and "forgotten: see --permuted" in sgd.err
    )
    assert rwalk(*options, "--methods=vanilla", "--lam=1", "--quiet", "--out=a").err == ""


def test_where_both_heads_are_the_same_there_is_one_table(rwalk: Rwalk) -> None:
    options = [*LITTLE, "--methods=vanilla,rwalk", "--steps=1"]
    said = rwalk(*options, "--permuted=2", "--out=permuted").out
    assert said.count("accuracy A") == 1 and "Single-head and multi-head, which are the same here" in said
    assert rwalk(*options, "--out=split").out.count("accuracy A") == 2


def test_configurations_are_told_apart_in_a_table(rwalk: Rwalk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    said = rwalk(*LITTLE, "--methods=rwalk,pi", "--set=dt=2,3", "--steps=3", "--permuted=2", "--out=swept").out
    assert all(said.count(f"RWalk, steps between scores {dt}") == 1 for dt in (2, 3)) and "PI," not in said


def test_a_device_that_is_not_there_comes_with_a_way_out(rwalk: Rwalk) -> None:
    refused(rwalk(*LITTLE, "--device=cuda:99"), "device 'cuda:99' cannot be used (", "give cpu, or auto")


def test_a_study_of_a_table_says_where_the_classes_are(rwalk: Rwalk) -> None:
    rows = [f"{i % 7},{i % 4},{'abcd'[i % 4]}" for i in range(40)]
    Path("t.csv").write_text("\n".join(["length,width,kind", *rows]))
    outcome = rwalk(*LITTLE, "--dataset=t.csv", "--methods=vanilla", "--steps=1", "--out=t")
    assert outcome.code == 0 and "the classes are in column 'kind' (--label names another)" in outcome.err
    assert json.loads(Path("t/study.json").read_text())["runs"][0]["stream"]["reading"]["label"] == "kind"
    assert rwalk("resume", "t", "--trust=little:Network", "--quiet").code == 0
    named = rwalk(*LITTLE, "--dataset=t.csv", "--label=kind", "--methods=vanilla", "--steps=1", "--out=t")
    assert named.code == 0 and "names another" not in named.err  # the same study, spelled out
    by_task = ["--label=kind", "--task-column=width", "--methods=vanilla", "--steps=1", "--json", "--out=u"]
    (row,) = json.loads(rwalk(*LITTLE, "--dataset=t.csv", *by_task).out)["rows"]
    assert len(row["accuracy"]["single"]) == 4


# ── code of one's own: a file may name it, the user decides ───────────────────────────────────────────────

OWN = """
from dataclasses import dataclass
from pathlib import Path

import torch

from little import Network
from rwalk import Method
from rwalk.augmentations import Augmentation
from rwalk.data.samplers import SAMPLERS

Path("imported").touch()
PICK = SAMPLERS["uniform"]


@dataclass(frozen=True)
class Plain(Method):
    strength: float = 1.0


@dataclass(frozen=True)
class Shift(Augmentation):
    def draw(self, steps, batch, generator):
        return torch.rand(steps, batch, 1, generator=generator)

    def apply(self, x, draws):
        return x + 0.01 * draws.reshape(*draws.shape[:2], *(1 for _ in x.shape[2:]))
"""
OWN_OPTIONS = {
    "own:Network": ["--network=own:Network", "--methods=vanilla"],
    "own:Plain": ["--methods=own:Plain"],
    "own:PICK": ["--methods=vanilla", "--memory=2", "--sampler=own:PICK"],
    "own:Shift": ["--methods=vanilla", "--augment=own:Shift"],
}
EVERYTHING = ["--network=own:Network", "--methods=own:Plain", "--sampler=own:PICK", "--augment=own:Shift"]
TO_TRUST = ("own:Network", "own:Plain", "own:PICK", "own:Shift")
SHORT = ["--steps=2", "--seeds=1", "--reference=none", "--workers=1", "--quiet", "--out=study"]


@pytest.fixture
def own_module(surroundings: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """A module in the working folder, which Python does not search by itself, and a function to remove it."""
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    Path("own.py").write_text(OWN)

    def forget() -> None:
        sys.modules.pop("own", None)
        Path("imported").unlink(missing_ok=True)

    yield forget
    forget()


@pytest.mark.parametrize("name", OWN_OPTIONS)
def test_code_of_ones_own_lies_where_one_works_and_is_confirmed_to_resume(
    name: str, rwalk: Rwalk, own_module: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [*sys.path]
    outcome = rwalk("run", *OWN_OPTIONS[name], *SHORT)
    assert outcome.code == 0, outcome.err
    (row,) = map(json.loads, Path("study/runs.jsonl").read_text().splitlines())
    assert list(row["made"]["code"]) == [name] and row["made"]["code"][name] != "unknown"
    own_module()
    monkeypatch.setattr(sys, "path", before)
    refused(rwalk("resume", "study"), f"study imports code: add --trust {name} if you trust it")
    refused(rwalk("resume", "study", "--trust=other:Name"), f"--trust {name}")
    assert not Path("imported").exists(), "a file decided which code is imported"
    assert rwalk("resume", "study", f"--trust={name}", "--quiet").code == 0
    assert Path("imported").exists()
    assert rwalk("resume", "study", f"--network={name}", "--quiet").code == 0  # as it was called once
    refused(rwalk("resume", "study", f"--trust={name}", "--trust=other:Name"), "study imports no other:Name")


def test_every_name_is_confirmed_and_reading_results_imports_nothing(
    rwalk: Rwalk, own_module: Callable[[], None]
) -> None:
    assert rwalk("run", *EVERYTHING, "--memory=2", *SHORT).code == 0
    own_module()
    confirmed = [f"--trust={name}" for name in TO_TRUST]
    for missing, name in enumerate(TO_TRUST):
        some = [*confirmed[:missing], *confirmed[missing + 1 :]]
        refused(rwalk("resume", "study", *some), f"add --trust {name} if you trust it")
    assert rwalk("report", "study").code == 0
    assert not Path("imported").exists()
    assert rwalk("resume", "study", *confirmed, "--quiet").code == 0


def test_the_printed_command_confirms_all_that_the_study_names() -> None:
    run = RunSpec(
        network="own:Network",
        method="own:Plain",
        memory=MemorySpec(2, sampler="own:PICK"),
        training=Training(augment="own:Shift"),
    )
    assert run_study.own_code([run, replace(run, seed=1)]) == list(TO_TRUST)
    assert run_study.trusting(["own:Network", "own:Plain"]) == ["--trust", "own:Network", "--trust", "own:Plain"]
    builtin = RunSpec(memory=MemorySpec(2), stream=StreamSpec("folder:images"))
    assert run_study.own_code([builtin]) == []


def test_options_become_runs_without_a_command_line() -> None:
    base = RunSpec(stream=StreamSpec("cifar10"), memory=MemorySpec(2))
    names = sweep.method_names("Vanilla, rwalk,icarl")
    runs = sweep.runs(base, names, 2, lam="1,10", settings=["penalty=proximal", "rwalk.alpha=0.1", "eps=0.5"])
    assert [(run.method, run.seed, dict(run.numbers)) for run in runs if run.seed == 0] == [
        ("vanilla", 0, {}),
        ("rwalk", 0, {"dt": 50, "penalty": "proximal", "lam": 1.0, "eps": 0.5, "alpha": 0.1}),
        ("rwalk", 0, {"dt": 50, "penalty": "proximal", "lam": 10.0, "eps": 0.5, "alpha": 0.1}),
        ("icarl", 0, {}),
    ]
    assert [run.seed for run in runs] == [0, 1] * 4
    assert {run.memory.replay for run in runs if run.method == "icarl"} == {"concat"}
    assert sweep.method_names("Own:Plain") == ["Own:Plain"]


def test_resume_imports_no_method_sampler_or_augmentation_a_file_names_unless_told_to(
    rwalk: Rwalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    rwalk("run", "--methods=vanilla", "--steps=1", "--seeds=1", "--reference=none", "--out=study", "--quiet")
    study = Store("study").study()
    Path("harmful.py").write_text("raise SystemExit('it was imported')\n")
    monkeypatch.syspath_prepend(Path.cwd())
    for change in (
        {"method": "harmful:Method"},
        {"memory": {"per_class": 1, "sampler": "harmful:SAMPLER"}},
        {"training": {"steps": 1, "augment": "harmful:Augmentation"}},
    ):
        write_study(Path("study"), runs=[{**run.to_json(), **change} for run in study.runs])
        refused(rwalk("resume", "study"), "imports code: add --trust harmful:")


# ── refusals, before anything is written ──────────────────────────────────────────────────────────────────

REFUSED = {
    "--dataset=digit": "did you mean 'digits'",
    "--dataset=missing.npz": "there is no file 'missing.npz'",
    "--dataset=folder:missing": "there is no folder 'missing'",
    "--dataset=broken.npz": "cannot be read",
    "--dataset=nan.npz": "holds NaN or infinity",
    "--dataset=mnist --data=missing": "there is no data folder 'missing'",
    "--methods=rwlk": "did you mean 'rwalk'",
    "--methods=": "unknown method ''",
    "--methods=pi,pi": "twice",
    "--methods=icarl": "needs exemplars",
    "--network=mpl": "did you mean 'mlp'",
    "--network=little:Nothing": "cannot be imported",
    "--network=no.such:thing": "cannot be imported",
    "--network=little:TESTS": "cannot be imported",
    "--network=little:nothing_to_learn": "no trainable parameter",
    "--network=little:too_many_outputs": "gives [11] outputs where the stream has 10 classes",
    "--network=little:Sum --memory=1": "features cannot be found",
    "--network=resnet18 --dataset=flat.npz": "resnet18 needs images",
    "--tasks=0,1/1,2": "class '1' is in two tasks",
    "--tasks=0,1/ten": "'ten'",
    "--classes-per-task=0": "1 or larger",
    "--permuted=0": "1 or larger",
    "--permuted=2 --classes-per-task=2": "drop the split",
    "--order-seed=-1": "0 or larger",
    "--scenario=clas": "did you mean 'class'",
    "--scenario=domain --classes-per-task=3": "the same labels, but these have 3, 3, 3, 1 classes",
    "--rotated=0": "1 or larger",
    "--rotated=2 --permuted=2": "permuted or rotated, not both",
    "--rotated=2 --scenario=task": "domain-incremental, every task having all classes",
    "--blurry=1": "between 0 and 1",
    "--measure-every=0": "every 1 step or more",
    "--beside=3": "give --memory or --memory-total too",
    "--beside=3 --memory=1": "no method here adds exemplars to its batches",
    "--methods=er --memory=1 --beside=0": "beside must be a whole number",
    "--lam=-1": "lam must be at least 0, not -1.0",
    "--lam=inf": "lam must be at least 0",
    "--lam=1,many": "numbers separated by commas",
    "--set=alpha=1.5": "alpha must be at least 0 and at most 1, not 1.5",
    "--set=alpha=some": "alpha must be a number",
    "--set=dt=0": "dt must be a whole number of steps, at least 1",
    "--set=eps=0": "eps must be greater than 0",
    "--set=alfa=1": "did you mean 'alpha'",
    "--set=rwlk.alpha=1": "did you mean 'rwalk'",
    "--set=alpha": "NAME=VALUE",
    "--set=xi=1": "unknown setting of rwalk 'xi'",
    "--set=pi.xi=1": "unknown method here 'pi'",
    "--set=penalty=proximate": "penalty must be one of gradient, proximal",
    "--methods=vanilla --set=penalty=proximate": "no setting of vanilla changes anything",
    "--methods=vanilla --set=lam=1": "no setting of vanilla changes anything",
    "--set=alpha=0.1 --set=alpha=0.9": "--set alpha is given twice: separate its values by commas",
    "--lam=1 --set=lam=2": "give --lam or --set lam=, not both",
    "--lam=1 --lam=10": "--lam is given twice: drop one",
    "--seeds=1 --seeds=2": "--seeds is given twice: drop one",
    "--seeds=0": "--seeds must be at least 1",
    "--seeds=99999999999999999999": "runs: choose fewer seeds, methods or settings, 100,000 at most",
    "--epochs=0": "epochs must be a whole number, at least 1",
    "--epochs=1 --steps=1": "give --epochs or --steps, not both",
    "--steps=-1": "steps must be a whole number, at least 1",
    "--batch=0": "the batch size must be a whole number, at least 1",
    "--lr=0": "the learning rate must be greater than 0",
    "--lr=nan": "the learning rate must be greater than 0",
    "--optimizer=adm": "did you mean 'adam'",
    "--memory=0": "at least 1 exemplar",
    "--memory=1 --memory-total=1": "not both",
    "--tasks=": "--tasks is empty: give a value, or drop it",
    "--dataset=": "--dataset is empty: give a value, or drop it",
    "--memory-total=9": "9 exemplars in all are fewer than one of each class of each task: keep 10 or more",
    "--sampler=mop": "did you mean 'mof'",
    "--sampler=entropy": "--sampler chooses exemplars: give --memory or --memory-total too",
    "--memory=1 --sampler=little:TESTS": "cannot be imported",
    "--memory=1 --sampler=little:Network": "is not an rwalk.Sampler",
    "--augment=blur": "unknown augmentation 'blur'",
    "--augment=little:Network": "is not an Augmentation",
    "--replay=balance": "did you mean 'balanced'",
    "--reference=finale": "did you mean 'final'",
    "--validation=1.5": "to validate on (--validation) is 1.5: give one between 0 and 1",
    "--dataset=missing.csv": "there is no file 'missing.csv'",
    "--dataset=missing.csv --label=a": "there is no file 'missing.csv'",
    "--size=8": "--size says nothing",
    "--size=0": "size is 0",
    "--missing=maybe": "unknown way with missing values 'maybe'",
    "--label=kind": "--label says nothing",
    "--device=abacus": "device 'abacus' cannot be used",
    "--workers=0": "workers must be at least 1",
    "--checkpoint-every=0": "checkpoint_every must be at least 1, not 0",
    "--join --workers=2": "one run at a time per process: drop --workers",
    "--methods=vanilla --lam=much": "--lam takes numbers separated by commas, or auto, not 'much'",
}


@pytest.fixture
def bad_files(surroundings: Path) -> None:
    x, y = np.zeros((20, 4), np.float32), np.arange(20) % 2
    np.savez("flat.npz", x=x, y=y)
    x[3, 1] = np.nan
    np.savez("nan.npz", x=x, y=y)
    Path("broken.npz").write_bytes(Path("flat.npz").read_bytes()[:100])


@pytest.mark.parametrize("options", REFUSED)
def test_bad_input_is_one_clear_line_and_leaves_nothing_behind(
    options: str, rwalk: Rwalk, bad_files: None, surroundings: Path
) -> None:
    before = set(surroundings.rglob("*"))
    methods = [] if "--methods" in options else ["--methods=rwalk"]
    refused(rwalk("run", *methods, *options.split(), "--out=out"), REFUSED[options])
    assert set(surroundings.rglob("*")) == before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("mehods", "Did you mean 'methods'? (see rwalk --help)"),
        ("methods --all", "No such option: --all (see rwalk methods --help)"),
        ("run --seeds=some", "Invalid value for '--seeds'"),
        ("report", "Missing argument 'FOLDER...' (see rwalk report --help)"),
    ],
)
def test_a_command_line_that_cannot_be_parsed_is_one_line_too(line: str, message: str, rwalk: Rwalk) -> None:
    refused(rwalk(*line.split()), message)


def test_without_a_command_there_is_help(rwalk: Rwalk) -> None:
    code, out, err = rwalk()
    assert code == 2 and "Commands:" in out + err
    assert rwalk("--help") == Outcome(0, rwalk("--help").out, "")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("other.txt", "mine", "not empty and holds no study"),
        ("study.json", '{"hash": "x", "runs": []}', "not of rwalk 0.2.0 or later"),
        (
            "study.json",
            with_checksum(Description(content_hash({"runs": [], "reference": "none"}), (), "none").to_json()),
            "another study",
        ),
        ("study.json", "{", "cannot be read"),
        ("study.json", "[]", "is not a study"),
    ],
)
def test_a_folder_that_is_somebody_elses_is_left_as_it_is(
    name: str, content: str, message: str, rwalk: Rwalk
) -> None:
    Path("out").mkdir()
    Path("out", name).write_text(content)
    refused(rwalk(*LITTLE, "--out=out"), message)
    assert [path.read_text() for path in Path("out").iterdir()] == [content]


def test_a_folder_without_a_study_is_refused(rwalk: Rwalk) -> None:
    refused(rwalk("resume", "missing"), "holds no study")


def numbers(allowed: Callable[[float], bool]) -> st.SearchStrategy[float]:
    return st.floats(allow_nan=True, allow_infinity=True).filter(lambda value: not allowed(value))


finite = (-sys.float_info.max, sys.float_info.max)
BAD_NUMBERS = {
    "--lam": numbers(lambda v: 0 <= v <= finite[1]),
    "--set=alpha": numbers(lambda v: 0 <= v <= 1),
    "--set=eps": numbers(lambda v: 0 < v <= finite[1]),
    "--lr": numbers(lambda v: 0 < v <= finite[1]),
    "--validation": numbers(lambda v: 0 < v < 1),
    "--set=dt": st.integers(max_value=0) | st.floats(allow_nan=True).map(lambda v: f"{v}."),
    **{
        name: st.integers(max_value=0)
        for name in ("--seeds", "--epochs", "--steps", "--batch", "--memory", "--memory-total", "--permuted")
    },
}


@pytest.fixture
def harmless(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Studies are checked to the end, but not run."""
    begun: list[Any] = []

    def prepare_only(study: Any, store: Any, *_: object) -> None:
        study.prepare()
        begun.append(study)

    monkeypatch.setattr(cli.run_study, "run_and_show", prepare_only)
    yield begun


FUZZ = settings(max_examples=100)


@FUZZ
@given(data=st.data(), name=st.sampled_from(sorted(BAD_NUMBERS)))
def test_no_number_out_of_its_range_gets_through(
    name: str, data: st.DataObject, rwalk: Rwalk, harmless: list[Any]
) -> None:
    value = data.draw(BAD_NUMBERS[name])
    refused(rwalk("run", "--methods=rwalk", f"{name}={value}", "--out=out"))
    assert not harmless and not Path("out").exists()


TEXTS = [
    "--dataset",
    "--methods",
    "--network",
    "--tasks",
    "--lam",
    "--set",
    "--sampler",
    "--reference",
    "--device",
]


NASTY = [
    *("--dataset=\x00.npz", "--dataset=folder:\x00", "--tasks=/", "--device=cuda:99", "--device=meta"),
    *("--network=:", "--network=rwalk.:x", "--network=.:x", "--network=os:getcwd"),
    *("--set=penalty=1", "--set=normalize=maybe", "--set=.=", "--set=normalize=2", "--set=fisher=all"),
]


@pytest.mark.parametrize("option", NASTY)
def test_nasty_texts_are_one_clear_line(option: str, rwalk: Rwalk, harmless: list[Any]) -> None:
    refused(rwalk("run", "--methods=ewc++", option, "--out=out"))
    assert not Path("out").exists()


@pytest.mark.parametrize(("count", "said"), [(0, "no CUDA devices"), (1, "1 CUDA device"), (8, "8 CUDA devices")])
def test_a_cuda_device_that_does_not_exist_is_refused_before_the_driver_is_asked(
    count: int, said: str, rwalk: Rwalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages of drivers differ between machines; the number of devices does not."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    line = rwalk("run", "--device=cuda:99", "--out=out")
    refused(line, f"device 'cuda:99' cannot be used (this machine has {said}): give cpu, or auto\n")
    assert not Path("out").exists()


@FUZZ
@example(name="--dataset", text="~0")  # nobody's home
@given(name=st.sampled_from(TEXTS), text=st.text(max_size=12))
def test_no_text_makes_it_fail_otherwise(name: str, text: str, rwalk: Rwalk, harmless: list[Any]) -> None:
    """Any text is a study, or one clear line."""
    harmless.clear()
    outcome = rwalk("run", f"{name}={text}", *(["--methods=ewc++"] if name != "--methods" else []), "--out=out")
    if not harmless:
        assert outcome.code == 2 and outcome.err.count("\n") == 1, outcome
    assert not Path("out").exists()


# ── starting ─────────────────────────────────────────────────────────────────────────────────────────────

LEAN = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"typer", "click", "rich", "pooch", "sklearn", "scipy", "matplotlib", "PIL",
                                      "qpsolvers", "jinja2", "pandas", "transformers", "lightning"}:
            raise ModuleNotFoundError(f"no {name} here", name=name)

sys.meta_path.insert(0, Absent())
import rwalk, rwalk.studies, rwalk.studies.checkpoint, little
learner = rwalk.learner("rwalk", rwalk.MemorySpec(2))
fleet = rwalk.Fleet(little.stream(), "mlp", [learner], [0], rwalk.Training(steps=2))
fleet.train()
assert fleet.accuracy["single"][0, 2, 0] >= 0
"""


def test_the_core_needs_torch_numpy_and_safetensors_only() -> None:
    done = subprocess.run([sys.executable, "-c", LEAN], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


HELP = """
import sys
from typer.main import get_command
from rwalk import cli

heavy = {"torch", "numpy", "sklearn", "pooch"}
for words in ([], ["--version"], *([command, "--help"] for command in get_command(cli.app).commands)):
    sys.argv = ["rwalk", *words]
    try:
        cli.main()
    except SystemExit as ended:
        assert ended.code in (0, 2 * (not words)), words
    assert not heavy & sys.modules.keys(), (words, heavy & sys.modules.keys())
"""


def test_help_of_every_command_imports_neither_torch_nor_numpy() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = done.stdout + done.stderr
    assert all(command in shown for command in ("run", "resume", "report", "methods", "datasets"))
    assert "rwalk run [OPTIONS]" in shown and "--memory-total" in shown and f"rwalk {__version__}" in shown


@dataclass(frozen=True)
class Pace:
    steps: int = option(10, "how many (default: 10)", depends=True)
    rate: float = option(0.5, "how fast")
    loud: bool = option(False, "whether it is heard")
    skip: tuple[str, ...] = option((), "left out; repeatable")


@dataclass(frozen=True)
class Walk:
    pace: Pace | None = None
    start: str | None = option(None, "where from", name="from_where")
    parts: tuple[int, ...] | None = option(None, "by comma", read=lambda text: tuple(map(int, text.split(","))))
    hidden: int = 3


def test_fields_of_a_record_are_options() -> None:
    seen: list[command_options.Given] = []

    def walk(*, seeds: int = 5, given: command_options.Given, quiet: bool = False) -> None:
        """Walk."""
        seen.append(given)

    app = typer.Typer()
    app.callback()(lambda: None)
    command_options.add_command(app, walk, f"{__name__}:Walk", but="rate")
    shown = CliRunner().invoke(app, ["walk", "--help"]).output
    assert [each for each in re.findall(r"--[a-z-]+", shown) if each != "--help"] == [
        *("--seeds", "--steps", "--loud", "--skip", "--from-where", "--parts", "--quiet", "--no-quiet")
    ]
    words = ["--steps=3", "--skip=a", "--skip=b", "--from-where=here", "--parts=1,2", "--loud"]
    for each in ([], words):
        assert CliRunner().invoke(app, ["walk", *each]).exit_code == 0
    assert seen[0] == {Pace: {"loud": False}}
    assert seen[1] == {
        Pace: {"steps": 3, "loud": True, "skip": ["a", "b"]},
        Walk: {"start": "here", "parts": (1, 2)},
    }
