"""Published variants of methods: what authors' code computes where it differs from their papers, and ablations.

The library finds them by their old names too (`rwalk.registry.MOVED`), so that rows and studies keep theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from rwalk.data.memory import Replay
from rwalk.data.samplers import Sampler, mean_of_features
from rwalk.decision_rules import Classifier, NearestMean
from rwalk.engine.architectures import CNN, MLP, Factory
from rwalk.losses.heads import cross_entropy, each_cross_entropy, mean_over
from rwalk.losses.icarl import ICaRL
from rwalk.losses.loss import Batch, Loss
from rwalk.methods.method import Ranges, State
from rwalk.methods.rwalk import RWalk


def mlp_of(width: int, xavier: bool = False) -> Factory:
    """An MLP with two hidden layers of this width; drawn as torch does, or as Glorot & Bengio (2010)."""

    def build(shape: tuple[int, ...], classes: int) -> nn.Module:
        network = MLP(shape, classes, (width, width))
        for layer in (*network.layers, network.head) if xavier else ():
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        return network

    return build


def normal(factory: Factory) -> Factory:
    """A network, begun as RWalk's public code does: truncated-normal weights (σ 0.1), biases of 0.1."""

    def build(shape: tuple[int, ...], classes: int) -> nn.Module:
        network = factory(shape, classes)
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                nn.init.constant_(parameter, 0.1)
            else:
                nn.init.trunc_normal_(parameter, std=0.1, a=-0.2, b=0.2)
        return network

    return build


mlp_100 = mlp_of(100, xavier=True)  # DER's for MNIST
mlp_400 = mlp_of(400)  # van de Ven's for Split MNIST
mlp_1000 = mlp_of(1000)  # van de Ven's for Permuted MNIST
# Networks of RWalk's public code: a fifth convolution, of 512 filters, and its initial weights.
mlp_normal, cnn_normal = normal(MLP), normal(CNN)
cnn_5 = partial(CNN, fifth=512)
cnn_5_normal = normal(cnn_5)

MOF_PLAIN = Sampler(
    "mean of features as they are, not made unit length (herding in Mammoth's iCaRL)",
    ("features",),
    lambda n, m, generators, phi: mean_of_features(phi, m, unit=False),
)


@dataclass(frozen=True)
class RWalk2018(RWalk):
    """RWalk's penalty, with another Fisher and another score.

    α weighs windows instead of steps: after the score of a window, F ← (1 − α) F + α S / Δt, where S is the sum of
    all g² since the task began. It is not emptied between windows, so F grows with the length of a task. F stays
    as it is where the path of a window is exactly 0, such as for a parameter without a gradient. The distance is
    F Δθ², without ½. At a task's end s ← 1.5 s + ½ s_task: old scores grow instead of fading.

    lam, alpha, dt, eps, penalty, fisher as in RWalk
    """

    name: ClassVar[str] = "rwalk-2018"
    summary: ClassVar[str] = "RWalk as its authors' public code computes it, where that differs from the paper"
    carried: ClassVar[float] = 1.5

    def start(self, theta: Tensor) -> State:
        return {**super().start(theta), "squares": torch.zeros_like(theta)}

    def observe(self, state: State, grad: Tensor, move: Tensor, square: Tensor) -> None:
        state["squares"].add_(square)
        state["path"].addcmul_(grad, move, value=-1)

    def distance(self, move: Tensor, fisher: Tensor) -> Tensor:
        return move.square_().mul_(fisher)

    def score(self, state: State, theta: Tensor) -> None:
        # F stays where the path is 0, because consolidate scores the last window again when it is empty. The
        # public code has no such rule: there F changes for a parameter without a gradient in a window, too.
        weight = state["path"].sign().abs() * self.alpha
        super().score(state, theta)
        state["fisher"].lerp_(state["squares"] / self.dt, weight)

    def consolidate(
        self, state: State, theta: Tensor, fisher: Tensor | None = None, ranges: Ranges | None = None
    ) -> None:
        super().consolidate(state, theta, fisher, ranges)
        state["squares"].zero_()


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

    The rest of the denominator is ε, the same for all parameters, which the normalisation removes.

    lam, alpha, dt, penalty, fisher as in RWalk
    """

    name: ClassVar[str] = "rwalk-undivided"
    summary: ClassVar[str] = "an ablation: RWalk with no distance in its path score"

    def distance(self, move: Tensor, fisher: Tensor) -> Tensor:
        return move.zero_()


@dataclass(frozen=True)
class ICaRL2020(ICaRL):
    """iCaRL's loss as a mean over the outputs trained so far, on new examples alone.

    The code that was to add exemplars to a task's data was never called; its authors fixed that a month later.
    Features are compared as they are, not made unit length; the sampler that goes with it is `mof-plain`.

    temperature as in ICaRL
    """

    name: ClassVar[str] = "icarl-2020"
    summary: ClassVar[str] = "iCaRL as in DER's comparison of 2020: exemplars classify, but are not trained on"
    replay: ClassVar[Replay | None] = "none"
    classifier: ClassVar[Classifier] = NearestMean(unit=False)

    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        return super().__call__(logits, batch) / (batch.new | batch.old).sum()


@dataclass(frozen=True)
class ERByTasks(Loss):
    """The new task weighs as one of the k seen so far: 1/k its own examples, 1 − 1/k those kept of the others.

    So van de Ven et al. (2022) replay.
    """

    name: ClassVar[str] = "er-tasks"
    summary: ClassVar[str] = "experience replay where the new task weighs as one of all that were seen"
    replay: ClassVar[Replay | None] = "beside"
    needs_memory: ClassVar[bool] = True
    tells_kept: ClassVar[bool] = True
    tells_task: ClassVar[bool] = True

    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        if batch.is_kept is None:
            return cross_entropy(logits + batch.head, batch.y)
        assert batch.task is not None
        wrong, new = each_cross_entropy(logits + batch.head, batch.y), 1 / (batch.task + 1)
        return new * mean_over(wrong, ~batch.is_kept) + (1 - new) * mean_over(wrong, batch.is_kept)
