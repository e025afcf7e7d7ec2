"""The user's own code, named `package.module:name`: a file may name it, but only the user may have it imported."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rwalk.studies.specs import RunSpec


def let_import(names: Iterable[str]) -> None:
    """Let Python find the user's own code in the current folder."""
    if any(":" in name for name in names) and (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)


def named_by(runs: Iterable[RunSpec]) -> list[str]:
    """The names of all user code that these runs would import, without repeats."""
    return list(dict.fromkeys(name for run in runs for name in run.own_code()))


def check(folder: Path, runs: Iterable[RunSpec], trusted: Collection[str]) -> None:
    """Refuse a study that imports code which the user has not confirmed."""
    from rwalk.errors import InputError

    unconfirmed = [name for name in named_by(runs) if name not in trusted]
    if unconfirmed:
        raise InputError(f"{folder} imports code: add {' '.join(options(unconfirmed))} if you trust it")


def options(names: Iterable[str]) -> list[str]:
    """The options of `rwalk resume` that confirm these names."""
    return [word for name in names for word in ("--trust", name)]
