"""Does the wheel work by itself? In an empty environment, in an empty folder, without a compiler:

    python tests/wheel_smoke.py dist/rwalk-0.2.0-py3-none-any.whl [python3.12 …]

installs it with the pinned versions, asks every extra to resolve, and runs the demonstration.
"""

from __future__ import annotations

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
LIMIT = 60.0  # seconds that the demonstration may take


def main(wheel: Path, pythons: list[str]) -> None:
    _check_content(wheel)
    for python in pythons:
        with tempfile.TemporaryDirectory(prefix="rwalk-wheel-") as folder:
            _try_out(wheel.resolve(), python, Path(folder))


def _check_content(wheel: Path) -> None:
    """Everything of the package is in it, and nothing else."""
    names = set(zipfile.ZipFile(wheel).namelist())
    missing = {str(path.relative_to(ROOT / "src")) for path in _package_files()} - names
    assert not missing, f"not in the wheel: {sorted(missing)}"
    strange = {name for name in names if not name.startswith("rwalk")}
    assert not strange, f"in the wheel, but not of the package: {sorted(strange)}"


def _package_files() -> list[Path]:
    tracked = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in tracked.stdout.splitlines()]


def _try_out(wheel: Path, python: str, folder: Path) -> None:
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
    install = [str(own / "python"), "-m", "pip", "install", "--quiet", "--only-binary=:all:", *PINNED]
    call(*install, str(wheel))
    for extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]:
        call(*install, "--dry-run", f"{wheel}[{extra}]")
        print(f"{python}: extra {extra} resolves", flush=True)
    begun = time.monotonic()
    said = call("rwalk", "run")
    took = time.monotonic() - begun
    assert "After five tasks the first is recognised" in " ".join(said.split()), said
    print(said)
    print(f"{python}: {call('rwalk', '--version').strip()} demonstrated in {took:.0f} s")
    if took > LIMIT:
        raise SystemExit(f"the demonstration took {took:.0f} s, more than {LIMIT:.0f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or [sys.executable])
