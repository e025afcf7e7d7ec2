"""A guard with a budget: drift is measured without a trace, and held where it was asked to be."""

from __future__ import annotations

import copy
import math
import random
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from rwalk import own_samples
from rwalk.errors import InputError
from rwalk.guard import Anchor, Guard
from rwalk.guard.drift import divergences as predictions
from rwalk.guard.drift import inputs
from rwalk.guard.drift import rule as budget
from rwalk.guard.drift.controller import Keeper, Watching
from rwalk.guard.drift.probes import Probes
from rwalk.methods import EWC, PI, EWCpp, RWalk, Vanilla
from rwalk.methods.l2 import L2SP

BUDGETS = (0.02, 0.05, 0.1, 0.2)


def task(number: int) -> tuple[Tensor, Tensor]:
    """Four clouds of points around centres that are other ones in each task."""
    generator = torch.Generator().manual_seed(number)
    centres = 1.5 * torch.randn(4, 8, generator=generator)
    labels = torch.arange(192) % 4
    return centres[labels] + torch.randn(192, 8, generator=generator), labels


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def convolutions() -> nn.Module:
    def block(inputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]

    return nn.Sequential(nn.Unflatten(1, (1, 2, 4)), *block(1), *block(8), nn.Flatten(), nn.Linear(64, 4))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int = 150) -> None:
    generator = torch.Generator().manual_seed(7)
    model.train()
    for _ in range(steps):
        batch = torch.randint(len(x), (32,), generator=generator)
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()


@cache
def trained(kind: Any) -> nn.Module:
    """A model that knows the first task."""
    torch.manual_seed(0)
    model: nn.Module = kind()
    train(model, torch.optim.Adam(model.parameters(), lr=3e-3), *task(0))
    return model


def guarded(kind: Any, method: Any, lr: float = 2e-3, **options: Any) -> tuple[nn.Module, AdamW, Guard]:
    model = copy.deepcopy(trained(kind))
    optimizer = AdamW(model.parameters(), lr=lr)
    return model, optimizer, Guard(model, optimizer, method, probes=task(0)[0], **options)


@cache
def unguarded_drift(kind: Any, lr: float) -> float:
    model, optimizer, guard = guarded(kind, Vanilla(), lr)
    train(model, optimizer, *task(1))
    return guard.drift()


# The rule by itself


def plant(rate: float, allowed: float, every: int, step_back: bool, steps: int = 300) -> tuple[float, float]:
    """Springs of very different importance against a gradient with noise: the drift at the end, free and held."""

    def drift_at_the_end(held: bool) -> float:
        draw = random.Random(0)
        size = 100
        force = [draw.gauss(0, 1) for _ in range(size)]
        importance = [0.3 * draw.random() ** 3 + 0.0075 for _ in range(size)]  # a tenth of the mean, at least
        curvature = [50 * (0.2 + draw.random()) / size for _ in range(size)]
        way, control = [0.0] * size, budget.Control()

        def pulled(pull: float) -> list[float]:
            return [x / (1 + 2 * pull * i) for x, i in zip(way, importance, strict=True)]

        def distance() -> float:
            drift = 0.5 * sum(c * x * x for c, x in zip(curvature, way, strict=True))
            return budget.distance(drift, allowed)

        for step in range(1, steps + 1):
            way = [x - rate * (f + draw.gauss(0, 1)) for x, f in zip(way, force, strict=True)]
            way = pulled(rate * control.strength if held else 0.0)
            if held and step % every == 0:
                found = left = distance()
                pulls = [2 * i * x for i, x in zip(importance, way, strict=True)]
                control = budget.guessed(budget.at(control, step, rate), math.hypot(*pulls) / math.hypot(*way))
                while step_back and left > budget.NEAR:
                    pull, before = budget.needed(control, left), left
                    way = pulled(pull)
                    left = distance()
                    control = budget.learned(control, pull, before, left)
                control = budget.followed(control, found, left)
        return allowed * distance() ** 2

    return drift_at_the_end(False), drift_at_the_end(True)


@pytest.mark.parametrize("step_back", [True, False], ids=["stepping back", "λ alone"])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("rate", [1e-3, 3e-3])
@pytest.mark.parametrize("allowed", BUDGETS)
def test_the_rule_holds_a_simulated_plant(allowed: float, rate: float, every: int, step_back: bool) -> None:
    free, held = plant(rate, allowed, every, step_back)
    assert free > allowed
    assert 0.8 * allowed <= held <= 1.2 * allowed


def test_nothing_is_held_until_the_budget_is_reached() -> None:
    control = budget.Control()
    for step in range(1, 10):
        control = budget.followed(budget.at(control, step, 0.1), 0.9, 0.9)
    assert control.time == 0 and control.strength == budget.FREE
    control = budget.guessed(budget.at(control, 10, 0.1), response=0.5)
    control = budget.followed(control, 1.0, 1.0)
    assert control.time == pytest.approx(1.0)  # ten steps of 0.1
    assert control.response * control.strength * control.time == pytest.approx(1.0)  # as strong as the push


