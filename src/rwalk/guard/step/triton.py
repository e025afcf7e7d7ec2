"""A script as one kernel over all tensors of a model: each number is read once, and written once.

A program of the kernel takes a few blocks of one tensor. It finds their numbers by a table of addresses, and
decodes on the way what is kept in codes (`codes`): a state of 8 bits is never there in full.
"""

from __future__ import annotations

import linecache
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rwalk.guard.state.codec import (
    ALONG_BLOCK,
    ALONG_BLOCKS,
    BLOCK,
    LOST,
    MAGNITUDE,
    NO_NUMBER,
    Floats,
    Places,
    wrapped,
)
from rwalk.guard.step.trace import Script

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


@dataclass(frozen=True)
class Listed(_AsItIs):
    """In a tensor for each parameter, whose addresses are a row of a table."""

    table: Literal["lasting", "passing"]
    row: int
    dtype: torch.dtype

    def found(self, name: str) -> list[str]:
        return [_address(f"{name}_at", self.table, self.row, self.dtype)]


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
    return [name for name, each in columns.items() if isinstance(each, Coded) and name in writes]


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

    name = f"<a guard's kernel {len(linecache.cache)}>"
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
