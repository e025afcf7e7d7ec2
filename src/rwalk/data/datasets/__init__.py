"""Named datasets, image folders and array files, each read into a `Dataset`.

An official file is used only when it holds what was published, wherever it came from and however it is packed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rwalk.data.datasets import folders, npz, official, verified
from rwalk.data.datasets.optional import optional
from rwalk.data.streams import Dataset
from rwalk.errors import unknown

__all__ = ["Dataset", "describe", "load"]


def load(name: str, data: Path | str | None = None, *, seed: int = 0, download: bool = True) -> Dataset:
    """The dataset of that name, or of `folder:PATH`, or of a `.npz` file; `describe` lists them.

    Official files are looked for in `data` (or $RWALK_DATA), else downloaded once into the user's cache.
    `seed` chooses the test examples of datasets that come without any.
    """
    if name.startswith("folder:"):
        return folders.read_folder(Path(name.removeprefix("folder:")).expanduser(), seed)
    if name.endswith(".npz"):
        return npz.read_npz(Path(name).expanduser(), seed)
    if name == "digits":
        return _digits(seed)
    if name in official.OFFICIAL:
        source = official.OFFICIAL[name]
        return source.read(name, verified.contents(source, data, download))
    raise unknown("dataset", name, describe())


def describe() -> dict[str, str]:
    """What can be loaded, one line each."""
    return {
        "digits": "1,797 handwritten digits, 8 × 8, 10 classes; comes with scikit-learn",
        **{name: source.summary for name, source in official.OFFICIAL.items()},
        "folder:PATH": "images, one sub-folder per class, with or without train/ and test/ above them",
        "PATH.npz": "arrays x and y, with or without x_test and y_test",
    }


def _digits(seed: int) -> Dataset:
    digits = optional("sklearn.datasets", "scikit-learn").load_digits()
    x = (digits.images[:, None] / 16).astype(np.float32)
    return Dataset.from_arrays(x, digits.target, name="digits", seed=seed)
