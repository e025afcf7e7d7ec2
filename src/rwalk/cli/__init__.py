"""The command line: the only place where strings become objects.

Heavy imports wait until a command runs, so that `rwalk --help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from rwalk.cli import check, export, listing, models, reading, reproduce, resume, run, status
from rwalk.cli.run import DEFAULT_METHODS

__all__ = ["DEFAULT_METHODS", "app", "main"]

app = typer.Typer(
    name="rwalk",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(models.fit)
app.command()(models.predict)
app.command()(models.forget)
app.command()(models.merge)
app.command()(run.run)
app.command()(resume.resume)
app.command()(status.status)
app.command()(reading.diff)
app.command()(reading.report)
app.command()(export.export)
app.command()(reproduce.reproduce)
app.command()(check.check)
app.command()(listing.methods)
app.command()(listing.datasets)


def main() -> None:
    """The entry point `rwalk`."""
    with _friendly_errors():
        raise SystemExit(app(prog_name="rwalk", standalone_mode=False))


@contextmanager
def _friendly_errors() -> Iterator[None]:
    """One clear line and exit code 2 for what the user can correct."""
    from rwalk.errors import InputError

    try:
        yield
    except InputError as error:
        print(f"rwalk: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except typer.Abort:
        raise SystemExit(130) from None
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        # A command line that cannot be parsed: typer would take four lines to say so.
        message, context = error.format_message().rstrip("."), getattr(error, "ctx", None)
        if "\n" in message:  # nothing was asked for: that is the help
            print(message, file=sys.stderr)
        else:
            print(f"rwalk: {message} (see {context.command_path if context else 'rwalk'} --help)", file=sys.stderr)
        raise SystemExit(2) from None


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
    """Learn new classes without the old data, and measure honestly what was forgotten."""
