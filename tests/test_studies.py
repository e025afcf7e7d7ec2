"""Many runs, one result: whoever computes them, in whatever order, from wherever they are taken up again."""

from __future__ import annotations

import gc
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import little
import own_executors
import rwalk
from rwalk import Fleet, InputError, MemorySpec
from rwalk.report import progress_display
from rwalk.report.progress_display import Display
from rwalk.studies import Study, executor
from rwalk.studies.executor import Executor, begun_fleets, is_out_of_memory, note, spread_over
from rwalk.studies.executor import fleets as in_fleets
from rwalk.studies.rows import Measures
from rwalk.studies.shared_folder import Join
from rwalk.studies.specs import RunSpec, StreamSpec
from rwalk.studies.study_events import Event, RowDone, Started, Stepped, Trained
from rwalk.studies.study_folder import Store
from rwalk.studies.worker_pool import Pool, WorkerDied


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The references' cache, away from the user's; and worker processes must find little.py."""
    monkeypatch.setenv("RWALK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(little.__file__), prepend=os.pathsep)
    return tmp_path / "cache"


def executed(study: Study, folder: Path, **how: Any) -> bytes:
    """What runs.jsonl holds in the end."""
    with Store(folder).opened(study.describe()) as store:
        study.execute(store, **how)
    return store.rows_file.read_bytes()


def stopping_after(events: int) -> tuple[Callable[[Event], None], Callable[[], bool]]:
    """(watch, stop): says stop from the so many-th report of progress on."""
    seen: list[Event] = []
    return seen.append, lambda: sum(isinstance(event, Stepped) for event in seen) >= events


def runs_of(events: Sequence[Event]) -> set[str]:
    return {run.hash() for event in events if isinstance(event, Stepped) for run in event.runs}


def test_rows_do_not_depend_on_who_computes_them(tmp_path: Path) -> None:
    alone = executed(little.study(), tmp_path / "alone")
    together = executed(little.study(workers=2), tmp_path / "together")
    assert alone == together
    assert len(alone.splitlines()) == 4


def test_whether_a_study_can_be_run_is_found_out_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying the compiler takes up to a minute, and where a device trains it is of no use."""
    study = little.study()
    long = replace(study.runs[0], network="mlp", training=rwalk.Training(steps=10**6))
    tried: list[str] = []
    monkeypatch.setattr(
        "rwalk.engine.choose_execution.compiler_works", lambda device: tried.append(device) or False
    )
    replace(study, runs=(long,)).prepare()
    assert tried == []
    executor.fleet_of("cpu", study.stream(long.stream), [long])
    assert tried == ["cpu"], "as it would be in a worker"


def test_rows_do_not_depend_on_the_executor(tmp_path: Path) -> None:
    kinds = (Executor, Join, own_executors.LastFirst)
    rows = {executed(little.study(seeds=1, executor=kind), tmp_path / kind.__name__) for kind in kinds}
    assert len(rows) == 1


def test_display_counts_runs_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """References and tasks of any length are counted; a terminal gets a bar, a log lines."""
    monkeypatch.setattr(progress_display, "EVERY", 0.0)
    study, lines = little.study(methods=["vanilla"], reference="final", workers=1), list[str]()
    with Display(study, Console(file=io.StringIO()), lines.append) as display:
        study.execute(watch=display.watch)
    steps = sum(study.steps(run) for run in (*study.runs, *study.references()))
    assert lines[0] == f"2 of 2 runs to train, {steps:,} steps"
    assert lines[-1].startswith("2 of 2 runs done, 100% of the steps")
    shares = [int(line.partition(", ")[2].partition("%")[0]) for line in lines[1:]]
    assert shares == sorted(shares)
    with Display(study, Console(file=io.StringIO(), force_terminal=True), lines.append) as display:
        study.execute(watch=display.watch)
    (bar,) = display._bar.tasks
    assert bar.completed == bar.total == sum(map(study.steps, study.runs)), "the reference is known by now"
    assert bar.description == "2 of 2 runs done" and not lines[len(shares) + 1 :]


