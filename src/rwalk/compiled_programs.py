"""A function of tensors as one compiled program.

`torch.compile` reads Python code and checks before every call that nothing it read has changed. Here the function
is run once and its operations are recorded, forward and backward alike; what remains of a call is the arithmetic.
On CUDA all elementwise work between two convolutions becomes one kernel. benchmarks/README.md has the
measurements.
"""

from __future__ import annotations

import atexit
import getpass
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from itertools import compress
from pathlib import Path
from shutil import which
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from rwalk import private_torch
from rwalk.atomic_files import is_private
from rwalk.errors import first_line

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"

Function = Callable[..., tuple[Tensor, ...]]
# Recorded operations → their program, or why there is none: the next run of a study has the same network.
_known: dict[Any, Function | Exception] = {}
_compiling = threading.RLock()  # torch's recorder and compiler change global state
_recording = threading.local()  # `now`: whether this thread records


class CompilerFailed(RuntimeError):
    """A record could not be compiled: here and now, or by this version of torch."""


def program(function: Function, *example: Tensor) -> Function:
    """The function for tensors of these shapes. The program changes its arguments in place like the function does.

    Other tensors that it reads are read again in every call; only arguments may be changed.

    Raises:
        CompilerFailed: If the record cannot be compiled.
        Exception: any kind, if the function cannot be recorded, because its control flow depends on values.
    """
    with _compiling:
        use_private_cache()
        with _recorded():
            recorded = private_torch.record(function, *example)
        used = _used(recorded)
        held = _lifted(recorded)
        inputs = [*compress(example, used), *held]
        kinds = ((each.shape, each.stride(), each.dtype, each.device) for each in inputs)
        # Compiled for so many threads, which round otherwise.
        key = (recorded.code, torch.get_num_threads(), *kinds)
        if key not in _known:
            try:
                _known[key] = private_torch.compiled(recorded, inputs)
            except Exception as error:
                _known[key] = error.with_traceback(None)
        compiled = _known[key]
    if isinstance(compiled, Exception):
        raise CompilerFailed(str(compiled) or type(compiled).__name__) from compiled
    if all(used) and not held:
        return compiled
    return lambda *arguments: compiled(*compress(arguments, used), *held)


def _used(recorded: GraphModule) -> list[bool]:
    """Which arguments a record makes use of; the others are taken out, for each would be checked in every call."""
    arguments = [node for node in recorded.graph.nodes if node.op == "placeholder"]
    used = [bool(node.users) or node is arguments[-1] for node in arguments]  # one at least
    for node, is_used in zip(arguments, used, strict=True):
        if not is_used:
            recorded.graph.erase_node(node)
    recorded.recompile()
    return used


class Programs:
    """Functions as programs, each compiled at its first use.

    Args:
        what: The whole that they are parts of, for messages.
        warn: Whether the user required them, and is warned if they cannot be compiled.

    Attributes:
        compiler_failed: Whether one of them was recorded but could not be compiled.
    """

    def __init__(self, what: str, warn: bool) -> None:
        self._what = what
        self._level = logging.WARNING if warn else logging.INFO
        self._made: dict[tuple[Any, ...], Function | None] = {}
        self.compiler_failed = False

    def of(self, key: tuple[Any, ...], function: Function, *example: Tensor) -> Function | None:
        """The function as a program for tensors like these; None where it cannot be one."""
        if key not in self._made:
            try:
                self._made[key] = program(function, *example)
            except Exception as error:  # training still works without it
                failed = isinstance(error, CompilerFailed)
                self.compiler_failed |= failed
                level = logging.WARNING if failed else self._level
                logger.log(level, "%s is not compiled: %s", self._what, first_line(error))
                self._made[key] = None
        return self._made[key]


def _lifted(recorded: GraphModule) -> list[Tensor]:
    """Turn the tensors that a record holds into its last arguments: a compiler would treat them as constants."""
    graph = recorded.graph
    arguments = [node for node in graph.nodes if node.op == "placeholder"]
    held: list[Tensor] = []
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        with graph.inserting_after(arguments[-1]):
            arguments.append(graph.placeholder(f"held_{len(held)}"))
        node.replace_all_uses_with(arguments[-1])
        graph.erase_node(node)
        held.append(getattr(recorded, str(node.target)))
    recorded.recompile()
    return held


def recording() -> bool:
    """Whether operations are being recorded: functions compiled on their own must then run uncompiled."""
    return getattr(_recording, "now", False)


@contextmanager
def _recorded() -> Iterator[None]:
    _recording.now = True
    try:
        yield
    finally:
        _recording.now = False


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors of any shape, compiled by torch when it is called."""
    use_private_cache()
    compiled: Callable[..., Any] = torch.compile(function, dynamic=True)
    return compiled


@cache
def use_private_cache() -> None:
    """Keep compiled code in a folder that no other user can write to.

    The compiler loads pickles and libraries from its cache. Its own default is a folder with a predictable name,
    which another user may have made first. A folder named in TORCHINDUCTOR_CACHE_DIR is used if it is private.
    """
    named = os.environ.get(CACHE_VARIABLE)
    user = os.getuid() if hasattr(os, "getuid") else getpass.getuser()
    folder = Path(named or Path(tempfile.gettempdir()) / f"rwalk-compiled-{user}")
    if named:
        folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not is_private(folder):
        logger.warning("%s is not private, so compiled code is not kept there: remove it", folder)
        folder = Path(tempfile.mkdtemp(prefix="rwalk-compiled-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    elif not named:
        folder.chmod(0o700)
    os.environ[CACHE_VARIABLE] = str(folder)
    private_torch.keep_headers_in(folder)


@cache
def compiler_works(device: str = "cpu") -> bool:
    """Whether programs can be compiled here: the compiler (C++, or Triton for CUDA) may be missing or broken."""
    if which(os.environ.get("CXX", "g++")) is None if device == "cpu" else find_spec("triton") is None:
        return False
    try:
        program(lambda x: (x + 1,), torch.zeros(64, device=device))  # enough for vector instructions
    except Exception as error:  # of any kind: training works without a compiler
        name = "C++ compiler" if device == "cpu" else "compiler for CUDA (Triton)"
        logger.warning("the %s does not work, training continues without it: %s", name, first_line(error))
        return False
    return True
