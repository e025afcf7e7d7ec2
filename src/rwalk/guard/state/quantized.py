"""State in 8 and 16 bits (`codec`), on the host (offload), or both.

It is decoded chunk by chunk where the parameters are, used, and encoded again if it was changed: never more than a
chunk of it is there in full. State on the host lies in pinned memory, so the host never waits for a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from rwalk.errors import InputError
from rwalk.guard.state import codec
from rwalk.guard.state.codec import BLOCK, Code
from rwalk.guard.state.parameter import Form, ParameterState, Part, Piece
from rwalk.guard.state.sharded import local
from rwalk.methods.method import State

MOST = {"cpu": 2**16}  # numbers that fit into a cache
MOST_ELSEWHERE = 2**22  # numbers for which running kernels takes longer than launching them
SHARE, LEAST = 64, 2**14  # in a step, a chunk has at most a share of all numbers, or this many
OUTLINE = torch.empty(1, 0, dtype=torch.uint8)  # a placeholder for an encoded vector
Encoded = tuple[Tensor, ...]  # an encoded vector: tensors with a row per block


class Lazy(MutableMapping[str, Tensor]):
    """Columns or vectors that are decoded when they are read, and can name those that were changed.

    >>> state = Lazy(("path", "anchor"), lambda name: torch.zeros(2))
    >>> state["path"].add_(1), "anchor" in state, list(state.changed())
    (tensor([1., 1.]), True, ['path'])
    """

    def __init__(self, names: Iterable[str], take: Callable[[str], Tensor]) -> None:
        self._take = take
        self._names = dict.fromkeys(names)
        self._seen: dict[str, tuple[Tensor, int]] = {}  # with torch's count of changes
        self._now: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._now:
            if name not in self._names:
                raise KeyError(name)
            self._now[name] = vector = self._take(name)
            self._seen[name] = vector, vector._version
        return self._now[name]

    def __setitem__(self, name: str, vector: Tensor) -> None:
        self._names[name] = None
        self._now[name] = vector

    def __delitem__(self, name: str) -> None:
        raise InputError(f"a method may not drop vectors of its state, such as {name!r}")

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def changed(self) -> dict[str, Tensor]:
        """All that were replaced, made or changed in place."""
        return {name: now for name, now in self._now.items() if self._is_changed(name, now)}

    def _is_changed(self, name: str, now: Tensor) -> bool:
        then, version = self._seen.get(name, (None, 0))
        return then is not now or version != now._version


class EncodedState(ParameterState):
    """A parameter's vectors, encoded, on its device or on the host.

    `vectors` holds their names without numbers; `kept` holds the encoded vectors.
    """

    rounding = 2.0**-14

    def __init__(self, name: str, parameter: nn.Parameter, form: Form) -> None:
        super().__init__(name, parameter, form)
        self.kept: dict[str, Encoded] = {}

    @property
    def place(self) -> torch.device:
        """Where the state is kept."""
        return self.form.offload or self.home

    @property
    def size(self) -> int:
        return local(self.parameter.detach()).numel()

    @property
    def is_contiguous(self) -> bool:
        """Whether its numbers lie in the order of their indices."""
        return local(self.parameter.detach()).is_contiguous()

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for kept in self.kept.values() for tensor in kept)

    def code(self, name: str) -> Code:
        return codec.code_of(name) if self.form.quantized else codec.Plain(self.work_dtype)

    def allocate(self, name: str, like: Encoded) -> None:
        """Make tensors for a vector, if there are none yet: [blocks, ...], pinned for a device to reach them."""
        if name not in self.kept:
            pinned = self.place.type == "cpu" and self.home.type == "cuda"
            self.kept[name] = tuple(
                torch.zeros(
                    (blocks_of(self.size), *each.shape[1:]), dtype=each.dtype, device=self.place, pin_memory=pinned
                )
                for each in like
            )
            self.vectors[name] = OUTLINE

    def store(self, vectors: State) -> None:
        self.kept, self.vectors = {}, {}
        chunk = Chunk(self, 0, self.size)
        for name, vector in vectors.items():
            chunk.store(name, self.code(name).encode(chunk.blocks(chunk.of(self.wide(vector)))))
        self.touch()

    def whole(self) -> State:
        """All vectors, decoded on the host, which has more room."""
        chunk, shape = Chunk(self, 0, self.size), self.theta().shape
        return {name: chunk.decoded(name).reshape(shape).cpu() for name in self.kept}

    def relocate(self) -> None:
        if any(each.device != self.place for kept in self.kept.values() for each in kept):
            self.kept = {name: tuple(each.to(self.place) for each in kept) for name, kept in self.kept.items()}
            self.touch()

    def pieces(self, total: int | None = None) -> Sequence[Chunk]:
        """Chunks of whole blocks, or a single one where the numbers do not lie in a row."""
        most = MOST.get(self.home.type, MOST_ELSEWHERE)
        if total is not None:
            most = min(most, max(total // SHARE, LEAST))
        each = max(most // BLOCK, 1) * BLOCK
        if not self.is_contiguous or self.size <= each:
            return [Chunk(self, 0, self.size)]
        return [Chunk(self, at, min(at + each, self.size)) for at in range(0, self.size, each)]

    def parts(self, write: bool = False) -> Iterator[Part]:
        self.relocate()
        names = tuple(self.kept)  # the first chunk may make more
        for chunk in self.pieces():
            state = cast(State, Lazy(names, chunk.decoded))
            yield Part(state, self.wide(chunk.of(local(self.parameter.detach()))), chunk.of)
            if write:
                chunk.close(state)
                self.touch()


def new_state(name: str, parameter: nn.Parameter, form: Form) -> ParameterState:
    """An empty state of this form."""
    plain = not form.quantized and form.offload is None
    return (ParameterState if plain else EncodedState)(name, parameter, form)


def blocks_of(size: int) -> int:
    return -(-size // BLOCK)


class Chunk(Piece):
    """Some of an encoded parameter's numbers, as vectors [1, numbers] without padding; it starts with a block."""

    state: EncodedState

    def __init__(self, state: EncodedState, start: int, stop: int) -> None:
        super().__init__(state)
        self._numbers = slice(start, stop)
        self._size = stop - start
        self._rows = slice(start // BLOCK, blocks_of(stop))

    def of(self, tensor: Tensor) -> Tensor:
        """A view, where a tensor's numbers lie in the order of their indices."""
        return tensor.reshape(-1)[self._numbers][None]

    def put(self, numbers: Tensor, tensor: Tensor) -> None:
        there = tensor.view(-1)[self._numbers] if tensor.is_contiguous() else tensor
        there.copy_(numbers.view(there.shape))

    def draws(self, name: str) -> Tensor:
        return self._drawn(name).flatten()[: self._size][None]

    def opened(self) -> State:
        return cast(State, Lazy(self.state.kept, self.decoded))

    def close(self, state: State) -> None:
        for name, vector in cast(Lazy, state).changed().items():
            code = self.state.code(name)
            self.store(name, code.encode(self.blocks(vector), self._drawn(name) if code.draws else None))

    def decoded(self, name: str) -> Tensor:
        """A copy of the vector in the dtype of the equations."""
        state, code = self.state, self.state.code(name)
        fetched = [each[self._rows].to(state.home, non_blocking=True) for each in state.kept[name]]
        numbers = code.decode(*fetched).flatten()[: self._size][None]
        return numbers.to(state.work_dtype, copy=isinstance(code, codec.Plain) and state.place == state.home)

    def blocks(self, vector: Tensor) -> Tensor:
        """[blocks, BLOCK], with zeros at its end."""
        return torch.nn.functional.pad(vector.reshape(-1), (0, -vector.numel() % BLOCK)).view(-1, BLOCK)

    def store(self, name: str, encoded: Encoded) -> None:
        self.state.allocate(name, encoded)
        for room, each in zip(self.state.kept[name], encoded, strict=True):
            room[self._rows].copy_(each, non_blocking=True)

    def _drawn(self, name: str) -> Tensor:
        """The draws of this step for a vector of this name: [blocks, BLOCK]."""
        phases = codec.phases(self.state.name, blocks_of(self.state.size), self.state.home)[self._rows]
        return codec.drawn(phases, name, self.state.form.moment())
