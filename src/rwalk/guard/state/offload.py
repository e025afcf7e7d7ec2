"""Who brings state that is kept elsewhere to where it is worked on, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch

from rwalk.guard.state.quantized import Kept, LentStorage, Portion


class Coming(NamedTuple):
    """Vectors on their way to where they are worked on, and the event of their arrival."""

    kept: Mapping[str, Kept]
    arrival: torch.cuda.Event | None = None


class Carrier(Protocol):
    """Between `begin` and `end` all portions take their turns."""

    def begin(self) -> None: ...

    def ahead(self, portion: Portion, names: Sequence[str]) -> Coming:
        """These vectors will be wanted next."""

    def arrived(self, coming: Coming | None) -> Mapping[str, Kept]:
        """They are wanted now."""

    def back(self, portion: Portion, name: str, coded: Kept) -> None:
        """This is to be kept."""

    def end(self) -> None: ...


class Here:
    """What is kept where it is worked on needs nobody to carry it."""

    def begin(self) -> None:
        pass

    def ahead(self, portion: Portion, names: Sequence[str]) -> Coming:
        return Coming({})

    def arrived(self, coming: Coming | None) -> Mapping[str, Kept]:
        return {} if coming is None else coming.kept

    def back(self, portion: Portion, name: str, coded: Kept) -> None:
        portion.stored(name, coded)

    def end(self) -> None:
        pass


class Streams:
    """Between a CUDA device and pinned memory of the host, a stream for each way. Only the device ever waits."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._there, self._back = torch.cuda.Stream(device), torch.cuda.Stream(device)

    @property
    def _main(self) -> torch.cuda.Stream:
        """Where the equations are worked out, and the user's own operations."""
        return torch.cuda.current_stream(self._device)

    def begin(self) -> None:
        self._there.wait_stream(self._main)  # which may have stored something by itself, at a task's end

    def ahead(self, portion: Portion, names: Sequence[str]) -> Coming:
        with torch.cuda.stream(self._there):
            kept = {name: portion.fetched(name) for name in names}
            return Coming(kept, self._there.record_event())

    def arrived(self, coming: Coming | None) -> Mapping[str, Kept]:
        if coming is None or coming.arrival is None:
            return {}
        self._main.wait_event(coming.arrival)
        for kept in coming.kept.values():
            for each in kept:
                each.record_stream(self._main)  # or its room would be given away while it is read
        return coming.kept

    def back(self, portion: Portion, name: str, coded: Kept) -> None:
        self._back.wait_stream(self._main)
        with torch.cuda.stream(self._back):
            portion.stored(name, coded)
        for each in coded:
            each.record_stream(self._back)

    def end(self) -> None:
        self._main.wait_stream(self._back)  # whoever reads next, reads what was kept


def carrier_of(storage: LentStorage) -> Carrier:
    away = storage.home.type == "cuda" and storage.place.type == "cpu"
    return Streams(storage.home) if away else Here()
