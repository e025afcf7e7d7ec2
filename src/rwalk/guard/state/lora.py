"""Adapters of low rank (LoRA): two factors, of which only the product counts.

A layer's weight is W = base + scale · left @ right, and the factors can move while their product stays. So a guard
holds W: importance and anchor are of its shape, and the pull reaches the factors by the chain rule. Merging an
adapter into its base leaves W as it is, and with it all that is known of W.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rwalk.guard.select import plain, unwrapped
from rwalk.guard.state.codec import drawn_for, rounded
from rwalk.guard.state.sharded import is_sharded
from rwalk.guard.step.penalty import FOLLOWED
from rwalk.methods.base import Spring

WRAPPED = "base_model.model."  # what PEFT's own wrapper puts before names
RIDGE = 1e-6  # of a Gram matrix's mean eigenvalue, so that factors of lower rank can be solved for


class Product:
    """The weight of a layer with an adapter.

    base        [m, n], frozen
    factors     A [r, inputs] and B [outputs, r], as PEFT calls them
    scale       of their product
    transposed  whether base is [inputs, outputs]
    """

    def __init__(
        self, base: nn.Parameter, factors: tuple[nn.Parameter, nn.Parameter], scale: float, transposed: bool
    ) -> None:
        self.base = base
        self.factors = factors
        self._scale = scale
        self._transposed = transposed

    def is_that_of(self, other: object) -> bool:
        """Whether nothing was replaced: neither the base nor the factors."""
        if not isinstance(other, Product) or self._scale != other._scale:
            return False
        ours, theirs = (self.base, *self.factors), (other.base, *other.factors)
        return all(one is another for one, another in zip(ours, theirs, strict=True))

    def value(self, dtype: torch.dtype) -> Tensor:
        """W, as it is now."""
        left, right = self._oriented(self.factors, dtype)
        return torch.addmm(self.base.detach().to(dtype), left, right, alpha=self._scale)

    # ── gradients ─────────────────────────────────────────────────────────────────────────────────────────────

    def gradient(self, gradients: Sequence[Tensor | None], dtype: torch.dtype) -> Tensor:
        """The gradient of W, projected on all changes of W that its factors can make.

        The projection does not depend on how W is factored, and a step of the factors can follow no more of it.
        """
        known = [
            torch.zeros_like(factor) if each is None else each
            for factor, each in zip(self.factors, gradients, strict=True)
        ]
        left, right = self._oriented(self.factors, dtype)
        of_left, of_right = self._oriented(known, dtype)
        by_left = _solved(right @ right.T, of_left.T).T / self._scale
        by_right = _solved(left.T @ left, of_right / self._scale - (left.T @ by_left) @ right)
        return torch.addmm(left @ by_right, by_left, right)

    def chained(self, slope: Tensor) -> list[Tensor]:
        """The gradients of the factors, of something that has this gradient with respect to W."""
        left, right = self._oriented(self.factors, slope.dtype)
        return self._disoriented(self._scale * (slope @ right.T), self._scale * (left.T @ slope))

    def followed(self, step: float, dtype: torch.dtype) -> Tensor:
        """The stiffness of W that an optimizer of the factors can follow; without waiting for the device."""
        squares = [factor.detach().to(dtype).square().sum() for factor in self.factors]
        most: Tensor = FOLLOWED / (step * self._scale**2 * torch.stack(squares).amax().clamp(min=1e-12))
        return most

    # ── pulled where it was ───────────────────────────────────────────────────────────────────────────────────

    def proximal_step(
        self,
        springs: Sequence[Spring],
        theta: Tensor,
        step: float,
        beyond: Tensor | None = None,
        moment: int = 0,
    ) -> None:
        """(A, B) ← argmin  penalty + ‖their change‖²/(2η), for the part of the springs' stiffness beyond `beyond`.

        One factor after the other is solved exactly: no λ is too large.
        """
        stiffness = [2.0 * float(strength) * importance for strength, importance, _ in springs]
        total = torch.stack(stiffness).sum(0) if len(stiffness) > 1 else stiffness[0]
        share = step if beyond is None else step * (1.0 - beyond.to(total) / total).clamp(min=0.0)
        force = torch.zeros_like(theta)
        for stiff, (_, _, anchor) in zip(stiffness, springs, strict=True):
            force.addcmul_(share * stiff, anchor - theta)
        device = self.base.device
        self._give_way((share * total)[0].to(device), force[0].to(device), moment)

    def _give_way(self, stiffness: Tensor, force: Tensor, moment: int) -> None:
        """Move the factors as W is pulled by this force, which lessens as W moves, by this stiffness."""
        left, right = (each.clone() for each in self._oriented(self.factors, force.dtype))
        if self._trains(is_left=True):
            change = _rows_moved(self._scale * right, stiffness, force)
            left += change
            force = force - stiffness * (self._scale * change @ right)
        if self._trains(is_left=False):
            right += _rows_moved(self._scale * left.T, stiffness.T, force.T).T
        pairs = zip(("A", "B"), self.factors, self._disoriented(left, right), strict=True)
        for name, factor, found in pairs:  # draws decide how narrow ones are rounded
            factor.detach().copy_(rounded(found.contiguous(), factor.dtype, drawn_for(found, name, moment)))

    # ── which is which ────────────────────────────────────────────────────────────────────────────────────────

    def _oriented(self, pair: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Of A and B, or of their gradients: left and right, so that W has base's orientation."""
        a, b = (each.detach().to(dtype) for each in pair)
        return (a.T, b.T) if self._transposed else (b, a)

    def _disoriented(self, left: Tensor, right: Tensor) -> list[Tensor]:
        return [left.T, right.T] if self._transposed else [right, left]

    def _trains(self, is_left: bool) -> bool:
        a, b = self.factors
        return (a if is_left == self._transposed else b).requires_grad


