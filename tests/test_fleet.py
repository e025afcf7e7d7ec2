"""The training loop: a fleet of R equals R fleets of one, and every part of a step is tested alone."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import little
from rwalk.data import datasets, samplers, splits
from rwalk.data.memory import MemorySpec
from rwalk.data.streams import Dataset, Stream
from rwalk.engine import evaluation, snapshots
from rwalk.engine import fisher as fisher_of
from rwalk.engine.fleet import Fleet
from rwalk.engine.task_plan import batches_of
from rwalk.errors import InputError
from rwalk.gc_pause import gc_paused
from rwalk.learners import Learner, learner, with_lam
from rwalk.losses import Batch, CrossEntropy, Loss, heads
from rwalk.losses.er import ER
from rwalk.methods import Method, RWalk
from rwalk.methods.method import Number, State
from rwalk.projectors import Projector
from rwalk.training import Training

DOUBLE = torch.float64
SHORT = Training(steps=7, batch=16)


@pytest.fixture(scope="module")
def stream() -> Stream:
    """Three tasks of two classes of small images: blobs around class means."""
    draw = torch.Generator().manual_seed(0)
    means = torch.randn(6, 1, 8, 8, generator=draw)

    def images(count: int) -> tuple[Tensor, Tensor]:
        y = torch.arange(6).repeat(count)
        return means[y] + torch.randn(6 * count, 1, 8, 8, generator=draw), y

    return splits.from_arrays(*images(40), *images(20), classes_per_task=2)


class WithBatchNorm(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        # No bias under the norm: its gradient is zero up to rounding, which Adam would blow up to whole steps.
        layers = (nn.Linear(64, 20, bias=False), nn.BatchNorm1d(20), nn.ReLU(), nn.Dropout(0.3))
        self.body = nn.Sequential(nn.Flatten(), *layers)
        self.head = nn.Linear(20, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def small(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, classes))


LEARNERS: dict[str, Callable[[float], Learner]] = {
    "vanilla": lambda n: learner("vanilla"),
    "ewc": lambda n: learner("ewc", lam=100.0 * n),
    "ewc-example": lambda n: learner("ewc", lam=100.0 * n, fisher="example"),
    "ewc++": lambda n: learner("ewc++", lam=10.0 * n, alpha=0.1 * n),
    "pi": lambda n: learner("pi", lam=n, xi=1e-3 * n),
    "rwalk": lambda n: learner("rwalk", lam=n, eps=1e-3 * n, dt=3),
    "rwalk-example": lambda n: learner("rwalk", lam=n, fisher="example"),
    "rwalk-proximal": lambda n: learner("rwalk", lam=10.0**n, penalty="proximal"),
    "rwalk-S": lambda n: learner("rwalk", MemorySpec(5), lam=n),
    "rwalk-S-total": lambda n: learner("rwalk", MemorySpec(total=12, sampler="entropy", replay="half"), lam=n),
    "vanilla-S-plane": lambda n: learner("vanilla", MemorySpec(3, sampler="plane", replay="concat")),
    "icarl": lambda n: learner("icarl", MemorySpec(4)),
    "icarl-hb1": lambda n: learner("icarl-hb1", MemorySpec(4)),
    "gem": lambda n: learner("gem", MemorySpec(4)),
    "a-gem": lambda n: learner("a-gem", MemorySpec(4)),
}


@pytest.mark.parametrize("network", [small, WithBatchNorm], ids=["plain", "batchnorm"])
@pytest.mark.parametrize("name", ["rwalk-S-total", "vanilla-S-plane"])
def test_a_fleet_with_any_memory_equals_its_runs_alone(stream: Stream, name: str, network: Any) -> None:
    """Different seeds and different λ in one fleet, float64, up to rounding: parameters, buffers, accuracies.

    Promises of every learner are in test_contract.py.
    """
    near = little.rounding(SHORT, len(stream))
    learners = [LEARNERS[name](n) for n in (1.0, 2.0, 3.0)]
    together = Fleet(stream, network, learners, [4, 5, 6], SHORT, dtype=DOUBLE)
    together.train()
    for run in range(3):
        alone = Fleet(stream, network, [learners[run]], [4 + run], SHORT, dtype=DOUBLE)
        alone.train()
        torch.testing.assert_close(alone.theta[0], together.theta[run], rtol=0, atol=near)
        for key, buffer in alone.net.buffers.items():
            torch.testing.assert_close(buffer[0], together.net.buffers[key][run], rtol=0, atol=near)
        for head in ("single", "multi"):
            np.testing.assert_array_equal(alone.accuracy[head][0], together.accuracy[head][run])


MIXED = (
    ("vanilla", {}),
    ("vanilla", {}),
    ("ewc++", {"lam": 10.0, "alpha": 0.1}),
    ("ewc++", {"lam": 30.0, "penalty": "proximal"}),
    ("pi", {"lam": 1.0}),
    ("rwalk", {"lam": 1.0, "dt": 3}),
    ("rwalk", {"lam": 2.0, "dt": 3, "alpha": 0.1}),
    ("rwalk", {"lam": 100.0, "dt": 2, "penalty": "proximal"}),
)


@pytest.mark.parametrize("memory", [None, MemorySpec(3)], ids=["plain", "samples"])
def test_methods_share_a_fleet_and_none_sees_the_others(stream: Stream, memory: MemorySpec | None) -> None:
    """Each of them walks its own rows, as it would alone: several methods, forms of the penalty and windows."""
    near = little.rounding(SHORT, len(stream))
    learners = [learner(name, memory, **numbers) for name, numbers in MIXED]
    seeds = list(range(len(learners)))
    together = Fleet(stream, WithBatchNorm, learners, seeds, SHORT, dtype=DOUBLE)
    together.train()
    assert [group.rows for group in together.method_groups] == [
        slice(0, 2), slice(2, 3), slice(3, 4), slice(4, 5), slice(5, 7), slice(7, 8)
    ]  # fmt: skip
    for run, each in enumerate(learners):
        alone = Fleet(stream, WithBatchNorm, [each], [run], SHORT, dtype=DOUBLE)
        alone.train()
        torch.testing.assert_close(alone.theta[0], together.theta[run], rtol=0, atol=near)
        for head in ("single", "multi"):
            np.testing.assert_array_equal(alone.accuracy[head][0], together.accuracy[head][run])
        (mine,) = (group for group in together.method_groups if group.rows.start <= run < group.rows.stop)
        assert mine.state.keys() == alone.state.keys()
        for name, vector in alone.state.items():
            found = mine.state[name][run - mine.rows.start]
            torch.testing.assert_close(vector[0], found, rtol=1e-6, atol=near)


def test_a_mixed_fleet_goes_on_from_a_snapshot(stream: Stream) -> None:
    learners = [learner(name, **numbers) for name, numbers in MIXED]

    def made() -> Fleet:
        return Fleet(stream, small, learners, [0] * len(learners), SHORT, dtype=DOUBLE)

    whole, begun, rest = made(), made(), made()
    whole.train()
    begun.begin_task()
    begun.train_task()
    begun.end_task()
    begun.task, begun.step = 1, 0
    snapshots.restore(rest, snapshots.take(begun))
    rest.train()
    torch.testing.assert_close(rest.theta, whole.theta, rtol=0, atol=0)


def test_what_looks_at_the_data_again_is_not_mixed(stream: Stream) -> None:
    with pytest.raises(InputError, match="a fleet of its own"):
        Fleet(stream, small, [learner("vanilla"), learner("ewc", lam=1.0)], [0, 1], SHORT)


@pytest.mark.parametrize("network", ["mlp", "cnn", "resnet18"])
def test_named_networks_are_the_same_in_fleets(stream: Stream, network: str) -> None:
    # Plain SGD: where a gradient is zero but for rounding, Adam makes a whole step of the rounding, and eighteen
    # layers carry it on.
    training = Training(steps=3, batch=8, optimizer="sgd", lr=0.01)
    learners = [learner("rwalk", lam=lam) for lam in (1.0, 10.0)]
    together = Fleet(stream, network, learners, [0, 0], training, dtype=DOUBLE)
    together.train()
    alone = Fleet(stream, network, learners[1:], [0], training, dtype=DOUBLE)
    alone.train()
    torch.testing.assert_close(alone.theta[0], together.theta[1], rtol=0, atol=1e-10)
    for key, buffer in alone.net.buffers.items():
        torch.testing.assert_close(buffer[0], together.net.buffers[key][1], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("sampler", "runs"), [*((name, 1) for name in [*samplers.SAMPLERS, "mof-plain"]), ("mof", 2)]
)
def test_every_sampler_and_icarl_take_a_network_in_bfloat16(stream: Stream, sampler: str, runs: int) -> None:
    for name in ("rwalk", "icarl"):
        learners = [learner(name, MemorySpec(3, sampler=sampler))] * runs
        fleet = Fleet(stream, "cnn", learners, list(range(runs)), Training(steps=2, batch=8), autocast=True)
        fleet.train()
        assert fleet.stopped == [None] * runs
        features, logits = evaluation.outputs(fleet, torch.arange(4).expand(runs, -1))
        assert features.dtype == logits.dtype == torch.float32


def test_vanilla_is_a_plain_pytorch_loop(stream: Stream) -> None:
    """The fleet's batches, torch's own module, loss and Adam."""
    fleet = Fleet(stream, small, [Learner()], [3], SHORT, dtype=DOUBLE)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = small((1, 8, 8), 6).double()
    orders = Fleet(stream, small, [Learner()], [3], SHORT, dtype=DOUBLE)
    for k, task in enumerate(stream.tasks):
        orders.task, orders.step = k, 0
        orders.begin_task()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for (index,) in batches_of(orders):
            x, y = stream.x.double()[index[0]], stream.y[index[0]]
            logits = model(x)
            masked = torch.full_like(logits, -torch.inf)
            masked[:, list(task.classes)] = logits[:, list(task.classes)]
            optimizer.zero_grad()
            F.cross_entropy(masked, y).backward()
            optimizer.step()
            orders.step += 1
    fleet.train()
    plain = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    torch.testing.assert_close(fleet.theta[0], plain, rtol=0, atol=1e-12)
    x, y = stream.x_test.double(), stream.y_test
    with torch.no_grad():
        right = model(x).argmax(-1) == y
    expected = [right[task.test].double().mean().item() for task in stream.tasks]
    np.testing.assert_allclose(fleet.accuracy["single"][0, -1], expected)


def test_both_heads_come_from_the_same_scores(stream: Stream) -> None:
    fleet = Fleet(stream, small, [Learner()], [0], SHORT)
    fleet.train()
    single, multi = fleet.accuracy["single"][0], fleet.accuracy["multi"][0]
    below = np.tril_indices(3)
    assert (multi[below] >= single[below]).all(), "fewer classes to choose from cannot hurt"
    assert np.isnan(single[np.triu_indices(3, 1)]).all()
    assert single[0, 0] == multi[0, 0]


def test_a_run_that_diverges_stops_alone(stream: Stream) -> None:
    learners = [learner("ewc++", lam=lam, normalize=False, alpha=0.9) for lam in (1.0, 1e30)]
    training = Training(steps=150, batch=16, lr=1e-2, optimizer="sgd")
    fleet = Fleet(stream, small, learners, [0, 1], training, dtype=DOUBLE)
    fleet.train()
    assert fleet.stopped[0] is None
    reason = fleet.stopped[1]
    assert reason is not None and "task 2" in reason and "λ = 1e+30" in reason and "learning rate = 0.01" in reason
    assert "step" in reason and "\n" not in reason
    assert np.isnan(fleet.accuracy["single"][1, 1:]).all() and not np.isnan(fleet.accuracy["single"][1, 0, 0])
    alone = Fleet(stream, small, learners[:1], [0], training, dtype=DOUBLE)
    alone.train()
    torch.testing.assert_close(fleet.theta[0], alone.theta[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_run_whose_last_step_diverged_has_no_accuracy(stream: Stream, optimizer: str) -> None:
    """No later loss shows it: θ, or the outputs alone, are no longer finite."""
    training = Training(steps=1, batch=16, lr=1e30, optimizer=optimizer)
    fleet = Fleet(stream, small, [learner("vanilla")] * 2, [0, 1], training)
    fleet.train()
    for reason in fleet.stopped:
        assert reason is not None and "its outputs are not finite after task 1" in reason
    assert np.isnan(fleet.accuracy["single"]).all() and np.isnan(fleet.accuracy["multi"]).all()


def test_a_run_that_diverges_has_no_calibration_and_disturbs_no_other(stream: Stream) -> None:
    options = evaluation.MeasureOptions(calibration=True)
    learners = [learner("ewc++", lam=lam, normalize=False, alpha=0.9) for lam in (1.0, 1e30)]
    training = Training(steps=150, batch=16, lr=1e-2, optimizer="sgd")
    together = Fleet(stream, small, learners, [0, 1], training, measures=options)
    alone = Fleet(stream, small, learners[1:], [1], training, measures=options)
    for fleet in (together, alone):
        fleet.train()
        assert fleet.stopped[-1] is not None
        assert np.isnan(fleet.measured["calibration.single"][-1, 1:]).all()
    assert together.stopped[0] is None
    assert not np.isnan(together.measured["calibration.single"][0][np.tri(3, dtype=bool)]).any()


class Unusual(nn.Module):
    """A parameter without elements, and a norm whose statistics are averages over all batches."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(0))
        self.norm = nn.BatchNorm1d(torch.Size(shape).numel(), momentum=None)
        self.head = nn.Linear(torch.Size(shape).numel(), classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x.flatten(1)))


