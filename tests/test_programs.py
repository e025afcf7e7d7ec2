"""Compiled programs: the same training as eager arithmetic, or none at all."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rwalk import compiled_programs
from rwalk.atomic_files import is_private
from rwalk.compiled_programs import CompilerFailed, compiler_works, program, recording
from rwalk.data import splits
from rwalk.data.memory import MemorySpec
from rwalk.data.streams import Stream
from rwalk.engine import architectures, choose_execution, snapshots
from rwalk.engine.choose_execution import NO_COMPILER, Facts, choose, executed
from rwalk.engine.choose_execution import ExecutionPlan as Plan
from rwalk.engine.compiled_step import Compiled
from rwalk.engine.eager_step import Eager
from rwalk.engine.fleet import Fleet
from rwalk.engine.snapshots import Snapshot
from rwalk.learners import Learner, learner
from rwalk.training import Training

needs_compiler = pytest.mark.usefixtures("compiler")
DOUBLE = torch.float64
TRAINING = Training(steps=7, batch=16)
LEARNERS: dict[str, Callable[[], Learner]] = {
    "vanilla": lambda: learner("vanilla"),
    "ewc": lambda: learner("ewc", lam=100.0),
    "pi": lambda: learner("pi", penalty="proximal", lam=10.0),
    "icarl": lambda: learner("icarl", MemorySpec(3)),
    "rwalk-S": lambda: learner("rwalk", MemorySpec(3), dt=3),
}
# A program a step, and for RWalk a window: before the first task ends, and since. EWC holds more after every task.
PROGRAMS = {"vanilla": 1, "ewc": 3, "pi": 2, "icarl": 2, "rwalk-S": 4}


@pytest.fixture(scope="module")
def stream() -> Stream:
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(6).repeat(40)
    x = torch.randn(6, 1, 6, 6, generator=draw)[y] + torch.randn(240, 1, 6, 6, generator=draw)
    return splits.from_arrays(x, y, x[:40], y[:40], classes_per_task=2)


class WithBuffers(nn.Module):
    """Batch normalisation, dropout, a frozen layer, and one that is never used."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        # No bias under the norm: its gradient is zero but for rounding, which Adam would blow up to whole steps.
        self.convolution = nn.Conv2d(shape[0], 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.25)
        self.frozen = nn.Linear(64, 16).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.frozen(self.dropout(self.norm(self.convolution(x))).flatten(1))))


