"""Gradients as functions that can be recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rwalk.engine import teachers
from rwalk.engine.execution.inputs import Inputs, losses_of

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet


def gradient(
    fleet: Fleet, inputs: Inputs, buffers: Sequence[Tensor], parameters: Mapping[str, Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Losses [R] and their gradients, one piece [R, n] per parameter, as a function of the arguments alone."""
    net = fleet.net

    def loss(logits: Tensor) -> Tensor:
        taught = None
        if teachers.THETA in inputs:
            with torch.no_grad():
                parameters = net.layout.split(inputs[teachers.THETA])
                taught = net.pure_outputs(parameters, teachers.buffers(inputs), inputs["x"])
        return losses_of(fleet, logits, inputs, taught)

    return net.pure_gradient(loss, parameters, buffers, inputs["x"])
