"""Drift: probes of all kinds, the default guard, budgets, and the way back."""

from __future__ import annotations

import copy
import io
import warnings
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.meter import meter
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW
from torch.utils.data import DataLoader, TensorDataset

from rwalk import Anchor, Guard, Probes, distorted, own_samples
from rwalk.errors import InputError
from rwalk.guard.drift import batches, divergences
from rwalk.guard.drift.batch_norm import BatchNorm
from rwalk.guard.drift.divergences import DIVERGENCES
from rwalk.guard.drift.eval_mode import eval_mode
from rwalk.methods import EWC, RWalk, Vanilla
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
    train(model, Adam(model.parameters(), lr=3e-3), *task(0))
    return model


def fresh(kind: Any = layers, lr: float = 2e-3) -> tuple[nn.Module, AdamW]:
    model = copy.deepcopy(trained(kind))
    return model, AdamW(model.parameters(), lr=lr)


def guarded(kind: Any, method: Any = None, lr: float = 2e-3, **options: Any) -> tuple[nn.Module, AdamW, Guard]:
    model, optimizer = fresh(kind, lr)
    return model, optimizer, Guard(model, optimizer, method, probes=task(0)[0], **options)


def accuracy(model: nn.Module, number: int) -> float:
    x, y = task(number)
    with eval_mode(model), torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


@cache
def unguarded(kind: Any, lr: float) -> tuple[float, float, float]:
    """Drift, and accuracy on the old task and on the new one, without a guard."""
    model, optimizer, guard = guarded(kind, Vanilla(), lr)
    train(model, optimizer, *task(1))
    return guard.drift(), accuracy(model, 0), accuracy(model, 1)


def worst(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)


# ── the default ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [layers, convolutions])
@pytest.mark.parametrize("lr", [1e-3, 3e-3])
def test_default_guard_holds_the_old_task_and_learns_the_new_one(kind: Any, lr: float) -> None:
    drift, _, new = unguarded(kind, lr)
    model, optimizer, guard = guarded(kind, lr=lr)
    assert guard.method == Anchor(weight=1.0, every=8)
    train(model, optimizer, *task(1))
    assert guard.drift() <= drift / 3
    assert accuracy(model, 1) >= new - 0.02


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "needs something to hold the model by: probes="),
        ({"method": Anchor()}, "an anchor holds a model's outputs on familiar inputs: give probes="),
        ({"budget": 0.05}, "needs something to hold the model by: probes="),
        ({"method": "anchor", "budget": 0.05}, "give probes="),
        ({"method": "ewc", "budget": 0.05, "probes": task(0)[0]}, "a budget is kept by an anchor"),
        ({"method": RWalk(lam=5.0), "budget": 0.05, "probes": task(0)[0]}, "leave budget= out and give lam"),
        ({"budget": -1, "probes": task(0)[0]}, "budget must be a number above 0"),
        ({"budget": True, "probes": task(0)[0]}, "budget must be a number above 0"),
        ({"probes": task(0)[0], "state": "8bit"}, "state must be rwalk.StateOptions"),
        ({"probes": task(0)[0], "lambda": 3}, "Guard has no option 'lambda'"),
        ({"probes": task(0)[0], "divergence": "kll"}, "did you mean 'kl'"),
    ],
)
def test_guards_that_could_hold_nothing_are_refused_and_leave_no_hook(options: Any, reason: str) -> None:
    model, optimizer = fresh()
    with pytest.raises(InputError, match=reason):
        Guard(model, optimizer, **options)
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    Guard(model, optimizer, probes=task(0)[0]).detach()


def test_method_on_parameters_warns_once_that_the_first_task_is_not_held() -> None:
    model, optimizer = fresh()
    guard = Guard(model, optimizer, "rwalk")
    with pytest.warns(UserWarning, match="rwalk holds nothing in its first task") as caught:
        train(model, optimizer, *task(1), steps=3)
    assert len(caught) == 1
    guard.consolidate()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, optimizer, *task(2), steps=3)


def test_old_option_names_work_with_a_warning() -> None:
    model, optimizer = fresh()
    with pytest.warns(FutureWarning, match=r"dtype= is deprecated: state=rwalk\.StateOptions\(dtype='8bit'\)"):
        guard = Guard(model, optimizer, "rwalk", probes=task(0)[0], dtype=torch.bfloat16)
    assert guard.state_dict()["options"]["state"]["dtype"] == "8bit"
    guard.detach()
    with pytest.warns(FutureWarning, match=r"rwalk\.Anchor\(every=…\)"):
        assert Guard(model, optimizer, probes=task(0)[0], every=2).method == Anchor(every=2)


# ── budgets ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lr", [3e-4, 1e-3, 3e-3])
@pytest.mark.parametrize("kind", [layers, convolutions])
@pytest.mark.parametrize("budget", BUDGETS)
def test_budgets_are_kept_after_finish(kind: Any, budget: float, lr: float) -> None:
    model, optimizer, guard = guarded(kind, lr=lr, budget=budget)
    train(model, optimizer, *task(1))
    report = guard.finish()
    _, old, _ = unguarded(kind, lr)
    assert report.drift is not None and report.drift <= budget
    assert accuracy(model, 0) >= old - 0.01, "but for one example"


def test_budget_that_keeps_little_of_what_was_trained_says_so() -> None:
    model, optimizer, guard = guarded(layers)
    train(model, optimizer, *task(1))
    with pytest.warns(
        UserWarning, match=r"the budget of 0\.001 kept \d+% of what was trained.*larger budget"
    ) as caught:
        report = guard.finish(budget=0.001)
    assert len(caught) == 1 and 0 < report.left < 0.5


def test_budget_of_sgd_with_momentum_on_batch_norm_is_not_worse_than_no_guard() -> None:
    def trained_with(budget: float | None) -> nn.Module:
        model = copy.deepcopy(trained(convolutions))
        optimizer = SGD(model.parameters(), lr=0.02, momentum=0.9)
        guard = None if budget is None else Guard(model, optimizer, probes=task(0)[0], budget=budget)
        train(model, optimizer, *task(1))
        if guard is not None:
            guard.finish()
        return model

    without, with_budget = trained_with(None), trained_with(0.05)
    assert accuracy(with_budget, 0) >= accuracy(without, 0)


def test_unattainable_budget_warns_once_and_keeps_trained_finite_weights() -> None:
    """The head is not guarded, and moves on its own."""
    model, optimizer = fresh(lr=1e-2)
    guard = Guard(model, optimizer, probes=task(0)[0], budget=1e-4, params="0.*")
    head = model[4].weight.detach().clone()
    train(model, optimizer, *task(1), steps=200)
    before = copy.deepcopy(model)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    with pytest.warns(UserWarning, match=r"the budget of 0\.0001 cannot be kept") as caught:
        report = guard.finish()
    assert len(caught) == 1 and report.left == 1.0
    assert worst(model, before) == 0.0 and not torch.equal(model[4].weight, head)
    assert accuracy(model, 1) > 0.9


def test_same_seed_gives_the_same_bits_with_a_budget() -> None:
    def run() -> nn.Module:
        model, optimizer, guard = guarded(layers, lr=1e-2, budget=0.01)
        train(model, optimizer, *task(1))
        guard.finish()
        return model

    assert worst(run(), run()) == 0.0


def test_drift_with_standard_errors_is_an_upper_bound_of_the_mean() -> None:
    model, _, guard = guarded(layers)
    with torch.no_grad():
        model[4].weight.mul_(0.5)
    probes = Probes(task(0)[0])
    probes.keep(trained(layers))
    mean = probes.drift(model)
    with torch.no_grad(), eval_mode(model):
        logs = [each(task(0)[0]).log_softmax(-1) for each in (trained(layers), model)]
    each = (logs[0].exp() * (logs[0] - logs[1])).sum(-1)
    assert probes.drift(model, 2.0) == pytest.approx(mean + 2 * float(each.std()) / 192**0.5, rel=1e-4)
    guard.detach()


