"""One self-contained HTML page of results: it can be mailed, archived, opened anywhere.

Everything from data is text, never markup: Jinja escapes it, and the data block cannot be closed from within. The
page's content security policy allows only the script with the digest it names, and no network.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import rwalk
from rwalk.atomic_files import write_atomically, writing
from rwalk.errors import InputError
from rwalk.escaping import shown
from rwalk.metrics import HEADS
from rwalk.part_names import summaries as learners
from rwalk.report import method_colours, page_data, result_folders, wording
from rwalk.report.result_folders import Results

DOCTYPE = b"<!doctype html"
SCRIPTS = ("page_data.js", "charts.js", "plots.js", "figure_export.js", "tables.js", "page.js")


def write_report(folders: Sequence[Path], out: Path | None = None, title: str = "") -> Path:
    """Write the report of folders of results: by default as `report.html`, in the folder if there is only one."""
    if out is None:
        out = folders[0] / "report.html" if len(folders) == 1 else Path("report.html")
    _check_is_a_page(out)
    named = zip(folders, result_folders.names_of(folders), strict=True)
    page = render([result_folders.read(folder, name) for folder, name in named], title)
    with writing(out, "; choose another --out"):
        write_atomically(out, page)
    return out


def _check_is_a_page(out: Path) -> None:
    """Refuse to overwrite anything but an older page: the rows of a study, for example."""
    if not out.is_file():
        return
    with writing(out, "; choose another --out"), open(out, "rb") as file:
        begin = file.read(len(DOCTYPE))
    if begin and begin != DOCTYPE:
        raise InputError(f"{out} exists and is no page: choose another --out")


def render(studies: Sequence[Results], title: str = "", made: datetime | None = None) -> str:
    """The page as text."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise InputError("a report needs jinja2: pip install 'rwalk[report]'") from None
    names = [each.name for each in studies] if len(studies) > 1 else [""]
    summaries = [
        replace(summary, study=name)
        for name, study in zip(names, studies, strict=True)
        for summary in study.summaries
    ]
    parts = page_data.sections(summaries, dict(zip(names, studies, strict=True)))
    title = shown(title or page_data.title(parts))
    methods = page_data.methods(summaries)
    script = "\n".join(map(_part, SCRIPTS))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(_part("page.html.j2")).render(
        title=title,
        counts=_counts(studies, len(summaries)),
        made=(made or datetime.now(UTC)).strftime("%d %B %Y, %H:%M UTC"),
        version=rwalk.__version__,
        studies=[_study(each) for each in studies],
        mixture=result_folders.mixed(studies),
        heads={
            head: wording.HEAD_NAMES[head] for head in HEADS if any("multi" in each["heads"] for each in parts)
        },
        titles=wording.TITLES,
        sections=parts,
        methods=_explained(methods),
        methods_shown=len(methods),
        stopped=[run for study in studies for run in study.stopped],
        policy=_policy(script),
        style=_colours() + _part("page.css"),
        data=_json({"methods": methods, "sections": parts, "title": title}),
        script=script,
    )


def _part(name: str) -> str:
    return (files("rwalk.report") / "page" / name).read_text(encoding="utf-8")


def _colours() -> str:
    """The palette as variables of the page."""
    pairs = enumerate(method_colours.PALETTE)
    named = (f"--c{place}: light-dark({light}, {dark})" for place, (light, dark) in pairs)
    return f":root {{ {'; '.join(named)} }}\n"


def _counts(studies: Sequence[Results], configurations: int) -> str:
    runs, missing = sum(len(each.rows) for each in studies), sum(each.missing for each in studies)
    seeds = set().union(*(each.seeds for each in studies))
    counts = ((runs, "run"), (configurations, "configuration"), (len(seeds), "seed"))
    unfinished = f" · unfinished: {missing} more to run" if missing else ""
    return " · ".join(wording.counted(*each) for each in counts) + unfinished


def _study(study: Results) -> dict[str, Any]:
    """A study at the head of the page: the commands that made it, and with which version."""
    facts = [("study", study.name)] if study.name else []
    facts += [("command", "\n".join(study.commands))] if study.commands else []
    facts += [("version", wording.listed([f"rwalk {each}" for each in study.versions]))] if study.versions else []
    return {"name": study.name, "facts": facts, "environments": study.environments}


def _explained(methods: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """The methods of a page as (name, name in commands, a sentence); users' own have no sentence."""
    known = learners()
    return [(each["name"], each["id"], known[each["id"]]) for each in methods if each["id"] in known]


def _policy(script: str) -> str:
    """A content security policy: no script but this one, and no network."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:"


def _json(data: Any) -> str:
    """JSON that is safe inside a script element: without `<`, nothing can close or open one."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
