"""Kernels generated from the equations of a step: each number is read once, and written once.

The equations are run with symbolic tensors (`Term`), which record every operation (`Script`). The
script becomes a Triton kernel over all tensors of a batch. A program of the kernel takes a few blocks of one
tensor, finds their numbers by a table of addresses, and decodes an encoded state (`codec`). Numbers such as λ are
arguments, so that another λ or learning rate is the same kernel.
"""

from __future__ import annotations

import linecache
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rwalk.errors import first_line
from rwalk.guard.state import codec
from rwalk.guard.state.codec import (
    ALONG_BLOCK,
    ALONG_BLOCKS,
    BLOCK,
    DROPPED,
    LOST,
    MAGNITUDE,
    NO_NUMBER,
    Floats,
    Places,
    wrapped,
)
from rwalk.guard.state.parameter import ParameterState
from rwalk.guard.state.quantized import EncodedState
from rwalk.guard.step.equations import AFTER, Phase, Plan
from rwalk.methods import METHODS

ROWS, WARPS = 16, 8  # blocks that a program takes
REMEMBERED = 64  # scripts, and tables of addresses
TYPES = {
    torch.float32: "tl.float32",
    torch.bfloat16: "tl.bfloat16",
    torch.float16: "tl.float16",
    torch.uint8: "tl.uint8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
}
logger = logging.getLogger(__name__)
_failed: set[str] = set()  # texts of kernels that cannot be launched here
_told: set[str] = set()  # their errors


# ── equations, written down ───────────────────────────────────────────────────────────────────────────────────


OPERATORS = {
    **{f"__{name}__": name for name in ("add", "sub", "mul", "neg", "abs")},
    **{f"__i{name}__": f"{name}_" for name in ("add", "sub", "mul")},
    **{f"__{name}__": name for name in ("rsub", "rtruediv", "pow", "gt", "ge", "lt", "le")},
    "__radd__": "add",
    "__rmul__": "mul",
    "__truediv__": "div",
    "__itruediv__": "div_",
}


class Unwritten(Exception):
    """An operation that no kernel is written for."""


class Script:
    """Lines of Triton, the numbers in them (c0, c1, …), and the columns that they read."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.numbers: list[float] = []
        self.read: dict[str, None] = {}

    def column(self, name: str) -> Term:
        return Term(self, name, column=name)

    def write(self, expression: str) -> str:
        """Append an expression; returns the word for its result."""
        word = f"v{len(self.lines)}"
        self.lines.append(f"{word} = {expression}")
        return word

    def word(self, value: Any) -> str:
        if isinstance(value, Term):
            if value.word == value.column:
                self.read[value.word] = None
            return value.word
        if isinstance(value, int | float):
            self.numbers.append(float(value))
            return f"c{len(self.numbers) - 1}"
        raise Unwritten(f"a {type(value).__name__} in an equation")


class Term:
    """A word for a vector; after an operation in place, another word for it.

    It takes part in torch's functions, in tensors' methods and in arithmetic.

    >>> script = Script()
    >>> fisher, grad = script.column("fisher"), script.column("grad")
    >>> square = grad * grad
    >>> fisher.lerp_(square, 0.25).word, script.numbers, *script.read
    ('v1', [0.25], 'grad', 'fisher')
    >>> print(script.lines[0])
    v0 = grad * grad
    """

    def __init__(self, script: Script, word: str, column: str = "") -> None:
        self.script, self.word, self.column = script, word, column

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        return cls.done(function.__name__, args, {} if kwargs is None else kwargs)

    def __getattr__(self, name: str) -> Any:
        if not callable(getattr(Tensor, name)):
            raise AttributeError(name)
        return lambda *args, **kwargs: self.done(name, (self, *args), kwargs)

    @staticmethod
    def done(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Write an operation that at least one term takes part in."""
        out = kwargs.pop("out", None)
        operation = name.removesuffix("_")
        if operation not in EXPRESSIONS:
            raise Unwritten(operation)
        script = next(each for each in args if isinstance(each, Term)).script
        words = [script.word(each) for each in args if each is not args[0] or operation not in ANEW]
        named = {key: script.word(each) for key, each in kwargs.items()}
        word = script.write(EXPRESSIONS[operation](*words, **named))
        changed = args[0] if name[-1] == "_" else out
        if changed is None:
            return Term(script, word)
        changed.word = word
        return changed


