"""Guard in loops of all kinds: each gives the numbers of the plain loop, or raises one clear error."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.optim import SGD, Adam, AdamW, Optimizer

from rwalk.errors import InputError
from rwalk.guard import Guard, StateOptions
from rwalk.methods import EWC, PI, EWCpp, Method, RWalk, Vanilla

METHODS = [Vanilla(), EWC(lam=20.0), EWCpp(lam=20.0), PI(lam=5.0), RWalk(lam=5.0, dt=3)]
EVERY_METHOD = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
RWALK = RWalk(lam=5.0, dt=3)


def network(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def data(task: int, steps: int = 10, dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(task)
    draws = [
        (torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)) for _ in range(steps)
    ]
    return [(x.to(dtype), y) for x, y in draws]


Step = Callable[[nn.Module, Optimizer, Guard, Tensor, Tensor], None]


def plain_step(model: nn.Module, optimizer: Optimizer, guard: Guard, x: Tensor, y: Tensor) -> None:
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


def consolidate(guard: Guard, model: nn.Module, task: int) -> None:
    if guard.method.data_pass:
        dtype = next(model.parameters()).dtype
        guard.consolidate(F.cross_entropy(model(x), y) for x, y in data(task, dtype=dtype))
    else:
        guard.consolidate()


def walk(
    model: nn.Module, optimizer: Optimizer, guard: Guard, step: Step = plain_step, tasks: tuple[int, ...] = (0, 1)
) -> tuple[Tensor, dict[str, Tensor]]:
    """Learn tasks; the parameters and all the guard's vectors at the end."""
    for task in tasks:
        for x, y in data(task, dtype=next(model.parameters()).dtype):
            step(model, optimizer, guard, x, y)
        consolidate(guard, model, task)
    return parameters_to_vector(model.parameters()).detach(), guard.state_dict()["tensors"]


def made(
    method: Method = RWALK, make: Callable[..., Optimizer] = Adam, **options: Any
) -> tuple[nn.Module, Any, Guard]:
    model = network()
    optimizer = make(model.parameters(), lr=0.02)
    return model, optimizer, Guard(model, optimizer, method, **options)


def assert_same(one: tuple[Tensor, dict[str, Tensor]], other: tuple[Tensor, dict[str, Tensor]]) -> None:
    torch.testing.assert_close(one[0], other[0], rtol=0, atol=1e-12)
    assert one[1].keys() == other[1].keys()
    for name in one[1]:
        torch.testing.assert_close(one[1][name], other[1][name], rtol=1e-9, atol=1e-12)


# Every kind of loop


def with_closure(model: nn.Module, optimizer: Optimizer, guard: Guard, x: Tensor, y: Tensor) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)


def with_named_closure(model: nn.Module, optimizer: Optimizer, guard: Guard, x: Tensor, y: Tensor) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    loss = optimizer.step(closure=closure)  # type: ignore[call-overload]
    assert loss.item() > 0


def accumulating(model: nn.Module, optimizer: Optimizer, guard: Guard, x: Tensor, y: Tensor) -> None:
    for part in range(2):
        (F.cross_entropy(model(x[part::2]), y[part::2]) / 2).backward()
    optimizer.step()
    optimizer.zero_grad()


@EVERY_METHOD
@pytest.mark.parametrize("penalty", ["gradient", "proximal"])
@pytest.mark.parametrize("step", [with_closure, with_named_closure, accumulating])
def test_every_loop_is_the_plain_loop(step: Step, penalty: Any, method: Method) -> None:
    method = replace(method, penalty=penalty)
    assert_same(walk(*made(method)), walk(*made(method), step))


