"""A step that raises leaves no trace, and the next one is guarded as usual."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from rwalk.guard import Guard
from rwalk.methods import Method, RWalk, State
from test_guard import EVERY_METHOD, RWALK, Step, assert_same, data, made, network, plain_step, walk


class Accident(Exception):
    """What goes wrong once, on purpose."""


class Fragile(Adam):
    """Raises its `accident`, before it moves anything."""

    accident: BaseException | None = None

    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            with torch.enable_grad():
                closure()
        if self.accident is not None:
            accident, self.accident = self.accident, None
            raise accident
        return super().step()


def backward(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def step_fails(model: nn.Module, optimizer: Any, guard: Guard, x: Tensor, y: Tensor) -> None:
    backward(model, 3 * x, y)
    optimizer.accident = Accident()
    with pytest.raises(Accident):
        optimizer.step()


def step_is_interrupted(model: nn.Module, optimizer: Any, guard: Guard, x: Tensor, y: Tensor) -> None:
    backward(model, 3 * x, y)
    optimizer.accident = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()


def step_fails_after_its_closure(model: nn.Module, optimizer: Any, guard: Guard, x: Tensor, y: Tensor) -> None:
    optimizer.accident = Accident()
    backward(model, 3 * x, y)
    with pytest.raises(Accident):
        optimizer.step(lambda: None)


def closure_fails(model: nn.Module, optimizer: Any, guard: Guard, x: Tensor, y: Tensor) -> None:
    def closure() -> None:
        raise Accident

    backward(model, 3 * x, y)
    with pytest.raises(Accident):
        optimizer.step(closure)


def named_closure_fails_halfway(model: nn.Module, optimizer: Any, guard: Guard, x: Tensor, y: Tensor) -> None:
    def closure() -> None:
        backward(model, 3 * x, y)
        raise Accident

    with pytest.raises(Accident):
        optimizer.step(closure=closure)


def another_hook_fails(model: nn.Module, optimizer: Any, guard: Guard, x: Tensor, y: Tensor) -> None:
    """A hook registered later comes later: the pull is in the gradients by then."""

    def hook(*_: object) -> None:
        raise Accident

    backward(model, 3 * x, y)
    handle = optimizer.register_step_pre_hook(hook)
    with pytest.raises(Accident):
        optimizer.step()
    handle.remove()


ACCIDENTS = [
    step_fails,
    step_is_interrupted,
    step_fails_after_its_closure,
    closure_fails,
    named_closure_fails_halfway,
    another_hook_fails,
]


@EVERY_METHOD
@pytest.mark.parametrize("penalty", ["gradient", "proximal"])
@pytest.mark.parametrize("accident", ACCIDENTS)
def test_failed_steps_leave_no_trace(accident: Step, penalty: Any, method: Method) -> None:
    """A loop with an accident before every step ends as the one without."""

    def with_accidents(model: nn.Module, optimizer: Optimizer, guard: Guard, x: Tensor, y: Tensor) -> None:
        accident(model, optimizer, guard, x, y)
        optimizer.zero_grad()
        plain_step(model, optimizer, guard, x, y)

    method = replace(method, penalty=penalty)
    assert_same(walk(*made(method, Fragile)), walk(*made(method, Fragile), with_accidents))


@EVERY_METHOD
def test_a_failed_step_may_be_tried_again_with_the_same_gradients(method: Method) -> None:
    def again(model: nn.Module, optimizer: Any, guard: Guard, x: Tensor, y: Tensor) -> None:
        backward(model, x, y)
        optimizer.accident = Accident()
        with pytest.raises(Accident):
            optimizer.step()
        optimizer.step()
        optimizer.zero_grad()

    assert_same(walk(*made(method, Fragile)), walk(*made(method, Fragile), again))


@EVERY_METHOD
@pytest.mark.parametrize("zeroed", ["again", "none", "zero"])
def test_gradients_of_a_failed_step_are_given_back_at_the_next(zeroed: str, method: Method) -> None:
    def failing(model: nn.Module, optimizer: Any, guard: Guard, x: Tensor, y: Tensor) -> None:
        backward(model, x if zeroed == "again" else 3 * x, y)
        optimizer.accident = Accident()
        with pytest.raises(Accident):
            optimizer.step()
        if zeroed != "again":
            optimizer.zero_grad(set_to_none=zeroed == "none")
            backward(model, x, y)
        optimizer.step()
        optimizer.zero_grad()

    assert_same(walk(*made(method, Fragile)), walk(*made(method, Fragile), failing))


# The guard's own work


@dataclass(frozen=True)
class Troubled(RWalk):
    """A method that raises once at the place that `trouble` names, and empties it."""

    trouble: Any = None

    def _stumble(self, where: str) -> None:
        if self.trouble and self.trouble[0] == where:
            self.trouble.pop()
            raise Accident

    def pull(self, state: State, theta: Tensor, grad: Tensor, out: Tensor | None = None) -> Tensor:
        pulled = super().pull(state, theta, grad, out)
        if theta.shape == (3, 8):  # the last but one piece of four
            self._stumble("pull")
        return pulled

    def observe(self, state: State, grad: Tensor, move: Tensor, square: Tensor) -> None:
        if grad.shape == (3, 8):
            self._stumble("observe")
        super().observe(state, grad, move, square)


def test_an_error_before_the_step_gives_all_gradients_back() -> None:
    trouble: list[str] = []

    def troubled(model: nn.Module, optimizer: Optimizer, guard: Guard, x: Tensor, y: Tensor) -> None:
        if guard.tasks:
            backward(model, 3 * x, y)
            trouble.append("pull")
            before = gradients(model)
            with pytest.raises(Accident):
                optimizer.step()
            assert all(map(torch.equal, before, gradients(model)))
            optimizer.zero_grad()
        plain_step(model, optimizer, guard, x, y)

    method = Troubled(lam=0.5, dt=3, trouble=trouble)
    assert_same(walk(*made(replace(RWALK, lam=0.5))), walk(*made(method), troubled))


def test_an_error_while_observing_leaves_whole_parameters_and_a_guard_at_work() -> None:
    trouble: list[str] = []
    method = Troubled(lam=0.5, dt=3, trouble=trouble)
    (model, optimizer, guard), plain = made(method), made(replace(RWALK, lam=0.5))
    for each in ((model, optimizer, guard), plain):
        walk(*each, tasks=(0,))
    x, y = data(1)[0]
    for each in ((model, optimizer, guard), plain):
        backward(each[0], x, y)
    before = {name: tensor.clone() for name, tensor in guard.state_dict()["tensors"].items()}
    trouble.append("observe")
    with pytest.raises(Accident):
        optimizer.step()
    plain[1].step()
    after, whole = guard.state_dict(), plain[2].state_dict()
    assert after["steps"] == 0
    for name, tensor in after["tensors"].items():
        observed = not name.endswith(("/2.weight", "/2.bias"))
        assert torch.equal(tensor, whole["tensors"][name] if observed else before[name])
    # The optimizer has moved: from here on both do the same again.
    for each in ((model, optimizer, guard), plain):
        each[1].zero_grad()
        plain_step(*each, x, y)
    for ours, theirs in zip(model.parameters(), plain[0].parameters(), strict=True):
        assert torch.equal(ours, theirs)


# Steps within steps, and others who replace an optimizer's step


def test_a_class_that_steps_twice_takes_one_step() -> None:
    class Twice(SGD):
        def step(self, closure: Any = None) -> Any:
            super().step()
            return super().step()

    model = network()
    optimizer = Twice(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, RWALK)
    x, y = data(0)[0]
    backward(model, x, y)
    before = model[0].weight.detach().clone()
    gradient = model[0].weight.grad.clone()
    optimizer.step()
    state = guard.state_dict()
    assert state["steps"] == 1
    moved = model[0].weight.detach() - before
    torch.testing.assert_close(moved, -0.2 * gradient)
    torch.testing.assert_close(state["tensors"]["path/0.weight"], -gradient * moved)


def test_detaching_leaves_the_optimizer_as_it_was() -> None:
    _, optimizer, guard = made()
    guard.attach(optimizer)
    guard.detach()
    assert "step" not in vars(optimizer)
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
