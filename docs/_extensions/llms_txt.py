"""Writes llms.txt: every page with its title and first sentence, for programs that read documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes

SUMMARY = (
    "Continual learning in PyTorch: a model learns new classes or new data without losing the old ones, and "
    "forgetting is measured. Three doors: IncrementalClassifier for arrays, Guard for your own model and training "
    "loop, `rwalk run` to compare methods."
)


def written(app: Any, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    lines = ["# rwalk", "", f"> {SUMMARY}", ""]
    for title, pages in _sections(app.env):
        lines += [f"## {title}", "", *(_line(app, page) for page in pages), ""]
    Path(app.outdir, "llms.txt").write_text("\n".join(lines), encoding="utf-8")


def _sections(env: Any) -> list[tuple[str, list[str]]]:
    """The captions of the first page's tables of contents, each with all pages below it."""
    from sphinx import addnodes

    found = []
    for toctree in env.get_doctree("index").findall(addnodes.toctree):
        pages = [page for _, entry in toctree["entries"] if entry for page in _with_children(env, entry)]
        found.append((toctree.get("caption") or "Pages", pages))
    return found


def _with_children(env: Any, page: str) -> list[str]:
    below = [each for child in env.toctree_includes.get(page, []) for each in _with_children(env, child)]
    return [page, *below]


def _line(app: Any, page: str) -> str:
    title = app.env.titles[page].astext() if page in app.env.titles else page
    source = Path(app.env.doc2path(page)).suffix
    sentence = _first_sentence(app.env.get_doctree(page))
    return f"- [{title}](_sources/{page}{source}.txt)" + (f": {sentence}" if sentence else "")


def _first_sentence(doctree: Any) -> str:
    for paragraph in doctree.findall(nodes.paragraph):
        text = " ".join(paragraph.astext().split())
        if len(text) > 20 and not isinstance(paragraph.parent, nodes.Admonition):  # not the gallery's own remarks
            return re.split(r"(?<=[.!?]) ", text)[0]
    return ""


def setup(app: Any) -> dict[str, bool]:
    app.connect("build-finished", written)
    return {"parallel_read_safe": True}
