"""Methods that look at a task's data once more at its end, against passes written out example by example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

import little
from rwalk import Fleet, Guard, InputError, Training, learner, seeds
from rwalk.data import splits
from rwalk.engine import fisher as fisher_of
from rwalk.methods.ewc_online import EWCOnline
from rwalk.methods.mas import MAS

BATCH = 7
Scalar = Callable[[Tensor, Tensor], Tensor]  # of logits and labels


def trained(name: str, **numbers: object) -> list[tuple[Tensor, dict[str, Tensor], list[list[Tensor]]]]:
    """After every task: θ, the method's state, and the task's examples in the batches that its pass takes."""
    one = learner(name, **numbers)
    fleet = Fleet(little.stream(), "mlp", [one], [4], Training(steps=4, batch=BATCH), dtype=torch.float64)
    found = []
    for task in range(len(fleet.stream)):
        fleet.begin_task()
        fleet.train_task()
        fleet.end_task()
        draw = seeds.generator(4, "fisher", task)
        examples = fleet.task_plan.examples
        order = examples[torch.randperm(len(examples), generator=draw)]
        found.append((fleet.theta.clone(), dict(fleet.state), [list(part) for part in order.split(BATCH)]))
        fleet.task, fleet.step = fleet.task + 1, 0
    return found


def slow_pass(theta: Tensor, batches: list[list[Tensor]], task: int, scalar: Scalar, term: str) -> Tensor:
    """Σ over batches of their share times a function of the batch's gradient."""
    stream = little.stream()
    module = nn.Sequential(*_mlp_like(stream.shape.numel(), stream.classes)).double()
    nn.utils.vector_to_parameters(theta[0], module.parameters())
    own = list(stream.tasks[task].classes)
    total = torch.zeros_like(theta[0])
    count = sum(len(batch) for batch in batches)
    for batch in batches:
        numbers = torch.stack(batch)
        logits = module(stream.x[numbers].double())[:, own]
        labels = torch.tensor([own.index(int(label)) for label in stream.y[numbers]])
        grads = torch.autograd.grad(scalar(logits, labels), list(module.parameters()))
        grad = torch.cat([each.flatten() for each in grads])
        total += len(batch) / count * (grad.abs() if term == "size" else grad.square())
    return total


def _mlp_like(inputs: int, classes: int) -> list[nn.Module]:
    """The paper's MLP, as `architectures.py` makes it."""
    fleet = Fleet(little.stream(), "mlp", [learner("vanilla")], [0])
    widths = [shape[0] for shape in fleet.net.layout.shapes if len(shape) == 2]
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return layers[:-1]


