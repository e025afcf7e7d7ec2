"""The layers of the house: imports point one way, and folders are the layers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import rwalk

ROOT = Path(rwalk.__file__).parent
# From the ground up; what stands in one line knows nothing of its neighbours there.
LAYERS = (
    ("garbage", "showing"),
    ("errors",),
    ("catalogue", "files", "metrics", "private_torch", "registry", "seeds", "threads", "training"),
    ("sealed", "closed_form", "programs"),
    ("methods", "data", "augmentations", "classifiers"),
    ("losses", "projectors", "solvers", "guard"),
    ("parts", "integrations"),
    ("learners",),
    ("engine",),
    ("labels",),
    ("studies", "classifier"),
    ("report", "models"),
    ("paper", "demonstration"),
    ("yardsticks",),
    ("cli", "testing"),
    ("__main__",),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def room_of(path: Path) -> str:
    """The folder, or the file, right under the package."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The rooms that a file imports from, wherever in it."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "rwalk":
            names = [f"rwalk.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            names = [node.module or ""]
        else:
            continue
        rooms |= {name.split(".")[1] for name in names if name.startswith("rwalk.")}
    return rooms


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    here = room_of(path)
    assert here in LEVEL, f"{here} is no room of the house yet: give it a level"
    for there in imported(path) - {here}:
        assert LEVEL[there] < LEVEL[here], f"{path.relative_to(ROOT)} imports rwalk.{there}, which stands above it"


def test_the_core_needs_torch_numpy_and_safetensors_only() -> None:
    allowed = {"torch", "numpy", "safetensors", "rwalk"}
    for path in FILES:
        if LEVEL[room_of(path)] > LEVEL["engine"] or room_of(path) == "integrations":
            continue
        for node in ast.parse(
            path.read_text(encoding="utf-8")
        ).body:  # at a module's top: elsewhere is where it is used
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top = name.partition(".")[0]
                assert top in allowed or _is_pythons(top), f"{path.relative_to(ROOT)} imports {top}"


def _is_pythons(module: str) -> bool:
    import sys

    return module in sys.stdlib_module_names
