"""The networks, as the papers draw them; dropout that repeats; networks of one's own, taken or refused."""

from __future__ import annotations

import copy
import sys
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import little
from rwalk import Fleet, InputError, Learner, Training
from rwalk.engine import architectures
from rwalk.engine.architectures import NETWORKS, builder, find, head_of
from rwalk.engine.dropout import Dropout, hashed


def dropout(p: float = 0.5, whole: bool = False, counter: int = 0) -> Dropout:
    layer = Dropout(p, whole)
    layer.counter.fill_(counter)
    return layer


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


# ── dropout ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_its_share_and_scales_it_up(p: float) -> None:
    out = dropout(p)(torch.ones(400, 500))
    kept = out != 0
    assert float(kept.double().mean()) == pytest.approx(1 - p, abs=0.005)
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / (1 - p)))
    for dim in (0, 1):  # no row or column is favoured
        share = kept.double().mean(dim)
        assert float(share.std()) == pytest.approx((p * (1 - p) / kept.shape[dim]) ** 0.5, rel=0.2)


def test_dropout_of_neighbours_and_of_calls_is_independent() -> None:
    layer = dropout()
    masks = torch.stack([layer(torch.ones(50_000)) > 0 for _ in range(8)]).double() - 0.5
    correlation = 4 * masks @ masks.T / masks.shape[1]
    assert (correlation - torch.eye(8)).abs().max() < 0.02
    for shift in (1, 2, 64, 256, 1024):
        assert abs(float(4 * (masks[:, shift:] * masks[:, :-shift]).mean())) < 0.01


def test_dropout_repeats_with_its_counter_and_differs_with_every_call() -> None:
    x, layer = torch.ones(30, 30), dropout(counter=7)
    first, second = layer(x), layer(x)
    assert not first.equal(second)
    assert int(layer.counter) == 9
    again = dropout(counter=7)
    assert again(x).equal(first) and again(x).equal(second)


def test_dropout_leaves_global_random_state_alone_and_is_the_same_in_every_precision() -> None:
    layers = [dropout(0.3, counter=5) for _ in range(2)]
    before = torch.get_rng_state()
    single, double = layers[0](torch.ones(99)), layers[1](torch.ones(99, dtype=torch.float64))
    assert torch.get_rng_state().equal(before)
    assert (single > 0).equal(double > 0)
    assert float(double.max()) == pytest.approx(1 / 0.7, abs=1e-15)


def test_dropout_rests_in_evaluation_and_at_zero() -> None:
    x = torch.randn(5, 5)
    for layer in (dropout(0.5).eval(), dropout(0.0)):
        assert layer(x) is x
        assert int(layer.counter) == 0


def test_dropout_of_everything_is_zero_as_torchs_is() -> None:
    assert dropout(1.0)(torch.ones(10)).eq(0).all()


def test_whole_channels_are_dropped_together() -> None:
    out = dropout(0.5, whole=True)(torch.ones(40, 50, 3, 4))
    each = out.flatten(2)
    assert (each == each[..., :1]).all()
    assert float((each[..., 0] > 0).double().mean()) == pytest.approx(0.5, abs=0.05)


def test_under_vmap_a_run_drops_what_it_would_drop_alone() -> None:
    """However many share the call, and wherever the run stands among them."""
    layer, counters, x = dropout(), torch.tensor([3, 99, 12345678901234]), torch.randn(3, 6, 7)

    def call(counter: Tensor, inputs: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"counter": counter}, (inputs,))

    together = torch.func.vmap(call)(counters.clone(), x)
    for run in range(3):
        assert together[run].equal(dropout(counter=int(counters[run]))(x[run]))
    pair = torch.func.vmap(call)(counters[[2, 0]].clone(), x[[2, 0]])
    assert pair.equal(together[[2, 0]])


