"""A ledger of learned examples: salted fingerprints, from which no example can be read.

In sums, a learned row and another can look the same. The ledger distinguishes them, and it recognises a row
that is to be forgotten twice.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from rwalk.errors import InputError


class Ledger:
    """How often each example was learned, by its fingerprint under a salt; merged ledgers have several salts."""

    def __init__(self) -> None:
        self.marks: dict[bytes, Counter[int]] = {secrets.token_bytes(16): Counter()}

    def fresh(self) -> Ledger:
        twin = Ledger()
        twin.marks = {salt: Counter() for salt in self.marks}
        return twin

    def add(self, x: Tensor, y: Iterable[Any], weight: Tensor) -> None:
        salt = next(iter(self.marks))
        self.marks[salt].update(_fingerprints(salt, x, y, weight))

    def without(self, x: Tensor, y: Iterable[Any], weight: Tensor) -> Ledger:
        """The ledger after these are forgotten.

        Raises:
            InputError: if one of them was not learned, or was forgotten before.
        """
        left = Ledger()
        left.marks = {salt: marks.copy() for salt, marks in self.marks.items()}
        labels = list(y)
        under = [(marks, _fingerprints(salt, x, labels, weight)) for salt, marks in left.marks.items()]
        for row in range(len(x)):
            found = next(((marks, each[row]) for marks, each in under if marks[each[row]] > 0), None)
            if found is None:
                raise InputError(
                    f"row {row} (counted from 0) was not learned with this label and weight, or was forgotten "
                    "before: nothing was forgotten; give only learned examples"
                )
            marks, mark = found
            marks[mark] -= 1
        return left

    def merge(self, other: Ledger) -> None:
        for salt, marks in other.marks.items():
            self.marks.setdefault(salt, Counter()).update(marks)

    def tensors(self) -> dict[str, Tensor]:
        """All of it, for a file."""
        every = [(salt, mark, n) for salt, marks in self.marks.items() for mark, n in marks.items() if n > 0]
        places = {salt: place for place, salt in enumerate(self.marks)}
        rows = torch.tensor([[places[salt], mark, n] for salt, mark, n in every], dtype=torch.int64).reshape(-1, 3)
        salts = torch.tensor([list(salt) for salt in self.marks], dtype=torch.uint8)
        return {"salts": salts, "marks": rows}

    @classmethod
    def of(cls, salts: Tensor, marks: Tensor) -> Ledger:
        self = cls()
        names = [bytes(row) for row in salts.tolist()]
        self.marks = {salt: Counter() for salt in names}
        for place, mark, n in marks.tolist():
            self.marks[names[place]][mark] = n
        return self


def _fingerprints(salt: bytes, x: Tensor, y: Iterable[Any], weight: Tensor) -> list[int]:
    rows = x.flatten(1).to(torch.float64).cpu().contiguous().numpy()
    return [
        int.from_bytes(
            hashlib.blake2b(row.tobytes() + repr((str(label), w)).encode(), digest_size=7, key=salt).digest(),
            "big",
        )
        for row, label, w in zip(rows, y, weight.tolist(), strict=True)
    ]
