"""The command line: the only place where strings become objects.

Heavy imports wait until a command runs, so that `rwalk --help` answers at once.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from rwalk.cli import before_and_after, classifier_commands, run
from rwalk.cli.command_options import Command, add_command, to_stderr
from rwalk.cli.run import DEFAULT_METHODS
from rwalk.errors import InputError

__all__ = ["DEFAULT_METHODS", "app", "main"]

app = typer.Typer(
    name="rwalk",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
add_command(
    app,
    classifier_commands.fit,
    "rwalk.data.file_options:Reading",
    "rwalk.classifier.parameters:ClosedFormClassifierParameters",
    but="task_column",
)
app.command(cls=Command)(classifier_commands.predict)
app.command(cls=Command)(classifier_commands.forget)
app.command(cls=Command)(classifier_commands.merge)
add_command(app, run.run, "rwalk.studies.specs:RunSpec")
app.command(cls=Command)(run.resume)
app.command(cls=Command)(run.report)
app.command(cls=Command)(before_and_after.check)
app.command(cls=Command)(before_and_after.rewind)
app.command(cls=Command)(before_and_after.probes)


@app.command()
def methods() -> None:
    """List the methods, one line each."""
    from rwalk.part_names import summaries
    from rwalk.registry import installed

    _print(summaries() | {name: f"from {where}" for name, where in installed("methods").items()})


@app.command()
def datasets() -> None:
    """List the datasets, one line each."""
    from rwalk.data.datasets import describe

    _print(describe())


def _print(lines: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, line in lines.items():
        table.add_row(Text(name, style="bold"), Text(line))
    Console().print(table)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def reproduce() -> None:
    """Print where the paper's experiments are: in a clone of the repository, `python -m reproduction`."""
    raise InputError(
        "the paper's experiments are not part of the installed package: run `python -m reproduction NAME` in a "
        "clone of rwalk's repository"
    )


def main(commands: typer.Typer = app, name: str = "rwalk") -> None:
    """The entry point `rwalk`; other commands, such as the reproduction's, fail in one line too if run by it."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal of few characters gets the others escaped
            stream.reconfigure(errors="backslashreplace")
    logging.getLogger("rwalk").addHandler(_OneLine(logging.WARNING))
    with _friendly_errors():
        code = commands(prog_name=name, standalone_mode=False)
        sys.stdout.flush()  # here, where it may fail in one line
        raise SystemExit(code)


def _open_closed_streams() -> None:
    """A stream that the caller has closed leads nowhere: the next file opened must not get its number."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
        if handle:
            setattr(sys, ("stdout", "stderr")[handle - 1], os.fdopen(handle, "w"))
    os.close(handle)


@contextmanager
def _friendly_errors() -> Iterator[None]:
    """One clear line and exit code 2 for errors that the user can correct, a full disk included."""
    try:
        yield
    except InputError as error:
        to_stderr(error)
        raise SystemExit(2) from None
    except OSError as error:
        _drop_output()
        if isinstance(error, BrokenPipeError):  # its reader stopped, as in `| head`
            raise SystemExit(141) from None
        name = error.filename2 or error.filename
        place = "" if name is None else f"{name}: "
        to_stderr(f"{place}{error.strerror or error}")
        raise SystemExit(2) from None
    except (typer.Abort, KeyboardInterrupt):
        raise SystemExit(130) from None
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        # A command line that cannot be parsed: typer would take four lines to say so.
        message, context = error.format_message().rstrip("."), getattr(error, "ctx", None)
        if "\n" in message:  # no command: this is the help
            print(message, file=sys.stderr)
        else:
            to_stderr(f"{message} (see {context.command_path if context else 'rwalk'} --help)")
        raise SystemExit(2) from None


def _drop_output() -> None:
    """Forget printed text that cannot be written, or Python tries again as it exits, and fails again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _OneLine(logging.Handler):
    """Warnings as our other lines: file names and labels in them are escaped."""

    def emit(self, record: logging.LogRecord) -> None:
        to_stderr(record.getMessage())


def _tell_version(asked: bool) -> None:
    if asked:
        import rwalk

        print(f"rwalk {rwalk.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="which rwalk this is")
    ] = False,
) -> None:
    """Learn new classes without the old data, and measure how much is forgotten."""
