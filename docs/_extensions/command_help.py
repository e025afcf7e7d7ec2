"""The directive `command-help`: what `rwalk COMMAND --help` prints, of this version."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective


def help_of(command: str) -> str:
    from typer.testing import CliRunner

    from rwalk.cli import app

    words = [*command.split(), "--help"]
    result = CliRunner().invoke(app, words, prog_name="rwalk", terminal_width=100)
    if result.exit_code:
        raise ValueError(f"rwalk {command} --help failed: {result.output}")
    return result.output.strip()


class CommandHelp(SphinxDirective):
    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        text = help_of(self.arguments[0] if self.arguments else "")
        return [nodes.literal_block(text, text, language="text")]


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