def test_pulls_come_more_often_at_the_start_and_where_drift_is_large() -> None:
    def pulled(lr: float, every: int) -> list[int]:
        model, optimizer, guard = guarded(layers, Anchor(every=every), lr=lr)
        train(model, optimizer, *task(1), steps=40)
        guard.detach()
        return [reading.step for reading in guard.report().readings]

    assert pulled(1e-5, 8) == [1, 3, 7, 15, 23, 31, 39] and pulled(1e-5, 3) == [1, 3, *range(6, 40, 3)]
    assert len(pulled(2e-2, 8)) > 20


@pytest.mark.parametrize("kind", [layers, convolutions])
def test_a_failed_step_that_is_taken_again_is_pulled_once(kind: Any) -> None:
    class Fragile(SGD):
        fails = False

        def step(self, closure: Any = None) -> Any:
            if self.fails:
                raise OSError("an accident")
            return super().step(closure)

    x, y = task(1)
    ends = []
    for accidents in (False, True):
        model = copy.deepcopy(trained(kind))
        optimizer = Fragile(model.parameters(), lr=0.02)
        guard = Guard(model, optimizer, probes=task(0)[0])
        for _ in range(20):
            F.cross_entropy(model(x), y).backward()
            optimizer.fails = accidents
            if accidents:
                with pytest.raises(OSError, match="an accident"):
                    optimizer.step()
                optimizer.fails = False
            optimizer.step()
            optimizer.zero_grad()
        ends.append((model, guard.report().readings))
        guard.detach()
    assert worst(ends[0][0], ends[1][0]) < 1e-6 and len(ends[0][1]) == len(ends[1][1]) > 2


def test_batches_of_probes_take_turns() -> None:
    model, _, guard = guarded(layers, Anchor(batch=64))
    with torch.no_grad():
        drifts = []
        for _ in range(3):
            drifts.append(guard._pull().drift)
            model[4].weight.mul_(0.9)
    batches = task(0)[0].split(64)
    ends = []
    for number, scale in enumerate((1.0, 0.9, 0.81)):
        other = copy.deepcopy(trained(layers))
        with torch.no_grad():
            other[4].weight.mul_(scale)
            logs = [each(batches[number]).log_softmax(1) for each in (trained(layers), other)]
        ends.append(float((logs[0].exp() * (logs[0] - logs[1])).sum(1).mean()))
    assert [float(drift) for drift in drifts] == pytest.approx(ends, rel=1e-3, abs=1e-6)
    guard.detach()


class Tokens(nn.Module):
    """A language model that is one table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 50)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        logits: Tensor = self.table(input_ids)
        return logits


def _pulled_on(model: nn.Module, probes: Any, inputs: Any, method: Anchor | None = None) -> list[int]:
    """The number of examples in each batch of probes, in three steps with batches of inputs."""
    optimizer, sizes = SGD(model.parameters(), lr=0.1), []
    guard = Guard(model, optimizer, method, probes=probes)

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        if not module.training and torch.is_grad_enabled():  # a pull
            sizes.append(len([*args, *kwargs.values()][0]))

    model.train().register_forward_pre_hook(note, with_kwargs=True)
    for _ in range(3):
        output = model(**inputs) if isinstance(inputs, dict) else model(inputs)
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    guard.detach()
    return sizes


@pytest.mark.parametrize(("batch", "pulled"), [(2, 8), (24, 24), (500, 64)])
def test_a_pull_has_as_many_probes_as_a_training_batch_has_examples(batch: int, pulled: int) -> None:
    assert set(_pulled_on(layers(), torch.randn(192, 8), torch.randn(batch, 8))) == {pulled}
    assert set(_pulled_on(layers(), torch.randn(192, 8), torch.randn(batch, 8), Anchor(batch=16))) == {16}


@pytest.mark.parametrize(("batch", "pulled"), [(1, 8), (16, 16), (90, 32)])
def test_a_pull_has_as_many_tokens_as_a_training_batch(batch: int, pulled: int) -> None:
    probes = {"input_ids": torch.arange(64 * 64).view(64, 64) % 50}
    inputs = {"input_ids": torch.arange(batch * 64).view(batch, 64) % 50}
    assert set(_pulled_on(Tokens(), probes, inputs)) == {pulled}


class FramesFirst(nn.Module):
    """Its output is [frames, examples, classes]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        frames: Tensor = self.layer(x).transpose(0, 1)
        return frames


def _padded() -> dict[str, Tensor]:
    lengths = torch.arange(20)[:, None] % 7 + 1
    return {"input_ids": torch.arange(180).view(20, 9) % 50, "attention_mask": (torch.arange(9) < lengths).long()}


@pytest.mark.parametrize(
    ("model", "inputs", "divergence"),
    [
        (layers, torch.randn(20, 8), "kl"),
        (layers, torch.randn(20, 8), "mse"),
        (layers, torch.randn(20, 8), lambda old, new: (old - new).square().sum(1)),
        (lambda: nn.Conv2d(3, 5, 3), torch.randn(20, 3, 6, 6), "segmentation"),
        (lambda: nn.Linear(4, 9), torch.randn(20, 7, 4), "detection"),
        (Tokens, _padded(), "kl"),
        (lambda: nn.Linear(8, 600), torch.randn(20, 8), "kl"),
    ],
    ids=["kl", "mse", "function", "segmentation", "detection", "padded", "many classes"],
)
def test_old_outputs_of_smaller_batches_are_those_of_their_examples(
    model: Any, inputs: Any, divergence: Any
) -> None:
    network = model().eval()
    probes = Probes(inputs, divergence=divergence)
    probes.keep(network)
    (scale,) = (each[divergences.SCALE] for each in probes.kept[0].values()) if divergence == "mse" else (None,)
    probes.fit(8, 0)
    assert [batches.length_of(batch) for batch in probes.batches] == [8, 8, 4]
    for batch, kept in zip(probes.batches, probes.kept, strict=True):
        alone = Probes(batch, divergence=divergence)
        alone.keep(network)
        for name, tensors in alone.kept[0].items():
            for key, tensor in tensors.items():
                expected = scale if key == divergences.SCALE else tensor
                torch.testing.assert_close(kept[name][key], expected)


def test_outputs_whose_first_dimension_is_not_that_of_examples_stay_in_one_batch() -> None:
    network = FramesFirst().eval()
    probes = Probes(torch.randn(20, 7, 6), divergence="kl")
    probes.keep(network)
    probes.fit(8, 0)
    assert [len(batch) for batch in probes.batches] == [20] and len(probes.kept) == 1
    assert probes.drift(network) == 0.0


@pytest.mark.parametrize("in_file", [True, False], ids=["probes in the file", "probes given again"])
def test_a_file_of_the_first_step_continues_with_as_many_probes(in_file: bool, tmp_path: Path) -> None:
    model, optimizer, guard = guarded(layers)
    train(model, optimizer, *task(1), steps=1)
    guard.save(tmp_path / "guard", probes=in_file)
    guard.detach()
    given_: Any = {} if in_file else {"probes": task(0)[0]}
    loaded = Guard.load(tmp_path / "guard", model, optimizer, **given_)
    assert [len(batch) for batch in loaded._sets[0].batches] == [32] * 6
    loaded.detach()