def test_rows_end_in_the_order_of_the_study_however_they_finished(tmp_path: Path) -> None:
    study = little.study()
    whole = executed(study, tmp_path)
    (tmp_path / "runs.jsonl").write_bytes(b"".join(reversed(whole.splitlines(keepends=True))))
    assert executed(study, tmp_path) == whole


def test_what_is_there_is_not_run_again(tmp_path: Path) -> None:
    study, events = little.study(), []
    executed(study, tmp_path)
    executed(study, tmp_path, watch=events.append)
    assert runs_of(events) == set()
    lines = (tmp_path / "runs.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "runs.jsonl").write_bytes(b"".join(lines[:1] + lines[2:]))
    assert executed(study, tmp_path, watch=events.append) == b"".join(lines)
    assert runs_of(events) == {study.runs[1].hash()}


def test_a_stopped_study_goes_on_where_it_stopped(tmp_path: Path) -> None:
    study = little.study(seeds=1, reference="final", checkpoint_every=7, cache=tmp_path / "own")
    whole = executed(study, tmp_path / "whole")
    shutil.rmtree(tmp_path / "own")
    stops = 0
    while True:
        watch, stop = stopping_after(6)
        try:
            parts = executed(study, tmp_path / "parts", watch=watch, stop=stop)
            break
        except KeyboardInterrupt:
            stops += 1
            assert list((tmp_path / "parts" / "checkpoints").iterdir())
    assert stops > 2
    assert parts == whole
    assert not (tmp_path / "parts" / "checkpoints").exists()


def test_a_stopped_study_without_a_folder_just_stops() -> None:
    watch, stop = stopping_after(2)
    with pytest.raises(KeyboardInterrupt):
        little.study(checkpoint_every=1).execute(watch=watch, stop=stop)


def test_checkpoints_of_other_data_are_not_taken(tmp_path: Path) -> None:
    """The same settings, but the folder's images have changed: the run begins again."""
    study = little.study(methods=["rwalk"], seeds=1, checkpoint_every=1)
    watch, stop = stopping_after(9)
    with pytest.raises(KeyboardInterrupt):
        executed(study, tmp_path, watch=watch, stop=stop)
    other = little.study(methods=["rwalk"], seeds=1)
    stream = other.stream(other.runs[0].stream)
    other._streams[other.runs[0].stream] = replace(stream, x=stream.x * 0.5)
    with pytest.raises(InputError, match="has changed"):
        executed(other, tmp_path)


def test_a_damaged_checkpoint_is_told_by_whoever_finds_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study = little.study(methods=["rwalk"], seeds=1, checkpoint_every=4)
    whole = executed(study, tmp_path / "whole")
    watch, stop = stopping_after(9)
    with pytest.raises(KeyboardInterrupt):
        executed(study, tmp_path / "parts", watch=watch, stop=stop)
    newest = max((tmp_path / "parts").rglob("*.safetensors"))
    os.truncate(newest, 100)
    with caplog.at_level("WARNING"):
        assert executed(study, tmp_path / "parts") == whole
    (message,) = caplog.messages
    assert newest.stem in message and "truncated" in message


def test_a_run_that_diverges_is_reported_and_disturbs_nobody(tmp_path: Path) -> None:
    def spec(seed: int, lr: float) -> RunSpec:
        run = little.study(methods=["ewc"]).runs[seed]
        return replace(run, training=replace(run.training, lr=lr))

    mixed = Study((spec(0, 1e-3), spec(1, 1e30)), "none", workers=1)
    alone = Study((spec(0, 1e-3),), "none", workers=1)
    first, second = mixed.execute()
    assert alone.execute() == [first]
    assert first.stopped is None
    assert "the loss is not finite at step" in second.stopped
    assert second.single == Measures(None, None, None)
    json.dumps(second.to_json(), allow_nan=False)


def test_references_are_trained_once_for_all_methods(cache: Path, tmp_path: Path) -> None:
    events: list[Event] = []
    executed(little.study(methods=["vanilla"], reference="final"), tmp_path / "a")
    executed(little.study(methods=["pi"], reference="final"), tmp_path / "b", watch=events.append)
    (started,) = (event for event in events if isinstance(event, Started))
    assert not [run for run in started.runs if run.reference is not None]
    for path in cache.rglob("*.json"):
        path.write_text('{"single": "<script>", "multi": []}')
    watched = executed(little.study(methods=["rwalk"], reference="final"), tmp_path / "c")
    assert b"script" not in watched


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": "finale"}, "did you mean 'final'"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"checkpoint_every": 0}, "checkpoint_every must be at least 1"),
        ({"device": "tpu"}, "cannot be used"),
        ({"methods": []}, "at least one run"),
        ({"methods": ["pi", "pi"]}, "twice"),
        ({"methods": ["rwlk"]}, "did you mean 'rwalk'"),
    ],
)
def test_impossible_studies_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        little.study(**changes)
    assert message in str(caught.value) and "\n" not in str(caught.value)


