"""Every private name of torch that we use, in one place.

These names may move or disappear in any release: pyproject.toml bounds the releases of torch, and the tests run on
the oldest and the newest of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

logger = logging.getLogger(__name__)


def record(function: Callable[..., Any], *example: Tensor) -> GraphModule:
    """The operations of a function, as tensors like these go through it."""
    from torch.fx.experimental.proxy_tensor import make_fx

    # With tensors that have no values: nothing is computed, changed or stored.
    recorded: GraphModule = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*example)
    return recorded


def compiled(recorded: GraphModule, inputs: Sequence[Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """A record as a program for tensors like these."""
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
    """Keep the headers that the C++ compiler has prepared in this folder, not in torch's default cache."""
    from torch._inductor import codecache, config

    if hasattr(codecache, "_HEADER_DIR") and hasattr(codecache, "_HEADER_LOCK_DIR"):
        codecache._HEADER_DIR = str(folder / "precompiled_headers")
        codecache._HEADER_LOCK_DIR = str(folder / "precompiled_headers" / "locks")
    else:
        config.cpp_cache_precompile_headers = False


def allow_variants(count: int) -> None:
    """Let torch.compile make so many programs of a function."""
    torch._dynamo.config.recompile_limit = max(count, torch._dynamo.config.recompile_limit)


def fused_adam() -> Callable[..., None]:
    """The kernel of torch.optim.Adam(fused=True), without that class's bookkeeping."""
    return torch._fused_adam_


def unflattened(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Parts of a flat vector, shaped like these tensors, in one call."""
    return list(torch._utils._unflatten_dense_tensors(flat, like))


def foreach(name: str, tensors: Sequence[Tensor], *others: Any) -> Sequence[Tensor]:
    """A tensor's method for a list of tensors: all at once, if this torch has a kernel for it.

    Args:
        name: of the method.
        tensors: the list.
        others: the method's arguments: a number for all, or a list with one for each tensor.
    """
    kernel: Callable[..., Any] | None = getattr(torch, f"_foreach_{name}", None)
    if kernel is not None:
        return (kernel(tensors, *others) if tensors else None) or tensors
    _say_once(f"this torch has no kernel that does {name!r} to many tensors: they go one by one")
    rows = zip(tensors, *(each if isinstance(each, Sequence) else repeat(each) for each in others), strict=False)
    return [getattr(first, name)(*rest) for first, *rest in rows]


def writes(tensor: Tensor) -> int:
    """How often a tensor was written to in place."""
    return tensor._version


def put_parameters(module: torch.nn.Module, **tensors: Tensor | None) -> None:
    """Put tensors in the place of a module's parameters, or parameters back; as `torch.func.functional_call`."""
    module._parameters.update(tensors)  # type: ignore[arg-type]


def calls_step_hooks(optimizer: Any) -> bool:
    """Whether an optimizer's own `step` calls hooks: those of wrappers (Accelerate's, Lightning's) do not.

    torch marks the steps that do, when the first object of a class is made.
    """
    return bool(getattr(type(optimizer).step, "hooked", False))


@cache
def _say_once(message: str) -> None:
    logger.warning("%s", message)