@pytest.mark.parametrize(
    "make", [lambda p: Adam(p, lr=1e-3), lambda p: SGD(p, lr=0.05, momentum=0.9)], ids=["adam", "sgd"]
)
def test_the_gradient_of_the_drift_is_added_and_fades_until_the_next_pull(make: Any) -> None:
    """Beside a loop that does it by hand; the pull is no longer than the task's gradient."""
    x, old = task(0)[0][:32], copy.deepcopy(trained(layers)).eval()
    kept, (new, labels) = old(x).detach().log_softmax(1), task(1)
    ends, cut = [], 0
    for by_hand in (False, True):
        model = copy.deepcopy(trained(layers))
        parameters = list(model.parameters())
        optimizer = make(parameters)
        guard = None if by_hand else Guard(model, optimizer, Anchor(weight=2.0), probes=x)
        pull = [torch.zeros_like(p) for p in parameters]
        interval, following = 1, 1
        for step in range(40):
            F.cross_entropy(model(new), labels).backward()
            if by_hand:
                gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
                pull = [0.8 * each for each in pull]
                if step == following:
                    drift = (kept.exp() * (kept - model.eval()(x).log_softmax(1))).sum(1).mean()
                    slopes = torch.autograd.grad(drift, parameters)
                    pushed, length = (
                        float(torch.cat([e.flatten() for e in s]).norm()) for s in (gradients, slopes)
                    )
                    pull = [min(2.0, pushed / length) * slope for slope in slopes]
                    cut += pushed / length < 2.0
                    interval = min(8, 2 * interval) if float(drift) < 0.1 else max(1, interval // 2)
                    following += interval
                    model.train()
                for gradient, each in zip(gradients, pull, strict=True):
                    gradient += each
            optimizer.step()
            optimizer.zero_grad()
        if guard is not None:
            assert guard.nbytes > sum(p.nbytes for p in parameters), "it is counted"
            guard.detach()
        ends.append(model)
    assert cut > 0 or isinstance(optimizer, Adam)
    assert worst(*ends) < 1e-4


def test_sgd_group_without_learning_rate_is_not_pulled() -> None:
    model = copy.deepcopy(trained(layers))
    frozen = model[0].weight.detach().clone()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[4].parameters(), "lr": 0.05}]
    optimizer = SGD(groups, lr=0.05, momentum=0.9)
    guard = Guard(model, optimizer, probes=task(0)[0])
    train(model, optimizer, *task(1), steps=24)
    assert torch.equal(model[0].weight, frozen) and guard.drift() > 0
    guard.detach()


def other_optimizers() -> list[Any]:
    kinds = (torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.Adamax, torch.optim.ASGD)
    return [pytest.param(kind, id=kind.__name__) for kind in (*kinds, SGD)]


@pytest.mark.parametrize("kind", other_optimizers())
def test_every_kind_of_optimizer_is_held_and_learns(kind: Any) -> None:
    rate = {"Adagrad": 1e-2, "Adadelta": 1.0, "Adamax": 3e-3, "ASGD": 0.05, "SGD": 0.05}.get(kind.__name__, 1e-3)
    drifts, losses = [], []
    for with_guard in (False, True):
        model = copy.deepcopy(trained(layers))
        optimizer = kind(model.parameters(), lr=rate)
        guard = Guard(model, optimizer, probes=task(0)[0], method=None if with_guard else Vanilla())
        train(model, optimizer, *task(1), steps=150)
        drifts.append(guard.finish().drift or 0.0)
        losses.append(float(F.cross_entropy(model(task(1)[0]), task(1)[1])))
    before = float(F.cross_entropy(trained(layers)(task(1)[0]), task(1)[1]))
    assert drifts[1] < 0.5 * drifts[0] and losses[1] < 0.5 * before


def test_a_budget_is_for_each_task() -> None:
    model, optimizer, guard = guarded(layers, budget=0.05)
    train(model, optimizer, *task(1))
    guard.consolidate(probes=task(1)[0])
    assert guard.last_report is not None and guard.last_report.drift is not None
    assert 0 < guard.last_report.drift <= 0.05 and guard.last_report.steps == 150
    assert guard.drift() < 1e-6 and [each.examples for each in guard.report().probes] == [192, 192]
    train(model, optimizer, *task(2))
    assert (guard.finish().drift or 1.0) <= 0.05


def test_finish_removes_every_hook_and_the_model_can_be_saved_and_copied() -> None:
    model, optimizer, guard = guarded(layers, budget=0.05)
    train(model, optimizer, *task(1), steps=20)
    torch.save(model, io.BytesIO())
    copy.deepcopy(model)
    assert not model._forward_pre_hooks and not model._forward_hooks
    guard.finish()
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    plain = copy.deepcopy(model)
    unguarded_optimizer = AdamW(plain.parameters(), lr=2e-3)
    unguarded_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, its_optimizer in ((model, optimizer), (plain, unguarded_optimizer)):
        train(each, its_optimizer, *task(1), steps=9)
    assert worst(model, plain) == 0.0, "after finish, steps are those of a loop without a guard"


@pytest.mark.parametrize("steps", [0, 1])
def test_training_too_short_for_a_pull_is_a_warning(steps: int) -> None:
    model, optimizer, guard = guarded(layers)
    train(model, optimizer, *task(1), steps=steps)
    with pytest.warns(UserWarning, match=rf"saw {steps} steps .* first pulls in step 2, so nothing was held"):
        guard.finish()


def test_copies_of_a_guard_are_refused_in_one_line() -> None:
    _, _, guard = guarded(layers)
    with pytest.raises(InputError, match="a guard belongs to one model"):
        copy.deepcopy(guard)


# ── the way back ─────────────────────────────────────────────────────────────────────────────────────────────


def test_rewind_keeps_the_budget_for_certain() -> None:
    model, optimizer, guard = guarded(convolutions, Vanilla())
    assert guard.rewind(0.05) == 1.0
    start = copy.deepcopy(model.state_dict())
    train(model, optimizer, *task(1))
    assert guard.drift() > 0.1
    left = guard.rewind(0.05)
    assert 0 < left < 1 and 0.045 < guard.drift() <= 0.05
    guard.rewind(1e-7)
    torch.testing.assert_close(model.state_dict()["2.running_mean"], start["2.running_mean"], rtol=1e-2, atol=1e-2)
    with pytest.raises(InputError, match="rewind needs a budget"):
        guard.rewind()
    with pytest.raises(InputError, match="budget must be a number above 0"):
        guard.finish(budget=-1.0)


def test_a_budget_is_kept_within_the_users_autocast() -> None:
    """Autocast keeps rounded weights until it ends, whatever becomes of the weights."""
    model, optimizer, guard = guarded(layers, lr=3e-3, budget=0.01)
    train(model, optimizer, *task(1))
    with torch.autocast("cpu", torch.bfloat16), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a small share that is left
        report = guard.finish()
    assert 0 < report.left < 1 and report.drift is not None and report.drift <= 0.01


def test_parameters_unfrozen_later_are_held_and_rewound() -> None:
    model, (x, y) = copy.deepcopy(trained(layers)), task(1)
    frozen = [*model[0].parameters()]
    for each in frozen:
        each.requires_grad_(False)
    optimizer = SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, probes=task(0)[0])
    assert guard._reference is not None and not any(name.startswith("0.") for name in guard._reference.tensors)
    train(model, optimizer, x, y, steps=8)
    before = [each.detach().clone() for each in frozen]
    for each in frozen:
        each.requires_grad_(True)
    train(model, optimizer, x, y, steps=40)
    assert not any(map(torch.equal, frozen, before))
    guard.rewind(1e-9)
    for each, old in zip(frozen, before, strict=True):
        torch.testing.assert_close(each.detach(), old, rtol=0, atol=1e-3)