def test_a_pull_back_learns_what_a_pull_is_worth() -> None:
    control = budget.guessed(budget.at(budget.Control(), 10, 0.1), response=3.0)
    distance, true_response = 5.0, 0.02
    while distance > budget.NEAR:
        pull, before = budget.needed(control, distance), distance
        distance *= math.exp(-true_response * pull)
        control = budget.learned(control, pull, before, distance)
    assert distance == pytest.approx(1.0, rel=0.02) and control.response == pytest.approx(true_response)


def test_the_rule_is_clipped_whatever_it_is_told() -> None:
    for drift in (0.0, 1e-300, 1e300, math.inf, math.nan):
        control = budget.guessed(budget.at(budget.Control(), 1, 0.1), 1.0)
        control = budget.followed(control, 1.0, 1.0)
        for step in range(2, 200):
            distance = budget.distance(drift, 0.05)
            control = budget.followed(budget.at(control, step, 0.1), distance, distance)
            assert budget.FREE <= control.lam <= budget.MOST and math.isfinite(control.strength)


def test_lam_goes_no_further_than_it_has_an_effect() -> None:
    wound = budget.Control(lam=1e6, time=1.0, distance=1.2)
    assert budget.limited(wound, 3.0).strength == pytest.approx(3.0)
    assert budget.limited(wound, math.inf) == wound
    assert budget.limited(wound, 0.0).lam == budget.FREE


# Budgets are held


RATES = (3e-4, 1e-3, 2e-3)
METHODS = [RWalk(), EWC(), Anchor()]


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize(
    ("kind", "allowed"), [*((layers, each) for each in BUDGETS), (convolutions, 0.02), (convolutions, 0.1)]
)
def test_budgets_are_held(kind: Any, method: Any, allowed: float, rate: float) -> None:
    free = unguarded_drift(kind, rate)
    model, optimizer, guard = guarded(kind, method, rate, budget=allowed, every=1)
    train(model, optimizer, *task(1))
    drift = guard.drift()
    assert drift <= 1.2 * allowed
    assert drift >= 0.8 * allowed or free < allowed


def test_an_anchor_that_pulled_as_hard_as_it_can_lets_go_again() -> None:
    """A budget that the first steps exceed many times over, at a rate that makes it hard to come back."""
    model, optimizer, guard = guarded(layers, Anchor(), 1e-2, budget=0.02, every=2)
    train(model, optimizer, *task(1))
    assert 0.8 * 0.02 <= guard.drift() <= 1.2 * 0.02


@pytest.mark.parametrize("method", [RWalk(penalty="proximal"), PI(), EWCpp(), L2SP()], ids=lambda m: m.name)
def test_every_method_starts_from_a_trained_model_and_holds_a_budget(method: Any) -> None:
    model, optimizer, guard = guarded(layers, method, 1e-3, budget=0.05, every=1)
    assert guard.tasks == 1 and guard.drift() < 1e-6
    train(model, optimizer, *task(1))
    assert 0.8 * 0.05 <= guard.drift() <= 1.2 * 0.05


def test_a_budget_is_for_each_task() -> None:
    """Trained with the guard from the first task on: what may be lost is counted anew in every task."""
    torch.manual_seed(0)
    model = layers()
    optimizer = AdamW(model.parameters(), lr=2e-3)
    guard = Guard(model, optimizer, RWalk(), budget=0.05, every=1)
    train(model, optimizer, *task(0))
    guard.consolidate(probes=task(0)[0])
    train(model, optimizer, *task(1))
    assert 0.8 * 0.05 <= guard.drift() <= 1.2 * 0.05
    guard.consolidate(probes=task(1)[0])
    assert guard.drift() < 1e-6
    train(model, optimizer, *task(2))
    assert 0.8 * 0.05 <= guard.drift() <= 1.2 * 0.05


def test_without_probes_the_new_inputs_are_seen_through_the_old_model() -> None:
    model = copy.deepcopy(trained(layers))
    optimizer = AdamW(model.parameters(), lr=1e-3)
    guard = Guard(model, optimizer, L2SP(), budget=0.1, every=1)
    x, y = task(0)
    train(model, optimizer, x, y, steps=1)
    guard.consolidate()
    before = copy.deepcopy(model)
    train(model, optimizer, *task(1))
    new = task(1)[0]
    drift = predictions.divergence(predictions.kept(before(new)), model(new)).mean()
    assert 0.05 <= drift <= 0.2  # of one batch at a time
    with pytest.raises(InputError, match="give probes="):
        guard.drift()


# Measuring leaves no trace


