"""Squared gradients other than a step's own: of single examples, and of all data of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rwalk import seeds
from rwalk.engine.parameter_matrix import Networks, batching
from rwalk.losses import heads
from rwalk.methods.method import Method

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet

AT_ONCE = 4096  # examples in a pass on a GPU, over all runs
STORED = 2**28  # numbers in the gradients of single examples, of one run


def of_task(fleet: Fleet) -> Tensor:
    """The Fisher of the task's data at θ [R, P], eq. (1): the mean squared gradient, in evaluation mode.

    The method chooses the gradients (`Method.fisher`, `Method.of_outputs`) and their average (`in_pass`).
    Batches are shuffled, as a user's own loader would: gradients of one class add up, those of several classes
    partly cancel.
    """
    method, plan = fleet.learner.method, fleet.task_plan

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        """One number per run [R] from logits [R, B, C]; one number from the logits [1, C] of one example."""
        head = plan.head_of(labels)
        if method.of_outputs:
            return logits.where(head == 0, 0).square().sum(-1).mean(-1)
        cross_entropy = F.cross_entropy if logits.dim() == 2 else heads.cross_entropy
        return cross_entropy(logits + head, labels)

    fisher = torch.zeros_like(fleet.theta)
    examples = plan.examples
    draws = [seeds.generator(seed, "fisher", fleet.task_number) for seed in fleet.seeds]
    orders = torch.stack([examples[torch.randperm(len(examples), generator=draw)] for draw in draws])
    for index in orders.to(fleet.theta.device).split(_at_once(fleet), dim=1):
        x, y = fleet.stream.batch(index)
        if method.fisher == "exact":
            square = expected(fleet, x, y)
        elif method.fisher == "example":
            with torch.enable_grad():
                square = _of_labels(fleet, x, y, loss)
        else:
            losses = loss(fleet.net.forward(x, train=False), y)
            square = method.in_pass(fleet.net.gradient(losses).square())
        fisher.add_(square, alpha=index.shape[1] / len(examples))
    return fisher


def _at_once(fleet: Fleet) -> int:
    """Examples in a pass: a training batch, or more on a GPU if no batch's gradient is squared."""
    batch = fleet.training.batch
    if not fleet.theta.is_cuda or fleet.learner.method.fisher == "batch":
        return batch
    if is_linear_layers(fleet.net.module):
        return max(batch, AT_ONCE // fleet.runs)
    return max(batch, STORED // fleet.theta.shape[1])


def _of_labels(fleet: Fleet, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The mean over a batch of squared gradients of the loss of single examples [R, P]."""
    method = fleet.learner.method
    if not method.of_outputs and type(method).in_pass is Method.in_pass:
        fast = squares_of_linear_layers(fleet.net, x, lambda logits: (loss(logits, y) * x.shape[1],))
        if fast is not None:
            return fast / x.shape[1]
    return example_squares(fleet.net, x, loss, y, method.in_pass)


def of_examples(fleet: Fleet, x: Tensor, y: Tensor) -> Tensor:
    """The mean of squared per-example gradients of a batch [R, P]."""

    def loss(logits: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(logits + fleet.task_plan.head_of(label), label)

    with torch.enable_grad():
        return example_squares(fleet.net, x, loss, y)


def expected(fleet: Fleet, x: Tensor, y: Tensor) -> Tensor:
    """The mean over a batch of Σ_c p(c) (∇ log p(c))² [R, P]; p is the network's prediction for an example.

    The labels y choose the heads alone: in a blurry stream some examples belong to the head of another task.
    Weighting the loss by √p(c) weights the squared gradient by p(c).
    """
    head_of = fleet.task_plan.head_of
    trained = head_of(y) == 0  # [C] or [R, B, C]
    classes = trained.reshape(-1, trained.shape[-1]).any(0).nonzero().flatten().tolist()

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        """One loss per example, from logits [..., C]; labels [..., 2] are the class c and the label."""
        wanted, own = labels.unbind(-1)
        log_p: Tensor = (logits + head_of(own)).log_softmax(-1).gather(-1, wanted[..., None])[..., 0]
        log_p = log_p.where(log_p > -torch.inf, 0)  # a class of another head has no probability, and no gradient
        return -(log_p.detach().exp().sqrt() * log_p).sum(-1)

    def labels_of(label: int) -> Tensor:
        return torch.stack([torch.full_like(y, label), y], dim=-1)

    with torch.enable_grad():
        fast = squares_of_linear_layers(
            fleet.net, x, lambda logits: (loss(logits, labels_of(label)) for label in classes)
        )
        if fast is not None:
            return fast / x.shape[1]
        each = (example_squares(fleet.net, x, loss, labels_of(label)) for label in classes)
        return sum(each, start=torch.zeros_like(fleet.theta))


def example_squares(
    net: Networks,
    x: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    y: Tensor,
    of: Callable[[Tensor], Tensor] = lambda square: square,
) -> Tensor:
    """The mean over a batch of (a function of) squared per-example gradients [R, P].

    In evaluation mode: a single example has no batch statistics, and measuring the Fisher must neither draw random
    numbers nor update running statistics.
    """
    net.module.eval()

    def example_loss(row: Tensor, buffers: dict[str, Tensor], one_x: Tensor, one_y: Tensor) -> Tensor:
        return loss(net.call(net.layout.split(row), buffers, one_x[None])[1], one_y[None])

    per_example = torch.func.vmap(torch.func.grad(example_loss), in_dims=(None, None, 0, 0))
    rows = []
    for r in range(net.runs):
        buffers = {name: buffer[r] for name, buffer in net.buffers.items()}
        with batching():
            gradients: Tensor = per_example(net.theta[r].detach(), buffers, x[r], y[r])
        rows.append(of(gradients.square()).mean(0))
    return torch.stack(rows)


def squares_of_linear_layers(
    net: Networks, x: Tensor, losses: Callable[[Tensor], Iterable[Tensor]]
) -> Tensor | None:
    """The sum over examples and losses of squared gradients [R, P]; each loss [R] is a sum over examples.

    It costs one backward pass per loss, because no example's gradient is computed alone. In evaluation mode.
    Returns None if a parameter is used in any other way than by one linear layer, once, with one row per example.
    """
    if not is_linear_layers(net.module):
        return None
    net.module.eval()
    theta = net.theta.detach().clone().requires_grad_()
    squared = _SquareLinearLayers()

    def call(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        squared.uses, squared.rows = {id(each): 0 for each in parameters.values()}, len(x)
        with squared:
            return net.call(parameters, buffers, x)[1]

    with batching():
        logits = torch.func.vmap(call)(net.layout.split(theta), net.buffers, x)
    if any(uses != 1 for uses in squared.uses.values()):
        return None
    squares = torch.zeros_like(theta)
    for loss in losses(logits):
        squares += torch.autograd.grad(loss.sum(), theta, retain_graph=True)[0]
    return squares.detach()


def is_linear_layers(module: nn.Module) -> bool:
    """Whether all trained parameters are those of linear layers."""
    owned = {id(p) for each in module.modules() if isinstance(each, nn.Linear) for p in each.parameters()}
    return all(id(p) in owned for p in module.parameters() if p.requires_grad)


class _SquareLinearLayers(TorchFunctionMode):
    """Makes the "gradients" of linear layers sums over the examples of squared gradients.

    One example's gradient is an outer product, and its square that of the squares: Σᵢ (δᵢ xᵢᵀ)² = Σᵢ δᵢ² (xᵢ²)ᵀ.
    """

    uses: dict[int, int]  # of each parameter, by its id; any but a linear layer's counts twice
    rows: int  # examples

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        squared = func is F.linear and not kwargs and len(args) == 3 and args[0].shape[:-1] == (self.rows,)
        for each in (*args, *kwargs.values()):
            if id(each) in self.uses:
                self.uses[id(each)] += 1 if squared and each is not args[0] else 2
        return _SquaredLinear.apply(*args) if squared else func(*args, **kwargs)  # type: ignore[no-untyped-call]


class _SquaredLinear(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, bias = inputs
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        square = grad.square()
        return grad @ weight, square.mT @ x.square(), square.sum(0) if ctx.has_bias else None
