"""The public face is what it says, and looking at it costs nothing."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import rwalk


@pytest.mark.parametrize("name", rwalk.__all__)
def test_everything_promised_is_there(name: str) -> None:
    assert getattr(rwalk, name) is not None
    assert name in dir(rwalk)


def test_the_table_of_homes_is_the_public_face() -> None:
    assert sorted([*rwalk._HOME_OF, "metrics"]) == sorted(rwalk.__all__)
    for name, home in rwalk._HOME_OF.items():
        assert getattr(import_module(home), name) is getattr(rwalk, name)


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(AttributeError, match="no attribute 'RWlk'"):
        rwalk.RWlk  # noqa: B018


def test_help_does_not_wait_for_torch() -> None:
    script = (
        "import sys; sys.argv = ['rwalk', '--help']\n"
        "from rwalk.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'numpy', 'sklearn', 'rich'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "reproduce" in done.stdout
