"""Code of the user's own, named as `package.module:name`: files may name it, only the user has it imported."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rwalk.studies.specs import RunSpec


def let_import(names: Iterable[str]) -> None:
    """Code of the user's own may lie in the folder that the command is given in."""
    if any(":" in name for name in names) and (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)


def named_by(runs: Iterable[RunSpec]) -> list[str]:
    """All code of the user's own that these runs would import, each name once."""
    return list(dict.fromkeys(name for run in runs for name in run.own_code()))


def check(folder: Path, runs: Iterable[RunSpec], trusted: Collection[str]) -> None:
    """Refuse a study that imports code nobody has confirmed."""
    from rwalk.errors import InputError

    unconfirmed = [name for name in named_by(runs) if name not in trusted]
    if unconfirmed:
        raise InputError(f"{folder} imports code: add {' '.join(options(unconfirmed))} if you trust it")


def options(names: Iterable[str]) -> list[str]:
    """The options of `rwalk resume` that confirm these names."""
    return [word for name in names for word in ("--trust", name)]
