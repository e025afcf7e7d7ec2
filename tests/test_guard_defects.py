"""Ordinary setups in which a guarded step must be right, or must say that it cannot be."""

from __future__ import annotations

import copy
import gc
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer

from rwalk import EWC, PI, Anchor, Guard, InputError, RWalk
from rwalk.guard.options import StateOptions
from rwalk.methods import Method

BITS = StateOptions(dtype="8bit")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def train(model: nn.Module, optimizer: Optimizer, steps: int = 12, seed: int = 3) -> None:
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x, y = torch.randn(16, 8, generator=draw), torch.randint(4, (16,), generator=draw)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def vectors(guard: Guard, name: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = guard.state_dict()["tensors"]
    return {key.partition("/")[2]: each.clone() for key, each in found.items() if key.startswith(f"{name}/")}


pytestmark = pytest.mark.filterwarnings(
    "ignore:.*holds nothing in its first task", "ignore:nothing was saved for heads.2"
)


# Optimizers


class Own(Optimizer):
    """SGD without a learning rate in its groups."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": None})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-0.05)


def test_lr_none_is_refused_by_a_proximal_penalty_and_fine_with_a_gradient_penalty() -> None:
    model = network()
    guard = Guard(model, optimizer := Own(model.parameters()), RWalk(penalty="proximal"))
    with pytest.raises(InputError, match=r"Own has no learning rate \(lr=None\).*penalty='gradient'"):
        train(model, optimizer, 1)
    guard.detach()
    ends = []
    for lam in (0.0, 1.0):
        model = network()
        guard = Guard(model, optimizer := Own(model.parameters()), RWalk(lam=lam))
        train(model, optimizer)
        guard.consolidate()
        train(model, optimizer, seed=4)
        ends.append(model[0].weight.detach().clone())
    assert not torch.equal(*ends), "the penalty pulls"


class Master(Optimizer):
    """SGD on copies in float64, which it writes over the parameters."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.copies = [[p.detach().double() for p in group["params"]] for group in self.param_groups]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group, copies in zip(self.param_groups, self.copies, strict=True):
            for parameter, own in zip(group["params"], copies, strict=True):
                own.add_(parameter.grad.double(), alpha=-group["lr"])
                parameter.copy_(own)


@pytest.mark.parametrize(("method", "warns"), [(RWalk(penalty="proximal"), 1), (RWalk(lam=0.1), 0)], ids=str)
def test_master_weights_that_overwrite_a_late_pull_are_warned_of_once(method: Method, warns: int) -> None:
    model = network()
    guard = Guard(model, optimizer := Master(model.parameters(), lr=0.05), method)
    train(model, optimizer)
    guard.consolidate()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, optimizer)
    found = [each for each in caught if "Master keeps weights of its own" in str(each.message)]
    assert len(found) == warns


def test_torchs_own_optimizers_are_not_taken_for_ones_with_master_weights() -> None:
    for kind in (torch.optim.ASGD, torch.optim.Adam):
        model = network()
        guard = Guard(model, optimizer := kind(model.parameters(), lr=0.05), RWalk(penalty="proximal"))
        train(model, optimizer)
        guard.consolidate()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            train(model, optimizer)


