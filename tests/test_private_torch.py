"""What torch does not promise: used in one place, and nothing depends on it."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import little
import rwalk
from rwalk import Fleet, Guard, InputError, Training, compiled_programs, private_torch
from rwalk.data.memory import MemorySpec
from rwalk.engine.eager_step import Eager
from rwalk.learners import learner

PRIVATE = re.compile(r"torch\._\w|torch\.fx\.experimental|\bhooked\"|nn\.modules\.\w+\._|functorch")
TRAINING = Training(steps=5, batch=16)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known from other tests: no program, no message said already."""
    monkeypatch.setattr(compiled_programs, "_known", {})
    private_torch._say_once.cache_clear()
    private_torch._marks_steps.cache_clear()


def trained(fuse: bool = False) -> Fleet:
    each = learner("rwalk", MemorySpec(2), dt=3)
    fleet = Fleet(little.stream(), little.Network, [each], [3], TRAINING, dtype=torch.float64, fuse=fuse)
    fleet.train()
    return fleet


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """By rwalk: what torch says of its own parts is its own affair."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("rwalk")]


def test_private_names_are_used_in_one_module_alone() -> None:
    sources = sorted(Path(rwalk.__file__).parent.rglob("*.py"))
    found = {path.name for path in sources if PRIVATE.search(path.read_text())}
    assert found == {"private_torch.py"}


def test_the_torch_that_is_installed_is_one_that_was_tested() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    (bounds,) = re.findall(r"'torch>=([\d.]+),<([\d.]+)'", str(project["dependencies"]))
    first, last, here = ([int(part) for part in each.split(".")[:2]] for each in (*bounds, torch.__version__))
    assert first <= here < last


@pytest.mark.parametrize(
    "name",
    [
        "torch._guards",
        "torch._inductor",
        "torch._subclasses",
        "torch.fx.experimental.proxy_tensor",
        "torch.fx.experimental.symbolic_shapes",
    ],
)
def test_without_what_compiles_training_goes_on_eagerly_and_says_so_in_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    eager = trained()
    monkeypatch.setitem(sys.modules, name, None)
    without = trained(fuse=True)
    assert isinstance(without.execution, Eager) and torch.equal(without.theta, eager.theta)
    (line,) = said(caplog)
    assert re.fullmatch(r"the network is not compiled: this torch has no .*", line)
    caplog.clear()
    monkeypatch.setattr(compiled_programs, "which", lambda compiler: compiler)
    assert not compiled_programs.compiler_works.__wrapped__()
    (line,) = said(caplog)
    assert line.startswith("the compiler of torch does not work, training continues without it: this torch has no")


def test_an_interface_that_changed_is_as_good_as_gone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    eager = trained()
    monkeypatch.setattr("torch.fx.experimental.proxy_tensor.make_fx", lambda function: function)
    without = trained(fuse=True)
    assert isinstance(without.execution, Eager) and torch.equal(without.theta, eager.theta)
    assert len(said(caplog)) == 1


def test_without_the_fused_kernel_adam_is_its_formula(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fused = trained()
    monkeypatch.delattr(torch, "_fused_adam_")
    written = [trained() for _ in range(2)]
    near = little.rounding(TRAINING, len(little.stream()))
    torch.testing.assert_close(written[0].theta, fused.theta, rtol=0, atol=near)
    assert torch.equal(written[0].theta, written[1].theta)
    assert said(caplog) == ["this torch has no fused Adam of vectors: steps are computed by the formula"]


def test_without_a_limit_to_raise_torch_compile_keeps_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "_dynamo", SimpleNamespace(), raising=False)
    for _ in range(2):
        private_torch.allow_variants(64)
    (line,) = said(caplog)
    assert line.startswith("torch.compile keeps its limit of variants")


class Around(torch.optim.Optimizer):
    """An optimizer around another, as Accelerate has them: it calls no hooks of its own."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step(closure)

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups


class Alien:
    """Steps, and calls nobody."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.param_groups = optimizer.param_groups

    def step(self) -> None: ...


@pytest.mark.parametrize("marked", [True, False])
def test_optimizers_are_told_from_their_wrappers_with_and_without_torchs_mark(
    marked: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not marked:
        monkeypatch.setattr(private_torch, "hasattr", lambda *_: False, raising=False)
    optimizer = torch.optim.SGD([torch.zeros(3, requires_grad=True)], lr=0.1)
    for _ in range(2):
        assert private_torch.calls_step_hooks(optimizer)
        assert not private_torch.calls_step_hooks(Around(optimizer))
        assert not private_torch.calls_step_hooks(Alien(optimizer))
    model = torch.nn.Linear(3, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    assert Guard(model, Around(inner), "rwalk").optimizer is inner
    with pytest.raises(InputError, match="Alien calls no step hooks"):
        Guard(model, Alien(inner), "rwalk")
    assert len(said(caplog)) == (0 if marked else 1)