@pytest.mark.parametrize("fused", [False, True])
def test_scaled_gradients_are_seen_unscaled(fused: bool) -> None:
    """A fused optimizer gets the scale into its kernel; others are unscaled before their step."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def scaled(model: nn.Module, optimizer: Optimizer, guard: Guard, x: Tensor, y: Tensor) -> None:
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    def make(parameters: Any, lr: float) -> Optimizer:
        return Adam(parameters, lr=lr, fused=fused)

    assert_same(walk(*made(make=make)), walk(*made(make=make), scaled))


@pytest.mark.parametrize("unscaled_by_hand", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_skipped_steps_are_not_observed(fused: bool, unscaled_by_hand: bool) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def with_accidents(model: nn.Module, optimizer: Optimizer, guard: Guard, x: Tensor, y: Tensor) -> None:
        for loss in (F.cross_entropy(model(x), y) * torch.inf, F.cross_entropy(model(x), y)):
            scaler.scale(loss).backward()
            if unscaled_by_hand:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    def make(parameters: Any, lr: float) -> Optimizer:
        return Adam(parameters, lr=lr, fused=fused)

    assert_same(walk(*made(make=make)), walk(*made(make=make), with_accidents))


def test_the_clipped_gradient_is_observed_and_the_pull_is_not_clipped() -> None:
    limit, lam = 1e-3, 50.0
    model, optimizer, guard = made(EWCpp(lam=lam, alpha=1.0, normalize=False), SGD)

    def clipping(model: nn.Module, optimizer: Optimizer, guard: Guard, x: Tensor, y: Tensor) -> None:
        F.cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        optimizer.zero_grad()

    _, vectors = walk(model, optimizer, guard, clipping, tasks=(0,))
    total = sum(tensor.sum() for name, tensor in vectors.items() if name.startswith("fisher/"))
    assert 0.5 * limit**2 < total <= limit**2 * (1 + 1e-9)  # Σ g² of the last step
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1e4
    before = parameters_to_vector(model.parameters())
    clipping(model, optimizer, guard, *data(0)[0])
    pulled = (before - parameters_to_vector(model.parameters())).norm() / 0.02
    assert pulled > 2 * limit


@EVERY_METHOD
def test_gradients_are_left_as_they_were(method: Method) -> None:
    model, optimizer, guard = made(method)
    walk(model, optimizer, guard, tasks=(0,))
    x, y = data(1)[0]
    for _ in range(2):
        F.cross_entropy(model(x), y).backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter.grad, gradients[name])
        optimizer.zero_grad()


def test_autocast_to_bfloat16_is_guarded_in_float32() -> None:
    def autocasting(model: nn.Module, optimizer: Optimizer, guard: Guard, x: Tensor, y: Tensor) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    model = network(dtype=torch.float32)
    optimizer = Adam(model.parameters(), lr=0.02)
    _, vectors = walk(model, optimizer, Guard(model, optimizer, RWALK), autocasting)
    assert all(vector.dtype == torch.float32 and vector.isfinite().all() for vector in vectors.values())
    assert vectors["importance/0.weight"].max() > 0


@pytest.mark.parametrize("penalty", ["gradient", "proximal"])
def test_bfloat16_parameters_keep_a_float32_state_near_the_exact_one(penalty: Any) -> None:
    """Rounded parameters are observed, so only the Fisher of the first step can be compared exactly."""
    model = network(dtype=torch.bfloat16)
    optimizer = SGD(model.parameters(), lr=0.5)
    guard = Guard(model, optimizer, replace(EWCpp(lam=1.0, alpha=1.0, normalize=False), penalty=penalty))
    x, y = data(0, dtype=torch.bfloat16)[0]
    F.cross_entropy(model(x), y).backward()
    exact = model[0].weight.grad.float().square()
    optimizer.step()
    vectors = guard.state_dict()["tensors"]
    assert torch.equal(vectors["fisher/0.weight"], exact)
    theta, vectors = walk(model, optimizer, guard)
    assert theta.dtype == torch.bfloat16 and vectors["importance/0.weight"].dtype == torch.float32
    assert guard.penalty() == 0


def test_channels_last_parameters_are_paired_with_their_own_numbers() -> None:
    def images(memory_format: torch.memory_format) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3)).double()
        model = model.to(memory_format=memory_format)  # type: ignore[call-overload]
        optimizer = Adam(model.parameters(), lr=0.02)
        guard = Guard(model, optimizer, RWALK)
        for task in range(2):
            for x, y in data(task):
                plain_step(model, optimizer, guard, x.repeat(1, 6)[:, :32].view(8, 2, 4, 4), y)
            guard.consolidate()
        tensors: dict[str, Tensor] = guard.state_dict()["tensors"]
        return tensors

    plain, last = images(torch.contiguous_format), images(torch.channels_last)
    for name in plain:
        torch.testing.assert_close(plain[name], last[name], rtol=1e-8, atol=1e-12)


# Parameters of all kinds


def test_groups_take_the_proximal_step_at_their_own_learning_rate() -> None:
    method = replace(RWALK, penalty="proximal")

    def grouped(first: float, second: float, joined: bool) -> Tensor:
        model = network()
        groups = [{"params": model[0].parameters(), "lr": first}, {"params": model[2].parameters(), "lr": second}]
        optimizer = SGD(model.parameters(), lr=first) if joined else SGD(groups)
        return walk(model, optimizer, Guard(model, optimizer, method))[0]

    assert torch.equal(grouped(0.1, 0.1, True), grouped(0.1, 0.1, False))
    assert not torch.equal(grouped(0.1, 0.1, False), grouped(0.1, 0.3, False))


def test_a_parameter_joins_when_its_first_gradient_comes_and_starts_free() -> None:
    model, optimizer, guard = made()
    model[0].requires_grad_(False)
    walk(model, optimizer, guard, tasks=(0,))
    vectors = guard.state_dict()["tensors"]
    assert not any("/0." in name for name in vectors)  # no memory for what does not train
    model[0].requires_grad_(True)
    x, y = data(1)[0]
    F.cross_entropy(model(x), y).backward()
    before, gradient = model[0].weight.detach().clone(), model[0].weight.grad.clone()
    optimizer.step()
    assert torch.equal(model[0].weight.grad, gradient)
    torch.testing.assert_close(model[0].weight, before - 0.02 * gradient.sign(), rtol=0, atol=1e-6)  # Adam's first
    guard.consolidate()
    assert guard.state_dict()["tensors"]["importance/0.weight"].max() > 0


def test_a_frozen_parameter_is_left_alone_and_its_importance_kept() -> None:
    model, optimizer, guard = made()
    walk(model, optimizer, guard, tasks=(0,))
    before = {name: v.clone() for name, v in guard.state_dict()["tensors"].items() if "/0." in name}
    model[0].requires_grad_(False)
    for x, y in data(1):
        plain_step(model, optimizer, guard, x, y)
    after = guard.state_dict()["tensors"]
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_parameters_added_to_the_optimizer_are_guarded_from_then_on() -> None:
    model = network()
    optimizer = Adam(model[2].parameters(), lr=0.02)
    guard = Guard(model, optimizer, RWALK)
    walk(model, optimizer, guard, tasks=(0,))
    assert not any("/0." in name for name in guard.state_dict()["tensors"])
    optimizer.add_param_group({"params": model[0].parameters()})
    walk(model, optimizer, guard, tasks=(1,))
    assert guard.state_dict()["tensors"]["importance/0.weight"].max() > 0


def test_tied_weights_are_one_parameter() -> None:
    def tied(tie: bool) -> tuple[nn.Module, Guard]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(5, 5), nn.Linear(5, 5, bias=False)).double()
        if tie:
            model[1].weight = model[0].weight
        optimizer = SGD(model.parameters(), lr=0.1)
        return model, Guard(model, optimizer, RWALK)

    model, guard = tied(True)
    assert guard.names == ("0.weight",) and tied(False)[1].names == ("0.weight", "1.weight")
    for _ in range(2):
        for _ in range(5):
            F.cross_entropy(model(torch.arange(5)), torch.arange(5)).backward()
            expected = model[0].weight.grad.clone()
            guard.optimizer.step()
            assert torch.equal(model[1].weight.grad, expected)  # pulled once, given back once
            guard.optimizer.zero_grad()
        guard.consolidate()
    assert list(guard.state_dict()["tensors"]) == [
        f"{vector}/0.weight" for vector in ("fisher", "path", "score", "origin", "importance", "anchor")
    ]


@pytest.mark.parametrize("options", [{}, {"dtype": "8bit"}], ids=str)
def test_sparse_gradients_are_refused_in_one_line_and_left_alone(options: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Embedding(6, 3, sparse=True), nn.Linear(3, 2))
    guard = Guard(model, SGD(model.parameters(), lr=0.1), RWALK, **options)
    model(torch.tensor([1, 4])).square().sum().backward()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(InputError, match=r"0.weight has a sparse gradient.*sparse=False.*exclude it by params="):
        guard.optimizer.step()
    assert model[0].weight.grad.is_sparse
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    guard.detach()


def test_a_head_that_gains_rows_keeps_the_old_rows_importance() -> None:
    model, optimizer, guard = made()
    walk(model, optimizer, guard)
    old = {
        name: vector.clone() for name, vector in guard.state_dict()["tensors"].items() if name.endswith("2.weight")
    }
    grown = nn.Linear(8, 5).double()
    with torch.no_grad():
        grown.weight[:3], grown.bias[:3] = model[2].weight, model[2].bias
    model[2] = grown
    optimizer = Adam(model.parameters(), lr=0.02)
    guard.attach(optimizer)
    new = guard.state_dict()["tensors"]
    for name, vector in old.items():
        assert torch.equal(new[name][:3], vector)
    assert not new["importance/2.weight"][3:].any() and not new["fisher/2.weight"][3:].any()
    assert torch.equal(new["origin/2.weight"][3:], grown.weight[3:])
    assert guard.penalty() == 0
    for x, y in data(2):
        plain_step(model, optimizer, guard, x, (y + 2) % 5)
    assert guard.penalty() > 0
    guard.consolidate()
    assert guard.state_dict()["tensors"]["importance/2.weight"][3:].max() > 0


def test_a_parameter_that_shrank_is_refused() -> None:
    model, optimizer, guard = made()
    walk(model, optimizer, guard, tasks=(0,))
    model[2] = nn.Linear(8, 2).double()
    with pytest.raises(InputError, match=r"2\.weight has shape \(2, 8\) but its importance \(3, 8\).*may grow"):
        guard.attach(Adam(model.parameters(), lr=0.02))


# Which parameters, and how much memory


@pytest.mark.parametrize(
    ("params", "names"),
    [
        (None, ("0.weight", "0.bias", "2.weight", "2.bias")),
        ("0.*", ("0.weight", "0.bias")),
        (["*.bias", "2.weight"], ("0.bias", "2.weight", "2.bias")),
        (iter(["0.*"]), ("0.weight", "0.bias")),
        (lambda name, parameter: parameter.ndim == 2, ("0.weight", "2.weight")),
    ],
)
def test_params_selects_by_name_or_predicate(params: Any, names: tuple[str, ...]) -> None:
    model, optimizer, guard = made(params=params)
    assert guard.names == names
    guard.attach(optimizer)
    _, vectors = walk(model, optimizer, guard)
    assert {name.partition("/")[2] for name in vectors} == set(names)


BUFFERS = {  # of docs/guard.md: (state, working) once a task is consolidated
    "vanilla": (0, 0),
    "ewc": (2, 1),
    "ewc++": (3, 1),
    "pi": (4, 2),
    "rwalk": (6, 2),
}


@EVERY_METHOD
def test_never_more_buffers_than_documented(method: Method) -> None:
    model = network(dtype=torch.float32)
    optimizer = Adam(model.parameters(), lr=0.02)
    guard = Guard(model, optimizer, method)
    walk(model, optimizer, guard, tasks=(0,))
    for x, y in data(1, dtype=torch.float32):
        plain_step(model, optimizer, guard, x, y)
    state, working = BUFFERS[method.name]
    parameters = sum(p.numel() for p in model.parameters())
    assert guard.nbytes == parameters * (state + working) * 4


@EVERY_METHOD
def test_offloading_changes_nothing(method: Method) -> None:
    assert_same(walk(*made(method)), walk(*made(method, offload="cpu")))


# Files


@EVERY_METHOD
@pytest.mark.parametrize("within_a_task", [False, True])
def test_a_loaded_guard_goes_on_as_if_nothing_had_happened(
    method: Method, within_a_task: bool, tmp_path: Path
) -> None:
    whole, loaded = made(method), made(method)
    for model, optimizer, guard in (whole, loaded):
        walk(model, optimizer, guard, tasks=(0,))
        for x, y in data(7, steps=4 * within_a_task):
            plain_step(model, optimizer, guard, x, y)
    model, optimizer, guard = loaded
    guard.save(tmp_path / "skills" / "of.safetensors")
    guard.detach()
    copy = network(seed=1)
    copy.load_state_dict(model.state_dict())
    optimizer_copy = Adam(copy.parameters(), lr=0.02)
    optimizer_copy.load_state_dict(optimizer.state_dict())
    guard = Guard.load(tmp_path / "skills" / "of.safetensors", copy, optimizer_copy)
    assert guard.method == method and guard.tasks == 1
    assert_same(walk(*whole, tasks=(1, 2)), walk(copy, optimizer_copy, guard, tasks=(1, 2)))
    assert [path.name for path in (tmp_path / "skills").iterdir()] == ["of.safetensors"]


def saved(tmp_path: Path, method: Method = RWALK) -> tuple[Path, nn.Module]:
    model, optimizer, guard = made(method)
    walk(model, optimizer, guard, tasks=(0,))
    guard.save(tmp_path / "skills.safetensors")
    guard.detach()
    return tmp_path / "skills.safetensors", model


def test_loading_into_a_grown_model_leaves_the_new_rows_free(tmp_path: Path) -> None:
    path, model = saved(tmp_path)
    grown = nn.Linear(8, 4).double()
    with torch.no_grad():
        grown.weight[:3], grown.bias[:3] = model[2].weight, model[2].bias
    model[2] = grown
    guard = Guard.load(path, model, Adam(model.parameters(), lr=0.02))
    importance = guard.state_dict()["tensors"]["importance/2.weight"]
    assert importance[:3].any() and not importance[3:].any()


def test_numbers_may_be_changed_on_loading_the_method_may_not(tmp_path: Path) -> None:
    path, model = saved(tmp_path)
    optimizer = Adam(model.parameters(), lr=0.02)
    with pytest.raises(InputError, match="what was saved is rwalk's, this guard's method is pi"):
        Guard.load(path, model, optimizer, PI())
    assert Guard.load(path, model, optimizer, replace(RWALK, lam=9.0)).method.lam == 9.0


def test_files_that_do_not_match_are_refused(tmp_path: Path) -> None:
    path, model = saved(tmp_path)
    renamed = nn.Sequential(model)
    with pytest.raises(
        InputError, match=r"4 of 4 parameters saved are not guarded here \(0\.bias, .*give the model"
    ):
        Guard.load(path, renamed, Adam(renamed.parameters()))
    with pytest.raises(InputError, match=r"2 of 4 parameters saved are not guarded here .* the same params="):
        Guard.load(path, model, Adam(model.parameters()), params="0.*")
    other = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    with pytest.raises(InputError, match=r"0\.weight has shape \(8, 5\) but its importance \(8, 6\)"):
        Guard.load(path, other, Adam(other.parameters()))
    with pytest.raises(InputError, match="nothing cannot be loaded: there is no such file"):
        Guard.load(tmp_path / "nothing", model, Adam(model.parameters()))
    (tmp_path / "text").write_text("no tensors")
    with pytest.raises(InputError, match="text cannot be loaded: it is no safetensors file"):
        Guard.load(tmp_path / "text", model, Adam(model.parameters()))


def test_loading_before_the_weights_is_warned_of(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    other = network(seed=1)
    with pytest.warns(UserWarning, match=r"not where its last task left it .*load its weights before"):
        Guard.load(path, other, Adam(other.parameters()))


def test_parameters_a_file_knows_nothing_of_are_named(tmp_path: Path) -> None:
    path, model = saved(tmp_path)
    model.append(nn.Linear(3, 3).double())
    with pytest.warns(UserWarning, match=r"nothing was saved for 3\.weight, 3\.bias: they start free"):
        Guard.load(path, model, Adam(model.parameters()))


def test_names_are_those_of_the_model_without_wrappers(tmp_path: Path) -> None:
    path, model = saved(tmp_path)
    compiled: Any = torch.compile(model, backend="eager")
    guard = Guard.load(path, compiled, Adam(compiled.parameters()))
    assert guard.names == ("0.weight", "0.bias", "2.weight", "2.bias")


# Loud


def test_an_optimizer_of_another_model_is_refused() -> None:
    with pytest.raises(InputError, match="holds none of the 4 parameters to guard"):
        Guard(network(), Adam(network().parameters()), RWALK)


def test_params_that_select_nothing_are_refused() -> None:
    model = network()
    optimizer = Adam(model.parameters())
    with pytest.raises(
        InputError, match=r"'lora' matches none .*0\.weight, 0\.bias, 2\.weight and 1 more.*'\*lora_\*'"
    ):
        Guard(model, optimizer, RWALK, params=["0.*", "lora"])
    with pytest.raises(InputError, match="selects none of the model's 4 parameters"):
        Guard(model, optimizer, RWALK, params=lambda name, parameter: False)


def test_a_changed_optimizer_is_refused_at_its_first_step() -> None:
    model, optimizer, guard = made()
    plain_step(model, optimizer, guard, *data(0)[0])
    other = AdamW(model.parameters(), lr=0.02)
    before = parameters_to_vector(model.parameters())
    with pytest.raises(InputError, match=r"AdamW\) that the guard does not follow .*guard\.attach\(optimizer\)"):
        plain_step(model, other, guard, *data(0)[0])
    assert torch.equal(before, parameters_to_vector(model.parameters()))
    guard.attach(other)
    plain_step(model, other, guard, *data(0)[0])
    guard.detach()
    plain_step(model, optimizer, guard, *data(0)[0])


def test_two_guards_of_one_parameter_are_refused_whatever_optimizers_they_follow() -> None:
    model, _, first = made()
    other = Adam(model.parameters(), lr=0.02)
    with pytest.raises(InputError, match=r"guards these parameters already, .*detach\(\) it before"):
        Guard(model, other, RWALK)
    first.detach()
    second = Guard(model, other, RWALK)
    plain_step(model, other, second, *data(0)[0])
    second.consolidate()
    with pytest.raises(InputError, match="no guarded parameter took a step"):
        first.consolidate()


def test_two_optimizers_that_take_turns_have_a_guard_each() -> None:
    """As in a GAN: each has parameters of its own."""
    model = network()
    optimizers = [Adam(model[layer].parameters(), lr=0.02) for layer in (0, 2)]
    guards = [Guard(model, optimizer, RWALK) for optimizer in optimizers[:1]]
    with pytest.raises(InputError, match="guards these parameters already"):
        Guard(model, optimizers[1], RWALK)  # all parameters, so also those of the other
    guards[0].detach()
    guards = [Guard(model, o, RWALK, params=f"{layer}.*") for o, layer in zip(optimizers, (0, 2), strict=True)]
    for x, y in data(0):
        for optimizer in optimizers:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            model.zero_grad()
    for guard in guards:
        guard.consolidate()
        assert max(t.max() for k, t in guard.state_dict()["tensors"].items() if k.startswith("importance/")) > 0


def test_an_optimizer_followed_by_one_guard_may_not_move_what_another_guards() -> None:
    model = network()
    everything = [Adam(model.parameters(), lr=0.02) for _ in range(2)]
    guards = [Guard(model, everything[n], RWALK, params=p) for n, p in enumerate(("0.*", "2.*"))]
    with pytest.raises(InputError, match="that the guard does not follow moves guarded parameters"):
        plain_step(model, everything[0], guards[0], *data(0)[0])


def test_a_guard_that_nobody_holds_any_more_is_in_nobodys_way() -> None:
    """Its optimizer and it hold each other, so only Python's garbage collection ends them."""
    model = network()

    def forgotten() -> None:
        Guard(model, Adam(model.parameters(), lr=0.02), RWALK)

    forgotten()
    plain = Adam(model.parameters(), lr=0.02)
    plain_step(model, plain, None, *data(0)[0])  # type: ignore[arg-type]
    forgotten()
    assert Guard(model, plain, RWALK).tasks == 0