@given(st.integers(0, 2**63 - 1), st.integers(1, 300))
def test_hashes_are_31_bits_whatever_the_counter(counter: int, n: int) -> None:
    bits = hashed(torch.tensor(counter), n)
    assert all(0 <= each < 2**31 for each in bits.tolist())
    assert bits.equal(hashed(torch.tensor(counter), n + 10)[:n])


# ── the named networks ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NETWORKS)
def test_every_named_network_gives_one_output_a_class(name: str) -> None:
    module = builder(name, (3, 32, 32), 7)()
    assert module(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    head = head_of(module, 7)
    assert isinstance(head, nn.Linear) and head is module.head
    assert NETWORKS[name][1]


def test_the_mlp_is_the_papers() -> None:
    """Two hidden layers of 256 units (section 6)."""
    assert parameters(architectures.MLP((1, 28, 28), 10)) == (784 + 1) * 256 + (256 + 1) * 256 + (256 + 1) * 10
    assert architectures.MLP((5,), 3)(torch.zeros(4, 5)).shape == (4, 3)


def test_the_cnn_is_the_supplements_table() -> None:
    module = architectures.CNN((3, 32, 32), 100)
    convolutions = [(3, 32), (32, 32), (32, 64), (64, 64)]
    expected = sum((9 * inside + 1) * outside for inside, outside in convolutions) + (64 * 8 * 8 + 1) * 100
    assert parameters(module) == expected == 475_268
    layers = [type(layer).__name__ for layer in module.body]
    half = ["Conv2d", "ReLU", "Conv2d", "ReLU", "MaxPool2d", "Dropout"]
    assert layers == [*half, *half, "Flatten"]
    assert all(layer.p == 0.5 for layer in module.body if isinstance(layer, Dropout))


def test_resnet18_is_gems_reduced_version() -> None:
    """Twenty filters instead of 64: about 1.1 million parameters; the full one has 11.2 million."""

    def block(inside: int, outside: int) -> int:
        shortcut = (inside + 2) * outside if inside != outside else 0
        return 9 * inside * outside + 2 * outside + 9 * outside * outside + 2 * outside + shortcut

    for filters, about in ((20, 1.1e6), (64, 11.2e6)):
        widths = [filters, 2 * filters, 4 * filters, 8 * filters]
        expected = 3 * 9 * filters + 2 * filters  # the stem
        expected += 2 * block(filters, filters)
        expected += sum(block(a, b) + block(b, b) for a, b in pairwise(widths))
        expected += (8 * filters + 1) * 100
        module = architectures.ResNet18((3, 32, 32), 100, filters)
        assert parameters(module) == expected == pytest.approx(about, rel=0.02)
        convolutions = [m for m in module.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
        assert len(convolutions) == 17
        assert module.blocks(module.stem(torch.zeros(2, 3, 32, 32))).shape == (2, 8 * filters, 4, 4)


@pytest.mark.parametrize("name", ["cnn", "resnet18", "resnet18-full"])
def test_convolutions_refuse_vectors(name: str) -> None:
    with pytest.raises(InputError, match=rf"{name[:8]} needs images .* not \[64\]; use mlp"):
        builder(name, (64,), 10)


def test_the_cnn_refuses_images_that_two_pools_would_use_up() -> None:
    assert builder("cnn", (1, 4, 5), 3)()(torch.zeros(2, 1, 4, 5)).shape == (2, 3)
    with pytest.raises(InputError, match=r"height ≥ 4.*not \[1, 3, 28\]"):
        builder("cnn", (1, 3, 28), 3)


def test_the_networks_of_the_public_code() -> None:
    """A fifth convolution of 512 filters; normal weights of deviation 0.1, cut at two (then 0.088), biases 0.1."""
    four, fifth, head = 65_568, (64 * 9 + 1) * 512, (512 * 8 * 8 + 1) * 100
    assert parameters(builder("cnn-5", (3, 32, 32), 100)()) == four + fifth + head
    for name, shape in (("mlp-normal", (784,)), ("cnn-normal", (3, 32, 32)), ("cnn-5-normal", (3, 32, 32))):
        with torch.random.fork_rng():
            module = builder(name, shape, 10)()
        for parameter_name, parameter in module.named_parameters():
            if parameter_name.endswith("bias"):
                assert parameter.eq(0.1).all()
            else:
                assert float(parameter.detach().abs().max()) <= 0.2
                assert float(parameter.detach().std()) == pytest.approx(0.088, rel=0.1)


# ── networks of one's own ─────────────────────────────────────────────────────────────────────────────────────


def test_a_factory_is_found_by_its_name() -> None:
    assert find("little:Network") is little.Network
    assert find("rwalk.engine.architectures:ResNet18") is architectures.ResNet18
    assert find("torch:nn.Sequential") is nn.Sequential
    assert find(little.Network) is little.Network
    assert find("mlp") is architectures.MLP


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mpl", r"unknown network 'mpl': did you mean 'mlp'\?"),
        ("resnet", "unknown network .*package.module:factory"),
        ("no_such_package:net", "'no_such_package:net' cannot be imported .No module named 'no_such_package'"),
        ("little:Nothing", "cannot be imported .*no attribute 'Nothing'"),
        (":net", "cannot be imported"),
        ("little:", "cannot be imported"),
        ("little:nn.modules", "is not callable"),
        ("builtins:range", "must take \\(input_shape, classes\\)"),
        ("builtins:print", "must return an nn.Module, not NoneType"),
        ("little:too_many_outputs", r"gives \[7\] outputs where the stream has 6 classes"),
    ],
)
def test_names_that_lead_nowhere_are_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        builder(name, (8,), 6)
    assert "\n" not in str(refused.value)


