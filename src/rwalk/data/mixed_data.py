"""Replay: old examples mixed into new ones, an exact share of every epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from rwalk.errors import InputError
from rwalk.seeds import generator


def mix(new: Any, old: Any, ratio: float = 0.1, seed: int = 0) -> MixedDataset | MixedLoader:
    """Mix old data into new data.

    An epoch has every new example once, and as many old ones as the ratio says. The old ones differ from epoch to
    epoch, and all of them have been used before any is used again.

    Args:
        new: a dataset with a length (torch's, or one of Hugging Face's datasets), or a DataLoader.
        old: the same kind of thing.
        ratio: the share of old examples among all; of batches, if loaders are given.
        seed: of the choice of old examples in a dataset; a loader chooses by its own sampler.

    Returns:
        A dataset, to be shuffled by its loader: call `set_epoch` before each epoch, as transformers and accelerate
        do. Or, of loaders, something to loop over as over a loader.

    >>> data = mix(["a", "b", "c"], ["x", "y"], ratio=0.25)
    >>> len(data), sorted(data[number] for number in range(4))[:3]
    (4, ['a', 'b', 'c'])
    """
    if not 0 < ratio < 1:
        raise InputError(f"ratio must be above 0 and below 1, not {ratio:g}")
    loaders = isinstance(new, DataLoader), isinstance(old, DataLoader)
    if loaders[0] != loaders[1]:
        raise InputError("give two datasets or two loaders, not one of each")
    for name, data in (("new", new), ("old", old)):
        try:
            length = len(data)
        except TypeError:  # also of a loader whose dataset has no length
            raise InputError(f"the {name} data have no length, so a share of them is not defined") from None
        if length == 0:
            raise InputError(f"the {name} data are empty")
    return MixedLoader(new, old, ratio) if loaders[0] else MixedDataset(new, old, ratio, seed)


def _old_beside(new: int, ratio: float) -> int:
    return max(1, round(new * ratio / (1 - ratio)))


class MixedDataset(Dataset[Any]):
    """All new examples, then this epoch's old ones; see `mix`."""

    def __init__(self, new: Any, old: Any, ratio: float, seed: int) -> None:
        self.new, self.old, self.seed = new, old, seed
        self._count = _old_beside(len(new), ratio)
        # In shared memory: a loader's workers may have been started in an earlier epoch.
        self._epoch = torch.zeros((), dtype=torch.int64, device="cpu").share_memory_()
        self._chosen: tuple[int, list[int]] = -1, []  # in which epoch, the old examples

    def set_epoch(self, epoch: int) -> None:
        """Choose the old examples of this epoch, counted from 0."""
        self._epoch.fill_(epoch)

    def _old(self, number: int) -> Any:
        """This old example of the epoch."""
        epoch, chosen = int(self._epoch), self._chosen
        if chosen[0] != epoch:
            places = range(epoch * self._count, (epoch + 1) * self._count)
            orders = {
                turn: torch.randperm(
                    len(self.old), generator=generator(self.seed, "mix", turn), device="cpu"
                ).tolist()
                for turn in range(places[0] // len(self.old), places[-1] // len(self.old) + 1)
            }
            found = [orders[place // len(self.old)][place % len(self.old)] for place in places]
            chosen = self._chosen = epoch, found
        return self.old[chosen[1][number]]

    def __len__(self) -> int:
        return len(self.new) + self._count

    def __getitem__(self, number: int) -> Any:
        if not -len(self) <= number < len(self):
            raise IndexError(f"{number} of {len(self)} examples")
        number %= len(self)
        return self.new[number] if number < len(self.new) else self._old(number - len(self.new))


class MixedLoader:
    """Batches of new data with batches of old data evenly between them; see `mix`."""

    def __init__(self, new: DataLoader[Any], old: DataLoader[Any], ratio: float) -> None:
        self.new, self.old = new, old
        self._count = _old_beside(len(new), ratio)
        self._rest: Iterator[Any] = iter(())  # of the old data, from one epoch to the next

    def __len__(self) -> int:
        return len(self.new) + self._count

    def __iter__(self) -> Iterator[Any]:
        new, given = iter(self.new), 0
        for number in range(len(self)):
            due = (number + 1) * self._count // len(self)  # old batches by now
            if due > given:
                given = due
                yield self._next_old()
            else:
                yield next(new)

    def _next_old(self) -> Any:
        for batch in self._rest:
            return batch
        self._rest = iter(self.old)
        return next(self._rest)
