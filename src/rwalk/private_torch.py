"""Every private name of torch that we use, in one place; rwalk works without any of them.

These names may move or disappear in any release (pyproject.toml bounds the releases that were tested). The
docstring of each function names the fallback without them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.optim import Optimizer

logger = logging.getLogger(__name__)


class Gone(RuntimeError):
    """This torch does not have it: the caller has to do without."""


@contextmanager
def _needed(name: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise Gone(f"this torch has no {name} ({error})") from None


@_needed("recorder of operations")
def record(function: Callable[..., Any], *example: Tensor) -> GraphModule:
    """The operations of a function, as tensors like these go through it. Without it, nothing is compiled."""
    from torch.fx.experimental.proxy_tensor import make_fx

    # With tensors that have no values: nothing is computed, changed or stored.
    recorded: GraphModule = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*example)
    return recorded


@_needed("compiler of records")
def compiled(recorded: GraphModule, inputs: Sequence[Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """A record as a program for tensors like these. Without it, nothing is compiled."""
    from torch._guards import TracingContext, tracing
    from torch._inductor import compile  # seconds, which only those pay who compile
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # Only with a context of its own does a program stay on the disk for the next process.
    fake = FakeTensorMode(shape_env=ShapeEnv())
    with tracing(TracingContext(fake)):
        program: Callable[..., tuple[Tensor, ...]] = compile(
            recorded, [fake.from_tensor(each, static_shapes=True) for each in inputs]
        )
    return program


def keep_headers_in(folder: Path) -> None:
    """Keep the headers that the C++ compiler has prepared in this folder. Without it: none are prepared.

    torch keeps them in its default cache, even if another cache is set.
    """
    with suppress(ImportError, AttributeError):
        from torch._inductor import codecache, config

        if hasattr(codecache, "_HEADER_DIR") and hasattr(codecache, "_HEADER_LOCK_DIR"):
            codecache._HEADER_DIR = str(folder / "precompiled_headers")
            codecache._HEADER_LOCK_DIR = str(folder / "precompiled_headers" / "locks")
        else:
            config.cpp_cache_precompile_headers = False


def allow_variants(count: int) -> None:
    """Let torch.compile make so many programs of a function. Without it: programs beyond its limit run eagerly."""
    try:
        torch._dynamo.config.recompile_limit = max(count, torch._dynamo.config.recompile_limit)
    except AttributeError as error:
        _say_once(f"torch.compile keeps its limit of variants ({error})")


def fused_adam() -> Callable[..., None] | None:
    """The kernel of torch.optim.Adam(fused=True), without that class's bookkeeping. Without it: the formula."""
    kernel: Callable[..., None] | None = getattr(torch, "_fused_adam_", None)
    if kernel is None:
        _say_once("this torch has no fused Adam of vectors: steps are computed by the formula")
    return kernel


def unflattened(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Parts of a flat vector, shaped like these tensors, in one call. Without it: a view after the other."""
    views = getattr(torch._utils, "_unflatten_dense_tensors", None)
    if views is not None:
        return list(views(flat, like))
    parts = flat.split([each.numel() for each in like])
    return [part.view(each.shape) for part, each in zip(parts, like, strict=True)]


def foreach(name: str) -> Callable[..., Any] | None:
    """The kernel that does an operation to a list of tensors at once. Without it: one kernel per tensor."""
    kernel: Callable[..., Any] | None = getattr(torch, f"_foreach_{name}", None)
    if kernel is None:
        _say_once(f"this torch has no kernel that does {name!r} to many tensors: they go one by one")
    return kernel


def writes(tensor: Tensor) -> int | None:
    """How often a tensor was written to in place. Without it: a tensor that is overwritten counts as the same."""
    count: int | None = getattr(tensor, "_version", None)
    return count


def calls_step_hooks(optimizer: Any) -> bool:
    """Whether an optimizer's own `step` calls hooks: those of wrappers (Accelerate's, Lightning's) do not.

    torch marks the steps that do. Without the mark, an optimizer that holds another one is treated as a wrapper.
    """
    if _marks_steps():
        return bool(getattr(type(optimizer).step, "hooked", False))
    return isinstance(optimizer, Optimizer) and not isinstance(getattr(optimizer, "optimizer", None), Optimizer)


@cache
def _marks_steps() -> bool:
    plain = torch.optim.SGD([torch.zeros(1)], lr=0.1)  # the mark is put on a class when its first object is made
    marks = hasattr(type(plain).step, "hooked")
    if not marks:
        _say_once(
            "this torch does not mark optimizers that call hooks: a wrapper is recognised by its inner optimizer"
        )
    return marks


@cache
def _say_once(message: str) -> None:
    logger.warning("%s", message)
