"""Equations written down: given words for vectors, the methods' own code says what a kernel has to do.

Numbers are kept apart from the text, so that another λ, or another learning rate, is the same kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rwalk.guard.step.tensor_list import Operand


class Unwritten(Exception):
    """An operation that no kernel is written for."""


class Script:
    """Lines of Triton, the numbers in them (c0, c1, …), and the columns that they read."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.numbers: list[float] = []
        self.read: dict[str, None] = {}

    def column(self, name: str) -> Term:
        """What stands in a column, for as long as nothing else is written there."""
        return Term(self, name, column=name)

    def write(self, expression: str) -> str:
        """Append an expression; returns the word for its result."""
        word = f"v{len(self.lines)}"
        self.lines.append(f"{word} = {expression}")
        return word

    def word(self, value: Any) -> str:
        if isinstance(value, Term):
            if value.word == value.column:
                self.read[value.word] = None
            return value.word
        if isinstance(value, int | float):
            self.numbers.append(float(value))
            return f"c{len(self.numbers) - 1}"
        raise Unwritten(f"a {type(value).__name__} in an equation")


class Term(Operand):
    """A word for a vector; after an operation in place, another word for it.

    >>> script = Script()
    >>> fisher, grad = script.column("fisher"), script.column("grad")
    >>> square = grad * grad
    >>> fisher.lerp_(square, 0.25).word, script.numbers, *script.read
    ('v1', [0.25], 'grad', 'fisher')
    >>> print(script.lines[0])
    v0 = grad * grad
    """

    def __init__(self, script: Script, word: str, column: str = "") -> None:
        self.script, self.word, self.column = script, word, column

    @staticmethod
    def done(name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        out = kwargs.pop("out", None)
        operation = name.removesuffix("_")
        if operation not in EXPRESSIONS:
            raise Unwritten(operation)
        script = next(each for each in args if isinstance(each, Term)).script
        words = [script.word(each) for each in args if each is not args[0] or operation not in ANEW]
        named = {key: script.word(each) for key, each in kwargs.items()}
        word = script.write(EXPRESSIONS[operation](*words, **named))
        changed = args[0] if name[-1] == "_" else out
        if changed is None:
            return Term(script, word)
        changed.word = word
        return changed


def _plus(sign: str) -> Callable[..., str]:
    return lambda a, b, alpha=None: f"{a} {sign} {b}" if alpha is None else f"{a} {sign} {alpha} * {b}"


def _product(sign: str) -> Callable[..., str]:
    return lambda a, b, c, value=None: f"{a} + {'' if value is None else f'{value} * '}{b} {sign} {c}"


def _largest(a: str, b: str) -> str:
    return f"tl.maximum({a}, {b}, propagate_nan=tl.PropagateNan.ALL)"


def _smallest(a: str, b: str) -> str:
    return f"tl.minimum({a}, {b}, propagate_nan=tl.PropagateNan.ALL)"


def _between(a: str, min: str | None = None, max: str | None = None) -> str:
    above = a if min is None else _largest(a, min)
    return above if max is None else _smallest(above, max)


def _all(number: str) -> Callable[[], str]:
    return lambda: f"tl.full([ROWS, BLOCK], {number}, tl.float32)"


# As torch computes them, operation by operation.
EXPRESSIONS: dict[str, Callable[..., str]] = {
    "add": _plus("+"),
    "sub": _plus("-"),
    "rsub": lambda a, b: f"{b} - {a}",
    "mul": lambda a, b: f"{a} * {b}",
    "div": lambda a, b: f"{a} / {b}",
    "rtruediv": lambda a, b: f"{b} / {a}",
    "neg": lambda a: f"-{a}",
    "abs": lambda a: f"tl.abs({a})",
    "sign": lambda a: f"tl.where({a} > 0, 1.0, tl.where({a} < 0, -1.0, {a} * 0.0))",
    "sqrt": lambda a: f"tl.sqrt({a})",
    "reciprocal": lambda a: f"1.0 / {a}",
    "square": lambda a: f"{a} * {a}",
    "addcmul": _product("*"),
    "addcdiv": _product("/"),
    "lerp": lambda a, b, w: f"tl.where({w} < 0.5, {a} + {w} * ({b} - {a}), {b} - ({b} - {a}) * (1.0 - {w}))",
    "maximum": _largest,
    "minimum": _smallest,
    "clamp": _between,
    "clamp_min": _largest,
    "clamp_max": _smallest,
    "copy": lambda b: b,
    "clone": lambda a: a,
    "zero": _all("0.0"),
    "zeros_like": _all("0.0"),
    "ones_like": _all("1.0"),
}
ANEW = {"copy", "zero", "zeros_like", "ones_like"}  # the old numbers are not read