class Careless(nn.Module):
    """Dropout, batch norm and a draw of its own in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + 0.0 * torch.rand(1)


@pytest.mark.parametrize("method", [Vanilla(), Anchor(weight=0.0)], ids=["measured", "anchored"])
def test_measuring_leaves_no_trace(method: Any) -> None:
    """A loop that is measured at every step ends as the one that is not, bit for bit."""

    def walked(measured: bool) -> tuple[dict[str, Tensor], Tensor]:
        torch.manual_seed(0)
        model = Careless()
        model.body[2].eval()  # as some do with a part of their model
        optimizer = SGD(model.parameters(), lr=0.1)
        if measured:
            Guard(model, optimizer, method, probes=task(0)[0], every=1)
        x, y = task(1)
        for step in range(10):
            F.cross_entropy(model(x[step::10]), y[step::10]).backward()  # gradients are added up
            optimizer.step()
        assert [module.training for module in model.body] == [True, True, False, True]
        return model.state_dict(), torch.rand(3)

    (plain, drawn), (measured, drawn_too) = walked(False), walked(True)
    assert torch.equal(drawn, drawn_too)
    assert all(torch.equal(plain[name], measured[name]) for name in plain)


def test_readings_take_no_more_than_their_share_of_the_time() -> None:
    spent = 0.0
    model = nn.Linear(8, 4)
    keeper = Keeper(Watching(budget=None, share=0.2))
    keeper.sets = [Probes(task(0)[0], lambda model, batch: slow(model, batch))]

    def slow(model: Any, batch: Tensor) -> Tensor:
        nonlocal spent
        start = time.perf_counter()
        time.sleep(0.004)
        output: Tensor = model(batch)
        spent += time.perf_counter() - start
        return output

    optimizer = SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, Vanilla())
    keeper.begin(model, {})
    spent, start = 0.0, time.perf_counter()
    for step in range(1, 300):
        time.sleep(0.001)
        keeper.stepped(model, optimizer, guard._work.force, 1, step)
    assert 3 < len(keeper.history) < 100
    assert spent <= 0.25 * (time.perf_counter() - start)


# Inputs and predictions


def test_probes_are_whatever_the_model_takes() -> None:
    class Keywords(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(7, 5)

        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
            return {"logits": self.table(input_ids)}

    ids = torch.randint(7, (6, 3), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[:, 2] = 0
    model = Keywords()
    forms: list[Any] = [
        ids,
        {"input_ids": ids},
        (ids, None),
        [ids[:4], ids[4:]],
        [{"input_ids": ids[:1]}, {"input_ids": ids[1:]}],
        (each for each in ids.split(2)),
        {"input_ids": ids, "attention_mask": mask},
    ]
    drifts = []
    for form in forms:
        probes = Probes(form)
        before = copy.deepcopy(model.state_dict())
        probes.keep(model)
        with torch.no_grad():
            model.table.weight += torch.linspace(0, 1, 35).view(7, 5)
        drifts.append(probes.drift(model))
        model.load_state_dict(before)
    assert drifts[:-1] == pytest.approx([drifts[0]] * 6, rel=1e-5)
    assert drifts[-1] != pytest.approx(drifts[0], rel=1e-3), "padding does not count"
    for wrong, reason in (([], "not a single probe"), ("text", "inputs of the model"), (3, "inputs of the model")):
        with pytest.raises(InputError, match=reason):
            Probes(wrong)
    with pytest.raises(InputError, match=r"predict=, a function"):
        Probes(torch.zeros(3, 8)).keep(nn.Linear(8, 1))


def test_the_most_probable_classes_and_the_rest_give_nearly_the_whole_divergence() -> None:
    generator = torch.Generator().manual_seed(0)
    old = 3 * torch.randn(20, 4000, generator=generator)
    new = old + 0.3 * torch.randn(20, 4000, generator=generator)
    kept = predictions.kept(old)
    assert kept.logs.shape == (20, predictions.TOP + 1)
    assert kept.logs.exp().sum(-1) == pytest.approx(1.0, abs=1e-4)
    whole = F.kl_div(new.log_softmax(-1), old.log_softmax(-1), reduction="none", log_target=True).sum(-1)
    part = predictions.divergence(kept, new)
    assert (part <= whole + 1e-6).all() and part.mean() > 0.7 * whole.mean()
    assert predictions.divergence(kept, old).abs().max() < 1e-5
    few, more = old[:, :10], torch.cat([old[:, :10] + 1, new[:, :5]], -1)
    assert predictions.divergence(predictions.kept(few), more).abs().max() < 1e-6, "new classes do not count"


def test_one_batch_stands_for_all_once_their_proportions_are_known() -> None:
    model = copy.deepcopy(trained(layers))
    probes = Probes(task(0)[0], rows=16)
    probes.keep(model)
    optimizer = SGD(model.parameters(), lr=0.02)
    for _ in range(40):
        train(model, optimizer, *task(1), steps=1)
        reading = probes.reading(model)
    assert len(probes.batches) == 12
    assert reading == pytest.approx(probes.drift(model), rel=0.15)


@pytest.mark.parametrize("classes", [4, 2000], ids=["all classes kept", "the most probable kept"])
def test_what_was_predicted_follows_the_model_to_another_device(classes: int) -> None:
    """As it must where a file was read, whose tensors are a CPU's."""
    model = nn.Linear(8, classes)
    probes = Probes(task(0)[0])
    probes.keep(model)
    assert probes.pull(model.to("meta"), 0).device.type == "meta"


