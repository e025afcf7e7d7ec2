"""What a result is of: settings, the code they name, our numerics, the data; and what made it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, make_dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import little
from processes import Child, command
from rwalk import Fleet, MemorySpec, Training, learner, seeds
from rwalk.compiled_programs import compiler_works
from rwalk.data import datasets, splits
from rwalk.engine import choose_execution, evaluation
from rwalk.engine import fisher as fisher_of
from rwalk.methods import Method
from rwalk.parts import VARIANTS, parts, stack
from rwalk.report.html_page import render
from rwalk.report.result_folders import read
from rwalk.report.seed_summaries import summarise
from rwalk.solvers import SOLVERS
from rwalk.studies import Study, numerics_history, provenance, user_code
from rwalk.studies.checkpoint import Checkpointer
from rwalk.studies.json_records import content_hash
from rwalk.studies.provenance import commit
from rwalk.studies.reference_cache import ReferenceCache
from rwalk.studies.rows import SCHEMA, Description, Made, ReferenceOutcome, Rows
from rwalk.studies.specs import RunSpec, StreamSpec
from rwalk.studies.study_events import Stepped
from rwalk.studies.study_folder import Store
from rwalk.studies.user_code import _with_imports

RESULTS = Path(__file__).parents[1] / "results"
NETWORK = """
import torch
from layers import WIDTH

def make(shape, classes):
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(torch.Size(shape).numel(), WIDTH), torch.nn.Linear(WIDTH, classes)
    )
"""


def run_in(folder: Path, *options: str) -> tuple[str, Rows]:
    """The output and the rows of `rwalk run` in a process that has not imported the network."""
    words = ["run", "--network=mynet:make", "--methods=vanilla", "--seeds=1", "--steps=5", "--workers=1"]
    work = command(*words, "--quiet", "--out=study", *options)

    def there() -> None:
        os.chdir(folder)
        os.environ["RWALK_CACHE"] = str(folder / "cache")
        sys.path.insert(0, str(folder))
        work()

    child = Child(there, folder / "log")
    assert child.result() == 0, child.said()
    said = child.said()
    child.log.unlink()
    return said, Store(folder / "study").rows()


# ── the user's code ───────────────────────────────────────────────────────────────────────────────────────────


def test_an_edited_network_is_trained_anew_and_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "mynet.py").write_text(NETWORK)
    (tmp_path / "layers.py").write_text("WIDTH = 32\n")
    _, (first,) = run_in(tmp_path)
    references = set((tmp_path / "cache").rglob("*.json"))

    (tmp_path / "layers.py").write_text("WIDTH = 32  # the same\n\n")
    said, (again,) = run_in(tmp_path)
    assert again == first and "anew" not in said, "a comment changes nothing"

    (tmp_path / "layers.py").write_text("WIDTH = 2\n")  # in a module that the network imports
    said, (second,) = run_in(tmp_path)
    assert "1 finished run is trained again: the source of mynet:make has changed" in said
    assert second.accuracy != first.accuracy
    assert second.reference != first.reference and len(set((tmp_path / "cache").rglob("*.json"))) == 2
    assert references < set((tmp_path / "cache").rglob("*.json"))
    assert len((tmp_path / "study" / "runs.jsonl").read_text().splitlines()) == 1


def test_source_with_form_feeds_is_read_line_by_line() -> None:
    """Python's own lines do not end at a form feed, nor at other separators that `splitlines` knows."""
    source = "a = 1\n\x0c\nb = 'x\x1cy'\nwide = 222222\nz = 3  # a comment\n"
    assert user_code._bare(source) != user_code._bare(source.replace("222222", "222223"))
    assert user_code._bare(source) == user_code._bare(source.replace("  # a comment", ""))


