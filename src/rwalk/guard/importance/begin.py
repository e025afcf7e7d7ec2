"""Where importance comes from when a task ends, or when a model comes from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from rwalk.errors import InputError
from rwalk.guard.drift.controller import Keeper
from rwalk.guard.drift.eval_mode import undisturbed
from rwalk.guard.drift.probes import Probes
from rwalk.guard.importance import fisher, measure
from rwalk.guard.state.guard_state import Learned
from rwalk.guard.state.parameter import Piece, is_trained

HELD = 0.1  # of the mean importance, which every parameter has at least where a budget is to be kept


def measured(learned: Learned, model: nn.Module, losses: Iterable[Tensor] | None) -> dict[Piece, Tensor]:
    """The Fisher of a task that ends, for methods that ask for a pass over its data."""
    method = learned.method
    if method.data_pass and losses is None:
        each = "model(x).square().sum(1).mean()" if method.of_outputs else "criterion(model(x), y)"
        raise InputError(
            f"{method.name} measures importance in a pass over the task's data: "
            f"guard.consolidate({each} for x, y in loader)"
        )
    if isinstance(losses, Tensor):
        raise InputError(measure.WANTS_LOSSES)
    if losses is not None and not method.data_pass:
        raise InputError(f"{method.name} measured while training: call consolidate() without losses")
    if not method.data_pass and not (learned.steps and learned.started):
        raise InputError(
            "no guarded parameter took a step since the last task, so nothing is known of this one: train "
            "with the guarded optimizer (guard.attach(optimizer) for a new one), or guard.begin(probes) for a "
            "model that was trained elsewhere"
        )
    return {} if losses is None else measure.data_fisher(model, learned.guarded, method, losses)


def begun(
    learned: Learned, keeper: Keeper, model: nn.Module, known: Any, rows: int | None
) -> Mapping[Piece, Tensor]:
    """The Fisher of a model that was trained elsewhere; inputs that it knows are its probes from here on."""
    if learned.tasks or learned.steps:
        raise InputError("begin() comes before the first step, for a model trained elsewhere: use consolidate()")
    known, are_losses = _told_apart(model, known)
    if are_losses:
        return measure.data_fisher(model, learned.guarded, learned.method, known)
    probes = Probes(known, keeper.watching.predict, rows, keeper.watching.apart)
    probes.keep(model)  # whatever cannot be measured is refused before the long pass
    keeper.sets = [probes]
    return _fishers(learned, model, probes, keeper)


def _fishers(learned: Learned, model: nn.Module, probes: Probes, keeper: Keeper) -> Mapping[Piece, Tensor]:
    if not learned.method.wants and not learned.method.data_pass:  # nothing it measures
        for piece in learned.guarded:
            if is_trained(piece) and not piece.started:
                piece.start(learned.method)
        return {}
    predict = keeper.watching.predict
    return fisher.of_probes(model, learned.guarded, learned.method, probes.batches, predict)


def _told_apart(model: nn.Module, known: Any) -> tuple[Any, bool]:
    """Losses are numbers with a graph; everything else is inputs."""
    if not isinstance(known, Iterator):
        return known, False
    with undisturbed(model, draws_count=True), torch.enable_grad():
        first = next(known, None)
    again = chain([] if first is None else [first], known)
    return again, isinstance(first, Tensor) and first.numel() == 1 and first.requires_grad
