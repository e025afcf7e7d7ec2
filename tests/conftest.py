"""What holds for all tests."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

from rwalk.programs import compiler_works

# Networks here are tiny: a second thread costs more than it brings, above all where cores are shared.
torch.set_num_threads(1)

collect_ignore = ["fuzz"]  # run by `make fuzz`, which brings the package they need

# A busy machine is no failure.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture
def compiler() -> None:
    """For tests of compiled programs; tried when the first of them runs, not whenever tests are collected."""
    if not compiler_works():
        pytest.skip("there is no C++ compiler that works")
