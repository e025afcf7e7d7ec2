"""Adapters (PEFT's LoRA): springs hold what they add to a weight, not the two factors it is made of."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rwalk
from rwalk.errors import InputError
from rwalk.guard.state.lora import Product
from rwalk.methods import METHODS

peft = pytest.importorskip("peft")
INPUTS = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
OLD, NEW = (torch.randint(4, (64,), generator=torch.Generator().manual_seed(seed)) for seed in (2, 3))
CONFIG = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["0", "2"], init_lora_weights=False)
PRODUCT = rwalk.StateOptions(lora="product")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()


def adapted(model: nn.Module, config: Any = CONFIG) -> Any:
    torch.manual_seed(4)
    model = peft.get_peft_model(model, config)
    for parameter in model.parameters():
        parameter.data = parameter.data.double()
    return model


def sgd(model: nn.Module, lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, labels: Tensor = NEW, steps: int = 1) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(INPUTS), labels).backward()
        optimizer.step()


def losses(model: nn.Module, labels: Tensor = OLD) -> Any:
    return (F.cross_entropy(model(x[None]), y[None]) for x, y in zip(INPUTS[:16].double(), labels, strict=False))


def layers(model: Any) -> list[Any]:
    return [layer for layer in model.modules() if hasattr(layer, "lora_A") and hasattr(layer, "base_layer")]


def weight(layer: Any) -> Tensor:
    """ΔW and what it is added to, by PEFT's own arithmetic, with its graph."""
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    delta: Tensor = layer.scaling["default"] * (b @ a)
    return layer.base_layer.weight + (delta.T if layer.fan_in_fan_out else delta)


@pytest.fixture(autouse=True)
def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.INPUTS", INPUTS.double())


def test_the_importance_is_the_fisher_of_the_weight_itself() -> None:
    """Which a model without an adapter has, whose weight is what the adapter makes of it."""
    model = adapted(network())
    guard = rwalk.Guard(model, sgd(model), rwalk.EWC(lam=1.0), state=PRODUCT)
    guard.consolidate(losses(model))
    assert [name for name in guard.names if "bias" not in name] == ["0.weight", "2.weight"]
    merged = copy.deepcopy(model).merge_and_unload()
    merged.requires_grad_(True)
    whole = rwalk.Guard(merged, sgd(merged), rwalk.EWC(lam=1.0), params="*weight")
    whole.consolidate(losses(merged))
    ours, theirs = guard.state_dict()["tensors"], whole.state_dict()["tensors"]
    assert ours.keys() == theirs.keys()
    for name, vector in theirs.items():
        torch.testing.assert_close(ours[name], vector)
    assert not any(p.requires_grad for n, p in model.named_parameters() if "lora" not in n), "as it was before"


def test_a_begun_guard_measures_the_weight_too() -> None:
    model = adapted(network())
    guard = rwalk.Guard(model, sgd(model), rwalk.EWC(lam=1.0), probes=INPUTS, state=PRODUCT)
    merged = copy.deepcopy(model).merge_and_unload()
    merged.requires_grad_(True)
    whole = rwalk.Guard(merged, sgd(merged), rwalk.EWC(lam=1.0), probes=INPUTS, params="*weight")
    for name, vector in whole.state_dict()["tensors"].items():
        torch.testing.assert_close(guard.state_dict()["tensors"][name], vector)


@pytest.mark.parametrize(
    "method", [rwalk.EWC(lam=1e-3), rwalk.RWalk(lam=1e-3), rwalk.methods.METHODS["l2"](lam=1e-3)]
)
def test_the_pull_is_the_gradient_of_the_penalty_on_the_product(method: Any) -> None:
    model = adapted(network())
    optimizer = sgd(model)
    guard = rwalk.Guard(model, optimizer, method, state=PRODUCT)
    step(model, optimizer, OLD, 3)
    guard.consolidate(losses(model) if method.data_pass else None)
    vectors = guard.state_dict()["tensors"]
    step(model, optimizer, NEW, 5)  # away from the anchor
    optimizer.zero_grad()
    F.cross_entropy(model(INPUTS), NEW).backward()
    penalty = torch.zeros((), dtype=torch.float64)
    for name, layer in zip(("0.weight", "2.weight"), layers(model), strict=True):
        of_layer = {key.partition("/")[0]: each for key, each in vectors.items() if key.endswith("/" + name)}
        for strength, importance, anchor in method.springs(of_layer):
            penalty = penalty + (strength * importance * (weight(layer) - anchor).square()).sum()
    assert penalty.item() == pytest.approx(guard.penalty(), rel=1e-9) and penalty > 0
    factors = [p for p in model.parameters() if p.requires_grad]
    slopes = torch.autograd.grad(penalty, factors)
    expected = [p - 0.05 * (p.grad + slope) for p, slope in zip(factors, slopes, strict=True)]
    own = [p.grad.clone() for p in factors]
    optimizer.step()
    for p, after, gradient in zip(factors, expected, own, strict=True):
        torch.testing.assert_close(p.detach(), after.detach())
        assert torch.equal(p.grad, gradient), "the user's gradient is given back"