REFUSED: dict[str, Callable[[nn.Module], tuple[Optimizer, nn.Module | None]]] = {
    "an optimizer of another model": lambda model: (Adam(network().parameters()), None),
    "LBFGS": lambda model: (torch.optim.LBFGS(model.parameters()), None),
    "a model that shrank": lambda model: (lambda small: (Adam(small.parameters()), small))(
        nn.Sequential(model[0], nn.Tanh(), nn.Linear(8, 2).double())
    ),
    "parameters another guards": lambda model: (lambda other: (other, None))(
        Adam([*model.parameters(), *NEIGHBOUR.parameters()])
    ),
}
NEIGHBOUR = nn.Linear(2, 2)


@pytest.mark.parametrize("what", REFUSED)
def test_a_refused_attach_leaves_the_guard_as_it_was(what: str) -> None:
    expected = walk(*made())
    model, optimizer, guard = made()
    names = guard.names
    walk(model, optimizer, guard, tasks=(0,))
    other, another_model = REFUSED[what](model)
    if what == "parameters another guards":
        guard._params = None
        model.add_module("neighbour", NEIGHBOUR)
        other_guard = Guard(NEIGHBOUR, SGD(NEIGHBOUR.parameters(), lr=0.1), RWALK)
    with pytest.raises(InputError):
        guard.attach(other, another_model)
    if what == "parameters another guards":
        del model.neighbour
        other_guard.detach()
    assert guard.optimizer is optimizer and guard.model is model and guard.names == names
    assert_same(expected, walk(model, optimizer, guard, tasks=(1,)))


