"""The importance of a task, or of a trained model: squared gradients of losses, or of log probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from rwalk.errors import InputError
from rwalk.guard.drift import batches
from rwalk.guard.drift.batches import device_of
from rwalk.guard.drift.eval_mode import eval_mode
from rwalk.guard.drift.probes import Probes
from rwalk.guard.select import unwrapped
from rwalk.guard.state.guard_state import GuardState
from rwalk.guard.state.parameter import ParameterState
from rwalk.guard.state.sharded import local
from rwalk.methods import Method

WANTS_LOSSES = (
    "consolidate() needs each batch's loss, one number with its graph, in a generator: "
    "guard.consolidate(criterion(model(x), y) for x, y in loader)"
)
UNREACHED = (
    "in evaluation mode no trained parameter has an effect on the outputs on the probes; if eval() merges "
    "weights, as some adapters do, turn that off"
)
Squares = dict[ParameterState, Tensor]


def of_task(state: GuardState, model: nn.Module, losses: Iterable[Tensor] | None) -> Squares:
    """The Fisher of a task that ends, for methods that need a pass over its data; nothing for others."""
    method = state.method
    if method.data_pass and losses is None:
        each = "model(x).square().sum(1).mean()" if method.of_outputs else "criterion(model(x), y)"
        raise InputError(
            f"{method.name} measures importance in a pass over the task's data: "
            f"guard.consolidate({each} for x, y in loader)"
        )
    if losses is not None and not method.data_pass and not isinstance(losses, Tensor):
        raise InputError(f"{method.name} measured while training: call consolidate() without losses")
    if not method.data_pass and not (state.steps and state.started):
        raise InputError(
            "no guarded parameter took a step since the last task, so this one was not measured: train "
            "with the guarded optimizer (guard.attach(optimizer) for a new one), or guard.begin(probes) for a "
            "model that was trained elsewhere"
        )
    return {} if losses is None else of_losses(state, model, losses)


def of_losses(state: GuardState, model: nn.Module, losses: Iterable[Tensor]) -> Squares:
    """Mean over the batches of the squared gradients, eq. (1), or of the method's function of them.

    The model is left as it was.
    """
    if isinstance(losses, Tensor):
        raise InputError(WANTS_LOSSES)
    total: Squares = {}
    count = 0
    with eval_mode(model, keep_draws=True), torch.enable_grad():
        for loss in losses:
            if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
                raise InputError(WANTS_LOSSES)
            loss.backward()
            count += 1
            _add_squares(total, state.guarded, state.method)
            _drop_gradients(model)
    if not total:
        raise InputError(f"no gradient reached a guarded parameter in {count} batches: check the losses given")
    return {each: square.div_(count) for each, square in total.items()}


def of_probes(state: GuardState, model: nn.Module, probes: Probes) -> Squares:
    """The Fisher of the model's own predictions: the mean over examples of (Σ_t ∂ log p(y_t))² / T.

    Labels are drawn from the model's own predictions, so that none are needed. An example may hold many
    predictions (T tokens of a sequence), and F is that of a single one, as drift is the mean over predictions.
    Each example takes a pass of its own. The model is left as it was.
    """
    method = state.method
    trained = [each for each in state.guarded if each.parameter.requires_grad]
    if not trained:
        raise InputError("none of the guarded parameters is trained: nothing can be measured of them")
    if not method.wants and not method.data_pass:  # nothing it measures
        for each in trained:
            if not each.started:
                each.start(method)
        return {}
    inner, device = unwrapped(model), device_of(model)
    total: Squares = {}
    examples = 0
    draws = torch.Generator().manual_seed(0)
    with eval_mode(model), torch.enable_grad():
        for batch in probes.batches:
            batch = batches.to(batch, device)
            mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
            for example in batches.cut(batch, 1):
                logits = probes.logits(inner, example)
                if not logits.requires_grad:
                    raise InputError(f"no importance can be measured: {UNREACHED}")
                count = len(logits) if mask is None else mask[0].numel()
                _loss(logits, torch.rand(count, generator=draws).to(device), method).backward()
                _add_squares(total, trained, method)
                _drop_gradients(inner)
                examples += 1
    return {each: square.div_(examples) for each, square in total.items()}


def _loss(logits: Tensor, draws: Tensor, method: Method) -> Tensor:
    """−log p of labels drawn from an example's predictions, for a Fisher of single predictions.

    For a method of outputs (MAS), their squared length.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if method.of_outputs:
        return wide.square().sum(-1).sum() / len(logits)
    logs = wide.log_softmax(-1)
    below = logs.detach().exp().cumsum(-1) < draws[: len(logits), None]
    labels = below.sum(-1).clamp(max=logs.shape[-1] - 1)
    loss: Tensor = -logs.gather(-1, labels[:, None]).sum() / len(logits) ** 0.5
    return loss


@torch.no_grad()
def _add_squares(total: Squares, states: Sequence[ParameterState], method: Method) -> None:
    """Add the method's function of the gradients that a backward pass has left."""
    for state in states:
        gradient = state.parameter.grad
        if gradient is None:
            continue
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        square = method.in_pass(state.wide(local(dense)[None]).square())
        if not state.started:
            state.start(method)
        total[state] = total[state].add_(square) if state in total else square


def _drop_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None