class Sharpness(Optimizer):
    """SAM: the gradient is evaluated where a first step leads, and followed from where the parameters were."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any]) -> None:  # type: ignore[override]
        parameters = [each for group in self.param_groups for each in group["params"]]
        ahead = [0.5 * each.grad for each in parameters]
        for each, way in zip(parameters, ahead, strict=True):
            each.data.add_(way)
        with torch.enable_grad():
            closure()
        for each, way in zip(parameters, ahead, strict=True):
            each.data.sub_(way).add_(each.grad, alpha=-0.1)


@pytest.mark.parametrize(("method", "refused"), [(PI(), True), (RWalk(), True), (EWC(), False)], ids=str)
def test_sam_with_a_closure_is_refused_by_methods_that_measure_the_path(method: Method, refused: bool) -> None:
    model = nn.Linear(2, 1, bias=False)
    guard = Guard(model, optimizer := Sharpness(model.parameters()), method)

    def closure() -> Tensor:
        loss = model(torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    closure()
    before = model.weight.detach().clone()
    if refused:
        with pytest.raises(InputError, match="Sharpness moves the parameters before it evaluates its closure"):
            optimizer.step(closure)
        assert torch.equal(model.weight, before)
    else:
        optimizer.step(closure)
        assert not torch.equal(model.weight, before)
    guard.detach()


# Parameters


def test_complex_parameters_are_refused_and_may_be_excluded() -> None:
    class Phases(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Parameter(torch.ones(4, dtype=torch.cfloat))
            self.gain = nn.Parameter(torch.ones(4))

    model = Phases()
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match=r"turn is complex.*exclude it by params="):
        Guard(model, optimizer, RWalk())
    guard = Guard(model, optimizer, RWalk(), params="gain")
    ((model.turn * model.gain).abs().square().sum()).backward()
    optimizer.step()
    guard.consolidate()
    assert guard.names == ("gain",)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [StateOptions(), BITS], ids=["float32", "8 bits"])
def test_narrow_parameters_are_pulled_back_by_steps_smaller_than_their_rounding(
    dtype: torch.dtype, options: StateOptions
) -> None:
    """1.5 towards 1.0 by about 1e-4 of the way in a step; by the nearest number, none would ever move."""
    ends = []
    for kind in (torch.float32, dtype):
        layer = nn.Linear(16, 16, bias=False).to(kind)
        nn.init.ones_(layer.weight)
        optimizer = SGD(layer.parameters(), lr=1e-4)
        guard = Guard(layer, optimizer, EWC(lam=1.0, penalty="proximal"), state=options)
        guard.consolidate([layer(torch.ones(1, 16, dtype=kind)).float().sum()])
        with torch.no_grad():
            layer.weight += 0.5
        for _ in range(2000):
            layer.weight.grad = torch.zeros_like(layer.weight)
            optimizer.step()
        ends.append(float(layer.weight.detach().float().mean()))
        guard.detach()
    assert ends[0] < 1.45
    assert ends[1] == pytest.approx(ends[0], abs=0.01)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(8, 16)
        self.heads = nn.ModuleList(nn.Linear(16, 2) for _ in range(3))

    def forward(self, x: Tensor, head: int) -> Tensor:
        logits: Tensor = self.heads[head](self.trunk(x).relu())
        return logits


def learn(model: nn.Module, optimizer: Optimizer, head: int, steps: int = 11) -> None:
    draw = torch.Generator().manual_seed(head)
    for _ in range(steps):
        x = torch.randn(16, 8, generator=draw)
        F.cross_entropy(model(x, head), (x[:, head] > 0).long()).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("options", [StateOptions(), BITS], ids=["float32", "8 bits"])
def test_importance_of_a_head_that_a_task_does_not_use_is_kept(options: StateOptions, tmp_path: Path) -> None:
    """Also if the second task was interrupted, and resumed from a file."""
    model = Heads()
    optimizer = SGD(model.parameters(), lr=0.05)
    guard = Guard(model, optimizer, RWalk(lam=0.1), state=options)
    learn(model, optimizer, 0)
    guard.consolidate()
    kept = {name: vectors(guard, name)["heads.0.weight"] for name in ("importance", "score", "fisher", "anchor")}
    trunk = vectors(guard, "importance")["trunk.weight"]
    learn(model, optimizer, 1, 5)
    guard.save(tmp_path / "guard.safetensors")
    guard.detach()
    guard = Guard.load(tmp_path / "guard.safetensors", model, optimizer)
    learn(model, optimizer, 1, 6)
    guard.consolidate()
    assert all(torch.equal(vectors(guard, name)["heads.0.weight"], each) for name, each in kept.items())
    assert not torch.equal(vectors(guard, "importance")["trunk.weight"], trunk)


def test_moving_back_is_no_part_of_the_path() -> None:
    """The score divides the path of the steps by their distance, not by that of the way back too."""
    model = network()
    optimizer = SGD(model.parameters(), lr=0.3)
    guard = Guard(model, optimizer, PI(), probes=torch.randn(32, 8))
    origin = vectors(guard, "origin")["0.weight"]
    moved = torch.zeros_like(origin)
    for seed in range(6):
        before = model[0].weight.detach().clone()
        train(model, optimizer, 1, seed)
        moved += model[0].weight.detach() - before
    at = model[0].weight.detach().clone()
    guard.rewind(1e-4)
    assert not torch.equal(model[0].weight, at)
    torch.testing.assert_close(model[0].weight.detach() - vectors(guard, "origin")["0.weight"], moved)


# Wrappers and copies


@pytest.fixture
def _one_process(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def failing(*_: object) -> None:
    raise RuntimeError("on purpose")


@pytest.mark.usefixtures("_one_process")
@pytest.mark.parametrize("options", [StateOptions(), BITS], ids=["float32", "8 bits"])
def test_gradients_in_the_buckets_of_ddp_are_never_written_to(options: StateOptions) -> None:
    model = network()
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = SGD(wrapped.parameters(), lr=0.01)
    guard = Guard(wrapped, optimizer, RWalk(), state=options)
    train(wrapped, optimizer)
    guard.consolidate()
    train(wrapped, optimizer, 3)
    for fails in (False, True):
        F.cross_entropy(wrapped(torch.ones(2, 8)), torch.tensor([0, 1])).backward()
        task = [(p.grad, p.grad.clone(), p.grad._version) for p in model.parameters() if p.grad is not None]
        if fails:
            handle = optimizer.register_step_pre_hook(failing)
            with pytest.raises(RuntimeError, match="on purpose"):
                optimizer.step()
            handle.remove()
        optimizer.step()  # after a failed step: once more, with the same gradients
        for parameter, (grad, was, version) in zip(model.parameters(), task, strict=True):
            assert parameter.grad is grad and grad._version == version and torch.equal(grad, was)
        optimizer.zero_grad()
    guard.detach()


def test_a_guard_cannot_be_copied_but_its_model_and_optimizer_can() -> None:
    model = network()
    guard = Guard(model, optimizer := SGD(model.parameters(), lr=0.1), RWalk())
    train(model, optimizer)
    with pytest.raises(InputError, match="a guard belongs to one model"):
        copy.deepcopy(guard)
    other, following = copy.deepcopy((model, optimizer))
    before = guard.state_dict()["steps"]
    train(other, following)
    assert guard.state_dict()["steps"] == before, "the copies are not guarded"
    train(model, optimizer)
    assert guard.state_dict()["steps"] == before + 12


# A step one can follow


def test_a_step_of_a_small_network_takes_at_most_80_python_calls() -> None:
    model = network()
    guard = Guard(model, optimizer := SGD(model.parameters(), lr=0.1), RWalk())
    train(model, optimizer)
    guard.consolidate()
    train(model, optimizer, 3)
    F.cross_entropy(model(torch.ones(2, 8)), torch.tensor([0, 1])).backward()
    gc.collect()  # guards of other tests
    calls: Counter[str] = Counter()
    folder = str(Path(sys.modules["rwalk"].__file__ or "").parent)

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            calls[frame.f_code.co_qualname] += 1

    sys.setprofile(count)
    try:
        optimizer.step()
    finally:
        sys.setprofile(None)
    assert 20 < calls.total() <= 80, calls.most_common()


# ── what a stranger's loop may do ────────────────────────────────────────────────────────────────────────────


def inputs(rows: int = 64) -> Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(1))


def test_an_optimizer_that_maximises_is_refused_because_it_would_maximise_drift() -> None:
    model = network()
    with pytest.raises(InputError, match="maximize=True drift would be maximised too"):
        Guard(model, SGD(model.parameters(), 0.1, maximize=True), probes=inputs())


def test_probes_are_copied_because_loops_write_into_their_buffers() -> None:
    model, x = network(), inputs()
    guard = Guard(model, SGD(model.parameters(), 0.1), probes=x)
    x.zero_()
    assert guard.drift() == 0


@pytest.mark.parametrize("inside", [True, False], ids=["guard", "probes"])
def test_inference_mode_around_the_making_of_a_guard_or_its_probes_changes_nothing(inside: bool) -> None:
    ends = []
    for enabled in (False, True):
        model = network()
        optimizer = SGD(model.parameters(), 0.1)
        with torch.inference_mode(enabled):
            x = inputs()
            guard = Guard(model, optimizer, probes=x) if inside else None
        guard = guard or Guard(model, optimizer, probes=x)
        train(model, optimizer)
        ends.append([*model.parameters()])
        assert guard.finish().steps == 12
    assert all(map(torch.equal, *ends))


def test_log_probabilities_are_classes() -> None:
    model = nn.Sequential(*network(), nn.LogSoftmax(-1))
    guard = Guard(model, SGD(model.parameters(), 0.1), probes=inputs())
    assert guard.state_dict()["drift"]["sets"][0]["divergences"] == {"output": "kl"}


@pytest.mark.parametrize("given", [[*inputs(16)], inputs()[0], [*zip(inputs(16), range(16), strict=True)]])
def test_single_examples_are_not_taken_for_batches(given: Any) -> None:
    """A row of 8 numbers would count as 8 examples, and its logits as 4 numbers."""
    model = network()
    with pytest.raises(InputError, match=r"give outputs of shape \(4,\): give batches|torch's tensors"):
        Guard(model, SGD(model.parameters(), 0.1), probes=given)


def test_probes_without_tensors_of_torch_are_refused_by_name() -> None:
    model = network()
    with pytest.raises(InputError, match=r"has none: \{'input': ndarray\}"):
        Guard(model, SGD(model.parameters(), 0.1), probes={"input": inputs().numpy()})


def test_a_divergence_for_an_output_that_is_not_compared_is_refused() -> None:
    model = network()
    with pytest.raises(InputError, match=r"divergence= is given for \['logits'\], .* \['output'\]"):
        Guard(model, SGD(model.parameters(), 0.1), probes=inputs(), divergence={"logits": "mse"})


def test_inputs_in_the_place_of_a_method_are_refused_without_their_numbers() -> None:
    model = network()
    with pytest.raises(InputError, match=r"not tensor.{54}…; inputs are given as probes="):
        Guard(model, SGD(model.parameters(), 0.1), inputs())  # type: ignore[arg-type]


def test_a_budget_for_finish_without_probes_is_refused() -> None:
    model = network()
    guard = Guard(model, SGD(model.parameters(), 0.1), "rwalk")
    with pytest.raises(InputError, match="and probes"):
        guard.finish(budget=0.05)


@pytest.mark.parametrize("every", [1, 32])
def test_loading_with_another_interval_is_no_damage(every: int) -> None:
    model = network()
    optimizer = SGD(model.parameters(), 0.01)
    guard = Guard(model, optimizer, probes=inputs())
    train(model, optimizer, steps=30)
    guard.detach()
    again = Guard.load(guard.state_dict(), model, optimizer, Anchor(every=every), probes=inputs())
    train(model, optimizer, steps=30)
    pulls = [reading.step for reading in again.finish().readings]
    assert pulls[-1] - pulls[-2] == min(every, 16) if every > 1 else pulls[-3:] == [57, 58, 59]


def test_outputs_that_become_non_finite_are_a_warning_at_the_end() -> None:
    model = network()
    optimizer = SGD(model.parameters(), 0.1)
    guard = Guard(model, optimizer, probes=inputs())
    train(model, optimizer)
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))
    with pytest.warns(UserWarning, match="outputs on the probes are not finite"):
        guard.finish()


def test_a_model_that_changes_its_dtype_is_named_in_the_error_of_a_pull() -> None:
    model = network()
    optimizer = SGD(model.parameters(), 0.1)
    Guard(model, optimizer, probes=inputs())
    model.bfloat16()
    with pytest.raises(InputError, match=r"cannot be called with the probes, float32 \(64, 8\)"):
        for _ in range(2):
            model(inputs().bfloat16()).sum().backward()
            optimizer.step()


class Merging(nn.Module):
    """An adapter that evaluation mode adds to the weight, out of reach of gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 8, generator=torch.Generator().manual_seed(0)), False)
        self.adapter = nn.Parameter(torch.zeros(4, 8))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight + (self.adapter if self.training else self.adapter.detach())
        return x @ weight.T


def test_adapters_merged_in_evaluation_mode_cannot_be_held_and_that_is_said() -> None:
    model = Merging()
    optimizer = SGD([model.adapter], 0.1)
    with pytest.raises(InputError, match="no importance can be measured: in evaluation mode no trained parameter"):
        Guard(model, optimizer, EWC(), probes=inputs())
    guard = Guard(model, optimizer, probes=inputs())
    with pytest.warns(UserWarning, match="nothing is held: in evaluation mode") as found:
        train(model, optimizer)
    assert len(found) == 1
    guard.detach()
