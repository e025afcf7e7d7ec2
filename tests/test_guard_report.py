"""A guard's report: printed, as data and in trainers' logs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

from rwalk.guard import Anchor, Guard
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
    page = ElementTree.fromstring(f"<div>{report._repr_html_()}</div>")
    assert page.findtext("p") == first
    assert [cell.text for cell in page.iter("td")] == last.removeprefix("set 1").split()
    assert "<own>, weight" in (
        ElementTree.fromstring(replace(report, method="<own>", probes=())._repr_html_()).text or ""
    )
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
    guard = Guard(model, optimizer, Anchor(weight=1e-6), probes={"x": x, "labels": y})
    before = F.cross_entropy(model.body(x), y).item()
    for _ in range(20):
        model(new, labels)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    (kept,) = guard.report().probes
    assert kept.loss_before == pytest.approx(before, rel=1e-5)
    assert kept.loss_after == pytest.approx(F.cross_entropy(model.body(x), y).item(), rel=1e-5)
    assert f"{kept.loss_before:.4f}" in str(guard.report())