def test_two_guards_of_one_optimizer_would_both_pull(tmp_path: Path) -> None:
    """As when a notebook's cell is run again."""
    model, optimizer, first = made()
    with pytest.raises(InputError, match=r"Guard\(RWalk.*guards these parameters already, .*detach\(\) it before"):
        Guard(model, optimizer, RWALK)
    first.detach()
    assert_same(walk(*made()), walk(model, optimizer, Guard(model, optimizer, RWALK)))
    model, optimizer, _ = made(params="0.*")
    Guard(model, optimizer, RWALK, params="2.*")  # other parameters: nothing is pulled twice


@pytest.mark.parametrize("method", [RWALK, PI(), EWC()])
def test_what_is_not_finite_is_never_consolidated(method: Method, tmp_path: Path) -> None:
    model, optimizer, guard = made(method)
    walk(model, optimizer, guard, tasks=(0,))
    guard.save(tmp_path / "good")
    weights = copy.deepcopy(model.state_dict())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, torch.inf)
    optimizer.step()
    model.load_state_dict(weights)
    losses = (model(x).sum() * torch.inf for x, _ in data(1)) if method.data_pass else None
    with pytest.raises(InputError, match=r"a gradient of this task was not finite.*\(Guard\.load\)"):
        guard.consolidate(losses)
    assert guard.tasks == 1
    guard.detach()
    if not method.data_pass:
        guard.save(tmp_path / "bad")
        with pytest.raises(InputError, match="is not finite: it was saved after a gradient was not"):
            Guard.load(tmp_path / "bad", model, optimizer)
    assert Guard.load(tmp_path / "good", model, optimizer).tasks == 1