def _operator(name: str) -> Callable[..., Any]:
    return lambda self, *args: self.done(OPERATORS[name], (self, *args), {})


for _name in OPERATORS:
    setattr(Term, _name, _operator(_name))


def _plus(sign: str) -> Callable[..., str]:
    return lambda a, b, alpha=None: f"{a} {sign} {b}" if alpha is None else f"{a} {sign} {alpha} * {b}"


def _product(sign: str) -> Callable[..., str]:
    return lambda a, b, c, value=None: f"{a} + {'' if value is None else f'{value} * '}{b} {sign} {c}"


def _largest(a: str, b: str) -> str:
    return f"tl.maximum({a}, {b}, propagate_nan=tl.PropagateNan.ALL)"


def _smallest(a: str, b: str) -> str:
    return f"tl.minimum({a}, {b}, propagate_nan=tl.PropagateNan.ALL)"


def _between(a: str, min: str | None = None, max: str | None = None) -> str:
    above = a if min is None else _largest(a, min)
    return above if max is None else _smallest(above, max)


def _all(number: str) -> Callable[[], str]:
    return lambda: f"tl.full([ROWS, BLOCK], {number}, tl.float32)"


# As torch computes them, operation by operation.
EXPRESSIONS: dict[str, Callable[..., str]] = {
    "add": _plus("+"),
    "sub": _plus("-"),
    "rsub": lambda a, b: f"{b} - {a}",
    "mul": lambda a, b: f"{a} * {b}",
    "div": lambda a, b: f"{a} / {b}",
    "rtruediv": lambda a, b: f"{b} / {a}",
    "neg": lambda a: f"-{a}",
    "abs": lambda a: f"tl.abs({a})",
    "sign": lambda a: f"tl.where({a} > 0, 1.0, tl.where({a} < 0, -1.0, {a} * 0.0))",
    "sqrt": lambda a: f"tl.sqrt({a})",
    "reciprocal": lambda a: f"1.0 / {a}",
    "square": lambda a: f"{a} * {a}",
    "addcmul": _product("*"),
    "addcdiv": _product("/"),
    "lerp": lambda a, b, w: f"tl.where({w} < 0.5, {a} + {w} * ({b} - {a}), {b} - ({b} - {a}) * (1.0 - {w}))",
    "maximum": _largest,
    "minimum": _smallest,
    "clamp": _between,
    "clamp_min": _largest,
    "clamp_max": _smallest,
    "copy": lambda b: b,
    "clone": lambda a: a,
    "zero": _all("0.0"),
    "zeros_like": _all("0.0"),
    "ones_like": _all("1.0"),
}
ANEW = {"copy", "zero", "zeros_like", "ones_like"}  # the old numbers are not read


def traced(phase: Phase, plan: Plan, names: Sequence[str]) -> tuple[Script, dict[str, str]]:
    """The script of a phase, and by column the word for its new numbers."""
    script = Script()
    at = _Columns(script)
    state: Any = {name: at[column_of(name)] for name in names}
    phase.equations(plan, at, state)
    after = {name: term for name, term in at.items() if name in phase.results}
    after |= {column_of(name): term for name, term in state.items()}
    return script, {name: script.word(term) for name, term in after.items() if term.word != name}


