"""Fills in the generated parts of a method's page: its settings from the code, its figures from our tables.

    python docs/_tools/method_pages.py

The text of the pages is written by hand. Between `<!-- settings -->` and `<!-- /settings -->`, and likewise for
`measured` and, on the first page, `methods`, everything is written by this program. So are the tables of the
classifier's parameters. A test fails when one of them is out of date.
"""

from __future__ import annotations

import re
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
PAGES = DOCS / "methods"
PARAMETERS = DOCS / "classifier-parameters.md"
APPENDIX = DOCS / "results-appendix.md"
sys.path[:0] = [str(ROOT / "src")]

from rwalk import parts  # noqa: E402
from rwalk.classifier.parameters import (  # noqa: E402
    ClosedFormClassifierParameters,
    NetworkParameters,
    Parameters,
    SharedParameters,
    SumParameters,
)
from rwalk.losses import Loss  # noqa: E402
from rwalk.methods import Method  # noqa: E402
from rwalk.option_fields import help_of  # noqa: E402
from rwalk.projectors import Projector  # noqa: E402
from rwalk.solvers import Solver  # noqa: E402

ARGUMENT = re.compile(r" {8}(?P<name>\w+): (?P<meaning>\S.*)")
KINDS = {
    Method: "Penalties on parameters",
    Loss: "Replay and distillation: another loss",
    Projector: "Projected gradients",
    Solver: "Closed form: no gradient",
}
# The tables of results-appendix.md that compare methods, and what their blocks mean.
PAPER = {
    "Table 1, MNIST (and figures 2 and 3)": "MNIST, 5 tasks",
    "Table 1, CIFAR-100 (and figures 2 and 3)": "CIFAR-100, 10 tasks",
    "Table S1: ResNet-18, 20 tasks, GEM and iCaRL": "CIFAR-100, 20 tasks, ResNet-18",
}
# … and those of our own questions, for methods that the paper's do not have.
QUESTIONS = {
    f"{title} {name}": data
    for title in ("Is the Riemannian distance worth anything?", "EWC beside EWC++,")
    for name, data in (("MNIST", "MNIST, 5 tasks"), ("CIFAR-100", "CIFAR-100, 10 tasks"))
}
# In these a block is a method, and the row of the paper's training is the one to compare.
FACTORIALS = {
    f"What does the authors' code change? {name}{memory}": f"{data}, {head}"
    for name, data in (("MNIST", "MNIST, 5 tasks"), ("CIFAR-100", "CIFAR-100, 10 tasks"))
    for memory, head in (("", "multi-head"), (", with samples", "single-head, with exemplars"))
}
BLOCKS = {"multi": "multi-head", "single": "single-head", "samples": "single-head, with exemplars"}
OTHERWISE_CALLED = {"none": "vanilla", "si": "pi"}  # in the tables of others
NOT_YET = "None of the tables has this method yet."


class Figure(NamedTuple):
    """A row of the measured figures."""

    where: str
    ours: str
    published: str
    seeds: str


def filled(page: str, name: str | None) -> str:
    """A page with its blocks written anew; `name` is the method's, or None for the first page."""
    blocks = {"methods": listing} if name is None else {"settings": settings, "measured": measured}
    for block, content in blocks.items():
        text = content() if name is None else content(name)  # type: ignore[call-arg]
        marks = re.compile(rf"(<!-- {block} -->\n).*?(<!-- /{block} -->)", re.DOTALL)
        if not marks.search(page):
            raise ValueError(f"the page of {name or 'all methods'} has no place for {block}: <!-- {block} -->")
        page = marks.sub(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page)
    return page


def parameters(page: str) -> str:
    """The page of the classifier's parameters with its tables written anew."""
    shared = {"method", *(each.name for each in fields(SharedParameters))}
    families = {
        "every family": (Parameters, shared),
        "closed form": (ClosedFormClassifierParameters, _names(ClosedFormClassifierParameters) - shared),
        "networks": (NetworkParameters, _names(NetworkParameters) - shared),
    }
    assert _names(SumParameters) <= families["closed form"][1]
    for title, (record, names) in families.items():
        rows = [
            f"| `{each.name}` | {_code(each.default)} | {help_of(each)} |"
            for each in fields(record)
            if each.name in names
        ]
        table = "\n".join(["| parameter | default | meaning |", "|---|---|---|", *rows])
        marks = re.compile(rf"(<!-- {title} -->\n).*?(<!-- /{title} -->)", re.DOTALL)
        page, found = marks.subn(lambda mark, table=table: f"{mark[1]}{table}\n{mark[2]}", page)  # type: ignore[misc]
        assert found == 1, f"the page has no place for {title}"
    return page


def _names(record: Any) -> set[str]:
    return {each.name for each in fields(record)}


def _code(default: Any) -> str:
    return f'`"{default}"`' if isinstance(default, str) else f"`{default}`"