def test_a_file_has_the_rights_of_any_new_one(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    (tmp_path / "new").touch()
    assert path.stat().st_mode == (tmp_path / "new").stat().st_mode


def test_an_optimizer_around_another_may_step_it() -> None:
    class Around(torch.optim.Optimizer):
        def __init__(self, inner: Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure: Any = None) -> Any:
            return self.inner.step(closure)

    def around(parameters: Any, lr: float) -> Optimizer:
        return Around(Adam(parameters, lr=lr))

    assert_same(walk(*made()), walk(*made(make=around)))
    assert_same(walk(*made()), walk(*made(make=around), with_closure))


def test_a_step_within_a_step_is_one_step() -> None:
    class Inherited(Adam):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    assert_same(walk(*made()), walk(*made(make=Inherited)))
    assert_same(walk(*made()), walk(*made(make=Inherited), with_closure))


def test_a_task_without_steps_cannot_be_consolidated() -> None:
    _, _, guard = made()
    with pytest.raises(InputError, match="no guarded parameter took a step since the last task"):
        guard.consolidate()


@pytest.mark.parametrize("method", [replace(RWALK, lam=0.0), EWC(lam=0.0)])
def test_a_penalty_that_stayed_zero_is_warned_of(method: Method) -> None:
    model, optimizer, guard = made(method)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "[a-z+]* holds nothing in its first task")
        walk(model, optimizer, guard, tasks=(0,))
    with pytest.warns(UserWarning, match="penalty stayed exactly 0 through the whole task"):
        walk(model, optimizer, guard, tasks=(1,))