def test_an_unusual_network_is_trained_alone_and_refused_in_one_line_together(stream: Stream) -> None:
    alone = Fleet(stream, Unusual, [learner("rwalk")], [0], SHORT)
    alone.train()
    assert alone.theta.isfinite().all()
    with pytest.raises(InputError, match="for several runs or examples at once"):
        Fleet(stream, Unusual, [learner("rwalk")] * 2, [0, 1], SHORT).train()


def test_half_of_a_batch_of_one_is_refused(stream: Stream) -> None:
    memory = MemorySpec(per_class=2, replay="half")
    with pytest.raises(InputError, match="half of a batch of 1 is no exemplar"):
        Fleet(stream, small, [learner("vanilla", memory)], [0], Training(batch=1))


def test_the_proximal_form_survives_any_lambda(stream: Stream) -> None:
    learners = [learner("rwalk", lam=lam, penalty="proximal") for lam in (1.0, 1e15)]
    fleet = Fleet(stream, small, learners, [0, 0], Training(steps=30))
    fleet.train()
    assert fleet.stopped == [None, None] and fleet.theta.isfinite().all()


def test_training_lowers_the_loss_and_learns(stream: Stream) -> None:
    losses = []
    fleet = Fleet(stream, "mlp", [Learner()], [0], Training(epochs=30))
    fleet.train(lambda news: losses.append((news.task, news.loss)))
    assert np.nanmean(fleet.accuracy["multi"][0, -1]) > 0.9
    assert losses[0][0] == 0 and losses[-1][0] == 2


