"""Pages are written to be read in the repository too. On the site, links to its files lead to the site's pages."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# Files of the repository that are pages of the site.
PAGES = {
    "README.md": "index.md",
    "RESULTS.md": "reproduction.md",
    "reproduction/notes.md": "notes.md",
    "benchmarks/README.md": "speed.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
# Pages of the site whose text is such a file's.
TEXTS = {page.removesuffix(".md"): file for file, page in PAGES.items() if page != "index.md"}
ORPHAN = "---\norphan: true\n---\n"  # at the top of a page outside the navigation
LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")


def on_the_site(text: str, folder: Path, page: Path) -> str:
    """A text with its links changed; it was written in one folder, and is shown as a page."""

    def changed(found: re.Match[str]) -> str:
        target = found["target"]
        if "://" in target or target.startswith(("/", "mailto:")):
            return found[0]
        file = Path(os.path.normpath(folder / target))
        return f"{found['before']}{_target(file, page)}{found['anchor'] or ''}"

    return LINK.sub(changed, text)


def _target(file: Path, page: Path) -> str:
    inside = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else ""
    if inside in PAGES:
        return f"/{PAGES[inside]}"
    if inside.startswith("examples/") and inside.endswith(".py"):
        return f"/gallery/{file.stem}.rst"
    return os.path.relpath(file, page.parent).replace(os.sep, "/")


def _read(app: Any, docname: str, source: list[str]) -> None:
    page = Path(app.env.doc2path(docname))
    if docname in app.config.not_executed:
        package = app.config.not_executed[docname]
        source[0] += f"\n\n.. note:: Not run here: {package} is not installed.\n"
    if page.suffix != ".md":
        return
    if docname in TEXTS:
        file = ROOT / TEXTS[docname]
        app.env.note_dependency(str(file))
        orphan = ORPHAN if source[0].startswith(ORPHAN) else ""
        source[0] = orphan + on_the_site(file.read_text(encoding="utf-8"), file.parent, page)
    else:
        source[0] = on_the_site(source[0], page.parent, page)


def setup(app: Any) -> dict[str, bool]:
    app.add_config_value("not_executed", {}, "env")
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}