def test_parameters_frozen_and_unfrozen_around_a_file_keep_their_old_weights() -> None:
    model, (x, y) = copy.deepcopy(trained(layers)), task(1)
    old = model[0].weight.detach().clone()
    optimizer = SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, probes=task(0)[0])
    train(model, optimizer, x, y, steps=8)
    model[0].requires_grad_(False)
    state = guard.state_dict()
    guard.detach()
    again = Guard.load(state, model, optimizer, probes=task(0)[0])
    model[0].requires_grad_(True)
    train(model, optimizer, x, y, steps=1)
    assert torch.equal(again.state_dict()["drift"]["tensors"]["reference/0.weight"], old)


def test_parameters_unfrozen_under_a_method_on_parameters_are_a_warning() -> None:
    model, (x, y) = copy.deepcopy(trained(layers)), task(1)
    model[0].requires_grad_(False)
    optimizer = SGD(model.parameters(), lr=0.1)
    Guard(model, optimizer, "ewc", probes=task(0)[0])
    model[0].requires_grad_(True)
    with pytest.warns(UserWarning, match="0.weight was frozen when the old task was measured"):
        train(model, optimizer, x, y, steps=1)


def test_rewind_moves_guarded_parameters_alone() -> None:
    model, optimizer = fresh()
    guard = Guard(model, optimizer, probes=task(0)[0], params=("0.*", "2.*"))
    train(model, optimizer, *task(1))
    head = model[4].weight.detach().clone()
    guard.rewind(0.9 * guard.drift())
    assert torch.equal(model[4].weight, head)


def test_rewind_leaves_buffers_that_are_no_statistics() -> None:
    class Queue(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = layers()
            self.register_buffer("queue", torch.zeros(5))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.queue.fill_(1.0)
            out: Tensor = self.body(x)
            return out

    torch.manual_seed(0)
    model = Queue()
    optimizer = Adam(model.parameters(), lr=1e-2)
    guard = Guard(model, optimizer, probes=task(0)[0], budget=0.01)
    train(model, optimizer, *task(1), steps=60)
    guard.finish(1e-3)
    assert torch.equal(model.queue, torch.ones(5))


def test_frontier_shows_both_ends_and_leaves_the_model() -> None:
    model, optimizer, guard = guarded(layers, Vanilla())
    train(model, optimizer, *task(1))
    before = copy.deepcopy(model)
    x, y = task(1)
    points = guard.frontier(lambda model: float(F.cross_entropy(model(x), y)), points=5)
    assert [point.share for point in points] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert points[0].drift < 1e-6 and points[-1].drift == pytest.approx(guard.drift(), rel=1e-5)
    assert (points[0].loss or 0) > (points[-1].loss or 0)
    assert worst(model, before) == 0.0


# ── setups of all kinds ──────────────────────────────────────────────────────────────────────────────────────


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.trunk(x))
        return out


@pytest.mark.parametrize("budget", [None, 0.1])
def test_a_grown_head_keeps_old_outputs_and_learns_new_ones(budget: float | None) -> None:
    torch.manual_seed(0)
    model = TwoHeads()
    optimizer = Adam(model.parameters(), lr=1e-2)
    train(model, optimizer, *task(0), steps=100)
    guard = Guard(model, optimizer, probes=task(0)[0], budget=budget)
    head = nn.Linear(32, 6)
    with torch.no_grad():
        head.weight[:4], head.bias[:4] = model.head.weight, model.head.bias
    model.head = head
    optimizer = Adam(model.parameters(), lr=1e-2)
    guard.attach(optimizer)
    x, y = task(1)
    train(model, optimizer, x, 4 + y % 2, steps=100)
    guard.finish()
    assert guard.drift() <= 0.1
    with eval_mode(model), torch.no_grad():
        old, _ = task(0)
        assert float((model(old)[:, :4].argmax(1) == task(0)[1]).float().mean()) > 0.8
        assert float((model(x).argmax(1) == 4 + y % 2).float().mean()) > 0.8


class Careless(nn.Module):
    """Dropout, batch norm and a draw of its own in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + 0.0 * torch.rand(1)


def test_batch_norm_normalises_probes_and_the_training_batch_together() -> None:
    """As if the probes were replayed: one layer in training mode, called with both."""
    x, new = task(0)[0][:64], task(1)[0][:64]
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 4))
    model(task(2)[0])  # its averages are those of other inputs
    together = copy.deepcopy(model)
    seen = []

    def call(model: nn.Module, batch: Tensor) -> Tensor:
        seen.append(model(batch))
        return seen[-1]

    optimizer = SGD(model.parameters(), lr=1e-9)
    guard = Guard(model, optimizer, Anchor(every=1), probes=Probes(x, divergence="kl", call=call))
    for _ in range(2):
        model(new).square().sum().backward()
        optimizer.step()
        together(new)
    assert model.training and not model[0]._forward_hooks and model[0].momentum == 0.1
    torch.testing.assert_close(seen[-1], together(torch.cat([x, new]))[:64], rtol=0.02, atol=0.02)
    torch.testing.assert_close(model[0].running_mean, together[0].running_mean, rtol=0.02, atol=0.02)
    torch.testing.assert_close(model[0].running_var, together[0].running_var, rtol=0.02, atol=0.02)
    model.eval()
    guard.drift()
    torch.testing.assert_close(seen[-1], model(x))
    guard.detach()


class NormAndRelu(nn.BatchNorm1d):
    """As timm's: it does more than its base class."""

    def forward(self, x: Tensor) -> Tensor:
        self.rows = len(x)
        return super().forward(x).relu()


@pytest.mark.parametrize("layer", [nn.BatchNorm1d, NormAndRelu, partial(nn.BatchNorm1d, affine=False)])
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("probes", [1, 40])
def test_batch_norm_in_a_pull_is_as_with_rows_of_the_training_batch(
    layer: Any, momentum: float | None, probes: int
) -> None:
    """The rows are mean + deviation and mean - deviation of the batch, in units of the probes."""
    torch.manual_seed(0)
    fast = nn.Sequential(nn.Linear(5, 3), layer(3, momentum=momentum)).double()
    if fast[1].affine:
        nn.init.normal_(fast[1].weight), nn.init.normal_(fast[1].bias)
    slow, following = copy.deepcopy(fast), BatchNorm(fast)
    x, old = torch.randn(9, 5).double(), 3 * torch.randn(probes, 5).double() - 1
    following.follow()
    for model in (fast, slow):
        model(x)
    with following.pull_mode(fast, 4):
        outputs = [fast(old)]
    assert all(isinstance(each, nn.Parameter) for each in fast[1].parameters())
    if layer is NormAndRelu:
        assert fast[1].rows == max(2, probes)  # computed without further rows
    with torch.no_grad():
        variance, mean = torch.var_mean(slow[0](x), 0)
    inner = slow[0](old)
    own, centre = torch.var_mean(inner, 0, correction=0)
    unit = (own + slow[1].eps).sqrt()
    far = (torch.stack([mean + variance.sqrt(), mean - variance.sqrt()]) - centre) / unit
    rows = (centre + far.detach() * unit).repeat(-(-probes // 2), 1)
    slow[1].momentum = None if momentum is None else 1 - (1 - momentum) ** 4
    both = torch.cat([inner, rows]) if probes > 1 else torch.cat([inner, inner, rows])
    outputs.append(slow[1](both)[:probes])
    torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-5)
    for name, value in slow.named_buffers():
        if name == "1.running_var" and probes == 1:
            continue  # 4 rows of the slow way are 2 of the fast one
        torch.testing.assert_close(fast.get_buffer(name), value, rtol=1e-5, atol=1e-5)
    target = torch.randn(probes, 3).double()
    slopes = [torch.autograd.grad((each * target).sum(), [*model.parameters()])
              for model, each in zip((fast, slow), outputs, strict=True)]  # fmt: skip
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-4)


