"""Does the wheel work by itself? In an empty environment, in an empty folder, without a compiler:

    python tests/wheel_smoke.py dist/*.whl --python python3.12 --python python3.13

installs it with the pinned versions, asks every extra to resolve, and runs the demonstration.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PINNED = ["-c", str(ROOT / "constraints.txt")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", action="append", help="an interpreter to try it with; repeatable")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that the demonstration may take")
    given = parser.parse_args()
    _check_content(given.wheel)
    for python in given.python or [sys.executable]:
        with tempfile.TemporaryDirectory(prefix="rwalk-wheel-") as folder:
            took = _try_out(given.wheel.resolve(), python, Path(folder))
        if took > given.limit:
            raise SystemExit(f"the demonstration took {took:.0f} s, more than {given.limit:.0f}")


def _check_content(wheel: Path) -> None:
    """Everything of the package is in it, and nothing else."""
    archive = zipfile.ZipFile(wheel)
    names = set(archive.namelist())
    missing = {str(path.relative_to(ROOT / "src")) for path in _package_files()} - names
    assert not missing, f"not in the wheel: {sorted(missing)}"
    strange = {name for name in names if not name.startswith("rwalk")}
    assert not strange, f"in the wheel, but not of the package: {sorted(strange)}"
    lines = sum(archive.read(name).count(b"\n") for name in names if name.endswith(".py"))
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB, {lines:,} lines of Python in {len(names)} files")


def _package_files() -> list[Path]:
    tracked = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in tracked.stdout.splitlines()]


def _try_out(wheel: Path, python: str, folder: Path) -> float:
    """The seconds that the demonstration took."""
    own = folder / "env" / "bin"
    # No compiler, and no project on the path: what cannot be had as a wheel, or is found by accident, shows.
    dropped = ("PYTHON", "CC", "CXX", "VIRTUAL_ENV", "RWALK_", "OMP_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    environ |= {"PATH": str(own), "RWALK_CACHE": str(folder / "cache"), "COLUMNS": "80"}

    def call(*words: str) -> str:
        done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    python = shutil.which(python) or python
    call(python, "-m", "venv", str(folder / "env"))
    install = [str(own / "python"), "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
    call(*install, *PINNED, str(wheel))
    for extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]:
        call(*install, "--dry-run", f"{wheel}[{extra}]")  # as a user would, whom our pins do not concern
        print(f"{python}: extra {extra} resolves", flush=True)
    begun = time.monotonic()
    said = call("rwalk", "run")
    took = time.monotonic() - begun
    assert "After five tasks the first is recognised" in " ".join(said.split()), said
    print(said)
    print(f"{python}: {call('rwalk', '--version').strip()} demonstrated in {took:.0f} s")
    return took


if __name__ == "__main__":
    main()