# ── runs that do not fit into the memory together ─────────────────────────────────────────────────────────


@pytest.fixture
def fleets(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Train in fleets, as on CUDA, of which those wider than so many runs exhaust the memory on the way."""
    train, widths = Fleet.train, []

    def limit(width: int) -> list[int]:
        def limited(fleet: Fleet, report: Callable[[Any], None], checkpoints: Any) -> None:
            widths.append(fleet.runs)

            def failing(news: Any) -> None:
                report(news)
                if fleet.runs > width and news.task == 1:
                    raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 20 MiB.")

            train(fleet, failing, checkpoints)

        monkeypatch.setattr(Fleet, "train", limited)
        return widths

    monkeypatch.setattr(Executor, "in_fleets", lambda self: True)
    return limit


def sweep(runs: int, **changes: Any) -> Study:
    """Runs that can share a fleet, in a precision in which no prediction hangs on rounding."""
    (base,) = little.study(methods=["rwalk"], seeds=1).runs
    specs = [replace(base, numbers={"lam": 1.0 + run}, dtype="float64") for run in range(runs)]
    return Study(tuple(specs), "none", **{"workers": 1, "checkpoint_every": 5, **changes})


def test_a_fleet_that_exhausts_the_memory_goes_on_in_narrower_ones(
    tmp_path: Path, fleets: Callable[[int], list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    widths = fleets(9)
    whole = executed(sweep(7), tmp_path / "whole")
    assert widths == [7]
    widths = fleets(2)
    widths.clear()
    events: list[Event] = []
    with caplog.at_level("WARNING"):
        assert executed(sweep(7), tmp_path / "narrow", watch=events.append) == whole
    assert widths == [7, 4, 3, 2, 2, 2, 1]
    assert caplog.messages[0] == "7 runs do not fit into the memory of cpu, trying 4 at a time"
    finished = [run.hash() for event in events if isinstance(event, Trained) for run in event.runs]
    assert finished == [run.hash() for run in sweep(7).runs], "each once, in the study's order"
    assert not (tmp_path / "narrow" / "checkpoints").exists()


def stopping_in_a_fleet_of(width: int, done: int) -> tuple[Callable[[Event], None], Callable[[], bool]]:
    """Stops in the first fleet of this width that goes on after so many runs are done, once it is checkpointed."""
    trained, there = [0], [False]

    def watch(event: Event) -> None:
        if isinstance(event, Trained):
            trained[0] += len(event.runs)
        elif isinstance(event, Stepped) and len(event.runs) == width and trained[0] == done:
            there[0] |= (event.progress.task, event.progress.step) > (0, 10)

    return watch, lambda: there[0]


def test_narrower_fleets_go_on_from_their_own_checkpoints(
    tmp_path: Path, fleets: Callable[[int], list[int]]
) -> None:
    fleets(9)
    whole = executed(sweep(4), tmp_path / "whole")
    for width, done in ((1, 0), (2, 2)):
        folder, seen = tmp_path / f"{width}-{done}", []
        widths = fleets(width)
        watch, stop = stopping_in_a_fleet_of(width, done)
        with pytest.raises(KeyboardInterrupt):
            executed(sweep(4), folder, watch=watch, stop=stop)
        assert len(list((folder / "checkpoints").iterdir())) == 1, "of the fleet at work alone"
        assert len(Store(folder).rows()) == done
        widths.clear()
        assert executed(sweep(4), folder, watch=seen.append) == whole
        assert widths[0] == width, "as it was cut before"
        first = next(event for event in seen if isinstance(event, Stepped))
        assert first.runs == sweep(4).runs[done : done + width]
        assert (first.progress.task, first.progress.step) > (0, 5)


def test_a_run_that_does_not_fit_alone_is_refused_and_other_errors_are_their_own(
    tmp_path: Path, fleets: Callable[[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleets(0)
    with pytest.raises(
        InputError, match="a run does not fit into the memory of cpu: take smaller batches"
    ) as told:
        executed(sweep(2), tmp_path)
    assert "\n" not in str(told.value)

    def broken(*_: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Fleet, "train", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        executed(sweep(2), tmp_path)


def test_memory_that_ends_while_a_graph_is_captured_is_recognised() -> None:
    """Leaving the capture fails because of it, and is what one gets to see."""
    try:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")
    except RuntimeError as error:
        assert is_out_of_memory(error)
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))
    assert not is_out_of_memory(RuntimeError("CUDA error: device-side assert triggered"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_sweep_on_cuda_is_cut_to_the_memory_there_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Eight runs of some 400 MB each, with 1.5 GB for all of them."""
    runs = [replace(run, network="little:wide", memory=None) for run in sweep(8).runs]
    study = Study(tuple(runs), "none", device="cuda")
    whole = executed(study, tmp_path / "whole")
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.5e9 / torch.cuda.get_device_properties(0).total_memory)
    try:
        with caplog.at_level("WARNING"):
            assert executed(study, tmp_path / "narrow") == whole
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert "8 runs do not fit into the memory of cuda, trying 4 at a time" in caplog.messages