def test_batch_norm_that_is_frozen_or_has_one_probe_is_pulled_too() -> None:
    model = copy.deepcopy(trained(convolutions))
    optimizer = SGD(model.parameters(), lr=0.01)
    guard = Guard(model, optimizer, Anchor(every=1), probes=task(0)[0][:1])
    model.train()
    model[2].eval()
    frozen = model[2].running_mean.clone()
    x, y = task(1)
    for _ in range(3):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert torch.equal(model[2].running_mean, frozen) and not model[2].training and model[5].training
    assert len(guard.report().readings) == 2 and all(bool(p.isfinite().all()) for p in model.parameters())
    guard.detach()


def test_new_classes_are_learned_with_batch_norm_and_sgd() -> None:
    """A network could answer in another way in training than in evaluation, because batch norm differs."""
    from sklearn.datasets import load_digits

    x, y = (torch.tensor(each) for each in load_digits(return_X_y=True))
    x, old = x.float()[:, None].view(-1, 1, 8, 8) / 16, y < 7
    torch.manual_seed(0)
    first = (nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten())
    model = nn.Sequential(*first, *second, nn.Linear(64, 10))
    train(model, Adam(model.parameters(), lr=3e-3), x[old], y[old])
    optimizer = SGD(model.parameters(), lr=0.02, momentum=0.9)
    guard = Guard(model, optimizer, probes=x[old][:128])
    train(model, optimizer, x[~old], y[~old])
    guard.finish()
    with torch.no_grad(), eval_mode(model):
        right = (model(x).argmax(1) == y).float()
    assert right[old].mean() > 0.75 and right[~old].mean() > 0.85, (right[old].mean(), right[~old].mean())


def test_reading_drift_leaves_no_trace() -> None:
    def walked(measured: bool) -> tuple[dict[str, Tensor], Tensor]:
        torch.manual_seed(0)
        model = Careless()
        model.body[2].eval()  # as some do with a part of their model
        optimizer = SGD(model.parameters(), lr=0.1)
        guard = Guard(model, optimizer, Vanilla(), probes=task(0)[0]) if measured else None
        x, y = task(1)
        for step in range(10):
            F.cross_entropy(model(x[step::10]), y[step::10]).backward()  # gradients are added up
            optimizer.step()
            if guard is not None:
                guard.drift()
        assert [module.training for module in model.body] == [True, True, False, True]
        return model.state_dict(), torch.rand(3)

    (plain, drawn), (measured, drawn_too) = walked(False), walked(True)
    assert torch.equal(drawn, drawn_too)
    assert all(torch.equal(plain[name], measured[name]) for name in plain)


def test_modules_that_do_more_in_train_than_set_a_flag_come_back() -> None:
    class Merging(nn.Module):
        """An adapter that merges itself into its base in evaluation mode, as loralib's do."""

        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(8, 4).requires_grad_(False)
            self.adapter = nn.Parameter(0.1 * torch.randn(4, 8))
            self.merged = False

        def train(self, mode: bool = True) -> Merging:
            super().train(mode)
            if mode == self.merged:
                self.base.weight.data += -self.adapter.data if self.merged else self.adapter.data
                self.merged = not self.merged
            return self

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) if self.merged else self.base(x) + x @ self.adapter.T

    torch.manual_seed(0)
    model = Merging()
    probes = Probes(task(0)[0])
    probes.keep(model)
    assert model.training and not model.merged
    assert probes.drift(model) < 1e-6 and not model.merged
    model(task(0)[0]).sum().backward()
    assert model.adapter.grad is not None


def test_weights_are_interpolated_inside_of_autocast_too() -> None:
    """Autocast keeps a rounded copy of each parameter until it ends, and does not see it change."""
    model, optimizer = fresh()
    guard = Guard(model, optimizer, probes=task(0)[0])
    train(model, optimizer, *task(1), steps=20)
    with torch.autocast("cpu", torch.bfloat16):
        first = guard.drift()
        assert guard.rewind(first / 4) < 1
        assert guard.drift() <= first / 4


