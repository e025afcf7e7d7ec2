"""Equations done to all parameters of a kind by one kernel each; see `scripts` and `kernels`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rwalk import private_torch
from rwalk.errors import first_line
from rwalk.guard.step import triton as kernels
from rwalk.guard.step.penalty import pulled, step_late
from rwalk.guard.step.trace import Script, Term, Unwritten
from rwalk.guard.step.triton import Column, Flat, Listed
from rwalk.methods import METHODS
from rwalk.methods.base import Method, State

REMEMBERED = 64  # scripts, and places where tensors lay: of more than that, few come again
Vectors = Callable[[str], Any]  # from a column's name to what stands there
Equations = Callable[[Vectors, State], None]
logger = logging.getLogger(__name__)
_broken: list[str] = []  # why kernels cannot be launched here


class Kept(NamedTuple):
    """A vector of the state: its tensors, by parameter, and how they are read; two for each if they are coded."""

    column: Callable[[int], Column]  # from its first row in the table of addresses
    tensors: Sequence[Sequence[Tensor]]


class Fusion:
    """Parameters and what is kept of them, where they are now.

    thetas   the parameters' numbers
    kept     by its name, every vector of the state
    names    numbers of the parameters, from which the draws of codes begin
    """

    def __init__(self, thetas: Sequence[Tensor], kept: Mapping[str, Kept], names: Sequence[int]) -> None:
        self.device = thetas[0].device
        self.layout = kernels.layout(tuple(each.numel() for each in thetas), tuple(names), self.device)
        self.is_contiguous = all(each.is_contiguous() for each in thetas)
        self._thetas, self._strides = list(thetas), [each.stride() for each in thetas]
        rows: list[Sequence[Tensor]] = [thetas]
        self._columns: dict[str, Column] = {"theta": Listed("lasting", 0, thetas[0].dtype)}
        for name, (column, tensors) in kept.items():
            self._columns[_column(name)] = column(len(rows))
            rows += tensors
        self._names = tuple(kept)
        self._lasting = kernels.addresses(rows, self.device)
        self._is_aligned = all(_are_aligned([each.data_ptr() for each in row]) for row in rows)
        self._scripts: dict[object, _Written] = {}
        self._passing: dict[tuple[int, ...], Tensor] = {}

    def fits(self, *others: Sequence[Tensor]) -> bool:
        """Whether these lie like the parameters, number by number, and kernels can be launched."""
        return not _broken and all([each.stride() for each in tensors] == self._strides for tensors in others)

    def run(
        self,
        key: object,
        equations: Equations,
        passing: Mapping[str, Sequence[Tensor]] | None = None,
        flats: Mapping[str, Tensor] | None = None,
        draws: Callable[[str], int] | None = None,
    ) -> bool:
        """Do this to every parameter, if a kernel can.

        key      of the equations, with every number in them
        passing  under their columns' names, tensors that are others in every step: gradients
        flats    likewise, vectors as long as all parameters together
        draws    of a step, by the name of a vector that is kept in codes
        """
        passing, flats = passing or {}, flats or {}
        try:
            written = self._scripts.get(key)
            if written is None:
                written = self._written(equations, passing, flats)
                _remember(self._scripts, key, written)
            where = tuple(each.data_ptr() for tensors in passing.values() for each in tensors)
            table = self._passing.get(where)
            if table is None:
                table = kernels.addresses(list(passing.values()), self.device)
                _remember(self._passing, where, table)
            aligned = self._is_aligned and _are_aligned(where) and (self.layout.is_even or not flats)
            drawn = [draws(name) for name in written.drawn] if draws else []
            with torch.cuda.device_of(self._lasting):
                arguments = [*flats.values(), *drawn, *written.numbers]
                self.layout.launch(kernels.kernel_of(written.text), self._lasting, table, arguments, aligned)
        except Unwritten:
            return False
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever the compiler raises: training still works without it
            logger.warning("a guard's steps are done without kernels of their own: %s", first_line(error))
            _broken.append(first_line(error))
            return False
        return True

    def _written(
        self, equations: Equations, passing: Mapping[str, Sequence[Tensor]], flats: Mapping[str, Tensor]
    ) -> _Written:
        columns = {
            **self._columns,
            **{name: Listed("passing", row, each[0].dtype) for row, (name, each) in enumerate(passing.items())},
            **{name: Flat(place) for place, name in enumerate(flats)},
        }
        script, writes = _script(equations, self._names)
        text = kernels.text_of(script, columns, writes, len(flats))
        named = {_column(name): name for name in self._names}
        return _Written(text, script.numbers, [named[column] for column in kernels.drawn(columns, writes)])

    # ── flat vectors ──────────────────────────────────────────────────────────────────────────────────────────

    def flat(self, dtype: torch.dtype) -> Tensor:
        return torch.empty(self.layout.numbers, dtype=dtype, device=self.device)

    def shaped(self, flat: Tensor) -> list[Tensor]:
        """Parts of a flat vector, each like its parameter."""
        if self.is_contiguous:
            return private_torch.unflattened(flat, self._thetas)
        places = zip(self._thetas, self._strides, self.layout.starts, strict=True)
        return [flat.as_strided(each.shape, stride, start) for each, stride, start in places]


class _Written(NamedTuple):
    """A kernel's text, and the numbers that belong into it."""

    text: str
    numbers: list[float]
    drawn: list[str]  # the vectors that draws are needed for


def _script(equations: Equations, names: Sequence[str]) -> tuple[Script, dict[str, str]]:
    """The equations, and under the names of columns what they change."""
    script = Script()
    terms: dict[str, Term] = {}

    def at(name: str) -> Term:
        return terms.setdefault(name, script.column(name))

    state: Any = {name: at(_column(name)) for name in names}
    equations(at, state)
    after = {**terms, **{_column(name): term for name, term in state.items()}}
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


def lie_alike(thetas: Sequence[Tensor], *vectors: Sequence[Tensor]) -> bool:
    """Whether numbers of parameters lie close together, and those of vectors in the same order."""
    strides = [each.stride() for each in thetas]
    return all(map(_is_dense, thetas)) and all([each.stride() for each in row] == strides for row in vectors)


def _is_dense(tensor: Tensor) -> bool:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.numel() == 0 or reach + 1 == tensor.numel()


def can_be_written(method: Method, names: Sequence[str]) -> bool:
    """Whether kernels can do all that this method does in a step, with these vectors.

    Of ours: in one of the user's own anything may change from step to step.
    """
    return type(method) in METHODS.values() and _can_be_written(method, tuple(names))


@cache
def _can_be_written(method: Method, names: tuple[str, ...]) -> bool:
    def everything(at: Vectors, state: State) -> None:
        for beyond in (None, 1.0):
            pulled(method, beyond, state, at("theta"), at("grad"))
            step_late(method, beyond, state, at("theta"), 1.0)
        method.observe(state, at("grad"), at("before"), at("grad") * at("grad"))
        if method.window:
            method.score(state, at("theta"))

    try:
        _script(everything, names)
    except Unwritten:
        return False
    return True
