"""The source of users' code that a run names as `package.module:name`: has it changed?"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import io
import sys
import sysconfig
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType


def source_digest(module: str) -> str:
    """Of a module's source and of all that it imports from around it; comments and blank lines do not count."""
    try:
        found = importlib.import_module(module)
    except Exception:  # who looks for the network itself says what is wrong with it
        return "unknown"
    return _digest(module, id(found.__spec__))  # a module that is loaded anew has a new one


@cache
def _digest(module: str, loaded: int) -> str:
    digest = hashlib.sha256()
    for name, each in sorted(_with_imports(sys.modules[module]).items()):
        digest.update(f"{name}\n{_bare(_source(each))}\n".encode())
    return digest.hexdigest()[:16]


def _with_imports(module: ModuleType) -> dict[str, ModuleType]:
    """A module and, of what it imports, directly or not, whatever is the user's own."""
    found = {module.__name__: module}
    queue = [module]
    while queue:
        for name in _imported(queue.pop()):
            each = sys.modules.get(name)
            if each is not None and name not in found and _is_users(each):
                found[name] = each
                queue.append(each)
    return found


def _imported(module: ModuleType) -> Iterator[str]:
    """The names of the modules that a module's source imports, those that it may mean included."""
    try:
        tree = ast.parse(_source(module))
    except (SyntaxError, ValueError):
        return
    package = module.__package__ or ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            with suppress(ImportError, ValueError):
                base = importlib.util.resolve_name(start, package) if node.level else start
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)


def _is_users(module: ModuleType) -> bool:
    """Neither Python's nor installed: versions speak for those."""
    file = getattr(module, "__file__", None)
    if not file:
        return False
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    here = Path(__file__).parent
    return here not in Path(file).parents and not any(Path(each) in Path(file).parents for each in places if each)


def _source(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    try:
        content = Path(file).read_bytes() if file else b""
        return content.decode("utf-8", errors="replace")
    except OSError:
        return ""


def _bare(source: str) -> str:
    """Source without comments and blank lines.

    >>> _bare("x = 1  # one\\n\\n\\ny = '#'\\n")
    "x = 1\\ny = '#'"
    """
    lines = source.splitlines()
    with suppress(tokenize.TokenError, SyntaxError, IndexError):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][:column]
    return "\n".join(line.rstrip() for line in lines if line.strip())
