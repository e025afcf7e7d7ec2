"""Ridge regression on random features (RanPAC, McDonnell et al. 2023; ACIL, Zhuang et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rwalk.closed_form import solve
from rwalk.closed_form.solve import FOR_CLASSES, Solution
from rwalk.closed_form.sums import Statistics
from rwalk.solvers.solver import Solver


@dataclass(frozen=True)
class Ridge(Solver):
    """W = (G + λ)⁻¹ X, of the sums G = Σ φφᵀ and X = Σ φ yᵀ about their means, y the indicators of the classes.

    The recursive updates of those papers give the same W after every batch; sums are exact, and keep no inverse.
    """

    name: ClassVar[str] = "ridge"
    summary: ClassVar[str] = "ridge regression on random features or patches: sums only, nothing is forgotten"

    def solution(self, sums: Statistics, blocks: Sequence[int]) -> Solution:
        return solve.solve(sums.centred(), blocks, self.ridge, FOR_CLASSES)