@pytest.mark.parametrize("penalty", ["gradient", "proximal"])
def test_a_pair_that_is_factored_otherwise_is_not_pulled(penalty: Any) -> None:
    """A → cA, B → B/c is the same model; springs on A and B would pull it back, and change it on the way."""
    moved = {}
    for form in ("product", "factors"):
        model = adapted(network())
        optimizer = sgd(model)
        guard = rwalk.Guard(
            model, optimizer, rwalk.EWC(lam=10.0, penalty=penalty), state=rwalk.StateOptions(lora=form)
        )
        guard.consolidate(losses(model))
        with torch.no_grad():
            for layer in layers(model):
                layer.lora_A["default"].weight *= 3.0
                layer.lora_B["default"].weight /= 3.0
        said = model(INPUTS).detach()
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if p.requires_grad else None
        assert (guard.penalty() < 1e-20) == (form == "product")
        optimizer.step()
        moved[form] = (model(INPUTS) - said).abs().max().item()
        guard.detach()
    assert moved["product"] < 1e-9 < 1e-4 < moved["factors"]


@pytest.mark.parametrize("transposed", [False, True])
def test_what_is_observed_is_the_gradient_that_the_factors_can_follow(transposed: bool) -> None:
    """The projection on the tangent space of matrices of this rank, whichever way the matrix is factored."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(5, 7, dtype=torch.float64, generator=generator)
    a = torch.randn(2, 5 if transposed else 7, dtype=torch.float64, generator=generator)
    b = torch.randn(7 if transposed else 5, 2, dtype=torch.float64, generator=generator)
    slope = torch.randn(5, 7, dtype=torch.float64, generator=generator)

    def seen(a: Tensor, b: Tensor) -> Tensor:
        product = Product(nn.Parameter(base), (nn.Parameter(a), nn.Parameter(b)), 3.0, transposed)
        delta = 3.0 * (b @ a)
        torch.testing.assert_close(product.value(torch.float64), base + (delta.T if transposed else delta))
        return product.gradient(product.chained(slope), torch.float64)

    left, _, right = torch.linalg.svd((b @ a).T if transposed else b @ a)
    rows, columns = left[:, :2] @ left[:, :2].T, right[:2].T @ right[:2]
    expected = rows @ slope + slope @ columns - rows @ slope @ columns
    torch.testing.assert_close(seen(a, b), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(seen(10 * a, b / 10), expected, rtol=1e-4, atol=1e-5)


def test_a_fresh_adapter_is_observed_by_the_factor_that_can_move() -> None:
    base, a = nn.Parameter(torch.zeros(3, 4)), torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    product = Product(base, (nn.Parameter(a), nn.Parameter(torch.zeros(3, 2))), 1.0, False)
    slope = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    expected = slope @ torch.linalg.pinv(a) @ a
    torch.testing.assert_close(product.gradient(product.chained(slope), torch.float32), expected)
    product.proximal_step([(1.0, torch.ones(1, 3, 4), torch.zeros(1, 3, 4))], torch.zeros(1, 3, 4), 1e3)
    assert torch.equal(product.factors[0].detach(), a), "nothing to pull on: B is where it was, and so is A"


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("step", [1e-3, 1.0, 1e3])
def test_the_proximal_step_of_a_factor_is_the_minimum_and_of_both_goes_down(step: float, transposed: bool) -> None:
    base = nn.Parameter(drawn(6, 5, seed=0))
    a, b = (
        nn.Parameter(drawn(2, 6 if transposed else 5, seed=1)),
        nn.Parameter(drawn(5 if transposed else 6, 2, seed=2)),
    )
    product = Product(base, (a, b), 2.0, transposed)
    springs = [(0.7, drawn(1, 6, 5, seed=n).exp() ** 3, drawn(1, 6, 5, seed=n + 1)) for n in (3, 5)]
    start = [a.detach().clone(), b.detach().clone()]

    def objective() -> Tensor:
        delta = 2.0 * (b @ a)
        theta = base + (delta.T if transposed else delta)
        penalty = sum((strength * each * (theta - anchor).square()).sum() for strength, each, anchor in springs)
        away = sum((now - before).square().sum() for now, before in zip((a, b), start, strict=True))
        return step * penalty + away / 2

    for frozen, moving in ((a, b), (b, a)):
        frozen.requires_grad_(False)
        product.proximal_step(springs, product.value(torch.float64)[None], step)
        assert torch.equal(frozen, start[0 if frozen is a else 1])
        (slope,) = torch.autograd.grad(objective(), moving)
        assert slope.norm() < 1e-4 * step * sum(each.max() for _, each, _ in springs)
        frozen.requires_grad_(True)
        with torch.no_grad():
            a.copy_(start[0])
            b.copy_(start[1])
    before = objective()
    product.proximal_step(springs, product.value(torch.float64)[None], step)
    assert objective() < before


def rise(model: Any, optimizer: torch.optim.Optimizer, method: Any) -> float:
    """Of the old task's loss, while a new one is learned."""
    step(model, optimizer, OLD, 60)
    guard = rwalk.Guard(model, optimizer, method, state=PRODUCT)
    guard.consolidate(losses(model) if method.data_pass else None)
    before = F.cross_entropy(model(INPUTS[:16]), OLD[:16]).item()
    step(model, optimizer, NEW, 60)
    guard.detach()
    return F.cross_entropy(model(INPUTS[:16]), OLD[:16]).item() - before


