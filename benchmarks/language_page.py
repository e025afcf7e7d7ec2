"""What the rows of `language_model` say, in words and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.language_rows import HOLDING, way_of


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """One line per way, means over the seeds."""
    plain = {(row["seed"], row["rate"]): row for row in rows if row["method"] == "plain"}
    heads = ("way", "seeds", "first text", "second text", "drift", "of budget", "held out", "λ", "× time")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for way in dict.fromkeys(map(way_of, rows)):
        found = [row for row in rows if way_of(row) == way]
        beside = [(r, plain[r["seed"], r["rate"]]) for r in found if (r["seed"], r["rate"]) in plain]
        first, second = (mean(r["after"][name] for r in found) for name in ("first", "second"))
        rise = mean(r["after"]["first"] - r["before"]["first"] for r in found)
        drift = mean(r["drift"] for r in found)
        share = "" if way.budget is None else "–".join(f"{b:.2f}" for b in _range(found, way.budget))
        lam = f"{mean(r['lam'] for r in found):.3g}" if "lam" in found[0] else ""
        times = f"{mean(r['train_s'] / other['train_s'] for r, other in beside):.2f}" if beside else ""
        lines.append(
            f"| {way} | {len(found)} | {first:.3f} ({rise:+.3f}) | {second:.3f} | {drift:.3f} | {share} "
            f"| {mean(r['held_out_drift'] for r in found):.3f} | {lam} | {times} |"
        )
    return "\n".join([*lines, "", _verdict(rows, plain)])


def _range(found: Sequence[dict[str, Any]], budget: float) -> list[float]:
    """The drift in units of the budget: one value, or the smallest and the largest."""
    shares = sorted({round(row["drift"] / budget, 2) for row in found})
    return [shares[0], shares[-1]] if len(shares) > 1 else shares


def _verdict(rows: Sequence[dict[str, Any]], plain: Mapping[tuple[int, float], dict[str, Any]]) -> str:
    """How many budgets were held: at most 1.2 times, and at least 0.8 times where training would exceed them."""
    budgets = [row for row in rows if row["budget"] is not None and row["method"] in HOLDING]
    missed = []
    for row in budgets:
        share, free = row["drift"] / row["budget"], plain.get((row["seed"], row["rate"]))
        exceeds = free is None or free["drift"] > row["budget"]
        if share > 1.2 or (exceeds and share < 0.8):
            missed.append(f"{row['method']} {row['budget']:g} at {row['rate']:g}: {share:.2f}")
    said = f"budgets held: {len(budgets) - len(missed)} of {len(budgets)}"
    return "; not ".join([said, ", ".join(missed)]) if missed else said
