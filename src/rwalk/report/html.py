"""One self-contained HTML page of a folder of results: it can be mailed, archived, opened anywhere.

Whatever comes from data is text to the page, never markup: Jinja escapes it, the data block cannot be closed from
within, and the page's content security policy allows only the two scripts whose digests it names, and no network.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from rwalk.errors import InputError
from rwalk.files import write_atomically
from rwalk.metrics import HEADS
from rwalk.report import results, sections
from rwalk.report.figures import HEAD_NAMES
from rwalk.report.results import Results
from rwalk.report.sections import NOTHING, Published
from rwalk.report.summary import summarise
from rwalk.report.tables import TITLES
from rwalk.studies.provenance import mixture

SCRIPTS = ("model.js", "plots.js", "page.js")


def write_report(folder: Path, out: Path | None = None, published: Published = NOTHING) -> Path:
    """Write the report of a folder of results, by default as `report.html` in it."""
    page = render(results.read(folder), folder.resolve().name, published=published)
    out = folder / "report.html" if out is None else out
    try:
        write_atomically(out, page)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror or error}") from None
    return out


def render(found: Results, title: str, made: datetime | None = None, published: Published = NOTHING) -> str:
    """The page as text; `published` values stand beside ours."""
    try:
        from jinja2 import Environment, StrictUndefined
        from plotly.offline import get_plotlyjs, get_plotlyjs_version
    except ImportError:
        raise InputError("a report needs plotly and jinja2: pip install 'rwalk[report]'") from None
    summaries = summarise(found.rows)
    shown = sections.sections(summaries, published)
    plotly = get_plotlyjs()
    script = "\n".join(_part(name) for name in SCRIPTS)
    data = {"methods": sections.methods(summaries), "sections": shown, "titles": TITLES}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(_part("page.html.j2")).render(
        title=title,
        counts=_counts(found, len(summaries)),
        made=(made or datetime.now(UTC)).strftime("%d %B %Y, %H:%M UTC"),
        version=version("rwalk"),
        environments=found.environments,
        mixture=mixture(found.rows),
        heads={head: HEAD_NAMES[head] for head in HEADS},
        sections=shown,
        stopped=_stopped(found),
        policy=_policy([plotly, script]),
        style=_part("page.css"),
        data=_json(data),
        notice=f"plotly.js {get_plotlyjs_version()}, Copyright Plotly, Inc., MIT license; packed",
        plotly=_packed(plotly),
        script=script,
    )


def _part(name: str) -> str:
    return (files("rwalk.report") / "page" / name).read_text(encoding="utf-8")


def _counts(found: Results, configurations: int) -> str:
    runs = len(found.rows)
    seeds = len({row["seed"] for row in found.rows})
    unfinished = f" · unfinished: {found.missing} more to run" if found.missing else ""
    counted = ((runs, "run"), (configurations, "configuration"), (seeds, "seed"))
    return " · ".join(f"{number} {noun}{'s' * (number != 1)}" for number, noun in counted) + unfinished


def _stopped(found: Results) -> list[dict[str, Any]]:
    return [
        {"dataset": row["spec"]["stream"]["dataset"], "reason": row["stopped"]}
        | {name: row[name] for name in ("method", "lam", "seed")}
        for row in found.rows
        if row["stopped"]
    ]


def _policy(scripts: Sequence[str]) -> str:
    """A content security policy: no network, and no script but these."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _json(data: Any) -> str:
    """JSON that is safe inside a script element: without `<`, nothing can close or open one."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _packed(text: str) -> str:
    """Compressed for the page's DecompressionStream: plotly.js makes up most of the page."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
