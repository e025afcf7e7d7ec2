"""`rwalk diff` and `rwalk report`: studies compared, and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rwalk.cli.command_options import say


def diff(
    a: Annotated[Path, typer.Argument(help="a study folder")],
    b: Annotated[Path, typer.Argument(help="another one")],
) -> None:
    """List the differences between two studies: settings, data, versions, device, and which rows by how much.

    Like diff(1), exits with 0 if there is no difference and with 1 if there is one.
    """
    from rwalk.studies.study_diff import compare
    from rwalk.studies.study_folder import Store

    lines = compare(Store(a), Store(b))
    for line in lines or [f"no difference: {a} and {b} hold the same results"]:
        say(line)
    if lines:
        raise typer.Exit(1)


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="a study folder, or a folder of *.jsonl files or of studies; several are compared in one page",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="the page to write (default: FOLDER/report.html, of several ./report.html)")
    ] = None,
    title: Annotated[str, typer.Option(help="the page's title (default: the methods and the data)")] = "",
    watch: Annotated[
        bool, typer.Option("--watch", help="show the page of a study while it runs, at an address of this machine")
    ] = False,
    port: Annotated[
        int | None, typer.Option(help="with --watch: the port to serve at (default: a free one)")
    ] = None,
) -> None:
    """Make one self-contained HTML page of results: a verdict, tables, plots, and exports as CSV, SVG and PDF.

    With --watch nothing is written: the page is served at http://127.0.0.1 and follows the study, until Ctrl-C.
    """
    from rwalk.errors import InputError
    from rwalk.report.html_page import write_report

    if watch:
        if out is not None:
            raise InputError("--watch writes no page: drop --out, or drop --watch")
        _serve(folders, title, port or 0)
        return
    if port is not None:
        raise InputError("--port is where --watch serves: add --watch, or drop it")
    page = write_report(folders, out, title=title)
    say(f"{page}: {page.stat().st_size / 1e6:.1f} MB, opens in any browser")


def _serve(folders: list[Path], title: str, port: int) -> None:
    """Serve the page until a signal, which is the usual end and no error."""
    import signal
    import threading

    from rwalk.report.watch_server import Watched, serve

    server = serve(Watched(folders, title), port)
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: threading.Thread(target=server.shutdown).start())
    with server:
        say(f"{server.address} follows {', '.join(map(str, folders))}; Ctrl-C ends it")
        server.serve_forever(poll_interval=0.2)
    print("stopped; rwalk report writes the page")