def test_parameters_that_are_added_to_each_other_are_pulled_once_each() -> None:
    """Autograd gives both biases one and the same gradient tensor."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.shift = nn.Linear(8, 4), nn.Parameter(torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.linear.weight) + (self.linear.bias + self.shift)

    torch.manual_seed(0)
    model = Two()
    x, y = task(1)
    old = model(x).log_softmax(-1).detach()
    optimizer = AdamW(model.parameters(), 0.05)
    guard = Guard(model, optimizer, Anchor(weight=0.5, every=1, batch=192), probes=x)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append([each.grad.clone() for each in model.parameters()]))  # type: ignore[union-attr]
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        now = model(x).log_softmax(-1)
        drift = (old.exp() * (old - now)).sum(-1).mean()
        expected = [
            each.grad + 0.5 * slope  # type: ignore[operator]
            for each, slope in zip(
                model.parameters(), torch.autograd.grad(drift, list(model.parameters())), strict=True
            )
        ]
        optimizer.step()
    torch.testing.assert_close(seen[-1], expected)
    guard.detach()


def test_a_pull_and_the_gradients_with_it_need_two_vectors_of_memory() -> None:
    peaks = []
    for probes in (None, torch.randn(8, 256)):
        with meter("cpu") as readings:
            torch.manual_seed(0)
            model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
            optimizer = AdamW(model.parameters(), foreach=False)
            guard = None if probes is None else Guard(model, optimizer, Anchor(every=2), probes=probes)
            for _ in range(4):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = model(torch.ones(1, 256)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            readings.mark("all")
        peaks.append(readings.readings["all"].peak)
        size = sum(each.nbytes for each in model.parameters())
        del model, optimizer, guard
    assert peaks[1] - peaks[0] < 2.3 * size


def test_pulls_use_the_autocast_of_training_passes() -> None:
    seen = []

    def call(model: nn.Module, batch: Tensor) -> Tensor:
        seen.append(torch.is_autocast_enabled("cpu"))
        out: Tensor = model(batch)
        return out

    model, optimizer = fresh()
    guard = Guard(model, optimizer, Anchor(every=1), probes=Probes(task(0)[0], call=call))
    seen.clear()
    x, y = task(1)
    for _ in range(3):  # the first has no pull
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x).float(), y)
        loss.backward()
        optimizer.step()
    assert seen == [False, True, True], "old outputs are compared with those kept, then two pulls"
    assert not model._forward_pre_hooks
    torch.save(model, io.BytesIO())
    guard.attach(optimizer)  # waits for the next pass: models can be saved and copied meanwhile
    torch.save(model, io.BytesIO())
    copy.deepcopy(model)(x)
    guard.finish()
    assert not model._forward_pre_hooks


def test_guard_makes_no_more_graphs_of_a_compiled_model() -> None:
    def graphs(guarded: bool) -> int:
        counted = []

        def backend(module: Any, inputs: Any) -> Any:
            counted.append(1)
            return module.forward

        torch._dynamo.reset()
        model, optimizer = fresh()
        compiled: Any = torch.compile(model, backend=backend)
        if guarded:
            guard = Guard(compiled, optimizer, Anchor(every=2), probes=task(0)[0], budget=0.05)
        train(compiled, optimizer, *task(1), steps=12)
        assert not guarded or guard.drift() > 0
        return len(counted)

    assert graphs(guarded=True) == graphs(guarded=False)


# ── probes ───────────────────────────────────────────────────────────────────────────────────────────────────


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 5)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        return {"logits": self.table(input_ids)}


def test_probes_take_inputs_in_every_form_a_model_takes() -> None:
    ids = torch.randint(7, (6, 3), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[:, 2] = 0
    model = Keywords()
    forms: list[Any] = [
        ids,
        {"input_ids": ids},
        {"input_ids": ids, "index": torch.arange(6)},
        (ids, None),
        [ids[:4], ids[4:]],
        [{"input_ids": ids[:1]}, {"input_ids": ids[1:]}],
        (each for each in ids.split(2)),
        DataLoader(ids, batch_size=4),  # type: ignore[arg-type]
        [{"input_ids": ids, "attention_mask": torch.ones_like(ids)}],
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
    assert drifts[:-1] == pytest.approx([drifts[0]] * 9, rel=1e-5)
    assert drifts[-1] != pytest.approx(drifts[0], rel=1e-3), "padding does not count"


def test_probes_take_loaders_and_datasets_with_labels() -> None:
    model, _ = fresh()
    dataset = TensorDataset(*task(0))
    expected = Probes(task(0)[0])
    for given_ in (DataLoader(dataset, batch_size=50), dataset):
        probes = Probes(given_)
        for each in (probes, expected):
            each.keep(trained(layers))
        with torch.no_grad():
            model[4].weight += 0.1
        assert probes.examples == 192
        assert probes.drift(model) == pytest.approx(expected.drift(model), rel=1e-4)


def test_probes_take_texts_with_a_tokenizer() -> None:
    class Tokenizer:
        pad_token = "x"

        def __call__(self, texts: list[str], **options: Any) -> dict[str, Tensor]:
            assert options["padding"] and options["return_tensors"] == "pt"
            ids = torch.tensor([[ord(each) % 7 for each in text.ljust(4, "x")] for text in texts])
            return {
                "input_ids": ids,
                "attention_mask": torch.tensor([[i < len(t) for i in range(4)] for t in texts]),
            }

    model = Keywords()
    probes = Probes(["ab", "cdef"], tokenizer=Tokenizer())
    probes.keep(model)
    assert probes.examples == 2 and probes.drift(model) == pytest.approx(0.0, abs=1e-6)
    with pytest.raises(InputError, match=r"need a tokenizer: probes=rwalk\.Probes\(texts, tokenizer=tokenizer\)"):
        Probes(["ab"]).keep(model)


@pytest.mark.parametrize(
    ("given_", "reason"),
    [([], "not a single probe"), (3, "inputs of the model"), (torch.zeros(()), "holds torch's tensors")],
)
def test_probes_that_are_no_inputs_are_refused(given_: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Probes(given_).keep(layers())


# ── divergences ──────────────────────────────────────────────────────────────────────────────────────────────

SHAPES = {"detection": (3, 4, 7), "detr": (3, 4, 7), "cosine": (6, 4), "similarity": (6, 4)}


@pytest.mark.parametrize("name", DIVERGENCES)
@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), size=st.sampled_from([1e-2, 1.0, 30.0]))
def test_every_divergence_is_zero_at_home_positive_elsewhere_with_finite_gradients(
    name: str, seed: int, size: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    old = size * torch.randn(SHAPES.get(name, (6, 5)), generator=generator)
    kind = DIVERGENCES[name]
    kept = kind.keep(old)
    same = old.clone().requires_grad_()
    value = kind.between(kept, same).mean()
    (slope,) = torch.autograd.grad(value, same)
    assert float(value.abs()) < 1e-5 and bool(slope.isfinite().all()) and float(slope.abs().max()) < 1e-3
    moved = old + 0.5 * size * torch.randn(old.shape, generator=generator)
    assert float(kind.between(kept, moved).mean()) > 0


@pytest.mark.parametrize("name", ["kl", "binary_kl", "mse", "seq2seq"])
@pytest.mark.parametrize("columns", [5, divergences.DENSE + 1])
def test_columns_added_since_do_not_count(name: str, columns: int) -> None:
    old = torch.randn(6, columns, generator=torch.Generator().manual_seed(0))
    kind = DIVERGENCES[name]
    grown = torch.cat([old, 100 * torch.ones(6, 2)], 1)
    assert float(kind.between(kind.keep(old), grown).abs().max()) < 1e-5
    with pytest.raises(InputError, match=f"the model has {columns - 1} outputs, and had {columns}"):
        kind.between(kind.keep(old), old[:, :-1])


def test_classes_added_to_many_do_not_count_after_a_file_either(tmp_path: Path) -> None:
    x, model = task(0)[0], nn.Linear(8, divergences.DENSE + 1)
    guard = Guard(model, Adam(model.parameters()), probes=x, divergence="kl")
    guard.save(tmp_path / "guard")
    guard.detach()
    guard = Guard.load(tmp_path / "guard", model, Adam(model.parameters()), probes=x)
    model.weight = nn.Parameter(torch.cat([model.weight, torch.zeros(3, 8)]))
    model.bias = nn.Parameter(torch.cat([model.bias, torch.full((3,), 20.0)]))
    assert guard.drift() == pytest.approx(0, abs=1e-5)
    guard.detach()


def test_kl_of_the_most_probable_classes_is_nearly_the_whole_kl() -> None:
    generator = torch.Generator().manual_seed(0)
    old = 3 * torch.randn(20, 4000, generator=generator)
    new = old + 0.3 * torch.randn(20, 4000, generator=generator)
    kept = divergences.keep_logs(old)
    assert kept["logs"].shape == (20, divergences.TOP + 1)
    whole = F.kl_div(new.log_softmax(-1), old.log_softmax(-1), reduction="none", log_target=True).sum(-1)
    part = divergences.kl(kept, new)
    assert (part <= whole + 1e-6).all() and part.mean() > 0.7 * whole.mean()


def test_a_shift_of_all_outputs_is_drift_where_outputs_are_numbers() -> None:
    model = nn.Linear(8, 3)
    numbers, classes = Probes(task(0)[0], divergence="mse"), Probes(task(0)[0])
    for probes in (numbers, classes):
        probes.keep(model)
    with torch.no_grad():
        model.bias += 100
    assert numbers.drift(model) > 100 and classes.drift(model) < 1e-4


def test_outputs_without_doubt_choose_their_divergence() -> None:
    class Unit(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.normalize(super().forward(x), dim=-1)

    expected = {"kl": nn.Linear(8, 3), "mse": nn.Linear(8, 1), "cosine": Unit(8, 5)}
    for name, model in expected.items():
        probes = Probes(task(0)[0])
        probes.keep(model)
        assert [each.name for each in probes.divergences.values()] == [name]
    pixels = nn.Sequential(nn.Unflatten(1, (1, 2, 4)), nn.Conv2d(1, 3, 1))
    with pytest.raises(InputError, match="may be classes per pixel, features or numbers: give divergence="):
        Probes(task(0)[0]).keep(pixels)
    Probes(task(0)[0], divergence="kl").keep(pixels)


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        (torch.randn(64, 3), "mse"),
        (torch.randint(2, (64, 3)).float(), "binary_kl"),
        (torch.randint(3, (64,)), "kl"),
    ],
)
def test_labels_of_a_loader_choose_the_divergence(labels: Tensor, name: str) -> None:
    probes = Probes(DataLoader(TensorDataset(task(0)[0][:64], labels), batch_size=32))
    probes.keep(nn.Linear(8, 3))
    assert probes.divergences["output"].name == name


def test_probabilities_are_refused() -> None:
    x = task(0)[0]
    model = nn.Sequential(nn.Linear(8, 3), nn.Softmax(-1))
    with pytest.raises(InputError, match="returns probabilities, and drift is measured on logits: give outputs="):
        Probes(x).keep(model)
    probes = Probes(x, outputs=lambda output: output.log())
    probes.keep(model)
    assert probes.divergences["output"].name == "kl"


LOSSES: dict[str, Any] = {
    "kl": lambda out, y: F.cross_entropy(out, y),
    "mse": lambda out, y: F.mse_loss(out, F.one_hot(y, 4).float()),
    "binary_kl": lambda out, y: F.binary_cross_entropy_with_logits(out, F.one_hot(y, 4).float()),
    "cosine": lambda out, y: 1 - F.cosine_similarity(out, F.one_hot(y, 4).float()).mean(),
}


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LOSSES)
def test_loss_of_the_first_step_chooses_the_divergence_of_a_table(name: str, precision: torch.dtype) -> None:
    model, (x, y) = layers(), task(0)
    optimizer = SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, probes=x)
    old = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
                loss = LOSSES[name](model(x).float(), y)
            (1024 * loss).backward()  # as a scaler does
            optimizer.param_groups[0]["lr"] = 1e-4
            optimizer.step()
            optimizer.zero_grad()
    expected = Probes(x, divergence=name)
    expected.keep(old)
    assert guard.finish().drift == pytest.approx(expected.drift(model), rel=1e-4)


def test_single_number_is_a_yes_or_no_if_its_loss_is() -> None:
    model, (x, y) = nn.Linear(8, 1), task(0)
    optimizer = SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, probes=x)
    F.binary_cross_entropy_with_logits(model(x)[:, 0], (y > 1).float()).backward()
    optimizer.step()
    assert guard.state_dict()["drift"]["sets"][0]["divergences"] == {"output": "binary_kl"}


def test_table_that_is_taken_for_logits_without_a_look_at_the_loss_is_a_warning() -> None:
    model, (x, y) = layers(), task(0)
    optimizer = SGD(model.parameters(), lr=0.1)
    Guard(model, optimizer, probes=x)
    F.mse_loss(model.forward(x), F.one_hot(y, 4).float()).backward()  # no hook is called
    with pytest.warns(
        UserWarning, match="are taken for logits of 4 classes: if .* give divergence='mse'"
    ) as found:
        optimizer.step()
    assert found[0].filename == __file__


def one_step(model: nn.Module, optimizer: Any) -> None:
    x, y = task(1)
    F.mse_loss(model(x), F.one_hot(y, 4).float()).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_loading_in_the_middle_of_a_task_keeps_the_old_outputs() -> None:
    """Another kind of comparison could not be measured from them: the file's stays."""
    model, x = layers(), task(0)[0]
    optimizer = SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, probes=Probes(x, divergence="kl"))
    for _ in range(8):
        one_step(model, optimizer)
    state = guard.state_dict()
    guard.detach()
    again = Guard(model, optimizer, probes=x)
    again.load_state_dict(state)
    one_step(model, optimizer)
    after = again.state_dict()["drift"]
    assert after["sets"] == state["drift"]["sets"]
    before = {name: each for name, each in state["drift"]["tensors"].items() if not name.startswith("pull/")}
    assert before and all(torch.equal(each, after["tensors"][name]) for name, each in before.items())


