"""The commands that worked on a study, oldest first, kept in its folder: study.json says only what it is."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

NAME = "commands.txt"


def note(folder: Path, command: str) -> None:
    """Add a command, unless it is known."""
    if command and command not in read(folder):
        with suppress(OSError), open(folder / NAME, "a", encoding="utf-8") as file:  # it must not stop a study
            file.write(command.replace("\n", " ") + "\n")


def read(folder: Path) -> list[str]:
    with suppress(OSError, UnicodeDecodeError):
        return list(dict.fromkeys((folder / NAME).read_text(encoding="utf-8").splitlines()))
    return []
