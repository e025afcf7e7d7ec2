"""What tests of the reproduction share."""

from __future__ import annotations

from pathlib import Path

import pytest

from reproduction import budgets
from reproduction.measured_cells import Measured


@pytest.fixture
def ablations_not_tuned(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """As if nothing that questions wait for had been tuned yet."""
    left = {name: budget for name, budget in budgets.read(budgets.FILE).items() if "ablation" not in name}
    file: Path = tmp_path_factory.mktemp("untuned") / "budgets.json"
    file.write_text(budgets.written(left))
    monkeypatch.setattr(budgets, "FILE", file)


@pytest.fixture(scope="session")
def every_row() -> Measured:
    """All rows of the repository, read once; not to be changed."""
    return Measured(Path(__file__).parents[2] / "results")