@pytest.mark.parametrize("penalty", ["gradient", "proximal"])
@pytest.mark.parametrize("optimizer", ["SGD", "momentum", "AdamW"])
def test_any_strength_is_stable_and_none_is_worse_than_no_guard(penalty: Any, optimizer: str) -> None:
    def risen(lam: float) -> float:
        model = adapted(network())
        factors = [p for p in model.parameters() if p.requires_grad]
        made = {
            "SGD": lambda: torch.optim.SGD(factors, lr=0.05),
            "momentum": lambda: torch.optim.SGD(factors, lr=0.02, momentum=0.9),
            "AdamW": lambda: torch.optim.AdamW(factors, lr=0.02),
        }
        return rise(model, made[optimizer](), rwalk.EWC(lam=lam, penalty=penalty))

    free, *held = (risen(lam) for lam in (0.0, 1.0, 1e3, 1e8))
    assert all(each <= free + 0.02 for each in held) and held[-1] < 0.05 < free


def test_a_merged_adapter_leaves_what_it_learned_to_the_next(tmp_path: Path) -> None:
    """Between tasks: merged into its base, and another adapter begun; drift, anchor and importance go on."""
    model = adapted(network())
    optimizer = sgd(model)
    step(model, optimizer, OLD, 30)
    guard = rwalk.Guard(model, optimizer, rwalk.EWC(lam=1.0), probes=INPUTS, state=PRODUCT)
    step(model, optimizer, NEW, 30)
    guard.consolidate(losses(model, NEW))
    vectors = guard.state_dict()["tensors"]
    said = model(INPUTS).detach()

    model = adapted(model.merge_and_unload(), peft.LoraConfig(r=2, target_modules=["0", "2"]))
    optimizer = sgd(model, lr=0.5)
    guard.attach(optimizer, model)
    assert guard.drift() < 1e-9
    for name, vector in guard.state_dict()["tensors"].items():
        torch.testing.assert_close(vector, vectors[name])
    step(model, optimizer, OLD, 60)
    assert guard.penalty() > 0 and guard.drift() > 0.001, "held by the new adapter's factors"
    assert not torch.allclose(model(INPUTS), said)
    guard.rewind(budget=0.001)
    assert 0 < guard.drift() <= 0.001

    guard.save(tmp_path / "guard.safetensors")
    guard.detach()
    again = rwalk.Guard.load(tmp_path / "guard.safetensors", model, optimizer, probes=INPUTS)
    assert again.names == guard.names and again.drift() == pytest.approx(guard.drift(), rel=1e-5)


