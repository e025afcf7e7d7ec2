"""Imports inside the package point one way: down the table `LAYERS`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import rwalk

ROOT = Path(rwalk.__file__).parent
# From the bottom up. A module imports from lower lines only, never from its own line or above.
LAYERS = """
gc_pause escaping
errors option_fields
part_names atomic_files metrics private_torch registry seeds threads training
model_file closed_form compiled_programs
methods data augmentations decision_rules
losses projectors solvers guard
parts
learners
engine
labels
studies classifier
report models
before_after
integrations demonstration
cli testing
__main__
"""
LEVEL = {name: level for level, line in enumerate(LAYERS.split("\n")) for name in line.split()}
CORE = "engine"  # this layer and those below it import torch, numpy and safetensors only
ALLOWED = {"torch", "numpy", "safetensors", "rwalk", *sys.stdlib_module_names}
# Adapters to other libraries: a user who imports one has the library.
ADAPTERS = {"integrations"}


def sources() -> Iterator[tuple[str, str, ast.Module]]:
    """Every module of the package: its path, the name directly under `rwalk`, and its syntax tree."""
    for path in sorted(ROOT.rglob("*.py")):
        relative = path.relative_to(ROOT)
        if str(relative) != "__init__.py":
            yield str(relative), relative.parts[0].removesuffix(".py"), ast.parse(path.read_text(encoding="utf-8"))


def imports(node: ast.AST) -> list[str]:
    """The full names of the modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        if node.module == "rwalk" or node.level:
            return [f"{'.' * node.level or 'rwalk.'}{alias.name}" for alias in node.names]
        return [node.module or ""]
    return []


def test_imports_of_every_module_point_down() -> None:
    wrong = []
    for path, here, tree in sources():
        if here not in LEVEL:
            wrong.append(f"{path}: add {here} to a line of LAYERS")
            continue
        for name in {name for node in ast.walk(tree) for name in imports(node)}:
            top, _, rest = name.partition(".")
            there = rest.partition(".")[0]
            if not top:
                wrong.append(f"{path}: write the import of {name} with its full name")
            elif top == "rwalk" and there not in {"", here} and LEVEL.get(there, len(LEVEL)) >= LEVEL[here]:
                wrong.append(f"{path} imports rwalk.{there}, which is not below {here}")
    assert not wrong, "\n".join(sorted(wrong))


def test_imports_of_the_reproduction_are_nowhere_in_the_package() -> None:
    named = {
        path: {name.partition(".")[0] for node in ast.walk(tree) for name in imports(node)}
        for path, _, tree in sources()
    }
    assert not [path for path, names in named.items() if "reproduction" in names]


def test_imports_of_the_core_are_torch_numpy_and_safetensors_only() -> None:
    wrong = []
    for path, here, tree in sources():
        if LEVEL.get(here, len(LEVEL)) > LEVEL[CORE] or here in ADAPTERS:
            continue
        for node in tree.body:  # the top level alone: a function may import others
            wrong += [f"{path} imports {name}" for name in imports(node) if name.partition(".")[0] not in ALLOWED]
    assert not wrong, "\n".join(wrong)
