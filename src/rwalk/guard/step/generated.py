"""Kernels generated from the equations of a step: each number is read once, and written once.

The equations are traced with symbolic tensors (`trace`), and the trace becomes a Triton kernel over all tensors of
a batch. A program of the kernel takes a few blocks of one tensor. It finds their numbers by a table of addresses,
and decodes a quantized state (`codec`) on the way: it is never there in full.
"""

from __future__ import annotations

import linecache
import logging
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

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
from rwalk.guard.state.parameter import Storage
from rwalk.guard.state.quantized import ChunkedStorage
from rwalk.guard.step.equations import AFTER, BEFORE, SCORE, TAKE_OUT, Phase, Plan
from rwalk.guard.step.trace import Script, Term, Unwritten
from rwalk.methods import METHODS
from rwalk.methods.base import Method

REMEMBERED = 64  # scripts, and places where tensors lay: of more than that, few come again
logger = logging.getLogger(__name__)
_failed: set[str] = set()  # texts of kernels that cannot be launched here
_told: set[str] = set()  # why


ROWS = 16  # blocks that a program takes
WARPS = 8
TYPES = {
    torch.float32: "tl.float32",
    torch.bfloat16: "tl.bfloat16",
    torch.float16: "tl.float16",
    torch.uint8: "tl.uint8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
}


# ── columns: where a vector's numbers lie ────────────────────────────────────────────────────────────────────────


class _AsItIs:
    """What is found somewhere is read and written as numbers."""

    def load(self, name: str) -> list[str]:
        return [f"{name} = tl.load({name}_at + at, there, other=0.0).to(tl.float32)"]

    def store(self, name: str, word: str) -> list[str]:
        return [f"tl.store({name}_at + at, {word}, there)"]

    @property
    def draws(self) -> bool:
        """Whether draws decide how numbers are rounded."""
        return False


@dataclass(frozen=True)
class Listed(_AsItIs):
    """In a tensor for each parameter, whose addresses are a row of a table."""

    table: Literal["lasting", "passing"]
    row: int
    dtype: torch.dtype

    def found(self, name: str) -> list[str]:
        return [_address(f"{name}_at", self.table, self.row, self.dtype)]


@dataclass(frozen=True)
class Theta(Listed):
    """The parameters: narrow ones are rounded by draws, as `codec.rounded` does."""

    @property
    def draws(self) -> bool:
        return self.dtype in DROPPED

    def store(self, name: str, word: str) -> list[str]:
        if not self.draws:
            return super().store(name, word)
        dropped = DROPPED[self.dtype]
        return [
            f"{name}_drawn = phase + within + {moved(name)}",
            f"{name}_more = ({name}_drawn >> {32 - dropped}) & {(1 << dropped) - 1}",
            f"{name}_bits = (({word}).to(tl.int32, bitcast=True) + {name}_more) & {-(1 << dropped)}",
            f"tl.store({name}_at + at, {name}_bits.to(tl.float32, bitcast=True), there)",
        ]


@dataclass(frozen=True)
class Flat(_AsItIs):
    """One after the other in a single tensor, the kernel's argument `flat0`, `flat1`, …"""

    place: int

    def found(self, name: str) -> list[str]:
        return [f"{name}_at = flat{self.place} + start"]


@dataclass(frozen=True)
class Coded:
    """In codes, with a number per block: two rows of the table of what lasts.

    Between two levels draws decide; by how much those of a vector are moved is an argument of the kernel.
    """

    row: int
    code: Floats | Places
    kept_in: tuple[torch.dtype, torch.dtype]
    draws = True

    def found(self, name: str) -> list[str]:
        codes, scales = self.kept_in
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
        """Line by line what the codes' `encode` does; beyond a tensor's end there are zeros."""
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
        codes, scales = (TYPES[each] for each in self.kept_in)
        return [
            *lines,
            f"tl.store({name}_at + at, {name}_levels.to({codes}), at < blocks * BLOCK)",
            f"tl.store({name}_of + block, {name}_scale.to({scales}), in_use)",
        ]


Column = Listed | Flat | Coded


def moved(name: str) -> str:
    return f"{name}_moved"


def drawn(columns: Mapping[str, Column], writes: Container[str]) -> list[str]:
    """The columns that draws are needed for."""
    return [name for name, each in columns.items() if each.draws and name in writes]