Target = nn.Parameter | Product  # a guard holds one of these under a name


def _solved(gram: Tensor, right_side: Tensor, at_least: float = 0.0) -> Tensor:
    """(gram + a ridge)⁻¹ @ right_side, of one matrix or of many; where both are zero, zero."""
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    ridge = at_least + RIDGE * diagonal.mean(-1, keepdim=True) + torch.finfo(gram.dtype).tiny
    found: Tensor = torch.linalg.solve_ex(gram + torch.diag_embed(ridge.expand_as(diagonal)), right_side)[0]
    return found


def _rows_moved(factor: Tensor, stiffness: Tensor, force: Tensor) -> Tensor:
    """X [m, r], as far as the force [m, n] on X @ factor [r, n] moves it: each row against its own stiffness."""
    rank = len(factor)
    pairs = (factor[:, None] * factor[None]).flatten(0, 1)
    grams = (stiffness @ pairs.T).unflatten(1, (rank, rank))
    return _solved(grams, (force @ factor.T)[..., None], at_least=1.0)[..., 0]


def in_place_of_factors(model: nn.Module, chosen: Mapping[str, nn.Parameter]) -> dict[str, Target]:
    """Each pair of factors that is to be guarded, as its product, under the name of the weight they adapt."""
    targets: dict[str, Target] = {}
    replaced: set[nn.Parameter] = set()
    parameters = set(chosen.values())
    for path, layer in unwrapped(model).named_modules():
        product = _product(layer)
        if product is not None and parameters.issuperset(product.factors):
            targets[plain(path).removeprefix(WRAPPED) + ".weight"] = product
            replaced |= {product.base, *product.factors}
    return {**{name: p for name, p in chosen.items() if p not in replaced}, **targets}


def _product(layer: Any) -> Product | None:
    """The product of a layer like PEFT's with one plain adapter in use on a matrix; None for all other layers."""
    factors = getattr(layer, "lora_A", None), getattr(layer, "lora_B", None)
    if not all(isinstance(each, nn.ModuleDict) for each in factors) or getattr(layer, "merged", True):
        return None
    in_use = [name for name in layer.active_adapters if name in layer.lora_A]
    if len(in_use) != 1 or in_use[0] in getattr(layer, "lora_variant", {}):
        return None
    (name,) = in_use
    a: Any = layer.lora_A[name]
    b: Any = layer.lora_B[name]
    base: Any = getattr(layer.get_base_layer(), "weight", None)
    transposed = bool(getattr(layer, "fan_in_fan_out", False))
    if {type(a), type(b)} != {nn.Linear} or not _is_frozen_matrix(base):
        return None
    shape = (b.out_features, a.in_features)
    if base.shape != (shape[::-1] if transposed else shape) or is_sharded(base) or is_sharded(a.weight):
        return None
    return Product(base, (a.weight, b.weight), float(layer.scaling[name]), transposed)


def _is_frozen_matrix(base: Any) -> bool:
    matrix = isinstance(base, nn.Parameter) and base.ndim == 2 and base.is_floating_point()
    return bool(matrix and not base.requires_grad)


@contextmanager
def measured(products: Iterable[Product | None]) -> Iterator[None]:
    """Backward passes reach the bases meanwhile, whose gradients are those of W."""
    bases = [product.base for product in products if product is not None]
    try:
        for base in bases:
            base.requires_grad_(True)
        yield
    finally:
        for base in bases:
            base.requires_grad_(False)
            base.grad = None