# Files, and the way back


@pytest.mark.parametrize("method", [RWalk(), EWC(), L2SP(anchor="first"), Anchor()], ids=lambda m: m.name)
def test_a_resumed_run_goes_on_exactly(method: Any, tmp_path: Path) -> None:
    def steps(model: nn.Module, optimizer: Any, numbers: range) -> None:
        x, y = task(1)
        model.train()
        for step in numbers:
            batch = torch.arange(24) + 24 * (step % 8)
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            optimizer.zero_grad()

    options = {"budget": 0.02, "every": 3}
    whole, optimizer, guard = guarded(convolutions, method, **options)
    steps(whole, optimizer, range(40))
    model, other, interrupted = guarded(convolutions, method, **options)
    steps(model, other, range(23))
    interrupted.save(tmp_path / "guard")
    interrupted.detach()
    again, fresh = copy.deepcopy(trained(convolutions)), None
    again.load_state_dict(model.state_dict())
    fresh = AdamW(again.parameters(), lr=2e-3)
    fresh.load_state_dict(other.state_dict())
    resumed = Guard.load(tmp_path / "guard", again, fresh, **options)  # type: ignore[arg-type]
    steps(again, fresh, range(23, 40))
    assert all(torch.equal(*pair) for pair in zip(again.parameters(), whole.parameters(), strict=True))
    assert resumed._work.keeper.history == guard._work.keeper.history and len(guard._work.keeper.history) == 13
    assert resumed.drift() == guard.drift()
    assert resumed.rewind(0.001) == guard.rewind(0.001)


def test_rewinding_keeps_the_budget_for_certain() -> None:
    model, optimizer, guard = guarded(convolutions, Vanilla())
    assert guard.rewind(0.05) == 1.0
    start = copy.deepcopy(model.state_dict())
    train(model, optimizer, *task(1))
    far = guard.drift()
    assert far > 0.1
    left = guard.rewind(0.05)
    assert 0 < left < 1 and 0.045 < guard.drift() <= 0.05
    there = model.state_dict()
    assert not torch.equal(there["2.running_mean"], start["2.running_mean"])
    guard.rewind(1e-7)
    torch.testing.assert_close(model.state_dict()["2.running_mean"], start["2.running_mean"], rtol=1e-2, atol=1e-2)
    with pytest.raises(InputError, match="rewind needs a budget"):
        guard.rewind()


HOSTILE: dict[str, Any] = {
    "control": {"lam": 1.0},
    "history": [[1, 2, "x", 3.0, 4.0]],
    "forms": [["tensor"], ["tensor"]],
    "held": ["nobody"],
    "sets": [{"ratios": [float("nan")], "next": 0}],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_nobody_could_have_kept_is_refused(what: str) -> None:
    _, _, guard = guarded(layers, RWalk(), budget=0.05, every=1)
    state = guard.state_dict()
    state["keeper"][what] = HOSTILE[what]
    with pytest.raises(InputError, match="cannot be right"):
        guard.load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"budget": -1}, "budget must be"),
        ({"budget": True, "share": 2.0}, "share must be"),
        ({"every": 0}, "every must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: Any, reason: str) -> None:
    model = layers()
    with pytest.raises(InputError, match=reason):
        Guard(model, SGD(model.parameters(), lr=0.1), **options)


# A model's own words


def test_a_models_own_samples_are_what_it_says() -> None:
    torch.manual_seed(0)

    class Chain(nn.Module):
        """After 0 comes 1, after 1 comes 2, after 2 nearly always 0."""

        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.tensor([[-9.0, 9, -9], [-9, -9, 9], [9, -9, -9]]))

        def forward(self, ids: Tensor) -> Tensor:
            return self.table[ids]

    drawn = torch.get_rng_state()
    samples = own_samples(Chain(), 0, n=5, tokens=7)["input_ids"]
    assert torch.equal(drawn, torch.get_rng_state())
    assert samples.tolist() == [[0, 1, 2, 0, 1, 2, 0]] * 5
    with pytest.raises(InputError, match="the token that a text starts with"):
        own_samples(Chain(), None, n=5)
    assert inputs.length_of(samples) == 5