def test_a_module_that_breaks_while_it_is_imported_is_an_error_of_its_own(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_networks.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ZeroDivisionError):
        find("broken_networks:net")
    sys.modules.pop("broken_networks", None)


def test_the_head_is_the_attribute_or_the_last_layer_with_one_output_a_class() -> None:
    named = nn.Module()
    named.head, named.after = nn.Linear(4, 3), nn.Linear(4, 3)
    assert head_of(named, 3) is named.head
    unnamed = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 5), nn.ReLU())
    assert head_of(unnamed, 3) is unnamed[1]
    named.head = nn.Linear(4, 9)  # a head, but not of these classes
    assert head_of(named, 3) is named.after
    assert head_of(nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten()), 3) is None


class Everywhere(nn.Module):
    """torch's dropout in all places where one can be."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.input = nn.Dropout(0.1)
        shared = nn.Dropout(0.25)
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Dropout2d(0.2), nn.ReLU(), shared, nn.Flatten(), shared)
        self.branches = nn.ModuleDict({"only": nn.ModuleList([nn.Dropout(0.3)])})
        self.absent = None
        self.register_module("empty", None)
        self.head = nn.Linear(144, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.branches["only"][0](self.body(self.input(x))))


def test_torchs_dropout_is_replaced_wherever_it_is() -> None:
    module = builder(Everywhere, (1, 8, 8), 3)()
    assert not any(isinstance(each, nn.modules.dropout._DropoutNd) for each in module.modules())
    found = {name: each for name, each in module.named_modules() if isinstance(each, Dropout)}
    assert {name: (each.p, each.whole) for name, each in found.items()} == {
        "input": (0.1, False),
        "body.1": (0.2, True),
        "body.3": (0.25, False),
        "body.5": (0.25, False),
        "branches.only.0": (0.3, False),
    }
    assert len({int(each.counter) for each in found.values()}) == 5, "each draws its own"
    before = torch.get_rng_state()
    module(torch.zeros(2, 1, 8, 8))
    assert torch.get_rng_state().equal(before)


class Functional(nn.Module):
    """Dropout that no module announces."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(x, 0.5, self.training))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda shape, classes: nn.Sequential(nn.AlphaDropout(), nn.Linear(8, classes)), "AlphaDropout"),
        (lambda shape, classes: nn.Sequential(nn.FeatureAlphaDropout(), nn.Linear(8, classes)), "FeatureAlpha"),
        (lambda shape, classes: nn.Sequential(nn.RReLU(), nn.Linear(8, classes)), "RReLU"),
        (Functional, r"draws random numbers that cannot be repeated \(F.dropout\?\): use nn.Dropout"),
        (lambda shape, classes: Functional(shape, classes).eval(), "draws random numbers"),
    ],
)
def test_draws_that_cannot_be_repeated_are_refused(network: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        builder(network, (8,), 6)
    assert "\n" not in str(refused.value)


def test_looking_at_a_network_draws_nothing_from_global_random_state() -> None:
    before = torch.get_rng_state()
    builder("cnn", (3, 8, 8), 4)
    assert torch.get_rng_state().equal(before)


# ── running statistics ────────────────────────────────────────────────────────────────────────────────────────


def normed(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 12, bias=False), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, classes))


