"""`rwalk diff` and `rwalk report`: what finished studies say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def diff(
    a: Annotated[Path, typer.Argument(help="a study folder")],
    b: Annotated[Path, typer.Argument(help="another one")],
) -> None:
    """Say why two studies differ: settings, data, versions, device, and which rows by how much.

    Like diff(1), exits with 0 if there is no difference and with 1 if there is one.
    """
    from rwalk.studies.compare import compare
    from rwalk.studies.store import Store

    lines = compare(Store(a), Store(b))
    print("\n".join(lines) or f"no difference: {a} and {b} hold the same results")
    if lines:
        raise typer.Exit(1)


def report(
    folder: Annotated[Path, typer.Argument(help="a study folder, or a folder of *.jsonl files or of studies")],
    out: Annotated[Path | None, typer.Option(help="the page to write (default: FOLDER/report.html)")] = None,
) -> None:
    """Make one self-contained HTML page of results, with tables and interactive plots."""
    from rwalk.paper.experiments import published_values
    from rwalk.report.html import write_report

    page = write_report(folder, out, published_values())
    print(f"{page}: {page.stat().st_size / 1e6:.1f} MB, opens in any browser")
