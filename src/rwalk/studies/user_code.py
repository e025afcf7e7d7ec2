"""The source of users' code that a run names as `package.module:name`: has it changed?"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import io
import sysconfig
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

OURS = Path(__file__).parents[1]
INSTALLED = {
    "site-packages",
    "dist-packages",
}  # of this environment, of one that it extends, or of the user's home


def source_digest(module: str) -> str:
    """A digest of a module's source and of the user's code that it imports, without comments and blank lines."""
    file = _file_of(module)
    return "unknown" if file is None else _digest(module, file, file.stat().st_mtime_ns)


@cache
def _digest(module: str, file: Path, changed: int) -> str:
    """`changed` is the file's modification time; its imports are assumed not to change within a process."""
    digest = hashlib.sha256()
    for name, each_file in sorted(_with_imports(module, file).items()):
        digest.update(f"{name}\n{_bare(_source(each_file))}\n".encode())
    return digest.hexdigest()[:16]


def _with_imports(module: str, file: Path) -> dict[str, Path]:
    """A module's file, and those of the user's modules that it imports, directly or through others."""
    files = {module: file}
    queue = [module]
    while queue:
        name = queue.pop()
        for each in _imported(name, files[name]):
            found = _file_of(each)
            if found is not None and each not in files and _is_users(found):
                files[each] = found
                queue.append(each)
    return files


def _file_of(module: str) -> Path | None:
    """Where a module's source is, without importing it."""
    with suppress(ImportError, AttributeError, ValueError):  # importing it raises an error of its own
        top = importlib.util.find_spec(module.partition(".")[0])
        if top is None or top.origin is None:
            return None
        # Finding a module imports the packages around it: for a digest, only the user's own.
        spec = importlib.util.find_spec(module) if "." in module and _is_users(Path(top.origin)) else top
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            return Path(spec.origin)
    return None


def _imported(module: str, file: Path) -> Iterator[str]:
    """The names of the modules that a module's source imports, and of those that it may mean."""
    try:
        tree = ast.parse(_source(file))
    except (SyntaxError, ValueError):
        return
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            with suppress(ImportError, ValueError):
                base = importlib.util.resolve_name(start, package) if node.level else start
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)


def _is_users(file: Path) -> bool:
    """Whether a file is the user's own: other code is identified by its version."""
    if OURS in file.parents or not INSTALLED.isdisjoint(file.parts):
        return False
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return not any(Path(each) in file.parents for each in places if each)


def _source(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8", errors="replace")
    except OSError:
        return ""


def _bare(source: str) -> str:
    """Source without comments and blank lines.

    >>> _bare("x = 1  # one\\n\\n\\ny = '#'\\n")
    "x = 1\\ny = '#'"
    """
    lines = source.split("\n")  # as `tokenize` counts them: a form feed ends no line
    with suppress(tokenize.TokenError, SyntaxError, IndexError):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][:column]
    return "\n".join(line.rstrip() for line in lines if line.strip())