def test_parameters_that_leave_the_model_are_named() -> None:
    model, optimizer, guard = made()
    walk(model, optimizer, guard, tasks=(0,))
    del model[2]
    with pytest.warns(UserWarning, match=r"2\.weight, 2\.bias left the model"):
        guard.attach(Adam(model.parameters()))


def test_a_warning_points_at_the_users_own_line(tmp_path: Path) -> None:
    """Not into the guard, nor into torch, whose hooks and decorators lie between."""

    def line_after(frame: Any) -> int:
        return int(frame.f_lineno) + 1

    path, _ = saved(tmp_path)
    other, expected = network(seed=1), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "[a-z+]* holds nothing in its first task")
        expected.append(line_after(sys._getframe()))
        Guard.load(path, other, SGD(other.parameters(), lr=0.1))
        model, optimizer, guard = made(replace(RWALK, lam=0.0))
        walk(model, optimizer, guard, tasks=(0,))
        plain_step(model, optimizer, guard, *data(1)[0])
        expected.append(line_after(sys._getframe()))
        guard.consolidate()
    told = [(warning.filename, warning.lineno) for warning in caught if warning.category is UserWarning]
    assert told == [(__file__, line) for line in expected]


def test_closures_evaluated_more_than_once_are_refused() -> None:
    model = network()
    with pytest.raises(InputError, match="LBFGS evaluates its closure many times"):
        Guard(model, torch.optim.LBFGS(model.parameters()), RWALK)

    class Twice(SGD):
        def step(self, closure: Any = None) -> Any:
            closure()
            return super().step(closure)

    optimizer = Twice(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match="Twice evaluates its closure more than once per step"):
        with_closure(model, optimizer, Guard(model, optimizer, RWALK), *data(0)[0])