class _Columns(dict[str, Any]):
    """Columns as symbolic tensors, made when they are read."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script

    def __missing__(self, name: str) -> Term:
        self[name] = term = self._script.column(name)
        return term


def column_of(name: str) -> str:
    """The name of a vector of the state in a kernel."""
    return "kept_" + "".join(each if each.isalnum() else f"_{ord(each)}_" for each in name)


# ── where the numbers of a column lie ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Plain:
    """In a tensor for each parameter, whose addresses are a row of a table.

    Narrow parameters are rounded by draws, as `codec.rounded` does; narrow state by the nearest number.
    """

    table: str  # "lasting": parameters and state; "passing": others in every step
    row: int
    dtype: torch.dtype
    draws: bool = False

    def found(self, name: str) -> list[str]:
        return [_address(f"{name}_at", self.table, self.row, self.dtype)]

    def load(self, name: str) -> list[str]:
        return [f"{name} = tl.load({name}_at + at, there, other=0.0).to(tl.float32)"]

    def store(self, name: str, word: str) -> list[str]:
        if not self.draws:
            return [f"tl.store({name}_at + at, {word}, there)"]
        dropped = DROPPED[self.dtype]
        return [
            f"{name}_drawn = phase + within + {moved(name)}",
            f"{name}_more = ({name}_drawn >> {32 - dropped}) & {(1 << dropped) - 1}",
            f"{name}_bits = (({word}).to(tl.int32, bitcast=True) + {name}_more) & {-(1 << dropped)}",
            f"tl.store({name}_at + at, {name}_bits.to(tl.float32, bitcast=True), there)",
        ]


@dataclass(frozen=True)
class Coded:
    """In codes, with a number per block: two rows of the lasting table. Draws decide between two levels."""

    row: int
    code: Floats | Places
    dtypes: tuple[torch.dtype, torch.dtype]
    draws = True

    def found(self, name: str) -> list[str]:
        codes, scales = self.dtypes
        return [
            _address(f"{name}_at", "lasting", self.row, codes),
            _address(f"{name}_of", "lasting", self.row + 1, scales),
        ]

    def load(self, name: str) -> list[str]:
        lines = [
            f"{name}_codes = tl.load({name}_at + at, there, other=0).to(tl.int32)",
            f"{name}_scale = tl.load({name}_of + block, in_use, other=0).to(tl.int32)",
        ]
        if isinstance(self.code, Places):
            return [*lines, f"{name} = {name}_codes.to(tl.float32) * {_power_of_two(f'{name}_scale - 15')}"]
        size = f"tl.abs({name}_codes)" if self.code.signed else f"{name}_codes"
        return [
            *lines,
            f"{name}_bits = (({size} + {name}_scale) << {23 - self.code.mantissa}).to(tl.float32, bitcast=True)",
            f"{name} = {name}_bits * tl.where({name}_codes > 0, 1.0, tl.where({name}_codes < 0, -1.0, 0.0))",
        ]

    def store(self, name: str, word: str) -> list[str]:
        """The codes' `encode`, line by line; beyond a tensor's end there are zeros."""
        lines = [f"{name}_new = tl.where(there, {word}, 0.0)"]
        if isinstance(self.code, Places):
            lines += [
                f"{name}_most = tl.max(tl.abs({name}_new).to(tl.int32, bitcast=True), 1)[:, None]",
                f"{name}_exponent = tl.maximum(({name}_most >> 23) - 126, -100)",
                f"{name}_exponent = tl.where({name}_most == 0, 0, {name}_exponent)",
                f"{name}_exponent = tl.where({name}_most >= {0x7F800000}, {LOST}, {name}_exponent)",
                f"{name}_scaled = {name}_new * {_power_of_two(f'15 - {name}_exponent')}",
                # The nearest whole number, the even one of two: beyond 2²³ floats have no others.
                f"{name}_whole = ({name}_scaled + 12582912.0) - 12582912.0",
                f"{name}_whole = tl.where(tl.abs({name}_scaled) < 32767.0, {name}_whole, {name}_scaled)",
                f"{name}_levels = tl.minimum(tl.maximum({name}_whole, -32767.0), 32767.0).to(tl.int32)",
                f"{name}_scale = {name}_exponent",
            ]
        else:
            dropped, most = 23 - self.code.mantissa, self.code.most
            above = f"{name}_new" if self.code.signed else f"tl.where({name}_new < 0, 0.0, {name}_new)"
            lines += [
                f"{name}_levels = tl.minimum({above}.to(tl.int32, bitcast=True) & {MAGNITUDE}, {NO_NUMBER})",
                f"{name}_drawn = phase + within + {moved(name)}",
                f"{name}_levels += ({name}_drawn >> {32 - dropped}) & {(1 << dropped) - 1}",
                f"{name}_levels = tl.where(there, {name}_levels >> {dropped}, 0)",
                f"{name}_scale = tl.maximum(tl.max({name}_levels, 1)[:, None] - {most}, 0)",
                f"{name}_levels = tl.maximum({name}_levels - {name}_scale, 0)",
            ]
            if self.code.signed:
                lines.append(f"{name}_levels = tl.where({name}_new < 0, -{name}_levels, {name}_levels)")
        codes, scales = (TYPES[each] for each in self.dtypes)
        return [
            *lines,
            f"tl.store({name}_at + at, {name}_levels.to({codes}), at < blocks * BLOCK)",
            f"tl.store({name}_of + block, {name}_scale.to({scales}), in_use)",
        ]


def moved(name: str) -> str:
    """The kernel's argument by which the draws of a vector are moved in time."""
    return f"{name}_moved"