def test_a_whole_model_may_go_on_with_an_adapter_and_an_adapter_as_a_whole_model() -> None:
    whole = network()
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.05)
    guard = rwalk.Guard(whole, optimizer, rwalk.RWalk(), state=PRODUCT)
    step(whole, optimizer, OLD, 12)
    guard.consolidate()
    importance = guard.state_dict()["tensors"]["importance/2.weight"]
    model = adapted(whole, peft.LoraConfig(r=2, target_modules=["0", "2"]))
    optimizer = sgd(model)
    with pytest.warns(UserWarning, match="left the model"):  # the biases are frozen, under other names
        guard.attach(optimizer, model)
    assert guard.penalty() < 1e-9
    step(model, optimizer, NEW, 12)
    assert guard.penalty() > 0
    guard.consolidate()
    merged = model.merge_and_unload()
    merged.requires_grad_(True)
    guard.attach(torch.optim.SGD(merged.parameters(), lr=0.05), merged)
    vectors = guard.state_dict()["tensors"]
    assert vectors["importance/2.weight"].shape == importance.shape and guard.penalty() < 1e-9


def test_an_adapter_that_was_thrown_away_is_noticed_and_one_replaced_within_a_task_refused() -> None:
    model = adapted(network())
    optimizer = sgd(model)
    guard = rwalk.Guard(model, optimizer, rwalk.EWC(), state=PRODUCT)
    step(model, optimizer, OLD, 30)
    guard.consolidate(losses(model))
    lost = adapted(copy.deepcopy(model).unload(), peft.LoraConfig(r=2, target_modules=["0", "2"]))
    with pytest.warns(UserWarning, match="merge an adapter"):
        guard.attach(sgd(lost), lost)
    guard.attach(optimizer, model)
    step(model, optimizer, NEW)
    other = adapted(copy.deepcopy(model).merge_and_unload())
    with pytest.raises(InputError, match="in the middle of a task"):
        guard.attach(sgd(other), other)


def test_losses_made_too_early_are_refused() -> None:
    """Before consolidate() was called, the base was frozen, and nothing of ΔW can be measured."""
    model = adapted(network())
    guard = rwalk.Guard(model, sgd(model), rwalk.EWC(), state=PRODUCT)
    with pytest.raises(InputError, match="in a generator"):
        guard.consolidate(list(losses(model)))


def test_what_is_no_plain_adapter_of_a_matrix_is_held_by_its_factors() -> None:
    model = adapted(network(), peft.LoraConfig(r=2, target_modules=["0", "2"], use_dora=True))
    guard = rwalk.Guard(model, sgd(model), rwalk.EWC(), params="*lora_*")
    assert len(guard.names) == 6 and all("lora_" in name for name in guard.names)
    with pytest.raises(InputError, match="'factors' or 'product'"):
        rwalk.StateOptions(lora="both")  # type: ignore[arg-type]


def held(method: str) -> Any:
    return METHODS[method](lam=1e6, penalty="proximal")


def drifted(method: Any, state: rwalk.StateOptions) -> tuple[nn.Module, Any, rwalk.Guard]:
    model = adapted(network())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.02)
    step(model, optimizer, OLD, 40)
    guard = rwalk.Guard(model, optimizer, method, probes=INPUTS, state=state)
    step(model, optimizer, NEW, 60)
    return model, optimizer, guard


@pytest.mark.parametrize("method", ["ewc", "rwalk", "pi", "ewc++", "mas", "l2"])
def test_the_product_is_held(method: str) -> None:
    free = drifted("vanilla", PRODUCT)[2].drift()
    assert drifted(held(method), PRODUCT)[2].drift() < free / 4


@pytest.mark.parametrize("method", ["ewc", "rwalk", "pi", "l2"])
@pytest.mark.parametrize("options", [{"dtype": "8bit"}, {"device": "cpu"}], ids=str)
def test_the_product_is_held_by_quantized_and_offloaded_state(method: str, options: Any, tmp_path: Path) -> None:
    state = rwalk.StateOptions(lora="product", **options)
    free = drifted("vanilla", PRODUCT)[2].drift()
    model, optimizer, guard = drifted(held(method), state)
    assert guard.drift() < free / 4
    guard.consolidate(losses(model, NEW) if guard.method.data_pass else None)  # type: ignore[union-attr]
    guard.save(tmp_path / "guard.safetensors")
    guard.detach()
    again = rwalk.Guard.load(tmp_path / "guard.safetensors", model, optimizer, probes=INPUTS)
    for name, vector in guard.state_dict()["tensors"].items():
        torch.testing.assert_close(again.state_dict()["tensors"][name], vector, rtol=0, atol=0)
