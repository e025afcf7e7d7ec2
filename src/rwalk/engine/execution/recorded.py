"""Gradients as functions that can be recorded, and the programs made from such functions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rwalk.engine.execution.inputs import Inputs, losses_of
from rwalk.engine.programs import Function, program

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet

logger = logging.getLogger(__name__)


class Programs:
    """Functions as programs, each compiled when it is first asked for."""

    def __init__(self, warn: bool) -> None:
        self._level = logging.WARNING if warn else logging.INFO
        self._made: dict[tuple[Any, ...], Function | None] = {}

    def of(self, key: tuple[Any, ...], function: Function, *example: Tensor) -> Function | None:
        """The function as a program for tensors like these; None where it cannot be one."""
        if key not in self._made:
            try:
                self._made[key] = program(function, *example)
            except Exception as error:  # whatever the compiler raises: training still works without it
                logger.log(self._level, "the network is not compiled: %s", error)
                self._made[key] = None
        return self._made[key]


def gradient(
    fleet: Fleet, inputs: Inputs, buffers: Sequence[Tensor], parameters: Mapping[str, Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Losses [R] and their gradients, one piece [R, n] per parameter, as a function of the arguments alone."""
    net = fleet.net

    def loss(logits: Tensor) -> Tensor:
        taught = None
        if "teacher" in inputs:  # after the network itself, whose running statistics it shares
            with torch.no_grad():
                taught = net.pure_outputs(net.layout.split(inputs["teacher"]), buffers, inputs["x"])
        return losses_of(fleet, logits, inputs, taught)

    return net.pure_gradient(loss, parameters, buffers, inputs["x"])
