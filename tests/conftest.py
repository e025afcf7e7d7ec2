"""Settings and fixtures of all tests."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from typer.main import get_command

from browser import axe, browser  # noqa: F401  fixtures
from command_line import Outcome, Rwalk
from rwalk import cli
from rwalk.compiled_programs import compiler_works

# The networks of the tests are tiny: a second thread costs more time than it saves.
torch.set_num_threads(1)

collect_ignore = ["fuzz"]  # `make fuzz` installs the package they need and runs them

# No test fails because a machine is busy.
SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("unhurried", deadline=None, suppress_health_check=SLOW)
settings.load_profile("unhurried")


@cache
def commands() -> Any:
    """The commands of `rwalk`, parsed once for all tests."""
    return get_command(cli.app)


@pytest.fixture
def rwalk(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Rwalk:
    """Call `rwalk` in this process."""

    def call(*arguments: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["rwalk", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(commands())
        return Outcome(int(ended.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture
def compiler() -> None:
    """Skip a test of compiled programs if no compiler works."""
    if not compiler_works():
        pytest.skip("there is no C++ compiler that works")
