"""A function of tensors as one compiled program.

`torch.compile` reads Python code and makes sure before every call that nothing it read has changed. Here the
function is run once and its operations are recorded, forward and backward alike; what is left of a call is the
arithmetic. On a CPU a gradient then takes about two thirds of the time, of the paper's networks and of ResNet-18.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def program(function: Callable[..., tuple[Tensor, ...]], *example: Tensor) -> Callable[..., tuple[Tensor, ...]]:
    """The function for tensors of these shapes. What it changes in its arguments, the program changes too.

    Every tensor it depends on must be an argument: others are taken as they are now. Raises whatever recording or
    compiling raises; a function that looks at values to decide what to do cannot be recorded, and says so.
    """
    import torch._inductor  # seconds, which only those pay who compile
    from torch.fx.experimental.proxy_tensor import make_fx

    recorded = make_fx(function)(*(each.clone() for each in example))  # clones: recording runs it
    compiled: Callable[..., Any] = torch._inductor.compile(recorded, list(example))
    return compiled
