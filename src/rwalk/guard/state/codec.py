"""Codes of 8 and 16 bits for a guard's vectors, block by block: from [blocks, BLOCK] float32, and back.

The use of a vector decides how it may be rounded. Importances span decades and are only ever multiplied with
something: 8 bits, a fixed share of each number's size. Sums to which every step adds a little, of either sign,
take 16 bits of the same kind. Places in parameter space are subtracted from the parameters, and the difference
must be right: 16 bits, equally spaced over a block.

A number that lies on a level is coded as that level, independent of the rest of its block. So a vector that is
read and written back stays as it is, and files do not depend on codes. Between two levels a draw decides, in
proportion to how near they are: otherwise an average that moves by less than a level per step would never move.
Draws are counted, not random: they depend on the place of a number and on the step, equally spread over both.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 128
MAGNITUDE = 0x7FFFFFFF  # the bits of a float32 without its sign
NO_NUMBER = 0x7FC00000  # the NaN that CPUs write; rounded, it is still a NaN
LOST = 143  # the exponent of a block that is not finite

# Multiples of these fill the integers of 32 bits evenly, along blocks, along a block, and in time.
ALONG_BLOCKS, ALONG_BLOCK, IN_TIME = 0x9E3779B1, 0xB5297A4D, 0x68E31DA5
DROPPED = {torch.bfloat16: 16, torch.float16: 13}  # bits of a float32's mantissa that narrower ones do not have


@dataclass(frozen=True)
class Plain:
    """As it is, or narrower."""

    dtype: torch.dtype
    draws = False  # whether draws decide between two levels

    def encode(self, blocks: Tensor, draws: Tensor | None = None) -> tuple[Tensor, ...]:
        return (blocks.to(self.dtype),)

    def decode(self, *kept: Tensor) -> Tensor:
        return kept[0]


@dataclass(frozen=True)
class Floats:
    """A float32's exponent and its first `mantissa` bits, counted from the largest of the block downwards.

    The largest numbers of a block take the upper end of the code; numbers too small for the lower end are 0.
    Without a sign, there are no negative numbers.

    >>> code = Floats(torch.uint8, mantissa=3, signed=False)
    >>> code.decode(*code.encode(torch.tensor([[0.0, 1e-12, 1e-6, 1.0, 1.1]])))
    tensor([[0.0000e+00, 0.0000e+00, 9.5367e-07, 1.0000e+00, 1.1250e+00]])
    """

    kept_in: torch.dtype
    mantissa: int
    signed: bool
    draws = True

    @property
    def most(self) -> int:
        return torch.iinfo(self.kept_in).max

    def encode(self, blocks: Tensor, draws: Tensor | None = None) -> tuple[Tensor, ...]:
        dropped = 23 - self.mantissa
        narrow = blocks.float()
        sizes = narrow if self.signed else narrow.clamp(min=0)
        levels = (sizes.view(torch.int32) & MAGNITUDE).clamp_(max=NO_NUMBER)
        if draws is None:
            levels += 1 << (dropped - 1)  # the nearest level
        else:
            levels += (draws >> (32 - dropped)) & ((1 << dropped) - 1)
        levels >>= dropped
        below = (levels.amax(1, keepdim=True) - self.most).clamp_(min=0)
        levels -= below
        levels.clamp_(min=0)
        if self.signed:
            levels = torch.where(narrow < 0, -levels, levels)
        return levels.to(self.kept_in), below.to(torch.int32 if self.mantissa > 6 else torch.int16)

    def decode(self, *kept: Tensor) -> Tensor:
        codes, below = kept
        levels = codes.to(torch.int32)
        bits = levels.abs() if self.signed else levels.clone()
        bits += below
        bits <<= 23 - self.mantissa
        numbers = bits.view(torch.float32)
        numbers *= levels.sign_() if self.signed else levels.clamp_(max=1)
        return numbers


@dataclass(frozen=True)
class Places:
    """Equally spaced, 2¹⁶ of them over a block: from minus to plus the power of two above its largest number.

    >>> Places().decode(*Places().encode(torch.tensor([[0.0, 0.1, -0.3]])))
    tensor([[ 0.0000,  0.1000, -0.3000]])
    """

    draws = False

    def encode(self, blocks: Tensor, draws: Tensor | None = None) -> tuple[Tensor, ...]:
        narrow = blocks.float()
        largest = narrow.abs().amax(1, keepdim=True)
        exponents = torch.frexp(largest).exponent.clamp_(min=-100)
        exponents.masked_fill_(~largest.isfinite(), LOST)
        codes = (narrow * _power_of_two(15 - exponents)).round_().clamp_(-32767, 32767)
        return codes.to(torch.int16), exponents.to(torch.int16)

    def decode(self, *kept: Tensor) -> Tensor:
        codes, exponents = kept
        return codes * _power_of_two(exponents - 15)


def _power_of_two(exponents: Tensor) -> Tensor:
    """Exactly, on every device."""
    return ((exponents.to(torch.int32) + 127) << 23).view(torch.float32)


Code = Plain | Floats | Places  # how a vector is kept: in one or more tensors with a row per block

AMOUNT = Floats(torch.uint8, mantissa=3, signed=False)
SUM = Floats(torch.int16, mantissa=10, signed=True)
PLACE = Places()
BY_NAME: dict[str, Code] = {
    **dict.fromkeys(("fisher", "squares", "score", "importance"), AMOUNT),
    "path": SUM,
    **dict.fromkeys(("anchor", "origin"), PLACE),
}


def code_of(name: str) -> Code:
    """The code for a vector of this name ("anchor.3" is an anchor); unknown vectors stay float32."""
    return BY_NAME.get(name.partition(".")[0], Plain(torch.float32))


def phases(name: str, blocks: int, device: torch.device) -> Tensor:
    """Where the draws of a parameter's blocks begin, [blocks]."""
    return torch.arange(blocks, dtype=torch.int32, device=device) * wrapped(ALONG_BLOCKS) + wrapped(number(name))


