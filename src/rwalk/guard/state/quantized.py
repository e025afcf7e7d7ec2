"""State that is kept in another form, or elsewhere, than the equations want it: lent to them a portion at a time.

It is kept in codes of 8 and 16 bits (`codes`), or on the host while the parameters are on a device, or both. A
portion is decoded where the parameters are, used, and what was changed in it is coded again: at no time is more
than a portion there as the equations want it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor

from rwalk.guard.state import codec as codes
from rwalk.guard.state.codec import BLOCK, Code
from rwalk.guard.state.lazy import Borrowed
from rwalk.guard.state.lora import Target
from rwalk.guard.state.sharded import local
from rwalk.guard.state.storage import Part, Storage
from rwalk.methods.base import State

MOST = {"cpu": 2**16}  # numbers of a portion: what a cache has room for
MOST_ELSEWHERE = 2**22  # so many that launching kernels takes less time than running them
SHARE, LEAST = 64, 2**14  # the part of all that a portion may be, and what it may be anyway
Precision = torch.dtype | Literal["8bit"]
OUTLINE = torch.empty(1, 0, dtype=torch.uint8)  # of a vector: no numbers, and not in full precision
Kept = tuple[Tensor, ...]  # a vector, as its code keeps it: tensors with a row per block


class Lending(NamedTuple):
    """How state is kept, and where.

    dtype    "8bit", or what the numbers are rounded to
    offload  the device it is kept on; with the parameter, if None
    moment   another number in every step, the same in a run that was resumed
    """

    dtype: Precision | None
    offload: torch.device | None
    moment: Callable[[], int]


class LentStorage(Storage):
    """The state of a parameter, in codes; `state` is an outline of it: the names of vectors, without numbers."""

    rounding = 2.0**-14

    def __init__(self, target: Target, name: str, lending: Lending) -> None:
        super().__init__(target, lending.dtype if isinstance(lending.dtype, torch.dtype) else None)
        self.name = name
        self.lending = lending
        self.kept: dict[str, Kept] = {}

    def of(self, target: Target) -> LentStorage:
        return LentStorage(target, self.name, self.lending)

    @property
    def place(self) -> torch.device:
        """Where the state is kept."""
        return self.lending.offload or self.home

    def code(self, name: str) -> Code:
        return codes.code_of(name) if self.lending.dtype == "8bit" else codes.Plain(self.stored_as)

    @property
    def shape(self) -> torch.Size:
        return local(self.parameter.detach())[None].shape

    @property
    def size(self) -> int:
        return self.shape.numel()

    @property
    def is_in_a_row(self) -> bool:
        """Whether its numbers lie in the order of their indices."""
        return self.product is not None or local(self.parameter.detach()).is_contiguous()

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for kept in self.kept.values() for tensor in kept)

    def room(self, name: str, like: Kept) -> Kept:
        """Where a vector is kept, made if there is none yet: [blocks, ...], pinned for a device to reach it."""
        if name not in self.kept:
            pinned = self.place.type == "cpu" and self.home.type == "cuda"
            self.kept[name] = tuple(
                torch.zeros(
                    (blocks_of(self.size), *each.shape[1:]), dtype=each.dtype, device=self.place, pin_memory=pinned
                )
                for each in like
            )
            self.state[name] = OUTLINE
        return self.kept[name]

    def keep(self, state: State) -> None:
        self.kept, self.state = {}, {}
        whole = Portion([(self, Span(0, self.size))])
        for name, vector in state.items():
            whole.stored(name, self.code(name).encode(whole.gathered([self.wide(vector)]).view(-1, BLOCK)))
        self.touched()

    def read(self) -> State:
        """On the host, which has more room."""
        whole = Portion([(self, Span(0, self.size))])
        return {name: whole.spread(whole.taken(name))[0].reshape(self.shape).cpu() for name in self.kept}

    def follow(self) -> None:
        if any(each.device != self.place for kept in self.kept.values() for each in kept):
            self.kept = {name: tuple(each.to(self.place) for each in kept) for name, kept in self.kept.items()}
            self.touched()

    def parts(self, write: bool = False) -> Iterator[Part]:
        self.follow()
        names, theta = frozenset(self.kept), self.theta()
        for span in spans_of(self, most_at(self.home)):

            def of(tensor: Tensor, span: Span = span) -> Tensor:
                return tensor if span == (0, self.size) else tensor.reshape(1, -1)[:, span.start : span.stop]

            near = self.wide(of(theta))
            with self._lent(span, names, near.shape, write) as state:
                yield Part(state, near, of)

    def borrowed(self, write: bool = False) -> AbstractContextManager[State]:
        return self._lent(Span(0, self.size), frozenset(self.kept), self.shape, write)

    @contextmanager
    def _lent(self, span: Span, names: frozenset[str], shape: torch.Size, write: bool) -> Iterator[State]:
        portion = Portion([(self, span)])
        state = Borrowed(names, lambda name: portion.spread(portion.taken(name))[0].reshape(shape))
        yield cast(State, state)
        if write:
            for name, vector in state.changed().items():
                portion.stored(name, portion.coded(name, portion.gathered([vector], whole=False)))
            self.touched()


def storages(
    dtype: Precision | None, offload: torch.device | None, moment: Callable[[], int]
) -> Callable[[str, Target], Storage]:
    """From a name and what goes by it to an empty storage, of the kind that was asked for; see `Lending`."""
    if dtype != "8bit" and offload is None:
        return lambda name, target: Storage(target, dtype)
    return lambda name, target: LentStorage(target, name, Lending(dtype, offload, moment))


def most_at(device: torch.device) -> int:
    """How many numbers a portion may have there."""
    return MOST.get(device.type, MOST_ELSEWHERE)


class Span(NamedTuple):
    """Of a parameter's numbers, in the order of its indices; it starts with a block."""

    start: int
    stop: int

    @property
    def blocks(self) -> slice:
        return slice(self.start // BLOCK, blocks_of(self.stop))


def spans_of(storage: LentStorage, most: int) -> list[Span]:
    """As many numbers at a time at most, in whole blocks; all of them, where they do not lie in a row."""
    if not storage.is_in_a_row:
        return [Span(0, storage.size)]
    each = max(most // BLOCK, 1) * BLOCK
    size = storage.size
    return [Span(start, min(start + each, size)) for start in range(0, size, each)] or [Span(0, 0)]


def blocks_of(size: int) -> int:
    return -(-size // BLOCK)


class Portion:
    """Spans of one parameter or of several, as one vector: whole blocks of each, with zeros at its end."""

    def __init__(self, spans: Sequence[tuple[LentStorage, Span]]) -> None:
        self.spans = list(spans)
        self._phases: Tensor | None = None

    @property
    def storage(self) -> LentStorage:
        """Of the first; all are alike."""
        return self.spans[0][0]

    def thetas(self) -> list[Tensor]:
        return [local(storage.parameter.detach()) for storage, _ in self.spans]

    # ── tensors of the parameters' shapes ─────────────────────────────────────────────────────────────────────

    def cut(self, tensors: Sequence[Tensor], whole: bool = True) -> list[Tensor]:
        """The spans of tensors that are as large as the parameters; not `whole`, just as large as the spans."""
        flat = [each.reshape(-1) for each in tensors]
        if not whole:
            return flat
        return [each[span.start : span.stop] for each, (_, span) in zip(flat, self.spans, strict=True)]

    def gathered(self, tensors: Sequence[Tensor], whole: bool = True, copy: bool = False) -> Tensor:
        """[1, numbers], padded; a view where nothing has to be moved for that, unless a copy is wanted."""
        found: list[Tensor] = []
        for each in self.cut(tensors, whole):
            found.append(each)
            if each.numel() % BLOCK:
                found.append(each.new_zeros(-each.numel() % BLOCK))
        return (found[0] if len(found) == 1 and not copy else torch.cat(found))[None]

    def spread(self, vector: Tensor) -> list[Tensor]:
        """Back into spans."""
        found, start = [], 0
        for _, span in self.spans:
            count = span.stop - span.start
            found.append(vector[0, start : start + count])
            start += blocks_of(count) * BLOCK
        return found

    def written(self, vector: Tensor, tensors: Sequence[Tensor]) -> None:
        """Into tensors as large as the parameters; one that does not lie in a row is in the portion as a whole."""
        for numbers, tensor, (_, span) in zip(self.spread(vector), tensors, self.spans, strict=True):
            there = tensor.view(-1)[span.start : span.stop] if tensor.is_contiguous() else tensor
            if there.data_ptr() != numbers.data_ptr():
                there.copy_(numbers.view(there.shape))

    # ── vectors of the state ──────────────────────────────────────────────────────────────────────────────────

    def kept(self, name: str) -> list[list[Tensor]]:
        """As it is kept: for each tensor of its code, those of the spans."""
        rows = [[each[span.blocks] for each in storage.kept[name]] for storage, span in self.spans]
        return [list(column) for column in zip(*rows, strict=True)]

    def fetched(self, name: str) -> Kept:
        """As it is kept, where the parameters are."""
        home = self.storage.home
        columns = [[each.to(home, non_blocking=True) for each in column] for column in self.kept(name)]
        return tuple(column[0] if len(column) == 1 else torch.cat(column) for column in columns)

    def taken(self, name: str, fetched: Kept | None = None) -> Tensor:
        """As the equations want it: a copy, [1, numbers]."""
        storage = self.storage
        numbers = storage.code(name).decode(*(fetched or self.fetched(name))).reshape(1, -1)
        itself = isinstance(storage.code(name), codes.Plain) and len(self.spans) == 1
        return numbers.to(storage.worked_in, copy=itself and storage.place == storage.home)

    def coded(self, name: str, vector: Tensor) -> Kept:
        """To be kept; draws decide between two levels."""
        code = self.storage.code(name)
        draws = codes.drawn(self._draws(), name, self.storage.lending.moment()) if code.draws else None
        return code.encode(vector.view(-1, BLOCK), draws)

    def stored(self, name: str, coded: Kept) -> None:
        for storage, _ in self.spans:
            storage.room(name, coded)
        for column, each in zip(self.kept(name), coded, strict=True):
            start = 0
            for room in column:
                room.copy_(each[start : start + len(room)], non_blocking=True)
                start += len(room)

    def _draws(self) -> Tensor:
        if self._phases is None:
            found = [
                codes.phases(storage.name, blocks_of(storage.size), storage.home)[span.blocks]
                for storage, span in self.spans
            ]
            self._phases = torch.cat(found)
        return self._phases


def portions(storages: Sequence[LentStorage]) -> Iterator[Portion]:
    """Of all numbers of some parameters: small ones together, large ones in several."""
    total = sum(storage.size for storage in storages)
    most = min(most_at(storages[0].home), max(total // SHARE, LEAST))
    part: list[tuple[LentStorage, Span]] = []
    count = 0
    for storage in storages:
        for span in spans_of(storage, most):
            numbers = span.stop - span.start
            if part and count + numbers > most:
                yield Portion(part)
                part, count = [], 0
            part.append((storage, span))
            count += numbers
    yield Portion(part)