def _address(word: str, table: str, row: int, dtype: torch.dtype) -> str:
    return (
        f"{word} = tl.multiple_of(tl.load({table} + {row} * tensors + which)"
        f".to(tl.pointer_type({TYPES[dtype]})), ALIGNED)"
    )


def _power_of_two(exponent: str) -> str:
    return f"(({exponent} + 127) << 23).to(tl.float32, bitcast=True)"


# ── the kernel ────────────────────────────────────────────────────────────────────────────────────────────────

HEAD = """
@triton.jit(do_not_specialize={draws})
def kernel(
    chunks, sizes, names, lasting, passing, tensors,
    {arguments}ROWS: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr
):
    chunk = tl.program_id(0).to(tl.int64)
    which = tl.load(chunks + 2 * chunk)
    size = tl.load(sizes + which)
    blocks = (size + BLOCK - 1) // BLOCK
    block = tl.load(chunks + 2 * chunk + 1) * ROWS + tl.arange(0, ROWS)[:, None]
    in_use = block < blocks
    at = block * BLOCK + tl.arange(0, BLOCK)[None, :]
    there = at < size
    phase = block.to(tl.int32) * {along_blocks} + tl.load(names + which)
    within = tl.arange(0, BLOCK)[None, :] * {along_block}
"""


class _Written(NamedTuple):
    """A kernel's text, and the numbers that belong into it."""

    text: str
    numbers: list[float]
    drawn: list[str]  # the columns that draws are needed for


def written(script: Script, columns: Mapping[str, Plain | Coded], writes: Mapping[str, str]) -> _Written:
    """The kernel: columns are read, the script follows, and results are written."""
    drawn = [name for name, each in columns.items() if each.draws and name in writes]
    arguments = [*map(moved, drawn), *(f"c{k}" for k in range(len(script.numbers)))]
    head = HEAD.format(
        draws=[moved(name) for name in drawn],
        arguments="".join(f"{each}, " for each in arguments),
        along_blocks=wrapped(ALONG_BLOCKS),
        along_block=wrapped(ALONG_BLOCK),
    )
    used = [name for name in columns if name in script.read or name in writes]
    body = [line for name in used for line in columns[name].found(name)]
    body += [line for name in used if name in script.read for line in columns[name].load(name)]
    body += script.lines
    body += [line for name, word in writes.items() for line in columns[name].store(name, word)]
    return _Written(head + "".join(f"    {line}\n" for line in body), script.numbers, drawn)


