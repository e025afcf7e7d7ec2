"""What a guard reports is what happened, in print, as data, as a picture and in trainers' logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

from rwalk.guard import Anchor, Guard
from rwalk.methods import RWalk, Vanilla
from test_guard_budget import guarded, layers, task, train


def test_a_report_says_what_was_kept(tmp_path: Path) -> None:
    model, optimizer, guard = guarded(layers, RWalk(), budget=0.05, every=1)
    train(model, optimizer, *task(1), steps=60)
    report = guard.report()
    assert report.probes[0].examples == 192 and report.probes[0].drift == guard.drift()
    assert report.budget == 0.05 and report.lam == guard.method.lam and report.penalty == guard.penalty() > 0
    assert [reading.step for reading in report.readings] == list(range(1, 61))
    assert json.loads(json.dumps(report.to_dict()))["readings"][-1]["drift"] == report.readings[-1].drift
    first, *_, last = str(report).splitlines()
    assert first.startswith("rwalk, λ = ") and "60 steps after task 1" in first and "budget 0.05" in first
    assert last.startswith("set 1         192") and f"{guard.drift():.4f}" in last
    report.picture(tmp_path / "report.png")
    assert (tmp_path / "report.png").stat().st_size > 10_000
    assert guard.log() == {
        "guard/lam": guard.method.lam,
        "guard/penalty": guard.penalty(),
        "guard/drift": report.readings[-1].drift,
        "guard/pull": report.readings[-1].pull,
    }


def test_a_guard_without_probes_reports_what_it_knows() -> None:
    model = layers()
    optimizer = SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, Vanilla())
    assert str(guard.report()) == "vanilla, λ = 0, 0 steps after task 0; penalty 0"
    assert guard.log() == {"guard/lam": 0.0, "guard/penalty": 0.0}
    assert guard.report().picture() is not None


class Labelled(nn.Module):
    """As Hugging Face's models: called with keywords, it makes a loss of labels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = layers()

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
        logits = self.body(x)
        return {"logits": logits, "loss": None if labels is None else F.cross_entropy(logits, labels)}


def test_losses_before_and_after_are_there_where_labels_are() -> None:
    torch.manual_seed(0)
    model = Labelled()
    optimizer = SGD(model.parameters(), lr=0.1)
    (x, y), (new, labels) = task(0), task(1)
    guard = Guard(model, optimizer, Anchor(weight=0.0), probes={"x": x, "labels": y})
    before = F.cross_entropy(model.body(x), y).item()
    for _ in range(20):
        model(new, labels)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    (kept,) = guard.report().probes
    assert kept.loss_before == pytest.approx(before, rel=1e-5)
    assert kept.loss_after == pytest.approx(F.cross_entropy(model.body(x), y).item(), rel=1e-5)
    assert f"{kept.loss_before:.4f}" in str(guard.report())