# ── several GPUs ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_study_on_several_gpus_has_a_fleet_on_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two processes that stand for GPUs; fleets wider than two runs exhaust them."""
    alone = executed(sweep(5), tmp_path / "alone")
    events: list[Event] = []
    with caplog.at_level("WARNING"):
        study = sweep(5, executor=own_executors.PretendedGpus, workers=None)
        assert executed(study, tmp_path / "gpus", watch=events.append) == alone
    assert caplog.messages == ["3 runs do not fit into the memory of cpu, trying 2 at a time"]
    started = [event.runs for event in events if isinstance(event, Stepped)]
    assert {len(runs) for runs in started} == {3, 2, 1}, "two fleets for two GPUs, one of which had to be split"
    assert len({run.hash() for runs in started for run in runs}) == 5


def test_every_device_gets_a_fleet_and_none_is_split_without_need() -> None:
    jobs = in_fleets(sweep(7).runs)
    for devices, expected in ((1, [7]), (2, [4, 3]), (3, [2, 2, 3]), (9, [1] * 7)):
        found = spread_over(jobs, devices)
        assert sorted(map(len, found)) == sorted(expected)
        assert [run for job in found for run in job] == [run for job in jobs for run in job]
    assert spread_over([], 4) == []


def test_of_several_fleets_at_a_time_the_longest_begins_first() -> None:
    (short,) = sweep(1).runs
    few = tuple(replace(short, training=replace(short.training, epochs=3), seed=seed) for seed in range(2))
    many = tuple(replace(short, training=replace(short.training, epochs=2), seed=seed) for seed in range(4))
    runs, gpus = (short, *few, *many), own_executors.PretendedGpus
    for workers, expected in ((1, [(short,), few, many]), (2, [many, few, (short,)])):
        context = Study(runs, "none")._context(None)
        assert gpus(context, workers, lambda: False).jobs_of(runs) == expected