def _address(word: str, table: str, row: int, dtype: torch.dtype) -> str:
    return (
        f"{word} = tl.multiple_of(tl.load({table} + {row} * tensors + which)"
        f".to(tl.pointer_type({TYPES[dtype]})), ALIGNED)"
    )


def _power_of_two(exponent: str) -> str:
    return f"(({exponent} + 127) << 23).to(tl.float32, bitcast=True)"


# ── the kernel ───────────────────────────────────────────────────────────────────────────────────────────────────

HEAD = """
@triton.jit(do_not_specialize={draws})
def kernel(
    chunks, sizes, starts, names, lasting, passing, tensors,
    {arguments}ROWS: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr
):
    chunk = tl.program_id(0).to(tl.int64)
    which = tl.load(chunks + 2 * chunk)
    size = tl.load(sizes + which)
    start = tl.load(starts + which)
    blocks = (size + BLOCK - 1) // BLOCK
    block = tl.load(chunks + 2 * chunk + 1) * ROWS + tl.arange(0, ROWS)[:, None]
    in_use = block < blocks
    at = block * BLOCK + tl.arange(0, BLOCK)[None, :]
    there = at < size
    phase = block.to(tl.int32) * {along_blocks} + tl.load(names + which)
    within = tl.arange(0, BLOCK)[None, :] * {along_block}
"""


def text_of(script: Script, columns: Mapping[str, Column], writes: Mapping[str, str], flats: int) -> str:
    """The kernel's source: what is read of the columns, the script, and what is written to them."""
    draws = [moved(name) for name in drawn(columns, writes)]
    arguments = [
        *(f"flat{k}" for k in range(flats)),
        *draws,
        *(f"c{k}" for k in range(len(script.numbers))),
    ]
    head = HEAD.format(
        draws=draws,
        arguments="".join(f"{each}, " for each in arguments),
        along_blocks=wrapped(ALONG_BLOCKS),
        along_block=wrapped(ALONG_BLOCK),
    )
    used = [name for name in columns if name in script.read or name in writes]
    body = [line for name in used for line in columns[name].found(name)]
    body += [line for name in used if name in script.read for line in columns[name].load(name)]
    body += script.lines
    body += [line for name, word in writes.items() for line in columns[name].store(name, word)]
    return head + "".join(f"    {line}\n" for line in body)


@cache
def kernel_of(text: str) -> Any:
    """Compiled when it is first launched; Triton reads a function's source."""
    triton, tl = (import_module(name) for name in ("triton", "triton.language"))

    name = f"<guard kernel {len(linecache.cache)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {"triton": triton, "tl": tl}
    exec(compile(text, name, "exec"), space)
    return space["kernel"]


@cache
def there_is_triton() -> bool:
    return find_spec("triton") is not None


