"""Random damage to files, and forgeries: what becomes of a reader that is given them.

    counts = survey(path, lambda: read(path), number=300)

A reader may refuse a damaged file with an InputError of one line, or read from it what the sound file holds.
Anything else is a finding: `survey` raises AssertionError with the damage that led there.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rwalk import InputError

Damage = Callable[[bytes, random.Random], bytes]


def _flip(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content))
    return content[:place] + bytes([content[place] ^ (1 << chance.randrange(8))]) + content[place + 1 :]


def _digit(content: bytes, chance: random.Random) -> bytes:
    """Another digit where there is one: the file stays well formed."""
    places = [place for place, byte in enumerate(content) if byte in b"0123456789"]
    if not places:
        return _flip(content, chance)
    place = chance.choice(places)
    others = [byte for byte in b"0123456789" if byte != content[place]]
    return content[:place] + bytes([chance.choice(others)]) + content[place + 1 :]


def _cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content))]


def _remove(content: bytes, chance: random.Random) -> bytes:
    place, length = chance.randrange(len(content)), chance.choice([1, 2, 8, 64, 512])
    return content[:place] + content[place + length :]


def _zero(content: bytes, chance: random.Random) -> bytes:
    place, length = chance.randrange(len(content)), chance.choice([1, 16, 512, 4096])
    length = min(length, len(content) - place)
    return content[:place] + bytes(length) + content[place + length :]


def _insert(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    return content[:place] + chance.randbytes(chance.choice([1, 2, 8, 64])) + content[place:]


def _repeat(content: bytes, chance: random.Random) -> bytes:
    place, length = chance.randrange(len(content)), chance.choice([1, 8, 64, 512])
    return content[: place + length] + content[place:]


def _swap(content: bytes, chance: random.Random) -> bytes:
    length = chance.choice([1, 4, 32])
    one, other = sorted(chance.randrange(max(1, len(content) - length)) for _ in range(2))
    if other < one + length:
        return _flip(content, chance)
    return b"".join(
        [
            content[:one],
            content[other : other + length],
            content[one + length : other],
            content[one : one + length],
            content[other + length :],
        ]
    )


DAMAGE: tuple[Damage, ...] = (_flip, _digit, _digit, _cut, _remove, _zero, _insert, _repeat, _swap)


def damaged(content: bytes, chance: random.Random) -> bytes:
    """The content with one random damage; never the content itself."""
    while True:
        found = chance.choice(DAMAGE)(content, chance)
        if found != content:
            return found


def survey(
    path: Path,
    read: Callable[[], Any],
    number: int = 300,
    same: Callable[[Any, Any], bool] = lambda sound, found: bool(sound == found),
    seed: int = 0,
) -> Counter[str]:
    """How often a damaged file was refused, and how often it was read as the sound one is.

    Args:
        path: The file; it is sound, and is so again afterwards.
        read: Reads it, and returns what was read. A reader that ignores damaged files returns None for them.
        number: How many damaged versions are tried.
        same: Whether what was read from a damaged file (second) is what the sound one holds (first).
        seed: Of the damage.
    """
    content, counts, chance = path.read_bytes(), Counter[str](), random.Random(seed)
    sound = read()
    assert sound is not None
    try:
        for attempt in range(number):
            path.write_bytes(damaged(content, chance))
            try:
                found = read()
            except InputError as error:
                assert "\n" not in str(error), error
                counts["refused"] += 1
                continue
            except Exception as error:
                raise AssertionError(f"damage {attempt}, seed {seed}: {type(error).__name__}: {error}") from error
            assert found is None or same(sound, found), f"damage {attempt}, seed {seed}: another result: {found!r}"
            counts["ignored" if found is None else "the same"] += 1
    finally:
        path.write_bytes(content)
    return counts


VALUES = [None, True, 0, -1, 10**30, 0.5, 1e308, "", "x", "\x1b[2J", "../..", [], [[]], [None], {}, {"a": 1}]


def forged(record: Any, chance: random.Random) -> Any:
    """A JSON value with one place in it replaced by another value, removed or repeated."""
    copy = json.loads(json.dumps(record))
    places: list[tuple[Any, Any]] = []

    def visit(value: Any) -> None:
        inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for name, each in inside:
            places.append((value, name))
            visit(each)

    visit(copy)
    holder, name = chance.choice(places)
    how = chance.randrange(5)
    if how == 0:
        del holder[name]
    elif how == 1 and isinstance(holder, list):
        holder.insert(name, json.loads(json.dumps(holder[name])))
    else:
        holder[name] = chance.choice(VALUES)
    return copy