def test_begun_fleets_are_found_again_unless_their_note_is_wrong(tmp_path: Path) -> None:
    runs = sweep(4).runs
    note(tmp_path / "a", runs[1:3])
    assert begun_fleets(tmp_path, runs) == [runs[1:3]]
    assert begun_fleets(tmp_path, runs[2:]) == [], "one of its runs is done or unknown"
    for wrong in ("", "[]", "7", '["nobody"]', "[[]]", json.dumps([runs[0].hash()] * 2)):
        (tmp_path / "a" / "fleet.json").write_text(wrong)
        assert begun_fleets(tmp_path, runs) == []


# ── worker processes ──────────────────────────────────────────────────────────────────────────────────────


def never() -> bool:
    return False


def test_workers_answer_report_refuse_and_are_missed_when_they_die() -> None:
    told: list[Any] = []
    with Pool(little.work, [None]) as pool:
        assert list(pool.run(["ends"], lambda *news: told.append(news), never)) == [(0, "ends")]
        assert told == [(0, "under way")]
        with pytest.raises(InputError, match="one clear line"):
            list(pool.run(["is refused"], lambda *news: None, never))
        with pytest.raises(WorkerDied, match="try fewer --workers"):
            list(pool.run(["dies"], lambda *news: None, never))
    assert not any(process.is_alive() for process in pool.processes)


@pytest.mark.parametrize("device", ["cpu:0", torch.device("cpu")])
def test_another_name_of_the_cpu_is_the_cpu(device: Any) -> None:
    assert replace(little.study(), device=device) == replace(little.study(), device="cpu")


def test_a_worker_that_is_told_to_stop_twice_still_saves() -> None:
    told: list[Any] = []
    with Pool(little.work, [None]) as pool, pytest.raises(WorkerDied):
        list(pool.run(["is told to stop twice"], lambda *news: told.append(news), never))
    assert told == [(0, "saved")]


LEAVES_MANY_JOBS = """
import threading
import time
import little
from rwalk.studies import worker_pool

worker_pool.GRACE = little.PATIENCE  # however slow the machine is
with worker_pool.Pool(little.work, [None]) as pool:
    for _ in pool.run(["ends" + " " * 1000] * 1000, lambda *news: None, lambda: False):
        time.sleep(1)  # its answers fill the pipe to here, too
        break
(worker,) = pool.processes
assert worker.exitcode != -9, "the worker had to be killed"
assert threading.active_count() == 1, "a thread that Python would end in mid-air"
"""


