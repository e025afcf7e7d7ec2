"""Which parameters are stepped together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rwalk.guard.state.parameter import ParameterState
from rwalk.guard.state.quantized import ChunkedStorage
from rwalk.guard.state.sharded import is_sharded
from rwalk.guard.step.executor import Batch, ChunkedBatch, PlainBatch
from rwalk.guard.step.lora import ProductBatch

KEPT = 16  # divisions that are remembered: which parameters have gradients may vary from step to step
AnyBatch = Batch | ProductBatch


class Batches:
    """The parameters of a guard, divided into batches: once, and again when any of them has changed.

    everyone  all that are guarded; the largest decides how many others go together
    """

    def __init__(self, everyone: Callable[[], Iterable[ParameterState]]) -> None:
        self._everyone = everyone
        self._known: dict[tuple[ParameterState, ...], list[AnyBatch]] = {}

    def of(self, pieces: Sequence[ParameterState]) -> list[AnyBatch]:
        key = tuple(pieces)
        known = self._known.get(key)
        stale = False
        for batch in known or ():
            stale = stale or not batch.is_current()
        if stale or len(self._known) > KEPT:
            self._known.clear()  # along with vectors that nothing else may hold
        if known is None or stale:
            known = self._known[key] = list(self._divided(pieces))
        return known

    def forget(self) -> None:
        """Hold no memory until the next step."""
        for piece in {piece for key in self._known for piece in key}:
            piece.free_scratch()
        self._known.clear()

    def _divided(self, pieces: Sequence[ParameterState]) -> Iterator[AnyBatch]:
        kinds: dict[object, list[ParameterState]] = {}
        for piece in pieces:
            parameter, product = piece.parameter, piece.storage.product
            kind = (parameter.dtype, parameter.device, is_sharded(parameter), tuple(piece.state))
            kinds.setdefault(kind if product is None else product, []).append(piece)
        for alike in kinds.values():
            if alike[0].storage.product is not None:
                yield ProductBatch(alike[0])
            elif isinstance(alike[0].storage, ChunkedStorage):
                yield ChunkedBatch(alike)
            else:
                yield PlainBatch(alike, self._everyone())