def test_a_checkpoint_of_an_edited_network_is_not_gone_on_from() -> None:
    study = little.study(methods=["vanilla"], seeds=1)
    before = study._context(None).identity(study.runs)
    assert before == study._context(None).identity(study.runs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rwalk.studies.provenance.source_digest", lambda module: "another")
        assert study._context(None).identity(study.runs) != before


# ── settings ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_setting_that_is_added_later_changes_no_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunSpec(method="rwalk", numbers={"lam": 3.0}, memory=MemorySpec(per_class=5), training=Training(lr=0.1))
    before = run.hash()
    later = make_dataclass("Training", [("momentum", float, 0.0)], bases=(Training,), frozen=True)
    assert replace(run, training=later(**asdict(run.training))).hash() == before
    assert replace(run, training=later(**asdict(run.training), momentum=0.9)).hash() != before


def test_the_hash_of_a_run_is_for_ever() -> None:
    """Rows are found by it: if this fails, every finished study would be trained again."""
    run = RunSpec(StreamSpec("mnist", 5), "cnn", "pi", {"lam": 3.0}, MemorySpec(total=50), Training(steps=7), 2)
    assert run.hash() == RunSpec.from_json(json.loads(json.dumps(run.to_json()))).hash()
    assert run.hash() == "eadfe890569ff01d9a588c890f6361e9"


def test_a_number_at_its_default_is_no_other_run() -> None:
    plain = RunSpec(method="rwalk")
    for numbers in ({"lam": 1.0}, {"lam": 1}, {"alpha": 0.9, "dt": 10}, {"lam": np.float64(1.0)}):
        assert RunSpec(method="rwalk", numbers=numbers).hash() == plain.hash()
    for numbers in ({"lam": 2.0}, {"dt": 11}, {"penalty": "proximal"}):
        assert RunSpec(method="rwalk", numbers=numbers).hash() != plain.hash()


def test_a_study_written_before_a_setting_existed_is_read(tmp_path: Path) -> None:
    record = little.study().describe().to_json()
    old = {"runs": [{k: v for k, v in run.items() if k != "autocast"} for run in record["runs"]]}
    old |= {"reference": record["reference"]}
    hashed = content_hash({**old, "runs": [run.hash() for run in little.study().runs]})
    study = Study.of(Description.from_json({**old, "schema": 2, "hash": hashed}))
    assert [run.hash() for run in study.runs] == [run.hash() for run in little.study().runs]


WITH_A_TEACHER = (
    "rwalk computes it differently: a teacher with batch norm has its own running statistics, no longer the "
    "student's"
)
TO_TRAIN_AGAIN = {"resnet": [(3, WITH_A_TEACHER)], "tableS1": [(3, WITH_A_TEACHER)]}  # iCaRL on ResNet-18


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in RESULTS.glob("*/study.json")))
def test_results_of_older_versions_are_read_whole_and_only_changed_runs_are_trained_anew(folder: str) -> None:
    store = Store(RESULTS / folder)
    study = Study.of(store.study())
    told: list[str] = []
    done = study.current(store.rows(), told.append)
    assert told == [
        f"{count} finished runs are trained again: {why}" for count, why in TO_TRAIN_AGAIN.get(folder, [])
    ]
    assert len(store.rows()) - len(done) == sum(count for count, _ in TO_TRAIN_AGAIN.get(folder, []))
    first = [row.made for row in done.values() if row.made.numerics is None]
    assert all(made.gpu == "NVIDIA H200" for made in first)


def test_results_of_another_machine_grow_here(tmp_path: Path) -> None:
    """Only what is new is trained, and the rows of both machines are told apart."""
    before = little.study(methods=["vanilla"], seeds=1)
    with Store(tmp_path).opened(before.describe()) as store:
        (row,) = before.execute(store)
    elsewhere = {"device": "cuda", "gpu": "NVIDIA H200", "torch": "2.11.0"}
    (tmp_path / "runs.jsonl").write_text(json.dumps({**row.to_json(), "schema": 2, "made": elsewhere}) + "\n")

    larger, events = little.study(methods=["vanilla"], seeds=2), []
    with Store(tmp_path).opened(larger.describe()) as store:
        rows = larger.execute(store, watch=events.append)
    assert {run.seed for event in events if isinstance(event, Stepped) for run in event.runs} == {1}
    assert rows[0].accuracy == row.accuracy and rows[0].hash == row.hash
    assert rows[0].made.to_json() == elsewhere and rows[1].made.torch == torch.__version__
    assert json.loads((tmp_path / "study.json").read_text())["schema"] == SCHEMA
    told = provenance.mixture(row.made for row in rows)
    assert "come from different code or machines" in told and "NVIDIA H200" in told
    assert "come from different code or machines" in render([read(tmp_path)], "grown")


# ── our own numerics ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_row_of_older_numerics_is_trained_anew_and_the_reason_is_given() -> None:
    study = little.study(methods=["ewc", "rwalk"], seeds=1)
    rows = study.execute()
    assert [row.made.numerics for row in rows] == [4, 4]
    old = [replace(row, made=replace(row.made, numerics=1)) for row in rows]
    told: list[str] = []
    assert [row.method for row in study.current(old, told.append).values()] == ["rwalk"]
    assert told == [
        "1 finished run is trained again: rwalk computes it differently: "
        "EWC measures its Fisher on shuffled batches, no longer class by class"
    ]


