"""What `make` installs: versions, and hashes of their files, that agree with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UNHASHED = {"torch"}  # its build depends on the machine
ELSEWHERE = re.compile(r"sys_platform == '(win32|emscripten)'")  # what only other systems need


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def pins(file: str) -> dict[str, tuple[str, str]]:
    """Version, and all that follows it, by name."""
    text = (ROOT / file).read_text()
    entries = re.findall(
        r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)(.*?)(?=^[A-Za-z0-9]|\Z)", text, re.MULTILINE | re.DOTALL
    )
    return {name_of(name): (version, rest) for name, version, rest in entries}


@pytest.mark.parametrize("file", ["requirements/run.txt", "requirements/dev.txt"])
def test_every_locked_file_has_a_hash_and_the_version_of_the_constraints(file: str) -> None:
    constraints = pins("constraints.txt")
    locked = pins(file)
    assert len(locked) > 30
    for name, (version, rest) in locked.items():
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", rest), name
        if name in constraints or not ELSEWHERE.search(rest):
            assert constraints[name][0] == version, name


def test_everything_needed_is_locked_but_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]

    def needed(requirements: list[str]) -> set[str]:
        names: set[str] = set()
        for each in requirements:
            if each.startswith("rwalk["):
                names |= needed([part for extra in each[6:-1].split(",") for part in extras[extra]])
            else:
                names.add(name_of(each))
        return names

    build = {"hatchling", "editables"}  # not built in isolation, so that these are locked too
    run, dev = (set(pins(f"requirements/{name}.txt")) for name in ("run", "dev"))
    assert needed(project["dependencies"] + extras["report"]) | build <= run | UNHASHED
    assert needed(project["dependencies"] + extras["dev"]) | build <= dev | UNHASHED
    assert run <= dev and not UNHASHED & dev


def test_make_installs_nothing_without_a_pin() -> None:
    constraints, makefile = pins("constraints.txt"), (ROOT / "Makefile").read_text()
    commands = [line.strip() for line in makefile.splitlines() if line.startswith("\t")]
    other_torch = "build/torch-$(TORCH)/"  # an environment whose versions are those of another torch
    assert not [line for line in commands if "pip install" in line and not line.startswith(other_torch)]
    for line in commands:
        if line.startswith("$(INSTALL) ") and "-e" not in line:
            assert {name_of(each) for each in line.split()[1:] if "==" not in each} <= set(constraints), line
        if line.startswith("$(PIP) "):
            assert "--no-deps -e ." in line, line
        if line.startswith("npm install"):
            assert re.search(r"@\d+\.\d+\.\d+$", line), line


def test_torch_alone_decides_about_triton() -> None:
    """Its builds for CUDA ask for one version each; another one in the constraints could not be installed."""
    assert "triton" not in pins("constraints.txt")
