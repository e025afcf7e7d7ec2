"""One thread on a CPU: set where networks compute, given back afterwards, and worth it on a busy machine."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import little
from rwalk import IncrementalRegressor, InputError, Training, threads
from rwalk.classifier.estimator import IncrementalClassifier
from rwalk.engine.architectures import builder
from rwalk.gc_pause import gc_paused
from rwalk.guard import Probes
from rwalk.seeds import seeded
from rwalk.studies import Study
from rwalk.threads import few_threads, flushes_denormals

DATA = (np.eye(4, dtype=np.float32), np.arange(4))
SEEN: list[
    tuple[int, bool]
] = []  # threads, and whether denormals are flushed, in every forward pass of `Watching`


class Watching(nn.Module):
    """Writes down how it is computed."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(torch.Size(shape).numel(), classes)

    def forward(self, x: Tensor) -> Tensor:
        SEEN.append((torch.get_num_threads(), flushes_denormals()))
        return self.head(x.flatten(1))


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Several threads allowed by torch, none by the user, and afterwards what was set before."""
    monkeypatch.delenv(threads.VARIABLE, raising=False)
    SEEN.clear()
    before, flushing = torch.get_num_threads(), flushes_denormals()
    torch.set_num_threads(3)
    torch.set_flush_denormal(False)
    yield
    torch.set_num_threads(before)
    torch.set_flush_denormal(flushing)


def taught(**params: Any) -> IncrementalClassifier:
    params = {"network": Watching, "memory": 1, "epochs": 1, "random_state": 0, **params}
    return IncrementalClassifier(**{"method": "rwalk", **params}).partial_fit(*DATA)


@pytest.mark.parametrize("flushing", [False, True])
def test_what_was_set_before_is_set_again(flushing: bool) -> None:
    torch.set_flush_denormal(flushing)
    assert flushes_denormals() == flushing
    with few_threads(2), few_threads(1):
        assert (torch.get_num_threads(), flushes_denormals()) == (1, True)
    with pytest.raises(ZeroDivisionError), few_threads(1):
        _ = 1 / 0
    assert (torch.get_num_threads(), flushes_denormals()) == (3, flushing)


@pytest.mark.parametrize("method", ["rwalk", "icarl"])
@pytest.mark.parametrize("call", ["fit", "partial_fit", "predict", "predict_proba", "score", "load"])
def test_every_call_of_the_classifier_has_one_thread_and_gives_it_back(
    call: str, method: str, tmp_path: Path
) -> None:
    classifier, x = taught(method=method), DATA[0]
    classifier.save(tmp_path / "file")
    SEEN.clear()
    if call == "load":
        IncrementalClassifier.load(tmp_path / "file", network=Watching)
    else:
        getattr(classifier, call)(*((x,) if call.startswith("predict") else DATA))
    assert SEEN and set(SEEN) == {(1, True)}
    assert (torch.get_num_threads(), flushes_denormals()) == (3, False)


def test_a_call_that_fails_gives_its_threads_back() -> None:
    classifier = taught()
    with pytest.raises(InputError):
        classifier.predict(DATA[0][:, :2])
    assert (torch.get_num_threads(), flushes_denormals()) == (3, False)


def test_a_study_in_this_process_has_one_thread_and_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(little, "Network", Watching)
    study = little.study(methods=["vanilla"], seeds=1)
    study.execute()
    assert (1, True) in SEEN and (torch.get_num_threads(), flushes_denormals()) == (3, False)


@pytest.mark.parametrize(("asked", "cores", "given"), [("8", 4, 4), ("2", 4, 2), ("8", 1, 1), ("1", 4, 1)])
def test_the_user_may_ask_for_more_threads_but_not_for_more_than_cores(
    asked: str, cores: int, given: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(threads.VARIABLE, asked)
    monkeypatch.setattr(threads, "available_cores", lambda: cores)
    taught()
    assert set(SEEN) == {(given, True)}


@pytest.mark.skipif(threads.available_cores() < 2, reason="needs two cores")
def test_the_number_of_threads_does_not_depend_on_who_else_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows in the last digits, so the same settings must give the same number."""
    monkeypatch.setenv(threads.VARIABLE, "2")
    with busy_processes(2 * threads.available_cores()):
        time.sleep(0.1)
        taught()
    assert set(SEEN) == {(2, True)}