@pytest.mark.parametrize("probes", [True, False], ids=["with probes", "without probes"])
def test_guess_of_a_guard_that_was_saved_before_its_first_step_is_settled_by_the_loss(probes: bool) -> None:
    model, x = layers(), task(0)[0]
    optimizer = SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, probes=x)
    state = guard.state_dict(probes)
    guard.detach()
    again = Guard.load(state, model, optimizer, probes=None if probes else x)
    one_step(model, optimizer)
    assert again.state_dict()["drift"]["sets"][0]["divergences"] == {"output": "mse"}


def test_guess_in_a_file_names_an_output() -> None:
    model, x = layers(), task(0)[0]
    guard = Guard(model, optimizer := SGD(model.parameters(), lr=0.1), probes=x)
    state = guard.state_dict()
    guard.detach()
    for wrong in (["other"], [["output"]], "output", None):
        state["drift"]["sets"][0]["guessed"] = wrong
        with pytest.raises(InputError, match="its divergences"):
            Guard.load(state, model, optimizer, probes=x)


def test_probes_added_to_a_method_on_parameters_that_look_like_no_logits_are_a_warning() -> None:
    model = layers()
    optimizer = SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, "rwalk")
    one_step(model, optimizer)
    with torch.no_grad():
        model[4].weight.zero_()  # type: ignore[operator, union-attr]
    with pytest.warns(UserWarning, match="taken for logits of 4 classes"):
        guard.consolidate(probes=task(0)[0])


@pytest.mark.parametrize(("scale", "offset"), [(0.0, 0.0), (9.0, 900.0)])
def test_importance_of_numbers_taken_for_logits_is_a_warning(scale: float, offset: float) -> None:
    """They prefer no class, or always the same."""
    model = nn.Linear(8, 3)
    with torch.no_grad():
        model.weight.mul_(scale)
        model.bias[1] += offset
    with pytest.warns(UserWarning, match="taken for logits of 3 classes"):
        Guard(model, SGD(model.parameters(), lr=0.1), "ewc", probes=task(0)[0])


def test_trained_classifier_is_no_warning() -> None:
    model = copy.deepcopy(trained(layers))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Guard(model, SGD(model.parameters(), lr=0.1), "ewc", probes=task(0)[0])


@pytest.mark.parametrize(
    ("inputs", "form"),
    [
        (task(0)[0][:, :5], r"float32 \(64, 5\): (addmm: )?mat1 and mat2 shapes cannot be multiplied"),
        (task(0)[0].double(), r"float64 \(64, 8\): mat1 and mat2 must have the same dtype"),
    ],
)
def test_probes_that_the_model_refuses_are_one_line(inputs: Tensor, form: str) -> None:
    model, optimizer = fresh()
    with pytest.raises(InputError, match=f"the model cannot be called with the probes, {form}") as caught:
        Guard(model, optimizer, probes=inputs)
    assert "\n" not in str(caught.value) and not optimizer._optimizer_step_pre_hooks


def test_shuffled_probes_are_refused_when_resuming_with_a_remedy(tmp_path: Path) -> None:
    def shuffled() -> DataLoader[Any]:
        return DataLoader(TensorDataset(task(0)[0]), batch_size=32, shuffle=True)

    model, optimizer = fresh()
    guard = Guard(model, optimizer, probes=shuffled())
    guard.save(tmp_path / "guard")
    guard.save(tmp_path / "whole", probes=True)
    guard.detach()
    with pytest.raises(
        InputError, match=r"with shuffle=False; or write them into the file, guard.save\(path, probes"
    ):
        Guard.load(tmp_path / "guard", model, optimizer, probes=shuffled())
    assert Guard.load(tmp_path / "whole", model, optimizer).drift() < 1e-6


def test_outputs_and_divergences_by_name_and_by_function() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(8, 6)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            out = self.body(x)
            return {"boxes": out[:, :2], "scores": out[:, 2:], "extra": out.sum().detach()}

    def apart(old: Tensor, new: Tensor) -> Tensor:
        return (old - new).abs().mean()

    x = task(0)[0]
    for options in (
        {"outputs": ("boxes", "scores"), "divergence": {"boxes": "mse", "scores": "kl"}},
        {"outputs": "scores"},
        {"outputs": lambda out: out["boxes"], "divergence": apart},
    ):
        torch.manual_seed(0)
        model = Both()
        guard = Guard(model, Adam(model.parameters(), lr=1e-2), probes=x, **options)  # type: ignore[arg-type]
        with torch.no_grad():
            model.body.bias[0] += 1.0
            model.body.bias[3] += 1.0
        assert guard.drift() > 0.01
        guard.detach()
    with pytest.raises(InputError, match=r"without one: give outputs="):
        Probes(x).keep(Both())


def test_an_old_index_survives_in_an_embedding_space() -> None:
    """Rows of an old index are found again after training, although their embeddings were never logits."""

    def run(divergence: str | None) -> float:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 16))
        x, _ = task(0)
        index = F.normalize(model(x).detach(), dim=-1)
        optimizer = Adam(model.parameters(), lr=3e-3)
        if divergence is not None:
            Guard(model, optimizer, probes=x, divergence=divergence)
        new, labels = task(1)
        for _ in range(150):
            found = F.normalize(model(new), dim=-1)
            F.cross_entropy(8 * found @ found.T - 1e9 * torch.eye(len(found)), _positives(labels)).backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            hits = (F.normalize(model(x), dim=-1) @ index.T).argmax(1)
        return float((hits == torch.arange(len(x))).float().mean())

    assert run("cosine") > 3 * run(None)


