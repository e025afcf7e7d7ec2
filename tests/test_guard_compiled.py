"""A guard's step as compiled programs: the same step, where that is worth compiling."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rwalk import PI, Guard, RWalk
from rwalk.guard.step.compiled import CompiledPack, Facts, is_worth_it
from rwalk.methods import Method
from rwalk.programs import program

needs_compiler = pytest.mark.usefixtures("compiler")
FACTS = Facts(asked=None, ours=True, tensors=6, numbers=270_000, steps=20_000)


@pytest.mark.parametrize(
    ("changes", "works", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"steps": 10_000}, True, False),
        ({"steps": 10_000, "asked": True}, True, True),
        ({"steps": 1, "asked": True}, False, False),
        ({"asked": False}, True, False),
        ({"numbers": 1_000}, True, False),
        ({"numbers": 100_000_000, "steps": 1_000}, True, False),
        ({"tensors": 400, "asked": True}, True, False),
        ({"ours": False, "asked": True}, True, False),
    ],
)
def test_steps_are_compiled_where_that_repays_its_time(
    changes: dict[str, Any], works: bool, expected: bool
) -> None:
    assert is_worth_it(FACTS._replace(**changes), lambda: works) is expected


def trained(method: Method, compile: bool) -> tuple[Guard, list[Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 5)).double()
    model[0].to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    guard = Guard(model, optimizer, method, compile=compile)
    for task in range(2):
        draw = torch.Generator().manual_seed(task)
        for step in range(5):
            x = torch.randn(8, 1, 8, 8, generator=draw, dtype=torch.float64)
            F.cross_entropy(model(x), torch.randint(5, (8,), generator=draw)).backward()
            if step == 3:  # laid out otherwise than the parameter: for this step, no program fits
                model[2].weight.grad = model[2].weight.grad.T.contiguous().T
            kept = [parameter.grad.clone() for parameter in model.parameters()]
            optimizer.step()
            assert all(torch.equal(p.grad, each) for p, each in zip(model.parameters(), kept, strict=True))
            optimizer.zero_grad()
        guard.consolidate()
    return guard, [*model.parameters(), *guard.state_dict()["tensors"].values()]


def packs_of(guard: Guard) -> list[Any]:
    learned = guard._work.learned
    return learned.packs.of(learned.started, learned.method)


@needs_compiler
@pytest.mark.parametrize(
    "method", [PI(lam=0.01), pytest.param(RWalk(lam=0.1, dt=3), marks=pytest.mark.slow)], ids=str
)
def test_compiled_steps_are_the_eager_ones(method: Method) -> None:
    guard, found = trained(method, compile=True)
    plain, expected = trained(method, compile=False)
    assert [type(pack) for pack in packs_of(guard)] == [CompiledPack]
    assert not any(isinstance(pack, CompiledPack) for pack in packs_of(plain))
    made = guard._work.learned.packs._programs._made
    moments = ["prepare", "observe", *(["score"] if method.window else [])]
    assert {(moment, "anchor" in names) for moment, _, names, _ in made} == {
        (moment, held) for moment in moments for held in (False, True)
    }
    assert None not in made.values()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@dataclass(frozen=True)
class Own(PI):
    """Anything may change from step to step in a method of somebody's own."""


@pytest.mark.parametrize(
    ("method", "more"), [(Own(), {}), (PI(), {"budget": 0.1}), (PI(), {"dtype": torch.bfloat16})]
)
def test_what_cannot_be_compiled_is_worked_out_as_ever(method: Method, more: dict[str, Any]) -> None:
    model = nn.Linear(3, 2)
    guard = Guard(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.1), method, compile=True, **more)
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    assert not any(isinstance(pack, CompiledPack) for pack in packs_of(guard))


@needs_compiler
def test_a_program_is_not_given_what_it_does_not_use(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    added = program(lambda a, b, c: (a + c,), *(torch.ones(64) for _ in range(3)))
    (three,) = added(torch.ones(64), torch.zeros(7), torch.full((64,), 2.0))
    assert three.eq(3).all() and not caplog.records