@cache
def kernel_of(text: str) -> Any:
    """Compiled when it is first launched; Triton reads a function's source."""
    triton, tl = (import_module(name) for name in ("triton", "triton.language"))

    name = f"<guard kernel {len(linecache.cache)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {"triton": triton, "tl": tl}
    exec(compile(text, name, "exec"), space)
    return space["kernel"]


class Layout:
    """How a kernel's programs share the tensors among them.

    Args:
        sizes: of the tensors.
        names: numbers of the tensors, from which draws begin.
        device: of the tensors.
    """

    def __init__(self, sizes: Sequence[int], names: Sequence[int], device: torch.device) -> None:
        chunks = [-(-size // (ROWS * BLOCK)) for size in sizes]
        which = np.repeat(np.arange(len(sizes)), chunks)
        first = np.repeat(np.cumsum([0, *chunks])[:-1], chunks)
        self._programs, self._tensors = sum(chunks), len(sizes)
        pairs = np.stack([which, np.arange(len(which)) - first], axis=1)
        self._tables = [
            torch.from_numpy(np.ascontiguousarray(each)).to(device)
            for each in (pairs, np.array(sizes), np.array(names, dtype=np.int32))
        ]

    def launch(
        self, kernel: Any, lasting: Tensor, passing: Tensor, arguments: Sequence[Any], aligned: bool
    ) -> None:
        if self._programs:
            sizes = {"ROWS": ROWS, "BLOCK": BLOCK, "ALIGNED": 16 if aligned else 1, "num_warps": WARPS}
            kernel[(self._programs,)](*self._tables, lasting, passing, self._tensors, *arguments, **sizes)


@lru_cache(8)
def layout(sizes: tuple[int, ...], names: tuple[int, ...], device: torch.device) -> Layout:
    """Parameters may lie elsewhere from step to step: how many numbers they have stays the same."""
    return Layout(sizes, names, device)


def addresses(rows: Sequence[Sequence[Tensor]], device: torch.device) -> Tensor:
    """A table for kernels; the host does not wait for it to be there."""
    table = torch.tensor([[each.data_ptr() for each in row] for row in rows], dtype=torch.int64)
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table


# ── the kernels of a batch ────────────────────────────────────────────────────────────────────────────────────


class Kept(NamedTuple):
    """A vector of the state: its tensors by parameter, two for each if it has a code."""

    tensors: Sequence[Sequence[Tensor]]
    code: Floats | Places | None = None


class Kernels:
    """Runs phases of a step on all parameters of a batch, where they are now.

    Args:
        thetas: the parameters' numbers.
        kept: every vector of the state, by name.
        names: of the parameters.
        moment: of a step, for draws.
    """

    def __init__(
        self, thetas: Sequence[Tensor], kept: Mapping[str, Kept], names: Sequence[str], moment: Callable[[], int]
    ) -> None:
        self._device = thetas[0].device
        numbers = tuple(wrapped(codec.number(name)) for name in names)
        self._layout = layout(tuple(each.numel() for each in thetas), numbers, self._device)
        self._moment = moment
        self._strides = [each.stride() for each in thetas]
        rows: list[Sequence[Tensor]] = [thetas]
        dtype = thetas[0].dtype
        self._columns: dict[str, Plain | Coded] = {"theta": Plain("lasting", 0, dtype, draws=dtype in DROPPED)}
        for name, (tensors, code) in kept.items():
            first, *scales = (row[0].dtype for row in tensors)
            plain = Plain("lasting", len(rows), first)
            self._columns[column_of(name)] = plain if code is None else Coded(len(rows), code, (first, scales[0]))
            rows += tensors
        self._names = {"theta": "theta", **{column_of(name): name for name in kept}}
        self._lasting = addresses(rows, self._device)
        self._is_aligned = all(_are_aligned([each.data_ptr() for each in row]) for row in rows)
        self._known: dict[object, _Written | None] = {}
        self._passing: dict[tuple[int, ...], Tensor] = {}

    def run(self, phase: Phase, plan: Plan, columns: Mapping[str, Sequence[Tensor]]) -> bool:
        """Run a phase if a kernel can: not, if gradients lie otherwise than parameters, or the kernel failed.

        Only methods of this package have kernels: in one of the user's own anything may change from step to step.
        """
        if type(plan.method) not in METHODS.values():
            return False
        for tensors in columns.values():
            if [each.stride() for each in tensors] != self._strides:
                return False
        key = phase.name, plan if phase is AFTER else plan._replace(lr=0.0), *columns
        if key not in self._known:
            _remember(self._known, key, self._written(phase, plan, columns))
        found = self._known[key]
        return found is not None and found.text not in _failed and self._launched(found, columns)

    def _launched(self, found: _Written, columns: Mapping[str, Sequence[Tensor]]) -> bool:
        try:
            where = tuple(each.data_ptr() for tensors in columns.values() for each in tensors)
            if where not in self._passing:
                _remember(self._passing, where, addresses(list(columns.values()), self._device))
            aligned = self._is_aligned and _are_aligned(where)
            draws = [codec.moved(self._names[name], self._moment()) for name in found.drawn]
            with torch.cuda.device_of(self._lasting):
                arguments = [*draws, *found.numbers]
                self._layout.launch(kernel_of(found.text), self._lasting, self._passing[where], arguments, aligned)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compilers raise any kind of error; this phase runs without its kernel
            _failed.add(found.text)
            if first_line(error) not in _told:
                _told.add(first_line(error))
                logger.warning("part of a guarded step runs without its generated kernel: %s", first_line(error))
            return False
        return True

    def _written(self, phase: Phase, plan: Plan, columns: Mapping[str, Sequence[Tensor]]) -> _Written | None:
        passing = {name: Plain("passing", row, each[0].dtype) for row, (name, each) in enumerate(columns.items())}
        try:
            script, writes = traced(phase, plan, [name for name in self._names.values() if name != "theta"])
        except Unwritten:
            return None
        return written(script, {**self._columns, **passing}, writes)


def _remember(known: dict[Any, Any], key: object, value: object) -> None:
    if len(known) >= REMEMBERED:
        known.clear()
    known[key] = value


def _are_aligned(where: Sequence[int]) -> bool:
    return not any(address % 16 for address in where)


def can_launch(device: torch.device) -> bool:
    return device.type == "cuda" and find_spec("triton") is not None


def of_batch(states: Sequence[ParameterState], thetas: Sequence[Tensor]) -> Kernels | None:
    """Kernels over a state whose numbers lie close together, and in the order of the parameters'.

    A state on the host comes and goes in chunks instead.
    """
    first, kept = states[0], {}
    if not can_launch(first.home) or first.work_dtype != torch.float32:
        return None
    if isinstance(first, EncodedState):
        whole = [each for each in states if isinstance(each, EncodedState)]
        near = all(each.place == each.home and each.is_contiguous for each in whole)
        if first.parameter.dtype != torch.float32 or not near:
            return None
        for name in first.kept:
            code = first.code(name)
            tensors = list(zip(*(state.kept[name] for state in whole), strict=True))
            kept[name] = Kept(tensors, code if isinstance(code, Floats | Places) else None)
    else:
        vectors = {name: [state.vectors[name][0] for state in states] for name in first.vectors}
        strides = [each.stride() for each in thetas]
        alike = all([each.stride() for each in row] == strides for row in vectors.values())
        if not alike or not all(map(is_dense, thetas)):
            return None
        kept = {name: Kept([each]) for name, each in vectors.items()}
    return Kernels(thetas, kept, [state.name for state in states], first.form.moment)


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor's numbers lie close together, in whatever order."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.numel() == 0 or reach + 1 == tensor.numel()