def test_ewc_asks_for_its_pass_over_the_data() -> None:
    model, _, guard = made(EWC())
    with pytest.raises(InputError, match=r"guard\.consolidate\(criterion\(model\(x\), y\) for x, y in loader\)"):
        guard.consolidate()
    with pytest.raises(InputError, match="each batch's loss, one number with its graph"):
        guard.consolidate(F.cross_entropy(model(x), y, reduction="none") for x, y in data(0))
    with pytest.raises(InputError, match="no gradient reached a guarded parameter in 0 batches"):
        guard.consolidate([])
    _, _, guard = made(RWALK)
    with pytest.raises(InputError, match="call consolidate\\(\\) without losses"):
        guard.consolidate([])


def test_the_pass_over_the_data_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    guard = Guard(model, SGD(model.parameters(), lr=0.1), EWC())
    model[2].eval()  # as some do with a part of their model
    F.cross_entropy(model(data(0)[0][0]), data(0)[0][1]).backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    buffers = [buffer.clone() for buffer in model.buffers()]
    guard.consolidate(F.cross_entropy(model(x), y) for x, y in data(0))  # a trained model needs no step
    assert [module.training for module in model] == [True, True, False, True]
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert all(torch.equal(*pair) for pair in zip(model.buffers(), buffers, strict=True))
    fisher = guard.state_dict()["tensors"]["fisher.0/0.weight"]
    model.eval()
    expected = torch.zeros_like(fisher)
    for x, y in data(0):
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(x), y), model[0].weight)
        expected += gradient.square() / 10
    torch.testing.assert_close(fisher, expected)