@pytest.mark.parametrize("asked", ["0", "-1", "two", "1.5", "", "²"])
def test_a_number_of_threads_that_is_none_is_refused(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(threads.VARIABLE, asked)
    with pytest.raises(InputError, match="RWALK_THREADS must be a whole number") as refused:
        taught()
    assert "\n" not in str(refused.value)


@contextmanager
def default_type(kind: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("family", ["closed-form", "rwalk", "regressor"])
@pytest.mark.parametrize(
    "around",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.device("meta"),
        lambda: default_type(torch.float64),
        lambda: default_type(torch.float16),
    ],
    ids=["no_grad", "inference_mode", "autocast", "meta", "float64", "float16"],
)
def test_settings_of_the_caller_make_no_other_model(around: Any, family: str) -> None:
    x = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    y = np.arange(40) % 4

    def learned() -> NDArray[Any]:
        if family == "regressor":
            made: Any = IncrementalRegressor(random_state=0).partial_fit(x[:20], y[:20])
            return made.partial_fit(x[20:], y[20:]).predict(x)
        options = {"memory": 2, "epochs": 1} if family == "rwalk" else {}
        classifier = IncrementalClassifier(method=family, random_state=0, **options)
        return classifier.partial_fit(x[:20], y[:20]).partial_fit(x[20:], y[20:]).predict_proba(x)

    expected = learned()
    with around():
        if family == "rwalk" and torch.get_default_dtype() != torch.float32:
            with pytest.raises(InputError, match="networks begin in float32"):
                learned()
            return
        found = learned()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode, lambda: torch.device("meta")])
@pytest.mark.parametrize("kind", [IncrementalClassifier, IncrementalRegressor])
def test_settings_of_the_caller_make_no_other_file(kind: Any, around: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(120, 5)).astype(np.float32)
    y = np.arange(120) % 4
    expected = kind(size=20).partial_fit(x, y).coef_
    for look in (lambda made: made.coef_, lambda made: made.save(tmp_path / "file")):
        made = kind(size=20).partial_fit(x, y)
        with around():
            look(made)
        made.partial_fit(x[:1], y[:1]).predict(x)  # not with tensors of that mode
    with around():
        again = kind.load(tmp_path / "file")
    np.testing.assert_allclose(again.coef_, expected, rtol=0, atol=1e-12)
    again.partial_fit(x[:1], y[:1]).predict(x)


# ── on a busy machine ─────────────────────────────────────────────────────────────────────────────────────────

SPINNING = "while True: pass"
CALLS = """
import sys, time
import numpy as np
from rwalk.classifier.estimator import IncrementalClassifier
x = np.random.default_rng(0).standard_normal((1280, 784), dtype=np.float32)
y = np.arange(1280) % 10
def call():
    IncrementalClassifier(method="rwalk", memory=10).partial_fit(x, y)
def plain():
    for _ in range(20_000_000):
        pass
call()
for line in sys.stdin:
    for work in (call, plain):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        print(time.perf_counter() - wall, time.process_time() - cpu, end=" ")
    print(flush=True)
"""


@contextmanager
def busy_processes(count: int, cores: set[int] | None = None) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that do nothing but to compute, on these cores."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPINNING]) for _ in range(count)]
    try:
        for each in spinning:
            if cores is not None:
                os.sched_setaffinity(each.pid, cores)
        yield spinning
    finally:
        for each in spinning:
            each.kill()
            each.wait()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cannot choose the cores of a process")