def test_rwalk_forgets_less_than_vanilla() -> None:
    shuffled = splits.permuted(datasets.load("digits"), tasks=3)
    kept = {}
    for name, one in (("vanilla", Learner()), ("rwalk", learner("rwalk", lam=10.0))):
        fleet = Fleet(shuffled, "mlp", [one] * 2, [0, 1], Training(epochs=8))
        fleet.train()
        kept[name] = fleet.accuracy["single"][:, -1, 0].mean()
    assert kept["rwalk"] > kept["vanilla"] + 0.05, kept


def test_example_squares_are_per_example_gradients(stream: Stream) -> None:
    fleet = Fleet(stream, small, [learner("rwalk", fisher="example")] * 2, [0, 1], SHORT, dtype=DOUBLE)
    fleet.begin_task()
    x, y = fleet.stream.batch(torch.stack([stream.tasks[0].train[:5], stream.tasks[0].train[5:10]]))
    squares = fisher_of.of_examples(fleet, x, y)
    for run in range(2):
        total = 0
        for i in range(5):
            logits = fleet.net.forward(x[:, i : i + 1]) + fleet.task_plan.head
            losses = heads.cross_entropy(logits, y[:, i : i + 1])
            total = total + fleet.net.gradient(losses)[run].square()
        torch.testing.assert_close(squares[run], total / 5)