class Layout:
    """How a kernel's programs share the tensors among them; and where each is in a flat vector.

    names  numbers of the tensors, from which the draws of codes begin
    """

    def __init__(self, sizes: Sequence[int], names: Sequence[int], device: torch.device) -> None:
        chunks = [-(-size // (ROWS * BLOCK)) for size in sizes]
        which = np.repeat(np.arange(len(sizes)), chunks)
        first = np.repeat(np.cumsum([0, *chunks])[:-1], chunks)
        starts = np.cumsum([0, *sizes])
        self.programs, self.numbers, self.tensors = sum(chunks), int(starts[-1]), len(sizes)
        self.starts = starts[:-1].tolist()
        self.is_even = all(start % 4 == 0 for start in self.starts)  # whether parts of a flat vector are aligned
        pairs = np.stack([which, np.arange(len(which)) - first], axis=1)
        self._tables = [
            torch.from_numpy(np.ascontiguousarray(each)).to(device)
            for each in (pairs, np.array(sizes), starts[:-1].astype(np.int64), np.array(names, dtype=np.int32))
        ]

    def launch(
        self,
        kernel: Any,
        lasting: Tensor,
        passing: Tensor,
        arguments: Sequence[Any],
        aligned: bool,
    ) -> None:
        if self.programs:
            kernel[(self.programs,)](
                *self._tables,
                lasting,
                passing,
                self.tensors,
                *arguments,
                ROWS=ROWS,
                BLOCK=BLOCK,
                ALIGNED=16 if aligned else 1,
                num_warps=WARPS,
            )


@lru_cache(8)
def layout(sizes: tuple[int, ...], names: tuple[int, ...], device: torch.device) -> Layout:
    """Parameters may lie elsewhere from step to step: how many numbers they have stays the same."""
    return Layout(sizes, names, device)


def addresses(rows: Sequence[Sequence[Tensor]], device: torch.device) -> Tensor:
    """A table for kernels; the host does not wait for it to be there."""
    table = torch.tensor([[each.data_ptr() for each in row] for row in rows], dtype=torch.int64)
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table


# ── a batch's kernels ────────────────────────────────────────────────────────────────────────────────────────────


class Kept(NamedTuple):
    """A vector of the state: its tensors by parameter (two for each, if encoded), and how to read them."""

    column: Callable[[int], Column]  # from its first row in the table of addresses
    tensors: Sequence[Sequence[Tensor]]


class _Written(NamedTuple):
    """A kernel's text, and the numbers that belong into it."""

    text: str
    numbers: list[float]
    drawn: list[str]  # the vectors that draws are needed for


class Kernels:
    """Runs phases of a step on all parameters of a batch, where they are now.

    thetas  the parameters' numbers
    kept    by its name, every vector of the state
    names   numbers of the parameters, from which draws begin
    moment  of a step, for draws
    """

    def __init__(
        self,
        thetas: Sequence[Tensor],
        kept: Mapping[str, Kept],
        names: Sequence[int],
        moment: Callable[[], int] = lambda: 0,
    ) -> None:
        self.device = thetas[0].device
        self.layout = layout(tuple(each.numel() for each in thetas), tuple(names), self.device)
        self._moment = moment
        self._strides = [each.stride() for each in thetas]
        rows: list[Sequence[Tensor]] = [thetas]
        self._columns: dict[str, Column] = {"theta": Theta("lasting", 0, thetas[0].dtype)}
        for name, (column, tensors) in kept.items():
            self._columns[_column(name)] = column(len(rows))
            rows += tensors
        self._names = tuple(kept)
        self._lasting = addresses(rows, self.device)
        self._is_aligned = all(_are_aligned([each.data_ptr() for each in row]) for row in rows)
        self._scripts: dict[object, _Written] = {}
        self._passing: dict[tuple[int, ...], Tensor] = {}

    def run(self, phase: Phase, plan: Plan, columns: Mapping[str, Any]) -> bool:
        """Run a phase, if a kernel can: not, if gradients lie otherwise than parameters, or the kernel failed.

        columns  lists of tensors, which are others in every step, and flat vectors as long as all parameters
        """
        if not can_be_written(plan.method, self._names):
            return False
        passing = {name: each for name, each in columns.items() if isinstance(each, list)}
        flats = {name: each.flat for name, each in columns.items() if not isinstance(each, list)}
        if any([each.stride() for each in tensors] != self._strides for tensors in passing.values()):
            return False
        key = phase.name, plan if phase is AFTER else plan._replace(lr=0.0), *passing, *flats
        written = self._scripts.get(key)
        if written is None:
            written = self._written(phase, plan, passing, flats)
            _remember(self._scripts, key, written)
        return written.text not in _failed and self._launched(written, passing, flats)

    def _launched(
        self, written: _Written, passing: Mapping[str, Sequence[Tensor]], flats: Mapping[str, Tensor]
    ) -> bool:
        try:
            where = tuple(each.data_ptr() for tensors in passing.values() for each in tensors)
            table = self._passing.get(where)
            if table is None:
                table = addresses(list(passing.values()), self.device)
                _remember(self._passing, where, table)
            aligned = self._is_aligned and _are_aligned(where) and (self.layout.is_even or not flats)
            draws = [codec.moved(name, self._moment()) for name in written.drawn]
            with torch.cuda.device_of(self._lasting):
                arguments = [*flats.values(), *draws, *written.numbers]
                self.layout.launch(kernel_of(written.text), self._lasting, table, arguments, aligned)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever the compiler raises: this phase still runs without its kernel
            _failed.add(written.text)
            if first_line(error) not in _told:
                _told.add(first_line(error))
                logger.warning("part of a guarded step runs without its generated kernel: %s", first_line(error))
            return False
        return True

    def _written(
        self, phase: Phase, plan: Plan, passing: Mapping[str, Sequence[Tensor]], flats: Mapping[str, Tensor]
    ) -> _Written:
        columns = {
            **self._columns,
            **{name: Listed("passing", row, each[0].dtype) for row, (name, each) in enumerate(passing.items())},
            **{name: Flat(place) for place, name in enumerate(flats)},
        }
        script, writes = traced(phase, plan, self._names)
        text = text_of(script, columns, writes, len(flats))
        named = {_column(name): name for name in self._names} | {"theta": "theta"}
        return _Written(text, script.numbers, [named[column] for column in drawn(columns, writes)])


class _Columns(dict[str, Any]):
    """Columns as symbolic tensors, made as they are asked for."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script

    def __missing__(self, name: str) -> Term:
        self[name] = term = self._script.column(name)
        return term


def traced(phase: Phase, plan: Plan, names: Sequence[str]) -> tuple[Script, dict[str, str]]:
    """The equations of a phase, and under the names of columns the results that they write."""
    script = Script()
    at = _Columns(script)
    state: Any = {name: at[_column(name)] for name in names}
    phase.equations(plan, at, state)
    after = {name: term for name, term in at.items() if name in phase.results}
    after |= {_column(name): term for name, term in state.items()}
    return script, {name: script.word(term) for name, term in after.items() if term.word != name}


def _column(name: str) -> str:
    """What a vector of the state is called in a kernel."""
    return "kept_" + "".join(each if each.isalnum() else f"_{ord(each)}_" for each in name)


def _remember(known: dict[Any, Any], key: object, value: object) -> None:
    if len(known) >= REMEMBERED:
        known.clear()
    known[key] = value


def _are_aligned(where: Sequence[int]) -> bool:
    return not any(address % 16 for address in where)


# ── where there are kernels ──────────────────────────────────────────────────────────────────────────────────────


def can_launch(device: torch.device) -> bool:
    return device.type == "cuda" and there_is_triton()


def plain_kernels(storages: Sequence[Storage], thetas: Sequence[Tensor]) -> Kernels | None:
    """Kernels over a plain state whose numbers lie close together, and in the order of the parameters'."""
    first = storages[0]
    if not can_launch(first.home) or first.worked_in != torch.float32:
        return None
    vectors = {name: [storage.state[name][0] for storage in storages] for name in first.state}
    strides = [each.stride() for each in thetas]
    alike = all([each.stride() for each in row] == strides for row in vectors.values())
    if not alike or not all(map(is_dense, thetas)):
        return None
    kept = {name: Kept(partial(Listed, "lasting", dtype=each[0].dtype), [each]) for name, each in vectors.items()}
    return Kernels(thetas, kept, _numbers(storages), first.form.moment)


def chunked_kernels(storages: Sequence[ChunkedStorage], thetas: Sequence[Tensor]) -> Kernels | None:
    """Kernels over an encoded state; one that is kept on the host comes and goes in chunks instead."""
    first = storages[0]
    if not can_launch(first.home) or first.parameter.dtype != torch.float32:
        return None
    if not all(each.place == each.home and each.is_in_a_row for each in storages):
        return None
    kept = {name: _encoded(storages, name) for name in first.kept}
    return Kernels(thetas, kept, _numbers(storages), first.form.moment)


def _encoded(storages: Sequence[ChunkedStorage], name: str) -> Kept:
    columns = list(zip(*(storage.kept[name] for storage in storages), strict=True))
    kinds = [column[0].dtype for column in columns]
    code = storages[0].code(name)
    if isinstance(code, Floats | Places):
        return Kept(partial(Coded, code=code, kept_in=(kinds[0], kinds[1])), columns)
    return Kept(partial(Listed, "lasting", dtype=kinds[0]), columns)


def _numbers(storages: Sequence[Storage]) -> list[int]:
    return [wrapped(codec.number(storage.name)) for storage in storages]


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor's numbers lie close together, in whatever order."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.numel() == 0 or reach + 1 == tensor.numel()


def can_be_written(method: Method, names: Sequence[str]) -> bool:
    """Whether kernels can do all that this method does in a step, with these vectors.

    Only for methods of this package: in one of the user's own anything may change from step to step.
    """
    return type(method) in METHODS.values() and _can_be_written(method, tuple(names))


@cache
def _can_be_written(method: Method, names: tuple[str, ...]) -> bool:
    plans = [Plan(method, 1.0, at_most, pulls=True, late=True) for at_most in (None, 1.0)]
    phases = [BEFORE, TAKE_OUT, AFTER, *([SCORE] if method.window else [])]
    try:
        for plan in plans:
            for phase in phases:
                traced(phase, plan, names)
    except Unwritten:
        return False
    return True