@pytest.mark.skipif(threads.available_cores() < 2, reason="needs two cores")
def test_four_busy_processes_on_two_cores_slow_a_call_down_by_their_share_alone() -> None:
    """Five programs on two cores have 2/5 of a core each: what takes one core alone takes 2.5 times as long.

    What a share is here and now, a plain loop beside each call tells, for somebody else may be on the machine. A
    call may take somewhat more: after every switch between programs the caches are cold. Threads that wait for
    each other take many times as long.
    """
    cores = set(sorted(os.sched_getaffinity(0))[:2])
    times: dict[bool, list[list[float]]] = {True: [], False: []}
    command = [sys.executable, "-c", CALLS]
    surroundings = {**os.environ, "OMP_NUM_THREADS": "2"}  # torch's own choice on two cores
    with (
        busy_processes(4, cores) as others,
        subprocess.Popen(command, env=surroundings, stdin=-1, stdout=-1, text=True) as caller,
    ):
        assert caller.stdin is not None and caller.stdout is not None
        os.sched_setaffinity(caller.pid, cores)
        for _ in range(5):
            for busy in (False, True):
                for each in others:
                    each.send_signal(signal.SIGCONT if busy else signal.SIGSTOP)
                time.sleep(0.5)  # until they are spread over the cores
                for _ in range(3):
                    print(file=caller.stdin, flush=True)
                    times[busy].append([float(each) for each in caller.stdout.readline().split()])
        caller.stdin.close()
    idle, busy = (np.median(times[state], axis=0) for state in (False, True))
    slower, share = busy[0] / idle[0], busy[2] / idle[2]
    print(
        f"a call takes {idle[0]:.2f} s, on a busy machine {slower:.2f} times that; a plain loop {share:.2f} times"
    )
    assert slower <= 1.5 * share
    assert busy[1] <= 1.5 * idle[1], "of a processor's time"


# ── several threads of one program ────────────────────────────────────────────────────────────────────────────


def in_two_threads(work: Callable[[int], Any], jobs: int) -> list[Any]:
    """The results of jobs 0, 1, …, of which each thread does every other one, both at the same time."""
    results: list[Any] = [None] * jobs
    together = threading.Barrier(2)

    def half(first: int) -> None:
        together.wait()
        for job in range(first, jobs, 2):
            results[job] = work(job)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(half, first) for first in (0, 1)]:
            done.result()
    return results


def classifier_of(seed: int) -> list[Tensor]:
    classifier = IncrementalClassifier(
        method=("rwalk", "icarl", "ewc++", "lwf")[seed % 4],
        network=little.Network,
        memory=2,
        epochs=2,
        batch_size=4,
        random_state=seed,
    )
    draw = np.random.default_rng(seed)
    for classes in ((0, 1), (2, 3)):
        y = np.repeat(classes, 4)
        classifier.partial_fit(draw.normal(size=(8, 5)).astype(np.float32) + y[:, None], y)
    return [classifier.predict_proba(np.eye(5, dtype=np.float32))]


def rows_of(seed: int) -> list[Any]:
    (run,) = little.study(methods=[("rwalk", "vanilla", "ewc")[seed % 3]], seeds=1).runs
    run = replace(run, seed=seed, training=Training(steps=2, batch=8))
    (row,) = Study((run,), "none", workers=1).execute()
    return [row.accuracy, row.stopped]


def network_or_guard(seed: int) -> list[Any]:
    """Every other job builds networks, the others measure the drift of one: both keep torch's random numbers."""
    if seed % 2:
        with seeded(seed):
            model = nn.Linear(5, 3)
        probes = Probes(torch.eye(5), divergence="mse")
        probes.keep(model)
        for _ in range(50):
            assert probes.drift(model) == 0
        return []
    network = builder("mlp", (5,), 3)
    found = []
    for number in range(20):
        with seeded(number):
            found.append(network().state_dict()["head.weight"].numpy())
    return found


@pytest.mark.parametrize("work", [classifier_of, rows_of, network_or_guard])
@pytest.mark.parametrize("each", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_two_threads_learn_the_same_models_as_one(work: Callable[[int], Any], each: int) -> None:
    with few_threads(1):
        random = torch.get_rng_state()
        together = in_two_threads(work, 2 * each)
        assert torch.get_rng_state().equal(random)
        for seed, found in enumerate(together):
            np.testing.assert_equal(found, work(seed), err_msg=f"seed {seed}")


def test_few_threads_of_two_threads_hold_until_both_have_left() -> None:
    """torch's number is the process's: the first to leave must not raise it under the other."""
    first, second = few_threads(1), few_threads(2)
    with ThreadPoolExecutor(1) as other:
        first.__enter__()
        other.submit(second.__enter__).result()
        assert torch.get_num_threads() == 1
        first.__exit__(None, None, None)
        assert torch.get_num_threads() == 2
        again = few_threads(1)
        again.__enter__()
        other.submit(second.__exit__, None, None, None).result()
        assert torch.get_num_threads() == 1
        again.__exit__(None, None, None)
    assert torch.get_num_threads() == 3


def test_gc_paused_by_two_threads_holds_until_both_have_left() -> None:
    first, second = gc_paused(), gc_paused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()
