"""Which examples of one class to keep: uniform, plane distance, entropy, mean of features.

Every sampler is pure and works for R runs at once. It returns indices [R, min(m, n)] into the n candidates,
without repeats and best first. A smaller m gives a prefix of the result for a larger one, so a memory whose budget
shrinks cuts each class short.

Random samplers draw once for every candidate, from the run's own generator: a run keeps the same exemplars
whatever else is in its fleet. Examples whose score is NaN or infinite are kept only if there are fewer than m
others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from rwalk.data.memory import RESERVOIR
from rwalk.errors import InputError, unknown
from rwalk.registry import MOVED, full_name, imported, installed

__all__ = ["SAMPLERS", "Sampler", "entropy", "find", "mean_of_features", "plane_distance", "select", "uniform"]


COARSE = 2e-3
"""How far two products in float32, even in TF32, may be apart, relative to the lengths of the vectors."""

ROUNDING = 1e-12
"""Herding scores are of order one: in float64, scores closer than this are ties, which the first example wins."""


def uniform(n: int, m: int, generators: Sequence[Generator]) -> Tensor:
    """m of n examples, all equally likely, for each run's generator; on the CPU.

    >>> uniform(5, 9, [torch.Generator().manual_seed(0)]).sort().values.tolist()
    [[0, 1, 2, 3, 4]]
    """
    return _drawn(torch.zeros(len(generators), n), m, generators)


def plane_distance(
    distance: Tensor, m: int, generators: Sequence[Generator] | None = None, *, top: bool = False
) -> Tensor:
    """m examples drawn by q ∝ 1/d, from distance[R, n] holding d = φ(x)·w_y; the m nearest with `top`.

    An example on the wrong side of the plane, d ≤ 0, weighs as much as the nearest one on the right side.

    >>> plane_distance(torch.tensor([[3.0, -1.0, 1.0, 2.0, torch.nan]]), 5, top=True).tolist()
    [[1, 2, 3, 0, 4]]
    """
    _expect(distance, "distance[R, n]", dimensions=2)
    sound = distance.isfinite()
    nearest = distance.where(sound & (distance > 0), torch.inf).amin(-1, keepdim=True)
    log_weight = -distance.maximum(nearest).log()  # all at d ≤ 0: none is nearest, every weight is zero
    return _drawn(log_weight.where(sound, torch.nan), m, None if top else _given(generators))


def entropy(logits: Tensor, m: int, generators: Sequence[Generator] | None = None, *, top: bool = False) -> Tensor:
    """m examples drawn by q ∝ H(softmax), from logits[R, n, C]; the m most uncertain with `top`.

    Classes masked by a logit of −inf have probability zero.

    >>> entropy(torch.tensor([[[9.0, 0.0], [0.0, 0.0], [1.0, 0.0], [1.0, -torch.inf]]]), 4, top=True).tolist()
    [[1, 2, 0, 3]]
    """
    _expect(logits, "logits[R, n, C]", dimensions=3)
    probability = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
    uncertainty = torch.special.entr(probability).sum(-1)  # H = −Σ p log p
    log_weight = uncertainty.clamp(min=0).log()  # rounding may leave a certain example just below zero
    return _drawn(log_weight, m, None if top else _given(generators))


def mean_of_features(features: Tensor, m: int, *, unit: bool = True) -> Tensor:
    """The m examples whose mean follows the class mean of features[..., n, f] most closely: greedy herding.

    iCaRL's Algorithm 4 on L2-normalised features (with `unit` off, on features as they are), without repeats:
    the k-th exemplar minimises ‖μ − (S + φ)/k‖, where S is the sum of those before it. Averages are not
    normalised again.

    >>> mean_of_features(torch.tensor([[[1.0, 0.0], [2.0, 1.0], [0.0, 3.0]]]), 2).tolist()
    [[1, 2]]
    """
    if features.ndim < 2:
        raise InputError(f"herding needs features[..., n, f], not shape {tuple(features.shape)}")
    *runs, n, f = features.shape
    m = _affordable(m, n)
    # Only CUDA and the CPU have float64. A GPU herds all runs at once; a CPU one by one, each from its cache.
    if features.is_cuda:
        kept = _herd(features.reshape(-1, n, f), m, unit)
    else:
        kept = torch.cat([_herd(run, m, unit) for run in features.cpu().reshape(-1, 1, n, f)])
    return kept.reshape(*runs, m).to(features.device)


@dataclass(frozen=True)
class Sampler:
    """A rule for choosing exemplars.

    Args:
        description: One line for lists of samplers.
        needs: The arguments of `select` that it needs, such as "features" or "logits".
        choose: The function: number of examples, number of exemplars, generators, then the arguments it needs.
    """

    description: str
    needs: tuple[str, ...]
    choose: Callable[..., Tensor]


SAMPLERS = {
    "uniform": Sampler("at random, all examples equally likely", (), uniform),
    "plane": Sampler(
        "at random, those near the decision boundary more often: q ∝ 1/(φ·w)",
        ("features", "weights"),
        lambda n, m, generators, phi, w: plane_distance(_dot(phi, w), m, generators),
    ),
    "entropy": Sampler(
        "at random, the uncertain more often: q ∝ H",
        ("logits",),
        lambda n, m, generators, logits: entropy(logits, m, generators),
    ),
    "mof": Sampler(
        "mean of features: those whose mean follows the class mean (iCaRL's herding)",
        ("features",),
        lambda n, m, generators, phi: mean_of_features(phi, m),
    ),
    "plane-top": Sampler(
        "those nearest to the decision boundary: smallest φ·w",
        ("features", "weights"),
        lambda n, m, generators, phi, w: plane_distance(_dot(phi, w), m, top=True),
    ),
    "entropy-top": Sampler(
        "the most uncertain: largest H",
        ("logits",),
        lambda n, m, generators, logits: entropy(logits, m, top=True),
    ),
}


def check_name(name: str) -> str:
    """A sampler's full name. A user's own sampler is imported only when it is used; other names are refused."""
    full = full_name("samplers", str(name), (*SAMPLERS, RESERVOIR))
    if not isinstance(name, str) or (full not in (*SAMPLERS, *MOVED, RESERVOIR) and ":" not in full):
        raise unknown("sampler", str(name), [*SAMPLERS, RESERVOIR, *installed("samplers"), "package.module:NAME"])
    return full


def find(name: str) -> Sampler:
    """A sampler by its name, or by `package.module:NAME`."""
    name = check_name(name)
    if name in SAMPLERS:
        return SAMPLERS[name]
    if name == RESERVOIR:
        raise InputError("a reservoir does not choose among the examples of a class: it keeps them as they pass")
    found = imported(name, "sampler")
    if not isinstance(found, Sampler):
        raise InputError(f"sampler {name!r} is not an rwalk.Sampler: make it one")
    return found


def select(
    name: str,
    n: int,
    m: int,
    generators: Sequence[Generator],
    *,
    features: Tensor | None = None,
    weights: Tensor | None = None,
    logits: Tensor | None = None,
) -> Tensor:
    """The examples that a sampler keeps of n examples of one class: indices [R, min(m, n)].

    features[R, n, f] are φ(x), weights[R, f] is w_y, the class's row of the last layer, logits[R, n, C] are
    the outputs. `SAMPLERS[name].needs` lists the tensors to give; the others are ignored.

    >>> logits = torch.tensor([[[9.0, 1.0], [2.0, 1.0], [8.0, 1.0]]])
    >>> select("entropy-top", 3, 2, [torch.Generator()], logits=logits).tolist()
    [[1, 2]]
    """
    sampler = find(name)
    evidence = {"features": features, "weights": weights, "logits": logits}
    needed = [evidence[need] for need in sampler.needs]
    for need, tensor in zip(sampler.needs, needed, strict=True):
        if tensor is None:
            raise InputError(f"sampler {name!r} needs {need}")
        leading = (len(generators),) if need == "weights" else (len(generators), n)
        if tensor.shape[: len(leading)] != leading:
            found = tuple(tensor.shape)
            raise InputError(f"{need} of {n} examples in {len(generators)} runs cannot have shape {found}")
    return sampler.choose(n, m, generators, *needed)


def _drawn(log_weight: Tensor, m: int, generators: Sequence[Generator] | None) -> Tensor:
    """Draw m by log_weight[R, n] without replacement (Gumbel top-k); without generators, the m largest.

    Weight zero (−inf) comes after all others, uniformly; NaN comes last. The few weights of a class are sorted on
    the CPU in float64, like the noise, for every device.
    """
    runs, n = log_weight.shape
    m = _affordable(m, n)
    weight = log_weight.detach().cpu().double()
    place = weight.where(weight.isfinite(), 0)
    if generators is not None:
        if len(generators) != runs:
            raise InputError(f"{runs} runs need one random generator each, not {len(generators)}")
        place = place + torch.stack([_gumbel(n, generator) for generator in generators])
    by_place = place.argsort(dim=-1, descending=True, stable=True)
    last_resort = weight.isneginf() + 2 * weight.isnan()
    by_resort = last_resort.gather(-1, by_place).argsort(dim=-1, stable=True)
    return by_place.gather(-1, by_resort)[:, :m].to(log_weight.device)


def _gumbel(n: int, generator: Generator) -> Tensor:
    return -(-torch.rand(n, dtype=torch.float64, generator=generator).log()).log()


def _herd(features: Tensor, m: int, unit: bool) -> Tensor:
    """Algorithm 4 on features[B, n, f], with one matrix–vector product for each exemplar.

    k²‖μ − (S + φ)/k‖² = ‖kμ − S‖² − 2 φ·(kμ − S) + ‖φ‖², and its first term is the same for every candidate.
    The product is computed in float32, for speed; float64 decides among the few that are within its rounding.
    """
    phi = features.detach().to(torch.float64, copy=True)
    length = torch.linalg.vector_norm(phi, dim=-1)
    sound = length.isfinite()
    # One scale for a whole class changes nothing but the size of the scores, which rounding is measured against.
    scale = length if unit else length.where(sound, 0).amax(1, keepdim=True)
    scale = scale.where(scale > 0, 1)
    phi.div_(scale[..., None]).masked_fill_(~sound[..., None], 0)
    mean = phi.sum(1) / sound.sum(1, keepdim=True).clamp(min=1)

    # A candidate starts from −½‖φ‖², from far below as a last resort, from −inf once it is kept.
    handicap = -0.5 * (length / scale).square()
    handicap = handicap.where(sound, torch.finfo(torch.float32).min)

    coarse = phi.float()
    kept = torch.empty(len(phi), m, dtype=torch.long, device=phi.device)
    every = torch.arange(len(phi), device=phi.device)
    missing = torch.zeros_like(mean)  # kμ − S
    for k in range(m):
        missing += mean
        rough = torch.bmm(coarse, missing.float()[..., None])[..., 0] + handicap
        error = COARSE * missing.norm(dim=1, keepdim=True)
        run, contender = (rough >= rough.amax(1, keepdim=True) - error).nonzero(as_tuple=True)
        closeness = torch.full_like(handicap, -torch.inf)
        closeness[run, contender] = (phi[run, contender] * missing[run]).sum(1) + handicap[run, contender]
        best = closeness.amax(1, keepdim=True)
        pick = (closeness >= best - ROUNDING).byte().argmax(1)  # the first of equals
        kept[:, k] = pick
        missing -= phi[every, pick]
        handicap[every, pick] = -torch.inf
    return kept


def _dot(features: Tensor, weights: Tensor) -> Tensor:
    """d = φ(x)·w_y, of features[R, n, f] and weights[R, f]."""
    return torch.bmm(features, weights[..., None])[..., 0]


def _affordable(m: int, n: int) -> int:
    """How many of n examples a budget of m keeps."""
    if m < 0:
        raise InputError(f"a class cannot keep {m} exemplars: give 0 or more")
    if n < 1:
        raise InputError("a class without examples has no exemplars to choose")
    return min(m, n)


def _expect(tensor: Tensor, form: str, dimensions: int) -> None:
    if tensor.ndim != dimensions or not tensor.shape[1]:
        raise InputError(f"expected {form} of at least one example, not shape {tuple(tensor.shape)}")


def _given(generators: Sequence[Generator] | None) -> Sequence[Generator]:
    if generators is None:
        raise InputError("random sampling needs one generator per run; top=True needs none")
    return generators
