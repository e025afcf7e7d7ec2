"""A guard's report: printed, as data and in trainers' logs."""

from __future__ import annotations

import json

from torch.optim import SGD

from rwalk.guard import Guard
from rwalk.methods import RWalk, Vanilla
from test_guard_drift import guarded, layers, task, train


def test_report_of_an_anchor_says_what_happened() -> None:
    model, optimizer, guard = guarded(layers, budget=0.05)
    train(model, optimizer, *task(1), steps=80)
    report = guard.report()
    assert report.probes[0].examples == 192 and report.probes[0].drift == report.drift == guard.drift()
    assert report.budget == 0.05 and report.weight == guard.method.weight  # type: ignore[union-attr]
    assert [reading.step for reading in report.readings][:2] == [1, 3]
    assert json.loads(json.dumps(report.to_dict()))["readings"][-1]["drift"] == report.readings[-1].drift
    first, *_, last = str(report).splitlines()
    assert first.startswith("anchor, weight ") and "80 steps after task 1" in first and "budget of 0.05" in first
    assert last.startswith("set 1         192") and f"{guard.drift():.4f}" in last
    assert repr(report) == str(report)
    assert guard.log() == {"guard/drift": report.readings[-1].drift}


def test_report_of_a_method_on_parameters_says_what_happened() -> None:
    model, optimizer, guard = guarded(layers, RWalk())
    train(model, optimizer, *task(1), steps=20)
    report = guard.report()
    assert report.weight == guard.method.lam and report.penalty == guard.penalty() > 0  # type: ignore[union-attr]
    assert guard.log() == {"guard/lam": 1.0, "guard/penalty": guard.penalty(), "guard/drift": guard.drift()}
    model = layers()
    guard = Guard(model, SGD(model.parameters(), lr=0.1), Vanilla())
    assert str(guard.report()) == "vanilla, weight 0, 0 steps after task 0; penalty 0"
    assert guard.log() == {"guard/lam": 0.0, "guard/penalty": 0.0}
