"""What the HTML of Sphinx and its theme lacks for screen readers and keyboards, added to finished pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

LACKING = {  # attributes, by the beginnings of tags
    '<p class="caption" role="heading"': 'aria-level="2"',
    '<aside class="sidebar-drawer"': 'aria-label="All pages"',
    '<aside class="toc-drawer"': 'aria-label="This page"',
    '<aside class="toc-drawer no-toc"': 'aria-label="This page"',
    '<div class="content-icon-container"': 'role="region" aria-label="Tools"',
    '<div class="highlight"><pre': 'tabindex="0"',  # can be scrolled by keyboard
    '<div class="math-wrapper docutils container"': 'tabindex="0" role="group" aria-label="Equation"',
    '<div class="table-wrapper colwidths-auto docutils container"': 'tabindex="0" role="group" aria-label="Table"',
}
# parameters: a list without terms
SIGNATURE = re.compile(r"<dl>\n((?:<dd><em class=\"sig-param\">.*</dd>\n)+)</dl>")
REPLACED = {
    '<th class="head"><p></p></th>': '<td class="head"></td>',  # an empty cell is no heading
    '<div id="search-results"></div>': '<h1>Search</h1>\n<div id="search-results"></div>',
}


def _complete(app: Any, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    added = {f"{tag}>": f"{tag} {attributes}>" for tag, attributes in LACKING.items()}
    for page in Path(app.outdir).rglob("*.html"):
        text = before = page.read_text(encoding="utf-8")
        for lacking, whole in {**added, **REPLACED}.items():
            text = text.replace(lacking, whole)
        text = SIGNATURE.sub(lambda found: f'<div class="sig-params">\n{_rows(found[1])}</div>', text)
        if text != before:
            page.write_text(text, encoding="utf-8")


def _rows(parameters: str) -> str:
    return parameters.replace("<dd>", "<div>").replace("</dd>", "</div>")


def setup(app: Any) -> dict[str, bool]:
    app.connect("build-finished", _complete)
    return {"parallel_read_safe": True}