def squared_length(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.square().sum(1).mean()


@pytest.mark.parametrize("fisher", ["batch", "example"])
def test_mas_is_the_mean_size_of_the_outputs_gradient(fisher: str) -> None:
    """Ω = Σ_tasks mean |∂‖f(x)‖²/∂θ|: of every example, or of batches; labels are not looked at."""
    omega: Tensor | float = 0.0
    for task, (theta, state, batches) in enumerate(trained("mas", fisher=fisher)):
        if fisher == "example":
            batches = [[example] for batch in batches for example in batch]
        omega = omega + slow_pass(theta, batches, task, squared_length, "size")
        torch.testing.assert_close(state["importance"][0], omega)
        assert state["anchor"].equal(theta)
        elsewhere = theta + 0.3
        expected = 2.0 * (omega * (elsewhere - theta)[0] ** 2).sum()
        torch.testing.assert_close(MAS(lam=2.0).cost(state, elsewhere)[0], expected)


def test_ewc_per_example_squares_single_gradients_in_one_pass_if_all_layers_are_linear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eq. (1): the mean over examples of (∇ log p(y|x))². No example's gradient is stored."""
    monkeypatch.setattr(fisher_of, "example_squares", None)
    for task, (_, state, batches) in enumerate(trained("ewc", fisher="example")):
        alone = [[example] for batch in batches for example in batch]
        expected = slow_pass(state[f"anchor.{task}"], alone, task, F.cross_entropy, "square")
        torch.testing.assert_close(state[f"fisher.{task}"][0], expected)


class Linears(nn.Module):
    """Linear layers that are not simply used one after another, by kinds of `OTHERWISE`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.second = kind, nn.Linear(3 if kind == "in rows" else 6, 6), nn.Linear(6, 6)
        self.head = nn.Linear(12 if kind == "in rows" else 6, 4)
        if kind == "in rows":
            del self.second
        elif kind == "tied":
            self.second.weight = self.first.weight
        elif kind == "of a function":
            nn.utils.parametrize.register_parametrization(self.first, "weight", nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "in rows":
            return self.head(torch.tanh(self.first(x.reshape(-1, 3))).reshape(len(x), -1))
        x = torch.tanh(self.first(x))
        again = {"twice": self.first, "tied": self.second, "of a function": self.second}.get(self.kind)
        if again is not None:
            x = torch.tanh(again(x))
        elif self.kind == "twice by function":
            x = F.linear(x, self.first.weight, self.first.bias)
        elif self.kind == "transposed":
            x = x @ self.first.weight.T
        return self.head(x)


OTHERWISE = ("tied", "in rows", "of a function", "twice", "twice by function", "transposed")


@pytest.mark.parametrize("kind", OTHERWISE)
def test_squares_of_linear_layers_used_otherwise_are_taken_example_by_example(kind: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(40, 6), torch.arange(40) % 4
    one = learner("ewc", fisher="example")
    network = lambda shape, classes: Linears(kind)  # noqa: E731
    stream = splits.from_arrays(x, y, classes_per_task=4)
    fleet = Fleet(stream, network, [one], [0], Training(steps=2, batch=BATCH), dtype=torch.float64)
    fleet.begin_task()
    fleet.train_task()
    module = fleet.net.module.eval()
    parameters = [dict(module.named_parameters())[name] for name in fleet.net.layout.names]
    expected = torch.zeros(fleet.net.layout.size, dtype=torch.float64)
    for example in fleet.task_plan.examples:
        loss = F.cross_entropy(module(stream.x[example][None].double()), stream.y[example][None])
        grads = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        expected += torch.cat([each.flatten() for each in grads]).square() / len(fleet.task_plan.examples)
    torch.testing.assert_close(fisher_of.of_task(fleet)[0], expected)


@pytest.mark.parametrize("network", ["mlp", little.Network])
def test_the_exact_fisher_of_a_blurry_stream_uses_each_examples_own_head(network: Any) -> None:
    """Σ_c p(c) (∇ log p(c))² over the classes that compete with the example's, which may be another task's."""
    stream = splits.blurred(replace(little.stream(), groups=((0, 1), (2, 3), (4, 5))), 0.3)
    one = learner("ewc", fisher="exact")
    fleet = Fleet(stream, network, [one], [4], Training(steps=2, batch=BATCH), dtype=torch.float64)
    fleet.begin_task()
    fleet.train_task()
    assert stream.tasks[0].others
    module = fleet.net.module.eval()
    parameters = [each for each in module.parameters() if each.requires_grad]
    total = torch.zeros(fleet.net.layout.size, dtype=torch.float64)
    for example in fleet.task_plan.examples:
        label = int(stream.y[example])
        competing = next(list(group) for group in stream.groups or () if label in group)
        for place in range(len(competing)):
            log_p = module(stream.x[example][None].double())[0, competing].log_softmax(0)[place]
            grads = torch.autograd.grad(log_p, parameters)
            total += log_p.exp().detach() * torch.cat([each.flatten() for each in grads]).square()
    expected = total / len(fleet.task_plan.examples)
    torch.testing.assert_close(fisher_of.of_task(fleet)[0], expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("gamma", [1.0, 0.4, 0.0])
def test_online_ewc_is_schwarzs_recursion(gamma: float) -> None:
    """F* ← γ F* + F, the penalty ½ λ Σ F* (θ − θ*)² around the last task's end alone."""
    fisher: Tensor | float = 0.0
    for task, (theta, state, batches) in enumerate(trained("ewc-online", gamma=gamma)):
        fisher = gamma * fisher + slow_pass(theta, batches, task, F.cross_entropy, "square")
        elsewhere = theta + 0.3
        expected = 0.5 * 5.0 * (fisher * (elsewhere - theta)[0] ** 2).sum()
        torch.testing.assert_close(EWCOnline(lam=5.0).cost(state, elsewhere)[0], expected)


def test_online_ewc_needs_as_much_memory_after_many_tasks_as_after_one() -> None:
    (_, first, _), *_, (_, last, _) = trained("ewc-online")
    assert first.keys() == last.keys() == {"importance", "anchor"}


def test_a_guard_holds_what_outputs_depend_on() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, method=MAS(lam=1.0))
    x = torch.randn(8, 3, dtype=torch.float64)
    with pytest.raises(InputError, match=r"guard.consolidate\(model\(x\).square\(\).sum\(1\).mean\(\) for x"):
        guard.consolidate()
    guard.consolidate(model(part).square().sum(1).mean() for part in x.split(4))
    expected = [torch.autograd.grad(model(part).square().sum(1).mean(), model.weight)[0] for part in x.split(4)]
    omega = sum(each.abs() for each in expected) / 2
    with torch.no_grad():
        model.weight += 0.5
    assert guard.penalty() == pytest.approx(0.25 * float(omega.sum()))


def test_a_model_trained_elsewhere_has_mas_importances_by_its_outputs() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), torch.randn(7, 4)
    guard = Guard(model, SGD(model.parameters(), lr=0.1), MAS())
    guard.begin(x)
    held = guard.state_dict()["tensors"]
    for name, parameter in model.named_parameters():
        slow = torch.zeros_like(parameter)
        for one in x:
            (slope,) = torch.autograd.grad(model(one).square().sum(), parameter)
            slow += slope.abs() / len(x)
        torch.testing.assert_close(held[f"importance/{name}"].view_as(slow), slow)