def test_ewc_takes_its_fisher_from_the_tasks_data(stream: Stream) -> None:
    fleet = Fleet(stream, small, [learner("ewc", fisher="example")], [0], SHORT, dtype=DOUBLE)
    fleet.begin_task()
    fisher = fisher_of.of_task(fleet)
    everything = fleet.task_plan.examples
    x, y = fleet.stream.batch(everything[None])
    torch.testing.assert_close(fisher, fisher_of.of_examples(fleet, x, y))


def test_looking_does_not_move_running_statistics(stream: Stream) -> None:
    one = learner("ewc", MemorySpec(3))
    fleet = Fleet(stream, WithBatchNorm, [one], [0], SHORT)
    fleet.begin_task()
    fleet.train_task()
    before = {name: buffer.clone() for name, buffer in fleet.net.buffers.items()}
    fleet.end_task()
    for name, buffer in fleet.net.buffers.items():
        assert buffer.equal(before[name]), name


def test_state_is_flat_in_the_number_of_tasks(stream: Stream) -> None:
    fleet = Fleet(stream, small, [Learner(RWalk())], [0], SHORT)
    fleet.train()
    assert len(fleet.state) == 6 and all(vector.shape == fleet.theta.shape for vector in fleet.state.values())


def test_permuted_streams_share_one_head(stream: Stream) -> None:
    dataset = Dataset("toy", stream.x, stream.y, stream.x_test, stream.y_test, stream.class_names)
    shuffled = splits.permuted(dataset, 3)
    fleet = Fleet(shuffled, "mlp", [learner("rwalk", MemorySpec(2))], [0], Training(epochs=20))
    fleet.train()
    np.testing.assert_array_equal(fleet.accuracy["single"], fleet.accuracy["multi"])
    assert fleet.accuracy["single"][0, -1].mean() > 0.7
    assert fleet.memory is not None and len(fleet.memory.groups) == 18


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda shape, classes: nn.Flatten(), r"gives \[64\] outputs where the stream has 6"),
        (lambda shape, classes: nn.Linear(3, classes), "cannot read inputs of shape"),
        (lambda shape, classes: small(shape, classes).requires_grad_(False), "no trainable parameter"),
        (lambda shape, classes: "no module", "must return an nn.Module"),
        (lambda shape: nn.Flatten(), "must take"),
        (
            lambda shape, classes: nn.Sequential(nn.Flatten(), nn.AlphaDropout(), nn.Linear(64, classes)),
            "AlphaDropout",
        ),
    ],
)
def test_networks_that_cannot_serve_are_refused(stream: Stream, network: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        Fleet(stream, network, [Learner()], [0])
    assert "\n" not in str(refused.value)


def test_fleets_that_cannot_be_one_are_refused(stream: Stream) -> None:
    with pytest.raises(InputError, match="one learner per seed"):
        Fleet(stream, small, [Learner()], [0, 1])
    with pytest.raises(InputError, match="differ in their method and"):
        Fleet(stream, small, [Learner(), Learner(memory=MemorySpec(1))], [0, 1])
    convolutional = lambda shape, classes: nn.Sequential(nn.Conv2d(1, classes, 8), nn.Flatten())  # noqa: E731
    with pytest.raises(InputError, match="features cannot be found"):
        Fleet(stream, convolutional, [learner("icarl", MemorySpec(2))], [0])


class HeadNotCalled(nn.Module):
    """A cosine head: its layer is there, but the weights alone are used, so that no call shows the features."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(torch.Size(shape).numel(), classes)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(x.flatten(1), dim=-1), F.normalize(self.head.weight, dim=-1))


@pytest.mark.parametrize("runs", [1, 2])
def test_a_head_that_is_not_called_has_no_features(stream: Stream, runs: int) -> None:
    for recipe in (learner("icarl", MemorySpec(2)), learner("vanilla", MemorySpec(2, sampler="mof"))):
        with pytest.raises(InputError, match="features cannot be found"):
            Fleet(stream, HeadNotCalled, [recipe] * runs, range(runs))
    Fleet(stream, HeadNotCalled, [learner("vanilla", MemorySpec(2, sampler="uniform"))] * runs, range(runs))


@dataclass(frozen=True)
class AllDataWithMemory(CrossEntropy):
    """Learns from all data so far, and keeps exemplars too."""

    name: ClassVar[str] = "all-data-with-memory"
    everything: ClassVar[bool] = True


def test_exemplars_of_a_loss_that_learns_from_all_data_are_of_their_class(stream: Stream) -> None:
    recipe = Learner(loss=AllDataWithMemory(), memory=MemorySpec(2, sampler="uniform"))
    fleet = Fleet(stream, small, [recipe], [0], Training(steps=2, batch=4))
    fleet.train()
    assert fleet.memory is not None
    for group in fleet.memory.groups:
        assert (stream.labels(group.examples) == group.label).all()


@dataclass(frozen=True)
class TeacherInPlace(CrossEntropy):
    """Overwrites its teacher where it is, instead of making a new one."""

    name: ClassVar[str] = "teacher-in-place"

    def begin_task(self, state: State, theta: Tensor, task: int) -> None:
        if task == 0:
            state["teacher"] = theta.clone()
        else:
            state["teacher"].copy_(theta)


def test_a_teacher_that_is_set_to_the_same_parameters_has_the_buffers_of_now(stream: Stream) -> None:
    """Running statistics move where the parameters stay: here the steps are too small to change them."""
    training = Training(steps=3, batch=8, optimizer="sgd", lr=1e-300)
    fleet = Fleet(stream, little.Network, [Learner(loss=TeacherInPlace())], [0], training)
    for task in range(2):
        fleet.task, fleet.step = task, 0
        fleet.begin_task()
        assert fleet.loss_state["teacher.norm.running_mean"].equal(fleet.net.buffers["norm.running_mean"])
        fleet.train_task()
        fleet.end_task()
    assert not fleet.loss_state["teacher.norm.running_mean"].equal(fleet.net.buffers["norm.running_mean"])


def test_every_part_that_needs_exemplars_is_refused_without() -> None:
    with pytest.raises(InputError, match="er needs exemplars"):
        Learner(projector=Free(), loss=ER())


class Free(Projector):
    """Needs no exemplars, unlike ours."""

    needs_memory: ClassVar[bool] = False


@dataclass(frozen=True)
class OffByDefault(Method):
    name: ClassVar[str] = "off-by-default"
    lam: Number = 0.0


def test_a_method_whose_default_lambda_is_zero_has_one() -> None:
    assert with_lam(Learner(method=OffByDefault()), 3.0).lam == 3.0
    with pytest.raises(InputError, match="nothing here has a λ"):
        with_lam(Learner(), 3.0)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"epochs": 0}, "epochs"),
        ({"steps": -1}, "steps"),
        ({"batch": 1.5}, "batch"),
        ({"lr": 0.0}, "learning rate"),
        ({"lr": float("nan")}, "learning rate"),
        ({"optimizer": "adm"}, "did you mean 'adam'"),
    ],
)
def test_bad_training_is_refused(numbers: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Training(**numbers)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize(("runs", "fuse"), [(1, True), (3, True), (3, False)])
def test_a_captured_graph_is_the_cpus_training(stream: Stream, name: str, runs: int, fuse: bool) -> None:
    learners = [LEARNERS[name](n + 1.0) for n in range(runs)]
    seeds = list(range(runs))
    here = Fleet(stream, WithBatchNorm, learners, seeds, SHORT, dtype=DOUBLE)
    there = Fleet(stream, WithBatchNorm, learners, seeds, SHORT, device="cuda", dtype=DOUBLE, fuse=fuse)
    here.train()
    there.train()
    torch.testing.assert_close(there.theta.cpu(), here.theta, rtol=0, atol=1e-8)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("fuse", [True, False])
def test_methods_share_a_captured_graph(stream: Stream, network: str, fuse: bool) -> None:
    learners = [learner(name, **numbers) for name, numbers in MIXED]
    seeds = list(range(len(learners)))
    here, there = (
        Fleet(stream, network, learners, seeds, SHORT, device, DOUBLE, fuse=device == "cuda" and fuse)
        for device in ("cpu", "cuda")
    )
    here.train()
    there.train()
    torch.testing.assert_close(there.theta.cpu(), here.theta, rtol=0, atol=1e-8)


def test_no_garbage_is_collected_during_a_capture() -> None:
    """A finished fleet's graphs are garbage in a cycle; freeing them spoils a capture in progress."""
    before = gc.isenabled()
    with pytest.raises(RuntimeError), gc_paused():
        assert not gc.isenabled()
        raise RuntimeError("a capture that fails")
    assert gc.isenabled() == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("network", "fuse"), [("mlp", True), ("resnet18", True), ("cnn", False), ("cnn", True)])