def drawn(phases: Tensor, name: str, moment: int) -> Tensor:
    """Draws for blocks of the vector of this name: integers of 32 bits, [blocks, BLOCK].

    >>> draws = drawn(phases("weight", 4, torch.device("cpu")), "fisher", moment=7)
    >>> draws.shape, bool((draws.double() / 2**32).mean().abs() < 0.02)
    (torch.Size([4, 128]), True)
    """
    within = torch.arange(BLOCK, dtype=torch.int32, device=phases.device) * wrapped(ALONG_BLOCK)
    return phases[:, None] + within + moved(name, moment)


def drawn_for(tensor: Tensor, parameter: str, name: str, moment: int) -> Tensor:
    """Draws for all numbers of a vector of this name of a parameter, in its shape."""
    draws = drawn(phases(parameter, -(-tensor.numel() // BLOCK), tensor.device), name, moment)
    return draws.flatten()[: tensor.numel()].view(tensor.shape)


def rounded(wide: Tensor, dtype: torch.dtype, draws: Tensor) -> Tensor:
    """float32 numbers, each rounded to one of its two neighbours in a narrower dtype, as a draw decides.

    In proportion to how near they are: by the nearest, moves that are small beside a number would all be lost.
    A number that the dtype has stays as it is.

    >>> rounded(torch.tensor([1.0, 1.001]), torch.bfloat16, torch.tensor([-1, -1], dtype=torch.int32))
    tensor([1.0000, 1.0078])
    """
    if dtype not in DROPPED or wide.dtype != torch.float32:
        return wide
    dropped = DROPPED[dtype]
    bits = wide.view(torch.int32) + ((draws >> (32 - dropped)) & ((1 << dropped) - 1))
    return (bits & -(1 << dropped)).view(torch.float32)


def moved(name: str, moment: int) -> int:
    """By how much the draws of a vector are moved, in time."""
    return wrapped(number(name) + moment * IN_TIME)


def number(name: str) -> int:
    return zlib.crc32(name.encode())


def wrapped(integer: int) -> int:
    """As a signed integer of 32 bits; sums and products of such wrap around."""
    return (integer + 2**31) % 2**32 - 2**31
