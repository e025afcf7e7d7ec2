"""One self-contained HTML page of results: it can be mailed, archived, opened anywhere.

Whatever comes from data is text to the page, never markup: Jinja escapes it, the data block cannot be closed from
within, and the page's content security policy allows only the script whose digest it names, and no network.
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
from rwalk.errors import InputError
from rwalk.files import write_atomically
from rwalk.learners import summaries as learner_summaries
from rwalk.metrics import HEADS
from rwalk.report import results, sections, words
from rwalk.report.figures import HEAD_NAMES
from rwalk.report.results import Results
from rwalk.report.sections import NOTHING, Published
from rwalk.report.summary import summarise
from rwalk.report.tables import TITLES
from rwalk.showing import shown
from rwalk.studies.provenance import mixture
from rwalk.studies.rows import Made

SCRIPTS = ("model.js", "statistics.js", "charts.js", "plots.js", "figures.js", "table.js", "export.js", "page.js")
LIVE = "live.js"  # only where a server answers


def write_report(
    folders: Sequence[Path], out: Path | None = None, published: Published = NOTHING, title: str = ""
) -> Path:
    """Write the report of folders of results: by default as `report.html`, in the folder if there is only one."""
    page = render(results.read_all(folders), title or title_of(folders), published=published)
    if out is None:
        out = folders[0] / "report.html" if len(folders) == 1 else Path("report.html")
    try:
        write_atomically(out, page)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror or error}") from None
    return out


def title_of(folders: Sequence[Path]) -> str:
    return words.listed(results.names_of(folders))


def render(
    studies: Sequence[Results],
    title: str,
    made: datetime | None = None,
    published: Published = NOTHING,
    live: Mapping[str, Any] | None = None,
) -> str:
    """The page as text; `published` values stand beside ours. `live` is what a page that is served begins with."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise InputError("a report needs jinja2: pip install 'rwalk[report]'") from None
    names = [each.name for each in studies] if len(studies) > 1 else [""]
    summaries = [
        replace(summary, study=name)
        for name, study in zip(names, studies, strict=True)
        for summary in summarise(study.rows)
    ]
    parts = sections.sections(summaries, published, dict(zip(names, studies, strict=True)))
    script = "\n".join(_part(name) for name in (*SCRIPTS, *([LIVE] if live is not None else [])))
    methods = sections.methods(summaries)
    rows = [row for study in studies for row in study.rows]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(_part("page.html.j2")).render(
        title=shown(title),
        counts=_counts(rows, len(summaries), sum(study.missing for study in studies)),
        made=(made or datetime.now(UTC)).strftime("%d %B %Y, %H:%M UTC"),
        version=rwalk.__version__,
        studies=[_study(study) for study in studies],
        mixture=mixture(Made.from_json(row["made"]) for row in rows),
        heads={head: HEAD_NAMES[head] for head in HEADS},
        titles=TITLES,
        sections=parts,
        methods=_explained(methods),
        stopped=_stopped(rows),
        live=live,
        policy=_policy([script], connect=live is not None),
        style=_part("page.css"),
        data=_json({"methods": methods, "sections": parts, "titles": TITLES, "title": shown(title), "live": live}),
        script=script,
    )


def _part(name: str) -> str:
    return (files("rwalk.report") / "page" / name).read_text(encoding="utf-8")


def _counts(rows: Sequence[Mapping[str, Any]], configurations: int, missing: int) -> str:
    seeds = len({row["seed"] for row in rows})
    unfinished = f" · unfinished: {missing} more to run" if missing else ""
    counted = ((len(rows), "run"), (configurations, "configuration"), (seeds, "seed"))
    return " · ".join(f"{number} {noun}{'s' * (number != 1)}" for number, noun in counted) + unfinished


def _study(study: Results) -> dict[str, Any]:
    """A study as the head of the page shows it: how it was begun, with what, when, and how long it took."""
    costs = [study.costs[row["hash"]] for row in study.rows if row["hash"] in study.costs]
    versions = sorted(
        {f"rwalk {row['made']['rwalk']}" for row in study.rows if row["made"].get("rwalk", "unknown") != "unknown"}
    )
    facts = [("command", "\n".join(study.commands))] if study.commands else []
    facts += [("version", words.listed(versions))] if versions else []
    if costs:
        first, last = min(each.ended for each in costs), max(each.ended for each in costs)
        span = f"{first:%d %B %Y, %H:%M}" + (f" to {last:%d %B, %H:%M}" if last > first else "")
        partly = f" ({len(costs)} of {len(study.rows)} runs)" if len(costs) < len(study.rows) else ""
        facts += [("training time", f"{words.duration(sum(each.seconds for each in costs))} in all{partly}")]
        facts += [("runs ended", f"{span} UTC")]
    return {"name": study.name, "facts": facts, "environments": study.environments}


def _explained(methods: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The methods of a page, each in a sentence; users' own have none."""
    known = learner_summaries()
    return [(each["name"], known[each["name"]]) for each in methods if each["name"] in known]


def _stopped(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"dataset": row["spec"]["stream"]["dataset"], "reason": row["stopped"]}
        | {name: row[name] for name in ("method", "lam", "seed")}
        for row in rows
        if row["stopped"]
    ]


def _policy(scripts: Sequence[str], connect: bool = False) -> str:
    """A content security policy: no script but these, and no network, except for a page's own server."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    server = "; connect-src 'self'" if connect else ""
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:{server}"


def _json(data: Any) -> str:
    """JSON that is safe inside a script element: without `<`, nothing can close or open one."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