@pytest.mark.parametrize("runs", [1, 3])
def test_named_networks_are_the_same_on_cuda(stream: Stream, network: str, fuse: bool, runs: int) -> None:
    learners, seeds = [learner("rwalk")] * runs, list(range(runs))
    # Plain SGD: if a gradient is zero up to rounding, Adam makes a whole step of the rounding.
    training = Training(steps=6, batch=8, optimizer="sgd", lr=0.01)
    here = Fleet(stream, network, learners, seeds, training, dtype=DOUBLE)
    there = Fleet(stream, network, learners, seeds, training, device="cuda", dtype=DOUBLE, fuse=fuse)
    here.train()
    there.train()
    made = there.execution.programs._made  # type: ignore[attr-defined]
    assert [each is not None for each in made.values()] == [True] * (fuse and network == "cnn")
    torch.testing.assert_close(there.theta.cpu(), here.theta, rtol=0, atol=1e-8)


@dataclass(frozen=True)
class OfEveryExample(CrossEntropy):
    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        return heads.each_cross_entropy(logits + batch.head, batch.y)


@dataclass(frozen=True)
class OfAllRuns(CrossEntropy):
    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        return super().__call__(logits, batch).mean()


@pytest.mark.parametrize("loss", [OfEveryExample(), OfAllRuns()])
@pytest.mark.parametrize("runs", [1, 2])
def test_a_loss_of_another_shape_than_one_number_per_run_is_named(stream: Stream, loss: Loss, runs: int) -> None:
    fleet = Fleet(stream, small, [Learner(loss=loss)] * runs, range(runs), SHORT)
    with pytest.raises(InputError, match=rf"{type(loss).__name__} gives \[.*\] for {runs} runs: give one number"):
        fleet.train()