class Undecided(architectures.MLP):
    """Looks at values to decide what to do, which no record of its operations can repeat."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(shape, classes, (8,))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


def trained(stream: Stream, network: Any, each: Learner, fuse: bool, **more: Any) -> Fleet:
    runs = more.pop("runs", 1)
    seeds = [3 + run for run in range(runs)]
    training = more.pop("training", TRAINING)
    fleet = Fleet(stream, network, [each] * runs, seeds, training, dtype=DOUBLE, fuse=fuse, **more)
    fleet.train()
    return fleet


def programs_of(fleet: Fleet) -> list[Any]:
    """What was compiled; None for what could not be."""
    assert isinstance(fleet.execution, Compiled)
    return list(fleet.execution.programs._made.values())


@needs_compiler
@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("rwalk-S", 1),
        ("pi", 3),
        # One step of each is compared by the contract's tests.
        *(pytest.param(name, 1, marks=pytest.mark.slow) for name in ("vanilla", "ewc", "pi", "icarl")),
        pytest.param("rwalk-S", 3, marks=pytest.mark.slow),
    ],
)
def test_compiled_runs_are_the_eager_ones(stream: Stream, name: str, runs: int) -> None:
    random = torch.get_rng_state()
    eager, compiled = (trained(stream, WithBuffers, LEARNERS[name](), fuse, runs=runs) for fuse in (False, True))
    assert [each is not None for each in programs_of(compiled)] == [True] * PROGRAMS[name]
    torch.testing.assert_close(compiled.theta, eager.theta, rtol=0, atol=1e-10)
    for key, buffer in eager.net.buffers.items():
        torch.testing.assert_close(compiled.net.buffers[key], buffer, rtol=0, atol=1e-10)
    assert torch.get_rng_state().equal(random)


@pytest.mark.parametrize(
    "each",
    [
        learner("rwalk", fisher="example"),
        learner("a-gem", MemorySpec(3)),
    ],
    ids=["per-example Fisher", "projection"],
)
def test_a_step_that_is_more_than_one_gradient_is_not_compiled(
    stream: Stream, each: Learner, caplog: pytest.LogCaptureFixture
) -> None:
    wanted, eager = (trained(stream, WithBuffers, each, fuse) for fuse in (True, False))
    assert isinstance(wanted.execution, Eager)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("rwalk")]
    assert ["is not compiled" in each for each in ours] == [True], "as it was asked for"
    assert torch.equal(wanted.theta, eager.theta)


FACTS = Facts(cuda=False, runs=1, parameters=300_000, steps=5_000, observes=True, grows=False, one_gradient=True,
              gains_from_recording=False)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "asked", "expected"),
    [
        ({}, None, Plan(compiled=True)),
        ({"steps": 4_999}, None, Plan()),
        ({"observes": False}, None, Plan()),  # a method that observes nothing gains half
        ({"observes": False, "steps": 10_000}, None, Plan(compiled=True)),
        ({"parameters": 26_000}, None, Plan()),  # a small network gains less
        ({"parameters": 26_000, "steps": 50_000}, None, Plan(compiled=True)),
        ({"runs": 2, "steps": 10**6}, None, Plan()),  # a fleet on a CPU is not what is fast there
        ({"grows": True, "steps": 10**6}, None, Plan()),  # EWC would be compiled anew for every task
        ({"one_gradient": False, "steps": 10**6}, None, Plan()),
        ({"steps": 10**6}, False, Plan()),
        ({"steps": 1}, True, Plan(compiled=True, warn=True)),
        ({"one_gradient": False}, True, Plan(warn=True)),
        ({"cuda": True, "steps": 1}, True, Plan(compiled=True, warn=True)),
        ({"cuda": True, "steps": 1, "gains_from_recording": True}, True, Plan(True, True, True)),
        ({"cuda": True, "runs": 200}, None, Plan(compiled=True)),
        ({"cuda": True, "runs": 199}, None, Plan()),  # its kernels would take longer to compile than they gain
        ({"cuda": True, "parameters": 10**8}, None, Plan(compiled=True)),
        ({"cuda": True, "runs": 200, "grows": True}, None, Plan()),
        ({"cuda": True, "runs": 200, "one_gradient": False}, None, Plan(compiled=True)),
        ({"cuda": True, "runs": 10, "gains_from_recording": True}, None, Plan(gradient=True)),
        ({"cuda": True, "runs": 9, "gains_from_recording": True}, None, Plan()),
    ],
)
def test_what_is_worth_compiling(changes: dict[str, Any], asked: bool | None, expected: Plan) -> None:
    facts = FACTS._replace(**changes)
    assert choose(facts, asked, lambda: True) == expected
    if asked is None:
        assert choose(facts, asked, lambda: False) == Plan(lacks="" if expected == Plan() else NO_COMPILER)


@needs_compiler
def test_a_compiled_run_goes_on_bit_for_bit(stream: Stream) -> None:
    class Checkpointer:
        def due(self, fleet: Fleet) -> bool:
            return (fleet.task, fleet.step) == (1, 4)

        def save(self, fleet: Fleet) -> None:
            self.kept = snapshots.take(fleet)

    keeper = Checkpointer()
    whole = Fleet(stream, WithBuffers, [LEARNERS["rwalk-S"]()], [3], TRAINING, dtype=DOUBLE, fuse=True)
    whole.train(checkpoints=keeper)
    rest = Fleet(stream, WithBuffers, [LEARNERS["rwalk-S"]()], [3], TRAINING, dtype=DOUBLE, fuse=True)
    tensors = keeper.kept.tensors()
    known = len(compiled_programs._known)
    in_order = {name: tensors[name] for name in sorted(tensors)}  # a file's order is the alphabet's
    snapshots.restore(rest, Snapshot.of(in_order, keeper.kept.counters()))
    rest.train()
    assert torch.equal(rest.theta, whole.theta)
    assert None not in [*programs_of(whole), *programs_of(rest)]
    assert len(compiled_programs._known) == known, "a run that goes on has the same programs"


@needs_compiler
def test_what_cannot_be_compiled_is_trained_as_it_is(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    each = learner("rwalk", lam=3.7)
    with caplog.at_level(logging.INFO, "rwalk.engine"):
        eager, compiled = (trained(stream, Undecided, each, fuse) for fuse in (False, True))
    assert isinstance(compiled.execution, Eager)
    assert torch.equal(compiled.theta, eager.theta)
    assert executed(compiled) == executed(eager) == "eager"
    assert [record.getMessage()[:28] for record in caplog.records] == ["the network is not compiled:"]


def test_a_compiler_that_fails_within_a_run_is_told_and_recorded(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*arguments: object) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch._inductor.compile", full)
    monkeypatch.setattr(compiled_programs, "_known", {})
    monkeypatch.setattr(choose_execution, "WORTH_COMPILING", {True: 0, False: 0})
    monkeypatch.setattr("rwalk.engine.choose_execution.compiler_works", lambda device: True)  # when it was tried
    fleet = trained(stream, WithBuffers, learner("vanilla"), fuse=None)
    assert executed(fleet) == "eager (the compiler failed)"
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("rwalk")]
    assert ours == ["the network is not compiled: [Errno 28] No space left on device"]


def test_a_compiler_that_fails_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def failing(*arguments: object) -> Any:
        asked.append(arguments)
        raise AssertionError  # some have no message

    monkeypatch.setattr("torch._inductor.compile", failing)
    monkeypatch.setattr(compiled_programs, "_known", {})
    for _ in range(2):
        with pytest.raises(CompilerFailed, match="AssertionError"):
            program(lambda x: (x + 5,), torch.ones(3))
    assert len(asked) == 1
    monkeypatch.setattr(compiled_programs, "which", lambda name: name)
    assert not compiler_works.__wrapped__()


@needs_compiler
def test_a_program_changes_its_arguments_and_recording_does_not() -> None:
    def counted(x: Tensor, counter: Tensor) -> tuple[Tensor]:
        counter.add_(1)
        return (x * counter,)

    counter = torch.zeros(3)
    compiled = program(counted, torch.ones(3), counter)
    assert counter.tolist() == [0, 0, 0]
    for _ in range(2):
        (product,) = compiled(torch.ones(3), counter)
    assert counter.tolist() == product.tolist() == [2, 2, 2]


@needs_compiler
def test_two_threads_compile_at_the_same_time() -> None:
    together = threading.Barrier(2)

    def compiled(factor: int) -> tuple[Tensor, Tensor]:
        def function(x: Tensor) -> tuple[Tensor]:
            assert recording()
            return (torch.relu(x * factor).sum(0),)

        x = torch.linspace(-1, 1, 20 * factor).view(4, -1)
        together.wait()
        (found,) = program(function, x)(x)
        assert not recording()
        return found, torch.relu(x * factor).sum(0)

    with ThreadPoolExecutor(2) as pool:
        for found, expected in pool.map(compiled, (2, 3)):
            torch.testing.assert_close(found, expected)


@needs_compiler
def test_the_same_operations_are_compiled_once_and_other_tensors_never_mistaken() -> None:
    x = torch.ones(3)

    def times(factor: float | Tensor) -> Callable[[Tensor], tuple[Tensor]]:
        return lambda x: (x * factor,)

    assert program(times(2.0), x) is program(times(2.0), x)
    assert program(times(2.0), x) is not program(times(2.0), torch.ones(4))
    here, threads = program(times(2.0), x), torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert program(times(2.0), x) is not here, "sums of other threads round otherwise"
    finally:
        torch.set_num_threads(threads)
    for factor in (2.0, 3.0, torch.tensor([1.0, 2.0, 3.0]), torch.tensor([3.0, 2.0, 1.0])):
        torch.testing.assert_close(program(times(factor), x)(x)[0], x * factor)


SCRIPT = """
import torch
from rwalk import Fleet, Training
from rwalk.data import splits
from rwalk.engine import choose_execution
from rwalk.learners import learner
choose_execution.WORTH_COMPILING = {True: 0, False: 0}
x, y = torch.rand(80, 1, 4, 4), torch.arange(4).repeat(20)
stream = splits.from_arrays(x, y, x, y, classes_per_task=2)
each = Fleet(stream, "mlp", [learner("rwalk")], [0], Training(steps=2))
each.train()
print(type(each.execution).__name__ == "Compiled")
"""


@pytest.mark.parametrize(("compiler", "complaints"), [("no-such-compiler", 0), (sys.executable, 1)])
def test_without_a_compiler_that_works_a_run_is_trained_eagerly(
    compiler: str, complaints: int, tmp_path: Path
) -> None:
    surroundings = {**os.environ, "CXX": compiler, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=surroundings, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
    assert done.stderr.count("the C++ compiler does not work") == complaints


# ── the compiler's cache ──────────────────────────────────────────────────────────────────────────────────────

has_owners = pytest.mark.skipif(not hasattr(os, "getuid"), reason="folders have no owner here")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, in a process that has not chosen a cache for its compiler yet."""
    from torch._inductor import codecache  # seconds

    for name in ("_HEADER_DIR", "_HEADER_LOCK_DIR"):
        monkeypatch.setattr(codecache, name, getattr(codecache, name))  # to be put back
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@has_owners
def test_compiled_code_is_kept_in_a_private_folder(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def cache() -> Path:
        """Where a new process would keep what it compiles."""
        monkeypatch.delenv(compiled_programs.CACHE_VARIABLE, raising=False)
        compiled_programs.use_private_cache.__wrapped__()
        return Path(os.environ[compiled_programs.CACHE_VARIABLE])

    ours = cache()
    assert ours == temporary / f"rwalk-compiled-{os.getuid()}" and not caplog.records
    for safe in (0o700, 0o755):
        ours.chmod(safe)
        assert cache() == ours and ours.stat().st_mode & 0o777 == 0o700 and not caplog.records
    ours.chmod(0o777)  # from now on somebody else may have put something there
    folder = cache()
    assert folder != ours and folder.parent == temporary and folder.stat().st_mode & 0o777 == 0o700
    assert caplog.messages == [f"{ours} is not private, so compiled code is not kept there: remove it"]


@has_owners
@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_cache_that_the_user_names_is_used_if_it_is_private(
    mode: int, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = temporary / "named"
    monkeypatch.setenv(compiled_programs.CACHE_VARIABLE, str(named))
    named.mkdir()
    named.chmod(mode)
    compiled_programs.use_private_cache.__wrapped__()
    assert (os.environ[compiled_programs.CACHE_VARIABLE] == str(named)) == (mode == 0o755)


WHERE = """
import os, torch
from pathlib import Path
from rwalk.compiled_programs import program
program(lambda x: (x.sin() + 1,), torch.zeros(64))
folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
print(folder, any(folder.rglob("*.so")))
"""


@pytest.mark.slow
@has_owners
@needs_compiler
def test_the_compiler_writes_to_the_private_folder_and_nowhere_else(tmp_path: Path) -> None:
    around = {name: value for name, value in os.environ.items() if name != compiled_programs.CACHE_VARIABLE}
    around |= {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", WHERE], env=around, capture_output=True, text=True)
    ours = tmp_path / f"rwalk-compiled-{os.getuid()}"
    assert (done.returncode, done.stdout) == (0, f"{ours} True\n"), done.stderr
    assert [each.name for each in tmp_path.iterdir()] == [ours.name]


@has_owners
@pytest.mark.parametrize(
    "case", ["link", "file", "writable by a group", "of another user", "around it anybody writes"]
)
def test_a_folder_that_is_not_private_is_told(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "around" / "folder"
    folder.mkdir(mode=0o700, parents=True)
    assert is_private(folder)
    if case == "link":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    elif case == "file":
        folder.rmdir()
        folder.touch(mode=0o600)
    elif case == "writable by a group":
        folder.chmod(0o720)
    elif case == "of another user":
        monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    else:
        folder.parent.chmod(0o777)
    assert not is_private(folder)
