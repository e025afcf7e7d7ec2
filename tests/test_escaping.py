"""Hostile names: nothing that came from a file or a user reaches a terminal, a page or a spreadsheet as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rwalk.escaping import all_shown, cell, shown

# Names as a hostile or a badly encoded folder has them.
HOSTILE = [
    "\x1b]0;owned\x07",  # the terminal's title
    "\x1b[2J\x1b[H",  # clears the screen
    "a\rb",  # overwrites a line
    "a\nb",
    "a\tb",
    "\x00",
    "\x9b31m",  # an escape sequence in one character
    "\u202egpj.exe",  # right to left
    "\u2028",
    "caf\udce9",  # Latin-1 bytes in a file name
    "=1+1",
    '=HYPERLINK("http://example.org")',
    "@SUM(A1)",
    "+cmd|' /C calc'!A0",
    "-1+1",
    "<script>alert(1)</script>",
    "</script>",
    "[bold]markup[/bold]",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_shown_hostile_name_is_printable_and_keeps_its_letters(name: str) -> None:
    safe = shown(name)
    assert safe.isprintable()
    safe.encode()
    assert (safe == name) == name.isprintable()
    assert all(each in safe for each in name if each.isprintable())
    assert shown(safe) == safe


@pytest.mark.parametrize("name", ["cat", "λ = 1", "Ünïcödé", "猫", "a b", "50 %", "C:\\x1b"])
def test_shown_printable_name_is_unchanged(name: str) -> None:
    assert shown(name) == name


def test_all_shown_reaches_names_and_nested_values() -> None:
    record = {"a\x1b": ["\x07", {"b": ("\r", 1, None)}], "c": 0.5}
    assert all_shown(record) == {"a\\x1b": ["\\x07", {"b": ["\\r", 1, None]}], "c": 0.5}


@pytest.mark.parametrize("name", HOSTILE)
def test_cell_never_begins_like_a_formula(name: str) -> None:
    assert not cell(name).startswith(("=", "+", "-", "@"))
    assert cell(name).isprintable()


@pytest.mark.parametrize("value", [-1, -0.5, 1e-9, "-3", "+2", "-inf", 12])
def test_cell_number_is_unchanged(value: object) -> None:
    assert cell(value) == str(value)


REPORTS = """
import sys
from rwalk.cli import main
for folder in sys.argv[1:]:
    sys.argv = ["rwalk", "report", folder]
    try:
        main()
    except SystemExit as ended:
        print(ended.code)
"""


def test_command_line_escapes_names_in_its_one_line(tmp_path: Path) -> None:
    """In one process with an ASCII terminal, because starting Python takes longer than the refusals."""
    folders = [os.fsencode(tmp_path / name) for name in ("\x1b]0;owned\x07", "caf\udce9", "λ")]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", REPORTS, *folders], capture_output=True, env=environment)
    assert done.stdout.split() == [b"2"] * 3
    lines = done.stderr.split(b"\n")
    assert len(lines) == 3 + 1 and lines.pop() == b"", done.stderr
    for line in lines:
        assert line.startswith(b"rwalk: ")
        assert line.decode("ascii").isprintable()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("streams", ["2>/dev/full", "2>&-", ">&-", "<&- >&- 2>&-"])
def test_command_line_without_a_place_for_its_line_keeps_its_exit_code(streams: str, tmp_path: Path) -> None:
    """And no file that it opens gets the number of a closed stream, to which others write their messages."""
    code = (
        "import os; from rwalk.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: os.write(9, str((end.code or 0, os.open('found', os.O_CREAT) > 2)).encode())"
    )
    for words, expected in (("nothing", (2, True)), ("datasets", (0, True))):
        program, around = f'{sys.executable} -c "$CODE" {words} 9>result {streams}', {**os.environ, "CODE": code}
        done = subprocess.run(program, shell=True, cwd=tmp_path, env=around, capture_output=True, check=False)
        assert (tmp_path / "result").read_text() == str(expected), done
        assert b"Traceback" not in done.stderr + done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_command_line_output_to_a_full_device_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "rwalk", "methods"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "No space left" in done.stderr


def test_command_line_reader_that_leaves_is_no_error() -> None:
    code = "import sys; sys.argv = ['rwalk', '--version']; from rwalk.cli import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() in (1, 141)
