"""Named datasets, image folders, tables and array files, each read into a `Dataset`.

An official file is used only if it is the published one, byte for byte, wherever it is from.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from rwalk.atomic_files import at_home
from rwalk.data.datasets.images import read_folder
from rwalk.data.datasets.npz import optional, read_npz
from rwalk.data.datasets.official import OFFICIAL, contents
from rwalk.data.datasets.table_encoder import TableEncoder, read_table
from rwalk.data.datasets.tables import is_table
from rwalk.data.file_options import OF_IMAGES, OF_TABLES, Reading
from rwalk.data.streams import Dataset
from rwalk.errors import unknown

__all__ = ["Dataset", "Reading", "TableEncoder", "describe", "load"]


def load(
    name: str,
    data: Path | str | None = None,
    *,
    seed: int = 0,
    download: bool = True,
    reading: Reading | None = None,
) -> Dataset:
    """The dataset of that name, or in that folder or file; `describe` lists them.

    Official files are looked for in `data` (or $RWALK_DATA), else downloaded once into the user's cache.
    `seed` chooses the test examples of datasets that come without any. `reading` has the settings for a user's
    file or folder.
    """
    how = reading or Reading()
    known = name == "digits" or name in OFFICIAL
    path = at_home(name.removeprefix("folder:"))
    if name.startswith("folder:") or (not known and is_folder(path)):
        how.only(OF_IMAGES, name, "a folder of images")
        return read_folder(path, seed, how.size)
    if is_table(name):
        how.only(OF_TABLES, name, "a table")
        return read_table(path, how, seed)
    if name.endswith(".npz"):
        how.only((), name, "a file of arrays")
        return read_npz(path, seed)
    if not known:
        raise unknown("dataset", name, describe())
    how.only((), name, "a dataset of ours")
    if name == "digits":
        return _digits(seed)
    source = OFFICIAL[name]
    return source.read(name, contents(source, data, download))


def is_folder(path: Path | str) -> bool:
    try:
        return at_home(path).is_dir()
    except (OSError, ValueError):  # no path at all
        return False


def describe() -> dict[str, str]:
    """Names and kinds of datasets, one line each."""
    return {
        "digits": "1,797 handwritten digits, 8 × 8, 10 classes; comes with scikit-learn",
        **{name: source.summary for name, source in OFFICIAL.items()},
        "FOLDER": "images, one sub-folder per class, or one per task with one per class in each",
        "FILE.csv": "a table with a column of classes (also .tsv, .parquet, .csv.gz)",
        "FILE.npz": "arrays x and y, with or without x_test and y_test",
    }


def _digits(seed: int) -> Dataset:
    """scikit-learn's digits; from its file, because importing it takes longer than many a study."""
    found = find_spec("sklearn")
    file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz" if found and found.origin else None
    if file is not None and file.exists():
        table = np.loadtxt(file, delimiter=",")
        pixels, target = table[:, :-1], table[:, -1].astype(int)
    else:
        digits = optional("sklearn.datasets", "scikit-learn").load_digits()
        pixels, target = digits.data, digits.target
    x = (pixels.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    return Dataset.from_arrays(x, target, name="digits", seed=seed)
