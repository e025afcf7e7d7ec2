"""A state that is decoded only where it is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping

from torch import Tensor

from rwalk.errors import InputError


class Borrowed(MutableMapping[str, Tensor]):
    """A state as a method sees it: decoded as soon as it is asked for, and looked at again for changes.

    >>> import torch
    >>> state = Borrowed(frozenset({"path", "anchor"}), lambda name: torch.zeros(2))
    >>> state["path"].add_(1), "anchor" in state, list(state.changed()), sorted(state.asked)
    (tensor([1., 1.]), True, ['path'], ['path'])
    """

    def __init__(self, names: frozenset[str], take: Callable[[str], Tensor]) -> None:
        self._take = take
        self._names = dict.fromkeys(sorted(names))
        self._seen: dict[str, tuple[Tensor, int]] = {}  # with torch's count of changes
        self._now: dict[str, Tensor] = {}
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._now:
            if name not in self._names:
                raise KeyError(name)
            self.asked.add(name)
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
        """What was replaced, made or changed in place."""
        return {name: now for name, now in self._now.items() if self._is_changed(name, now)}

    def _is_changed(self, name: str, now: Tensor) -> bool:
        then, version = self._seen.get(name, (None, 0))
        return then is not now or version != now._version
