"""The order of the gallery: from the simplest door to comparisons."""

from __future__ import annotations

from typing import Any

ORDER = (
    *("classifier", "unlearn"),
    *("guard_plain", "guard_budget", "guard_one_head"),
    *("guard_detector", "guard_segmenter", "guard_tagger", "guard_embedder", "guard_regressor"),
    *("guard_huggingface", "guard_trl", "guard_lightning", "guard_accelerate"),
    "compare_methods",
)


class InOrder:
    def __init__(self, folder: Any) -> None:
        self.folder = folder

    def __call__(self, file: str) -> int:
        """Its place; a new example stands at the end."""
        name = str(file).removesuffix(".py")
        return ORDER.index(name) if name in ORDER else len(ORDER)
