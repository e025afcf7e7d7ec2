"""Vanilla: train on what comes, hold nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rwalk.methods.method import Method


@dataclass(frozen=True)
class Vanilla(Method):
    """Fine-tuning without any regularisation: the baseline that forgets."""

    name: ClassVar[str] = "vanilla"
    summary: ClassVar[str] = "fine-tuning without protection: the baseline that forgets"
