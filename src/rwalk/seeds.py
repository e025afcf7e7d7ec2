"""Random numbers that depend on names, not on earlier draws: (seed, purpose, task, epoch …) → generator.

A run must not depend on the other runs of its fleet, nor on where it was interrupted. So nothing in the training
loop draws from global random state. The constructors of torch's layers do: `seeded` seeds and restores it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral

import torch

_GLOBAL = threading.RLock()  # held while torch's global generator is in use


def is_seed(seed: object) -> bool:
    """Whether torch takes it as it is: a whole number of 64 bits."""
    return isinstance(seed, Integral) and not isinstance(seed, bool) and -(2**63) <= int(seed) < 2**63


def derive(*parts: int | str) -> int:
    """A 63-bit seed from a name.

    >>> derive(0, "order", 1) == derive(0, "order", 1) != derive(0, "order", 2)
    True
    """
    # NumPy's integers have a different repr.
    plain = tuple(int(part) if isinstance(part, Integral) else str(part) for part in parts)
    digest = hashlib.blake2b(repr(plain).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """A CPU generator seeded by a name; draws are made on the CPU, so that they are the same for every device."""
    return torch.Generator().manual_seed(derive(*parts))


@contextmanager
def draws_restored(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Restore torch's global generators after a block, which one thread at a time enters."""
    with _GLOBAL, torch.random.fork_rng(devices=[*devices]):
        yield


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator within a block, and restore its state afterwards."""
    with draws_restored():
        torch.default_generator.manual_seed(seed)
        yield