def test_rows_that_differ_by_rounding_alone_stay() -> None:
    study = little.study(methods=["rwalk"], seeds=1)
    (row,) = study.execute()
    old = replace(row, made=replace(row.made, numerics=1))
    assert study.current([old]) == {row.hash: old}


def test_accuracies_are_fractions_of_the_test_examples_rounded_once() -> None:
    study = little.study(methods=["rwalk"], seeds=1)
    (row,) = study.execute()
    stream = study.stream(study.runs[0].stream)
    counts = [len(task.test) for task in stream.tasks]
    for head in ("single", "multi"):
        for k, accuracies in enumerate(row.accuracy[head]):
            for value, count in zip(accuracies[: k + 1], counts, strict=False):
                assert value == round(value * count) / count
        final = [Fraction(round(value * count), count) for value, count in
                 zip(row.accuracy[head][-1], counts, strict=True)]  # fmt: skip
        assert pytest.approx(float(sum(final) / len(final)), rel=1e-15) == row.measures(head).A


@pytest.mark.parametrize(
    ("run", "number"),
    [
        (RunSpec(method="lwf", network="resnet18"), 5),
        (RunSpec(method="lwf", network="mlp"), 4),
        (RunSpec(method="lwf", network="mine:Network"), 5),
        (RunSpec(method="rwalk", network="resnet18"), 4),
        (RunSpec(method="rwalk", numbers={"fisher": "example"}, training=Training(augment="crop-flip")), 6),
        (RunSpec(method="rwalk", numbers={"fisher": "example"}), 4),
        (RunSpec(method="mas", numbers={"fisher": "example"}, training=Training(augment="crop-flip")), 4),
        (RunSpec(method="ewc", numbers={"fisher": "example"}), 7),
    ],
)
def test_numerics_change_for_the_runs_that_a_change_affects(run: RunSpec, number: int) -> None:
    assert numerics_history.number_of(run) == number


TABLE = Path(__file__).parent / "numerics.json"


def trained(name: str, optimizer: str) -> float:
    """One number that any change of what is computed moves; rounding, of six steps in float64, does not."""
    memory = MemorySpec(per_class=3)
    training = Training(steps=6, batch=16, optimizer=optimizer, lr=0.01)
    numbers = {"lam": 10.0} if name in ("ewc", "ewc++", "ewc-online", "mas", "pi", "rwalk") else {}
    if name in SOLVERS:
        numbers = {"size": 16}
    fleet = Fleet(little.stream(), "mlp", [learner(name, memory, **numbers)], [3], training, dtype=torch.float64)
    fleet.train()
    # Of the outputs, not of the parameters: where a gradient is zero but for rounding, Adam makes a step of that.
    _, logits = evaluation.outputs(fleet, torch.arange(60)[None])
    weights = torch.linspace(-1, 1, logits.numel(), dtype=torch.float64)
    return float((logits.flatten() * weights).sum())


# GEM asks whether a gradient is against an old one: with Adam, rounding decides that within a few steps.
TRAINED = [
    (name, optimizer)
    for name in [*parts(), *VARIANTS]
    for optimizer in ("adam", "sgd")
    if (name, optimizer) != ("gem", "adam")
]


@pytest.mark.parametrize(("name", "optimizer"), TRAINED)
def test_what_is_computed_changes_only_with_its_number(name: str, optimizer: str) -> None:
    """After a change that is meant: add it to numerics_history.HISTORY, and run this file to write the table."""
    known = json.loads(TABLE.read_text())
    number, value = known[f"{name} {optimizer}"]
    assert number == numerics_history.number_of(RunSpec(method=name))
    # Networks begin in float32, which instruction sets round differently: by 1e-7, of which Adam makes 1e-5.
    assert trained(name, optimizer) == pytest.approx(value, rel=1e-4)


# ── how a run was executed ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """Every run is worth compiling; there is no compiler, or there is one again."""

    def change(there: bool) -> None:
        if there:
            monkeypatch.delenv("CXX", raising=False)
        else:
            monkeypatch.setenv("CXX", "no-such-compiler")
        compiler_works.cache_clear()

    monkeypatch.setattr(choose_execution, "WORTH_COMPILING", {True: 0, False: 0})
    change(there=False)
    yield change
    compiler_works.cache_clear()


def known_references(study: Study) -> dict[str, ReferenceOutcome]:
    return ReferenceCache(study._context(None), study.cache).recall_all(study.references())


