"""Learners without a gradient: features that never change, sums of them, and weights that are solved for.

One file each; a new file in this folder is found automatically, by its solver's name.
"""

from __future__ import annotations

from rwalk.registry import discovered
from rwalk.solvers.solver import Solver

SOLVERS: dict[str, type[Solver]] = discovered(__name__, Solver)

__all__ = ["SOLVERS", "Solver"]
