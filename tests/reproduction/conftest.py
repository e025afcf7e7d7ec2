"""What tests of the reproduction share."""

from __future__ import annotations

from pathlib import Path

import pytest

from reproduction.measured_cells import Measured


@pytest.fixture(scope="session")
def every_row() -> Measured:
    """All rows of the repository, read once; not to be changed."""
    return Measured(Path(__file__).parents[2] / "results")
