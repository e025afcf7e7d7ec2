"""Where importance comes from when a task ends, or when a model was trained elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from rwalk.errors import InputError
from rwalk.guard.drift.probes import Probes
from rwalk.guard.importance import fisher, measure
from rwalk.guard.state.guard_state import GuardState
from rwalk.guard.state.parameter import ParameterState, is_trained


def of_task(
    learned: GuardState, model: nn.Module, losses: Iterable[Tensor] | None
) -> dict[ParameterState, Tensor]:
    """The Fisher of a task that ends, for methods that need a pass over its data."""
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


def of_losses(learned: GuardState, model: nn.Module, losses: Iterable[Tensor]) -> dict[ParameterState, Tensor]:
    """The Fisher of a model that was trained elsewhere, from losses on data it knows."""
    if isinstance(losses, Tensor):
        raise InputError(measure.WANTS_LOSSES)
    return measure.data_fisher(model, learned.guarded, learned.method, losses)


def of_probes(learned: GuardState, model: nn.Module, probes: Probes) -> Mapping[ParameterState, Tensor]:
    """The Fisher of the model's own predictions on probes."""
    if not learned.method.wants and not learned.method.data_pass:  # nothing it measures
        for piece in learned.guarded:
            if is_trained(piece) and not piece.started:
                piece.start(learned.method)
        return {}
    return fisher.of_probes(model, learned.guarded, learned.method, probes)