def test_what_cannot_work_is_refused_at_once() -> None:
    model = network()
    optimizer = Adam(model.parameters())
    with pytest.raises(InputError, match="did you mean 'rwalk'"):
        Guard(model, optimizer, "rwlk")
    with pytest.raises(InputError, match=r"or one made like rwalk\.RWalk\(lam=1\.0\), not <class"):
        Guard(model, optimizer, RWalk)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"Guard\(model, optimizer\), not Adam and Sequential"):
        Guard(optimizer, model)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="params takes names of parameters"):
        Guard(model, optimizer, RWALK, params=model.parameters())  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"give what guard\.state_dict\(\) returned"):
        made()[2].load_state_dict({})
    with pytest.raises(InputError, match="needs each batch's loss"):
        made(EWC())[2].consolidate(torch.zeros(()))
    with pytest.raises(InputError, match=r"use fisher='batch'$"):
        Guard(model, optimizer, RWalk(fisher="example"))
    with pytest.raises(InputError, match="use fisher='batch' and give consolidate"):
        Guard(model, optimizer, EWC(fisher="example"))
    with pytest.raises(InputError, match="dtype must be"):
        Guard(model, optimizer, RWALK, state=StateOptions(dtype=torch.float16))
    with pytest.raises(InputError, match="device must be"):
        Guard(model, optimizer, RWALK, state=StateOptions(device="disk"))  # type: ignore[arg-type]


def test_the_penalty_is_the_methods_own() -> None:
    model, optimizer, guard = made()
    assert guard.penalty() == 0
    walk(model, optimizer, guard, tasks=(0,))
    anchors = guard.state_dict()["tensors"]
    before = {name: anchors[f"anchor/{name}"].clone() for name in guard.names}
    importance = {name: anchors[f"importance/{name}"].clone() for name in guard.names}
    assert max(vector.max() for vector in importance.values()) > 1  # F + s, each normalised over all parameters
    for x, y in data(1):
        plain_step(model, optimizer, guard, x, y)
    expected = sum(
        (5.0 * importance[name] * (p - before[name]).square()).sum() for name, p in model.named_parameters()
    )
    assert guard.penalty() == pytest.approx(expected.item())
