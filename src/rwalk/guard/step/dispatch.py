"""Which parameters go through a step together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rwalk.guard.state.parameter import Piece
from rwalk.guard.state.quantized import LentStorage
from rwalk.guard.state.sharded import is_sharded, local
from rwalk.guard.step import executor as packs
from rwalk.guard.step import fused
from rwalk.guard.step import fused_chunked as fused_lent
from rwalk.guard.step.chunked import LentPack
from rwalk.guard.step.executor import Pack
from rwalk.guard.step.fused import FusedPack
from rwalk.guard.step.fused_chunked import FusedLentPack
from rwalk.methods import Method

KEPT = 16  # divisions into packs that are remembered: which parameters have gradients may vary from step to step


class Packs:
    """Parameters divided into packs: once, and again when any of them has changed.

    everyone  all that are guarded, the largest of which decides how many others there is room for at once
    """

    def __init__(self, everyone: Callable[[], Iterable[Piece]]) -> None:
        self._everyone = everyone
        self._known: dict[tuple[Piece, ...], list[Pack | LentPack]] = {}

    def of(self, pieces: Sequence[Piece], method: Method) -> list[Pack | LentPack]:
        key = tuple(pieces)
        known = self._known.get(key)
        stale = known is not None and not all(pack.is_current() for pack in known)
        if stale or len(self._known) > KEPT:
            self._known.clear()  # along with the vectors that nobody else may hold any more
        if known is None or stale:
            known = self._known[key] = list(self._divided(pieces, method))
        return known

    def forget(self) -> None:
        """Hold no memory until the next step."""
        for piece in {piece for key in self._known for piece in key}:
            piece.leave_rooms()
        self._known.clear()

    def _divided(self, pieces: Sequence[Piece], method: Method) -> Iterator[Pack | LentPack]:
        """Those of a kind together, as many as there is room for."""
        room = max((_size(piece) for piece in self._everyone()), default=0) // 2
        for alike in _by_kind(pieces):
            if isinstance(alike[0].storage, LentStorage):
                yield FusedLentPack(alike) if fused_lent.is_possible(alike, method) else LentPack(alike)
            elif fused.is_possible(alike, method):
                yield FusedPack(alike)
            elif packs.launches(alike[0].storage.home):
                yield from map(Pack, portions(alike, room))
            else:
                yield from (Pack([piece]) for piece in alike)


def _by_kind(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Those that have in common what they must have to be worked on as one."""
    kinds: dict[object, list[Piece]] = {}
    for piece in pieces:
        parameter = piece.parameter
        kind = (parameter.dtype, parameter.device, is_sharded(parameter), tuple(piece.state))
        kinds.setdefault(kind, []).append(piece)
    return list(kinds.values())


def _size(piece: Piece) -> int:
    """How many numbers it has on this rank."""
    return local(piece.parameter.detach()).numel()


def portions(pieces: Sequence[Piece], room: int) -> Iterator[list[Piece]]:
    """Of so many numbers at most, if one piece is not more by itself.

    With room for half as many as the largest has, the two passing copies of a pack are no more than one of that.
    """
    part: list[Piece] = []
    filled = 0
    for piece in pieces:
        if part and filled + _size(piece) > room:
            yield part
            part, filled = [], 0
        part.append(piece)
        filled += _size(piece)
    yield part
