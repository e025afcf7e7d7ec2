"""Streaming linear discriminant analysis (Hayes & Kanan 2020), on random features or patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rwalk.closed_form.solve import Solution, discriminants
from rwalk.closed_form.sums import Statistics
from rwalk.solvers.solver import Solver


@dataclass(frozen=True)
class SLDA(Solver):
    """w_c = Σ⁻¹ μ_c, b_c = log π_c − ½ μ_cᵀ Σ⁻¹ μ_c: class means, one covariance within classes, held back by λ.

    The authors leave π, the classes' shares, out, and hold the covariance back by a fixed share of the identity.
    """

    name: ClassVar[str] = "slda"
    summary: ClassVar[str] = "streaming LDA on random features or patches: class means and one covariance"

    def solution(self, sums: Statistics, blocks: Sequence[int]) -> Solution:
        tensors = sums.tensors()
        return discriminants(sums.centred(), tensors["cross"], tensors["targets"], blocks, self.ridge)