def test_a_run_without_a_compiler_says_so_and_is_another_one(
    compiler: None,
    no_compiler: Callable[[bool], None],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    study = little.study(methods=["vanilla"], seeds=1, reference="final", cache=tmp_path / "cache")
    with Store(tmp_path / "before").opened(study.describe()) as store:
        (before,) = study.execute(store)
    assert before.made.execution == "eager (no working compiler)"
    assert study.current([before]) and known_references(study), "as long as there is none"
    assert "no working compiler" in provenance.makers([before.made])[0]

    no_compiler(True)
    assert not known_references(study), "a reference is one of these, too"
    told: list[str] = []
    assert study.current([before], told.append) == {}
    assert told == ["1 finished run is trained again: it was trained without a compiler, and there is one now"]
    elsewhere = replace(before, made=replace(before.made, processor="another"))
    assert study.current([elsewhere]), "on other machines results differ anyway"
    with Store(tmp_path / "after").opened(study.describe()) as store:
        (after,) = study.execute(store)
    assert after.made.execution == "compiled"

    no_compiler(False)
    larger = little.study(methods=["vanilla"], seeds=2, reference="final", cache=tmp_path / "cache")
    with Store(tmp_path / "after").opened(larger.describe()) as store:
        first, second = larger.execute(store)
    assert [row.made.execution for row in (first, second)] == ["compiled", "eager (no working compiler)"]
    assert caplog.messages[-1] == "1 of 2 runs were trained without a compiler: results differ from compiled runs"


def test_a_run_that_is_resumed_without_a_compiler_says_both(
    no_compiler: Callable[[bool], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fleet() -> Fleet:
        return Fleet(little.stream(), little.Network, [learner("vanilla")], [0], Training(steps=4))

    with monkeypatch.context() as patch:
        patch.setattr(choose_execution, "WORTH_COMPILING", {True: 10**6, False: 10**6})
        first = fleet()
        with pytest.raises(KeyboardInterrupt):
            first.train(checkpoints=Checkpointer(tmp_path, "same", stop=lambda: first.step == 2))
    second, checkpoints = fleet(), Checkpointer(tmp_path, "same")
    (remark,) = checkpoints.resume(second)
    assert "is resumed elsewhere (execution eager → eager (no working compiler))" in remark
    second.train(checkpoints=checkpoints)
    assert checkpoints.executed(second) == "eager, then eager (no working compiler)"


# ── what made a row ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_row_says_what_made_it() -> None:
    study = little.study(methods=["vanilla"], seeds=1)
    (row,) = study.execute()
    assert row.made.rwalk and row.made.torch == torch.__version__ and row.made.device == "cpu"
    assert row.made.commit == commit() and set(row.made.code) == {"little:Network"}
    assert study.stream(study.runs[0].stream).fingerprint().startswith(row.made.data)


def test_rows_name_the_commit_at_which_their_study_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit during the training is not that of the code that trains."""
    commits = iter(["begun"])
    monkeypatch.setattr(provenance, "commit", lambda: next(commits, "later"))
    study = little.study(methods=["vanilla"], seeds=2, reference="none")
    commits = iter(["begun"] * 2)  # of the cache of references, and of the executor
    assert {row.made.commit for row in study.execute()} == {"begun"}


def test_a_commit_does_not_depend_on_how_fast_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy one git took ten seconds, and rows had no commit."""

    def a_minute(command: list[str], timeout: float, **how: object) -> subprocess.CompletedProcess[str]:
        if timeout < 60:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, 0, "0123456789" if "rev-parse" in command else "", "")

    monkeypatch.setattr(subprocess, "run", a_minute)
    assert commit.__wrapped__() == "0123456789"


def test_a_commit_is_named_only_of_our_own_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = subprocess.run(["git", "rev-parse", "HEAD"], cwd=RESULTS, capture_output=True, text=True)
    if here.returncode == 0:
        assert here.stdout.startswith((commit() or "none").removesuffix("+changes"))
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "studies").mkdir()
    monkeypatch.setattr("rwalk.studies.provenance.__file__", str(tmp_path / "studies" / "provenance.py"))
    assert commit.__wrapped__() is None, "rwalk may be installed inside somebody's repository"


def test_data_that_changed_are_noticed_in_rows_taken_from_elsewhere() -> None:
    study = little.study(methods=["vanilla"], seeds=1)
    (row,) = study.execute()
    assert study.current([row])
    other = replace(row, made=replace(row.made, data="0" * 16))
    told: list[str] = []
    assert study.current([other], told.append) == {} and "the data of digits have changed" in told[0]


def test_rows_taken_over_from_another_kind_of_machine_are_named() -> None:
    (row,) = little.study(methods=["vanilla"], seeds=1).execute()
    assert provenance.strangers([row], "cpu") == []
    (line,) = provenance.strangers([replace(row, made=Made(gpu="NVIDIA H200", torch="2.11.0"))], "cpu")
    assert "made on NVIDIA H200, torch 2.11.0" in line


# ── numbers that are what they say ────────────────────────────────────────────────────────────────────────────


def test_a_reference_that_diverged_is_none_and_is_not_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study = little.study(methods=["vanilla"], seeds=1, reference="final", cache=tmp_path)
    wild = [replace(run, training=replace(run.training, lr=1e30)) for run in study.runs]
    study = Study(tuple(wild), "final", cache=tmp_path, workers=1)
    with caplog.at_level("WARNING"):
        (row,) = study.execute()
    assert set(row.reference["single"]) == {None} and row.single.I is None
    assert "has no reference" in caplog.text and "the loss is not finite" in caplog.text
    assert not list(tmp_path.rglob("*.json"))


def test_a_record_says_how_exemplars_are_replayed() -> None:
    for name, replay in (("icarl", "concat"), ("gem", "none"), ("rwalk", "half")):
        run = RunSpec(method=name, memory=MemorySpec(per_class=2, replay="half"))
        assert run.memory == run.learner().memory
        assert run.to_json()["memory"]["replay"] == replay


def test_seeds_of_a_grown_study_with_tasks_are_pooled(tmp_path: Path) -> None:
    stream = StreamSpec(tasks=(("0", "1"), ("2", "3")))
    small, large = (
        Study(
            tuple(replace(run, stream=stream) for run in little.study(["vanilla"], seeds).runs), "none", workers=1
        )
        for seeds in (1, 2)
    )
    for study in (small, large):
        with Store(tmp_path).opened(study.describe()) as store:
            rows = study.execute(store)
    (summary,) = summarise(rows)
    assert summary.seeds == (0, 1)


def test_numpys_integers_draw_the_same() -> None:
    assert seeds.derive(np.int64(0), "order", np.int32(1)) == seeds.derive(0, "order", 1)
    assert RunSpec(seed=np.int64(3)).hash() == RunSpec(seed=3).hash()  # type: ignore[arg-type]


def test_a_method_whose_annotations_are_types_is_swept() -> None:
    """As in a module without `from __future__ import annotations`."""
    for kind in (float, float | torch.Tensor):
        mine = make_dataclass("Mine", [("rate", kind, 1.0)], bases=(Method,), frozen=True)
        both = stack([mine(rate=1.0), mine(rate=2.0)], torch.zeros(2, 3))
        assert both.rate.tolist() == [[1.0], [2.0]]  # type: ignore[attr-defined]


def test_ewcs_fisher_is_that_of_shuffled_batches() -> None:
    """As much, up to the draw, as a shuffled loader gives a Guard; class by class it is several times that."""
    stream = splits.split(datasets.load("digits"), classes_per_task=2)
    fleet = Fleet(stream, "mlp", [learner("ewc")], [0], Training(epochs=3), dtype=torch.float64)
    fleet.begin_task()
    fleet.train_task()
    examples = fleet.task_plan.examples

    def total(order: torch.Tensor) -> float:
        """The sum of F, written out."""
        weighted = 0.0
        for index in order.split(64):
            x, y = fleet.stream.batch(index[None])
            loss = torch.nn.functional.cross_entropy(
                (fleet.net.forward(x, train=False) + fleet.task_plan.head)[0], y[0]
            )
            weighted += len(index) * float(fleet.net.gradient(loss[None]).square().sum())
        return weighted / len(order)

    draws = [total(examples[torch.randperm(len(examples), generator=seeds.generator(n))]) for n in range(20)]
    ours = float(fisher_of.of_task(fleet).sum())
    assert 0.9 * min(draws) < ours < 1.1 * max(draws)
    assert total(examples) > 2 * max(draws), "class by class"


if __name__ == "__main__":
    table = {f"{n} {o}": [numerics_history.number_of(RunSpec(method=n)), trained(n, o)] for n, o in TRAINED}
    TABLE.write_text(json.dumps(table, indent=1) + "\n")


def test_packages_of_another_environment_are_not_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment may extend another one, whose packages are installed all the same."""
    installed = tmp_path / "elsewhere" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "somebodys_package.py").write_text("VERSION = 1\n")
    (tmp_path / "users_module.py").write_text("import somebodys_package\nimport users_helper\n")
    (tmp_path / "users_helper.py").write_text("pass\n")
    monkeypatch.syspath_prepend(installed)
    monkeypatch.syspath_prepend(tmp_path)
    modules = {name: tmp_path / f"{name}.py" for name in ("users_module", "users_helper")}
    assert _with_imports("users_module", modules["users_module"]) == modules