def listing() -> str:
    """All methods by kind, one line each."""
    out = []
    for kind, title in KINDS.items():
        rows = [(name, part) for name, part in parts.parts().items() if issubclass(part, kind)]
        out += [f"**{title}**", "", "| method | summary | keeps old examples |", "|---|---|---|"]
        out += [f"| [{name}]({name}.md) | {part.summary} | {_keeps(part)} |" for name, part in rows]
        out.append("")
    return "\n".join(out).strip()


def _keeps(part: Any) -> str:
    if getattr(part, "everything", False):
        return "all of them"
    if getattr(part, "needs_memory", False):
        return "yes"
    return "no" if getattr(part, "memoryless", False) else "if you like"


def settings(name: str) -> str:
    kind = parts.parts()[name]
    rows = [(each.name, _default(each.default), _meaning(kind, each.name)) for each in fields(kind)]
    if not rows or name == "vanilla":
        return "It has nothing to set."
    table = [f"| `{setting}` | {default} | {meaning} |" for setting, default, meaning in rows]
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *table])


def _default(value: Any) -> str:
    if value is MISSING:
        return ""
    if hasattr(value, "proximal"):
        return f"{float(value):g} (proximal: {value.proximal:g})"
    return f"{value:g}" if isinstance(value, float) else f"{value}".replace("None", "–")


def _meaning(kind: type, setting: str) -> str:
    """The description of a setting in the docstring of the class, or of one above it."""
    for each in kind.__mro__:
        meanings = _explained(each.__doc__ or "")
        if setting in meanings:
            return meanings[setting].rstrip(".").replace("|", "\\|")
    raise ValueError(f"no docstring says what {setting} of {kind.__name__} is")


def _explained(docstring: str) -> dict[str, str]:
    """The arguments in a docstring, by name."""
    found: dict[str, str] = {}
    last = ""
    for line in docstring.splitlines():
        if (match := ARGUMENT.fullmatch(line)) is not None:
            last = match["name"]
            found[last] = match["meaning"]
        elif last and line.startswith(" " * 12) and line.strip():
            found[last] += f" {line.strip()}"
        else:
            last = ""
    return found


def measured(name: str) -> str:
    figures = [*_of_the_paper(name), *_of_the_yardsticks(name)]
    if not figures:
        return NOT_YET
    rows = [f"| {each.where} | {each.ours} | {each.published} | {each.seeds} |" for each in figures]
    return "\n".join(["| data | accuracy, % | published | seeds |", "|---|---|---|---|", *rows])


def _of_the_paper(name: str) -> list[Figure]:
    return _in(PAPER, name) or _in(QUESTIONS, name) or _in(FACTORIALS, name)


def _in(tables: dict[str, str], name: str) -> list[Figure]:
    """A method's rows in tables of results-appendix.md."""
    out = []
    for title, data in tables.items():
        head, rows = _table(APPENDIX, title)
        for (block, label, *_), row in ((cells, dict(zip(head, cells, strict=True))) for cells in rows):
            if tables is FACTORIALS:
                method, where = block if label == "none of them" else "", data
            else:
                method, where = label.removesuffix("-S"), f"{data}, {BLOCKS.get(block, block)}"
            if method == name and _was_run(row["A ↑"]):
                link = f"[{where}](../results-appendix.md#{_slug(title)})"
                out.append(Figure(link, row["A ↑"], row.get("A paper", ""), row["seeds"]))
    return out


def _of_the_yardsticks(name: str) -> list[Figure]:
    """All of them but those that repeat the paper's tables, which have the paper's methods only."""
    out = []
    page, repeated = DOCS / "yardsticks.md", bool(_of_the_paper(name))
    for title in re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        head, rows = _table(page, title)
        for row in (dict(zip(head, cells, strict=True)) for cells in rows):
            method = OTHERWISE_CALLED.get(row["method"], row["method"])
            if method == name and _was_run(row["ours"]) and not (repeated and "RWalk's table 1" in title):
                setting = re.sub(r"^(class|task), (\d+)$", r"\1-incremental, \2 kept", row["block"])
                where = f"[{title.partition(' (')[0]}: {setting}](../yardsticks.md#{_slug(title)})"
                out.append(Figure(where, row["ours"], row.get("published", ""), row["seeds"]))
    return out


def _was_run(ours: str) -> bool:
    return ours not in ("", "–")


def _table(page: Path, title: str) -> tuple[list[str], list[list[str]]]:
    """The head of the last table in a section, and its rows; nothing where there is none yet."""
    _, _, rest = page.read_text(encoding="utf-8").partition(f"\n## {title}\n")
    section = re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    lines = tables[-1].splitlines() if tables else []
    head, _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines] or [[], []]
    return head, rows


def _slug(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def main() -> None:
    for name in (None, *parts.parts()):
        page = PAGES / f"{name or 'index'}.md"
        page.write_text(filled(page.read_text(encoding="utf-8"), name), encoding="utf-8")
    PARAMETERS.write_text(parameters(PARAMETERS.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