def test_a_lone_runs_running_statistics_are_torchs_own() -> None:
    """The fleet's batches through torch's own module, loss and Adam."""
    stream, training = little.stream(), Training(steps=9, batch=16)
    fleet = Fleet(stream, normed, [Learner()], [3], training, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = normed((8,), 6).double()
    take, optimizers = fleet.execution.step, {}

    def beside(index: Tensor) -> Tensor:
        if fleet.task not in optimizers:
            optimizers[fleet.task] = torch.optim.Adam(model.parameters(), lr=training.lr)
        x, y = fleet.stream.batch(index[0])
        loss = F.cross_entropy(model(x) + fleet.task_plan.head, y)
        optimizers[fleet.task].zero_grad()
        loss.backward()
        optimizers[fleet.task].step()
        return take(index)

    fleet.execution.step = beside  # type: ignore[method-assign]
    fleet.train()
    for name, expected in model.named_buffers():
        torch.testing.assert_close(fleet.net.buffers[name][0], expected, rtol=0, atol=1e-9)
    assert int(fleet.net.buffers["1.num_batches_tracked"][0]) == 27
    assert fleet.net.buffers["1.running_mean"].abs().max() > 0.01


class Gentle(nn.Dropout):
    """Drops nothing: halves its inputs."""

    def forward(self, x: Tensor) -> Tensor:
        return x / 2


class Renamed(nn.Dropout):
    pass


def test_a_dropout_of_the_users_own_stays_and_one_that_only_has_another_name_is_replaced() -> None:
    made = builder(lambda shape, classes: nn.Sequential(Gentle(), Renamed(0.3), nn.Linear(4, classes)), (4,), 2)()
    assert isinstance(made, nn.Sequential) and isinstance(made[0], Gentle)
    assert isinstance(made[1], Dropout) and made[1].p == 0.3


@pytest.mark.parametrize("shared", ["everything", "a backbone", "running statistics"])
def test_network_that_shares_what_changes_between_runs_is_refused(shared: str) -> None:
    """The second run would begin where the first one ended."""
    backbone = nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5))
    backbone.requires_grad_(shared != "running statistics")
    whole = nn.Sequential(backbone, nn.Linear(5, 6))

    def network(shape: tuple[int, ...], classes: int) -> nn.Module:
        return whole if shared == "everything" else nn.Sequential(backbone, nn.Linear(5, classes))

    with pytest.raises(InputError, match=r"shares 0.*between its calls: .* \(copy.deepcopy\)"):
        Fleet(little.stream(), network, [Learner()], [0])


def test_network_may_share_a_frozen_backbone_or_copy_a_trained_one() -> None:
    frozen, trained = nn.Linear(8, 5).requires_grad_(False), nn.Linear(5, 5)

    def network(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(frozen, copy.deepcopy(trained), nn.Linear(5, classes))

    first, second = (Fleet(little.stream(), network, [Learner()] * 2, [0, 1], Training(steps=2)) for _ in "ab")
    for each in (first, second):
        each.train()
    assert first.theta.equal(second.theta)
