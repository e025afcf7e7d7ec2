"""State in 8 and 16 bits (`codec`), on the host (offload), or both.

It is decoded chunk by chunk where the parameters are, used, and encoded again if it was changed: never more than a
chunk of it is there in full. State on the host travels on CUDA streams of its own: the next chunk comes while one
is used, and changes of the last one go back. The host never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from rwalk.errors import InputError
from rwalk.guard.state import codec
from rwalk.guard.state.codec import BLOCK, Code
from rwalk.guard.state.parameter import Form, ParameterState, Part
from rwalk.guard.state.sharded import local
from rwalk.methods.method import State

MOST = {"cpu": 2**16}  # numbers that fit into a cache
MOST_ELSEWHERE = 2**22  # numbers for which running kernels takes longer than launching them
SHARE, LEAST = 64, 2**14  # a chunk has at most a share of all numbers, or this many
OUTLINE = torch.empty(1, 0, dtype=torch.uint8)  # a placeholder for an encoded vector
Encoded = tuple[Tensor, ...]  # an encoded vector: tensors with a row per block


class Lazy(MutableMapping[str, Tensor]):
    """Columns or vectors that are decoded when they are read, and can name those that were changed.

    >>> state = Lazy(("path", "anchor"), lambda name: torch.zeros(2))
    >>> state["path"].add_(1), "anchor" in state, list(state.changed()), sorted(state.asked)
    (tensor([1., 1.]), True, ['path'], ['path'])
    """

    def __init__(self, names: Iterable[str], take: Callable[[str], Tensor]) -> None:
        self._take = take
        self._names = dict.fromkeys(names)
        self._seen: dict[str, tuple[Tensor, int]] = {}  # with torch's count of changes
        self._now: dict[str, Tensor] = {}

    @property
    def asked(self) -> Iterable[str]:
        return self._seen.keys()

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
        return codec.code_of(name) if self.form.dtype == "8bit" else codec.Plain(self.kept_dtype)

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
        chunk = Chunk([(self, Span(0, self.size))])
        for name, vector in vectors.items():
            chunk.store(name, self.code(name).encode(chunk.gathered([self.wide(vector)]).view(-1, BLOCK)))
        self.touch()

    def whole(self) -> State:
        """All vectors, decoded on the host, which has more room."""
        chunk, shape = Chunk([(self, Span(0, self.size))]), self.theta().shape
        return {name: chunk.spread(chunk.decoded(name))[0].reshape(shape).cpu() for name in self.kept}

    def relocate(self) -> None:
        if any(each.device != self.place for kept in self.kept.values() for each in kept):
            self.kept = {name: tuple(each.to(self.place) for each in kept) for name, kept in self.kept.items()}
            self.touch()

    def parts(self, write: bool = False) -> Iterator[Part]:
        self.relocate()
        names, theta = tuple(self.kept), self.theta()
        for span in spans_of(self, most_at(self.home)):

            def of(tensor: Tensor, span: Span = span) -> Tensor:
                return tensor if span == (0, self.size) else tensor.reshape(1, -1)[:, span.start : span.stop]

            near, chunk = self.wide(of(theta)), Chunk([(self, span)])
            shape = near.shape

            def take(name: str, chunk: Chunk = chunk, shape: torch.Size = shape) -> Tensor:
                return chunk.spread(chunk.decoded(name))[0].reshape(shape)

            state = Lazy(names, take)
            yield Part(cast(State, state), near, of)
            if write:
                for name, vector in state.changed().items():
                    chunk.store(name, chunk.encoded(name, chunk.gathered([vector], whole=False)))
                self.touch()


def new_state(name: str, parameter: nn.Parameter, form: Form) -> ParameterState:
    """An empty state of this form."""
    plain = form.dtype != "8bit" and form.offload is None
    return (ParameterState if plain else EncodedState)(name, parameter, form)


# ── chunks ───────────────────────────────────────────────────────────────────────────────────────────────────


def most_at(device: torch.device) -> int:
    """How many numbers a chunk may have there."""
    return MOST.get(device.type, MOST_ELSEWHERE)


class Span(NamedTuple):
    """Some of a parameter's numbers, in the order of its indices; it starts with a block."""

    start: int
    stop: int

    @property
    def blocks(self) -> slice:
        return slice(self.start // BLOCK, blocks_of(self.stop))


def spans_of(state: EncodedState, most: int) -> list[Span]:
    """As many numbers at a time at most, in whole blocks; all of them, where they do not lie in a row."""
    if not state.is_contiguous:
        return [Span(0, state.size)]
    each = max(most // BLOCK, 1) * BLOCK
    size = state.size
    return [Span(start, min(start + each, size)) for start in range(0, size, each)] or [Span(0, 0)]


def blocks_of(size: int) -> int:
    return -(-size // BLOCK)


class Chunk:
    """Spans of one parameter or of several, as one vector: whole blocks of each, with zeros at its end."""

    def __init__(self, spans: Sequence[tuple[EncodedState, Span]]) -> None:
        self.spans = list(spans)
        self.first = self.spans[0][0]  # all are of one form, on one device
        self._phases: Tensor | None = None

    # ── tensors of the parameters' shapes ─────────────────────────────────────────────────────────────────────

    def gathered(self, tensors: Sequence[Tensor], whole: bool = True) -> Tensor:
        """[1, numbers], padded: of tensors as large as the parameters, or, not `whole`, as the spans.

        It is a view if nothing has to be moved.
        """
        found: list[Tensor] = []
        for tensor, (_, span) in zip(tensors, self.spans, strict=True):
            each = tensor.reshape(-1)[span.start : span.stop] if whole else tensor.reshape(-1)
            found.append(each)
            if each.numel() % BLOCK:
                found.append(each.new_zeros(-each.numel() % BLOCK))
        return (found[0] if len(found) == 1 else torch.cat(found))[None]

    def spread(self, vector: Tensor) -> list[Tensor]:
        """Back into spans."""
        found, start = [], 0
        for _, span in self.spans:
            count = span.stop - span.start
            found.append(vector[0, start : start + count])
            start += blocks_of(count) * BLOCK
        return found

    def write(self, vector: Tensor, tensors: Sequence[Tensor]) -> None:
        """Into tensors as large as the parameters; one that does not lie in a row is in the chunk as a whole."""
        for numbers, tensor, (_, span) in zip(self.spread(vector), tensors, self.spans, strict=True):
            there = tensor.view(-1)[span.start : span.stop] if tensor.is_contiguous() else tensor
            if there.data_ptr() != numbers.data_ptr():
                there.copy_(numbers.view(there.shape))

    # ── vectors of the state ──────────────────────────────────────────────────────────────────────────────────

    def kept(self, name: str) -> list[list[Tensor]]:
        """The encoded vector: for each tensor of its code, the parts of the spans."""
        rows = [[each[span.blocks] for each in state.kept[name]] for state, span in self.spans]
        return [list(column) for column in zip(*rows, strict=True)]

    def fetched(self, name: str) -> Encoded:
        """The encoded vector on the parameters' device."""
        home = self.first.home
        columns = [[each.to(home, non_blocking=True) for each in column] for column in self.kept(name)]
        return tuple(column[0] if len(column) == 1 else torch.cat(column) for column in columns)

    def decoded(self, name: str, fetched: Encoded | None = None) -> Tensor:
        """The vector in the dtype of the equations: a copy, [1, numbers]."""
        state = self.first
        numbers = state.code(name).decode(*(fetched or self.fetched(name))).reshape(1, -1)
        itself = isinstance(state.code(name), codec.Plain) and len(self.spans) == 1
        return numbers.to(state.work_dtype, copy=itself and state.place == state.home)

    def encoded(self, name: str, vector: Tensor) -> Encoded:
        """Encode a vector; draws decide between two levels."""
        code = self.first.code(name)
        return code.encode(vector.view(-1, BLOCK), self.draws(name) if code.draws else None)

    def store(self, name: str, encoded: Encoded) -> None:
        for state, _ in self.spans:
            state.allocate(name, encoded)
        for column, each in zip(self.kept(name), encoded, strict=True):
            start = 0
            for room in column:
                room.copy_(each[start : start + len(room)], non_blocking=True)
                start += len(room)

    def draws(self, name: str) -> Tensor:
        """The draws of this step for a vector of this name: [blocks, BLOCK]."""
        if self._phases is None:
            found = [
                codec.phases(state.name, blocks_of(state.size), state.home)[span.blocks]
                for state, span in self.spans
            ]
            self._phases = torch.cat(found)
        return codec.drawn(self._phases, name, self.first.form.moment())


def chunks_of(states: Sequence[EncodedState]) -> Iterator[Chunk]:
    """All numbers of some parameters: small ones together, large ones in several chunks."""
    total = sum(state.size for state in states)
    most = min(most_at(states[0].home), max(total // SHARE, LEAST))
    part: list[tuple[EncodedState, Span]] = []
    count = 0
    for state in states:
        for span in spans_of(state, most):
            numbers = span.stop - span.start
            if part and count + numbers > most:
                yield Chunk(part)
                part, count = [], 0
            part.append((state, span))
            count += numbers
    yield Chunk(part)


# ── offload ──────────────────────────────────────────────────────────────────────────────────────────────────


class Coming(NamedTuple):
    """Vectors on their way to the device, and the event of their arrival."""

    kept: Mapping[str, Encoded]
    arrival: torch.cuda.Event | None = None


class Transfer:
    """Brings state to the device of its parameters and back: here, state that is there already."""

    def begin(self) -> None:
        """Before the first chunk."""

    def ahead(self, chunk: Chunk, names: Sequence[str]) -> Coming:
        """Fetch vectors that are needed next."""
        return Coming({})

    def arrived(self, coming: Coming | None) -> Mapping[str, Encoded]:
        """The vectors, which are needed now."""
        return {} if coming is None else coming.kept

    def back(self, chunk: Chunk, name: str, encoded: Encoded) -> None:
        """Store a vector that was changed."""
        chunk.store(name, encoded)

    def end(self) -> None:
        """After the last chunk."""


class Streams(Transfer):
    """Between a CUDA device and pinned memory of the host, a stream for each way. Only the device ever waits."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._there, self._back = torch.cuda.Stream(device), torch.cuda.Stream(device)

    @property
    def _main(self) -> torch.cuda.Stream:
        """The stream of the equations, and of the user's own operations."""
        return torch.cuda.current_stream(self._device)

    def begin(self) -> None:
        self._there.wait_stream(self._main)  # where a task's end may have stored vectors

    def ahead(self, chunk: Chunk, names: Sequence[str]) -> Coming:
        with torch.cuda.stream(self._there):
            kept = {name: chunk.fetched(name) for name in names}
            return Coming(kept, self._there.record_event())

    def arrived(self, coming: Coming | None) -> Mapping[str, Encoded]:
        if coming is None or coming.arrival is None:
            return {}
        self._main.wait_event(coming.arrival)
        for kept in coming.kept.values():
            for each in kept:
                each.record_stream(self._main)  # or its memory would be given away while it is read
        return coming.kept

    def back(self, chunk: Chunk, name: str, encoded: Encoded) -> None:
        self._back.wait_stream(self._main)
        with torch.cuda.stream(self._back):
            chunk.store(name, encoded)
        for each in encoded:
            each.record_stream(self._back)

    def end(self) -> None:
        self._main.wait_stream(self._back)  # the next reader needs the new numbers


def transfer_of(state: EncodedState) -> Transfer:
    away = state.home.type == "cuda" and state.place.type == "cpu"
    return Streams(state.home) if away else Transfer()
