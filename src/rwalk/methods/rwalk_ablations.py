"""RWalk with another denominator of its path score: is the Riemannian distance worth anything?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rwalk.methods.rwalk import RWalk


@dataclass(frozen=True)
class RWalkEuclidean(RWalk):
    """RWalk whose score divides by the squared distance Δθ², as PI's does, instead of the KL divergence ½FΔθ².

    lam, alpha, dt, eps, penalty, fisher as in RWalk; ε is in the units of Δθ²
    """

    name: ClassVar[str] = "rwalk-euclidean"
    summary: ClassVar[str] = "an ablation: RWalk with the Euclidean distance in its path score"

    def distance(self, move: Tensor, fisher: Tensor) -> Tensor:
        return move.square_()


@dataclass(frozen=True)
class RWalkUndivided(RWalk):
    """RWalk whose score divides by nothing: by how much each parameter lowered the loss, however far it moved.

    What is left of the denominator is ε, the same for all parameters, which the normalisation removes.

    lam, alpha, dt, penalty, fisher as in RWalk
    """

    name: ClassVar[str] = "rwalk-undivided"
    summary: ClassVar[str] = "an ablation: RWalk with no distance in its path score"

    def distance(self, move: Tensor, fisher: Tensor) -> Tensor:
        return move.zero_()