DEAF = """
import signal
from pathlib import Path
import little
from rwalk.studies.worker_pool import Pool

with Pool(little.work, [None, None]) as pool:
    for process in pool.processes:
        (blocked,) = (line for line in Path(f"/proc/{process.pid}/status").open() if line.startswith("SigBlk"))
        assert int(blocked.split()[1], 16) & 1 << signal.SIGINT - 1, "a terminal's Ctrl-C would end it"
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says there which signals are blocked")
def test_workers_never_hear_of_ctrl_c() -> None:
    """In a process that has started none before: the first one is special."""
    subprocess.run([sys.executable, "-c", DEAF], cwd=Path(__file__).parent, check=True, timeout=little.PATIENCE)


def test_whoever_leaves_jobs_undone_ends_at_once() -> None:
    """More of them than fit into the pipe to the workers, whose answers nobody reads any more."""
    program = [sys.executable, "-c", LEAVES_MANY_JOBS]
    here, patience = Path(__file__).parent, little.PATIENCE
    done = subprocess.run(program, cwd=here, capture_output=True, text=True, timeout=patience)
    assert (done.returncode, done.stderr) == (0, "")


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_row_waits_for_its_reference(tmp_path: Path) -> None:
    """Runs and references are trained together, in any order; rows are the same."""
    events: list[Event] = []
    study = little.study(reference="final", cache=tmp_path / "one")
    expected = executed(study, tmp_path / "a")
    other = replace(study, executor=own_executors.LastFirst, cache=tmp_path / "other")
    assert executed(other, tmp_path / "b", watch=events.append) == expected
    kept = [event for event in events if isinstance(event, Trained | RowDone)]
    is_row = [isinstance(event, RowDone) for event in kept]
    is_run = [isinstance(event, Trained) and event.runs[0].reference is None for event in kept]
    assert is_run == [True] * 4 + [False] * 6, "two methods with two seeds, then the seeds' references"
    assert is_row == [False] * 5 + [True] * 2 + [False] + [True] * 2, "a seed's rows come with its reference"


@pytest.mark.parametrize(("method", "setting"), [("gem", "margin"), ("rwalk", "lam")])
def test_runs_of_one_fleet_can_share_it(method: str, setting: str) -> None:
    """A projector is one for all runs of a fleet, whatever its settings; a method's λ is each run's."""
    memory = MemorySpec(per_class=2)
    runs = [RunSpec(method=method, numbers={setting: value}, memory=memory) for value in (0.1, 0.5, 1)]
    for job in in_fleets(runs):
        Fleet(little.stream(), "mlp", [run.learner() for run in job], [run.seed for run in job])
    assert len(in_fleets(runs)) == (3 if method == "gem" else 1)


def test_methods_share_a_fleet_where_all_they_need_is_its_gradient() -> None:
    """Each one's runs in a row, to walk together; not those that look at data again, or have another loss."""
    names = ("vanilla", "rwalk", "ewc++", "ewc", "mas", "icarl", "rwalk", "pi")
    runs = [RunSpec(method=name, memory=MemorySpec(per_class=2), seed=seed) for seed, name in enumerate(names)]
    runs += [replace(runs[1], numbers={"penalty": "proximal"}), replace(runs[1], memory=None)]
    jobs = in_fleets(runs)
    together, *others = [[run.method for run in job] for job in jobs]
    assert together == ["vanilla", "rwalk", "rwalk", "ewc++", "pi", "rwalk"], "the proximal form walks by itself"
    assert others == [["ewc"], ["mas"], ["icarl"], ["rwalk"]]
    for job in jobs:
        fleet = Fleet(little.stream(), "mlp", [run.learner() for run in job], [run.seed for run in job])
        assert len(fleet.method_groups) == len({run.group_key() for run in job})


def test_several_fleets_on_one_device_only_if_asked_for() -> None:
    assert [Executor.workers_for(8, "cuda", asked) for asked in (None, 1, 3, 20)] == [1, 1, 3, 8]
    assert Executor.workers_for(8, "cpu", 3) == 3


def test_a_copy_without_version_control_may_say_its_commit(tmp_path: Path) -> None:
    """A copy of the sources, in a process of its own: what it says is cached."""
    source = Path(rwalk.__file__).parent
    shutil.copytree(source, tmp_path / "rwalk", ignore=shutil.ignore_patterns("__pycache__"))
    command = """
import os
from rwalk.studies.provenance import commit
print(commit())
commit.cache_clear()
os.environ["RWALK_COMMIT"] = "0123456789"
print(commit())
"""
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", command], env=environ, capture_output=True, text=True)
    assert done.stdout == "None\n0123456789\n"


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 1.0, "1", True])
def test_a_seed_that_torch_would_not_take_as_it_is_is_refused(seed: object) -> None:
    (run,) = little.study(methods=["vanilla"], seeds=1).runs
    with pytest.raises(InputError, match="a seed is a whole number below"):
        Study((replace(run, seed=seed),), "none").prepare()  # type: ignore[arg-type]


def test_tasks_may_be_lists_and_labels_numpys_numbers() -> None:
    assert StreamSpec(tasks=[[np.int64(0), "1"], (2,)]) == StreamSpec(tasks=((0, "1"), (2,)))  # type: ignore[arg-type]
