"""A function of tensors as one compiled program.

`torch.compile` reads Python code and makes sure before every call that nothing it read has changed. Here the
function is run once and its operations are recorded, forward and backward alike; what is left of a call is the
arithmetic. On a CPU a gradient then takes about two thirds of the time, of the paper's networks and of ResNet-18;
so does the paper's CIFAR network on CUDA, where all that is elementwise between two convolutions becomes a kernel.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from shutil import which
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

Function = Callable[..., tuple[Tensor, ...]]
_known: dict[Any, Function] = {}  # what was recorded → its program: the next run of a study has the same network
_recording = False


def program(function: Function, *example: Tensor) -> Function:
    """The function for tensors of these shapes. What it changes in its arguments, the program changes too.

    Every tensor it depends on must be an argument: others are taken as they are now. Raises whatever recording or
    compiling raises; a function that looks at values to decide what to do cannot be recorded, and says so.
    """
    from torch._inductor import compile  # seconds, which only those pay who compile
    from torch.fx.experimental.proxy_tensor import make_fx

    with _recorded():
        recorded = make_fx(function)(*(each.clone() for each in example))  # clones: recording runs it
    kinds = ((each.shape, each.stride(), each.dtype, each.device) for each in example)
    key = (recorded.code, torch.get_num_threads(), *kinds)  # compiled for so many threads, which round otherwise
    alone = any(node.op == "get_attr" for node in recorded.graph.nodes)  # it holds tensors of its own
    if alone or key not in _known:
        compiled: Function = compile(recorded, list(example))
        if alone:
            return compiled
        _known[key] = compiled
    return _known[key]


def recording() -> bool:
    """Whether operations are being recorded: what is compiled by itself must then be called as it was written."""
    return _recording


@contextmanager
def _recorded() -> Iterator[None]:
    global _recording
    _recording = True
    try:
        yield
    finally:
        _recording = False


@cache
def compiler_works(device: str = "cpu") -> bool:
    """Whether programs can be compiled here: a compiler (C++, or Triton for CUDA) may be missing, or be broken."""
    if which(os.environ.get("CXX", "g++")) is None if device == "cpu" else find_spec("triton") is None:
        return False
    try:
        program(lambda x: (x + 1,), torch.zeros(1, device=device))
    except Exception as error:  # whatever it is: what cannot be compiled can still be trained
        name = "C++ compiler" if device == "cpu" else "compiler for CUDA (Triton)"
        logger.warning("the %s does not work, training goes on without: %s", name, str(error).splitlines()[0])
        return False
    return True