def _positives(labels: Tensor) -> Tensor:
    """For each example, the next one of its class."""
    return (torch.arange(len(labels)) + 4) % len(labels)


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────


def steps(model: nn.Module, optimizer: Any, numbers: range) -> None:
    x, y = task(1)
    model.train()
    for step in numbers:
        batch = torch.arange(24) + 24 * (step % 8)
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("in_file", [True, False], ids=["probes in the file", "probes given again"])
@pytest.mark.parametrize(
    ("method", "budget"),
    [(None, None), (None, 0.02), (RWalk(), None), (EWC(), None), (L2SP(anchor="first"), None)],
    ids=["default", "budget", "rwalk", "ewc", "l2"],
)
def test_a_resumed_run_continues_exactly(method: Any, budget: float | None, in_file: bool, tmp_path: Path) -> None:
    whole, optimizer, guard = guarded(convolutions, method, budget=budget)
    steps(whole, optimizer, range(40))
    model, other, interrupted = guarded(convolutions, method, budget=budget)
    steps(model, other, range(23))
    interrupted.save(tmp_path / "guard", probes=in_file)
    interrupted.detach()
    again = copy.deepcopy(model)
    continued = AdamW(again.parameters(), lr=2e-3)
    continued.load_state_dict(other.state_dict())
    given_: Any = {} if in_file else {"probes": task(0)[0]}
    resumed = Guard.load(tmp_path / "guard", again, continued, **given_)
    steps(again, continued, range(23, 40))
    assert worst(again, whole) == 0.0
    assert resumed.budget == budget and resumed.report().to_dict() == guard.report().to_dict()
    assert resumed.rewind(0.001) == guard.rewind(0.001)


def test_load_without_options_restores_them_all(tmp_path: Path) -> None:
    model, optimizer = fresh()
    method = Anchor(weight=2.0, every=3, batch=16)
    guard = Guard(
        model, optimizer, method, probes=task(0)[0], budget=0.03, params=["0.*", "2.*"], divergence="mse"
    )
    train(model, optimizer, *task(1), steps=10)
    guard.save(tmp_path / "guard")
    guard.detach()
    loaded = Guard.load(tmp_path / "guard", model, optimizer, probes=task(0)[0])
    assert loaded.budget == 0.03 and loaded.names == guard.names and loaded.drift() == guard.drift()
    assert loaded.state_dict()["options"] == guard.state_dict()["options"]
    assert (loaded.method.every, loaded.method.batch) == (3, 16)  # type: ignore[union-attr]


def test_files_leave_inputs_out_unless_asked(tmp_path: Path) -> None:
    model, optimizer, guard = guarded(layers)
    guard.save(tmp_path / "guard")
    guard.detach()
    assert not any("probe/" in name for name in guard.state_dict()["drift"]["tensors"])
    with pytest.raises(InputError, match="left out, being your data: give the same ones as probes="):
        Guard.load(tmp_path / "guard", model, optimizer)
    with pytest.raises(InputError, match="not the probes it was saved with"):
        Guard.load(tmp_path / "guard", model, optimizer, probes=task(1)[0])
    assert Guard.load(tmp_path / "guard", model, optimizer, probes=task(0)[0]).drift() < 1e-6


def test_resuming_many_times_holds_the_first_outputs(tmp_path: Path) -> None:
    """Old outputs come from the file, not from the model as it is when it is loaded."""
    model, optimizer, guard = guarded(layers, lr=1e-2, budget=0.05)
    for _ in range(8):
        train(model, optimizer, *task(1), steps=20)
        guard.save(tmp_path / "guard")
        guard.detach()
        guard = Guard.load(tmp_path / "guard", model, optimizer, probes=task(0)[0])
    first = Probes(task(0)[0])
    first.held_out = True  # as a budget has it
    first.keep(trained(layers))
    assert guard.drift() == pytest.approx(first.drift(model), rel=1e-4)


def test_loading_with_probes_adds_no_importance(tmp_path: Path) -> None:
    model, optimizer, guard = guarded(layers, EWC())
    before = guard.state_dict()["tensors"]
    for _ in range(3):
        guard.save(tmp_path / "guard")
        guard.detach()
        guard = Guard.load(tmp_path / "guard", model, optimizer, probes=task(0)[0])
    after = guard.state_dict()["tensors"]
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def test_load_of_a_state_that_holds_nothing_warns(tmp_path: Path) -> None:
    model, optimizer = fresh()
    guard = Guard(model, optimizer, "rwalk")
    guard.save(tmp_path / "guard")
    guard.detach()
    with pytest.warns(UserWarning, match="no task was consolidated before this was saved"):
        Guard.load(tmp_path / "guard", model, optimizer)


def test_state_dict_is_a_copy() -> None:
    model, optimizer, guard = guarded(layers, RWalk())
    state = guard.state_dict()
    fisher = state["tensors"]["fisher/0.weight"].clone()
    train(model, optimizer, *task(1), steps=3)
    assert torch.equal(state["tensors"]["fisher/0.weight"], fisher)


HOSTILE: dict[str, Any] = {
    "readings": [[1, 7, "0.1"]],
    "sets": [{"form": None}],
    "tensors": {"reference/0.weight": torch.tensor(float("nan"))},
    "more": 1,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_forged_drift_state_is_refused(what: str) -> None:
    _, _, guard = guarded(layers, budget=0.05)
    state = guard.state_dict(probes=True)
    state["drift"][what] = HOSTILE[what]
    with pytest.raises(InputError, match="cannot be right"):
        guard.load_state_dict(state)


# ── a language model's own samples ───────────────────────────────────────────────────────────────────────────


def test_distorted_images_are_new_ones_of_the_same_size_and_range() -> None:
    torch.manual_seed(0)
    images, state = torch.rand(3, 3, 16, 25), torch.get_rng_state()
    made = distorted(images, 40)
    assert made.shape == (40, 3, 16, 25) and images.min() <= made.min() and made.max() <= images.max() + 1e-6
    assert len({tuple(each.flatten().tolist()) for each in made}) == 40
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(made, distorted(images, 40)) and not torch.equal(made, distorted(images, 40, seed=1))
    assert distorted(images[:, :1, :2, :2].double(), 9).dtype == torch.float64


@pytest.mark.parametrize(
    "images", [torch.rand(3, 8, 8), torch.zeros(2, 3, 8, 8).byte(), torch.rand(0, 3, 8, 8), []]
)
def test_distorted_refuses_what_are_no_images(images: Any) -> None:
    with pytest.raises(InputError, match=r"images to distort are a tensor \[images, channels, height, width\]"):
        distorted(images, 4)
    with pytest.raises(InputError, match="n must be a whole number, at least 1, not 0"):
        distorted(torch.rand(2, 3, 8, 8), 0)


def test_own_samples_are_drawn_from_the_model_itself() -> None:
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
    with pytest.raises(InputError, match="name no start token: give its number as tokenizer="):
        own_samples(Chain(), None, n=5)


@pytest.mark.parametrize("divergence", [None, "mse"])
def test_outputs_that_are_not_finite_are_refused(divergence: str | None) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probes = torch.zeros(200, 4)
    probes[199] = torch.nan  # in a later batch
    for each in (probes, probes[199:]):
        with pytest.raises(InputError, match="on the probes are not finite"):
            Guard(model, optimizer, probes=each, divergence=divergence)
    assert not optimizer._optimizer_step_pre_hooks
