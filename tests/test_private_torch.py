"""What torch does not promise is used in one place, with the versions of torch that were tested."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
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


def test_an_interface_that_changed_is_as_good_as_gone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    eager = trained()
    monkeypatch.setattr("torch.fx.experimental.proxy_tensor.make_fx", lambda function: function)
    without = trained(fuse=True)
    assert isinstance(without.execution, Eager) and torch.equal(without.theta, eager.theta)
    assert len(said(caplog)) == 1


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


def test_optimizers_are_told_from_their_wrappers_by_torchs_mark() -> None:
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
