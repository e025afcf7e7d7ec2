"""Hugging Face datasets: columns of images or numbers, and one of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rwalk.data.datasets.images import GREY, TESTS, ImageForm, pixels_of, unit_pixels
from rwalk.data.datasets.table_encoder import USUAL_LABELS
from rwalk.data.file_options import Reading
from rwalk.data.streams import Dataset
from rwalk.errors import InputError, unknown

NUMBERS = ("int", "uint", "float", "bool")  # beginnings of the names of numeric types


def read_huggingface(
    data: Any,
    *,
    label: str | None = None,
    inputs: str | Sequence[str] | None = None,
    task_column: str | None = None,
    size: int | None = None,
    name: str = "huggingface",
    seed: int = 0,
) -> Dataset:
    """A `datasets.Dataset`, or a `DatasetDict` with train and test, in memory."""
    Reading(size=size)
    train, test = _parts(data)
    features = train.features
    target = _label(features, label)
    for given in [task_column, *([inputs] if isinstance(inputs, str) else inputs or ())]:
        if given is not None and given not in features:
            raise unknown("column", str(given), features)
    columns = _inputs(features, inputs, {target, task_column})
    parts = [train] if test is None else [train, test]
    form, x = _arrays(parts, columns, features, size)
    y = [_classes(part, target) for part in parts]
    tasks = [None if task_column is None else np.asarray(part[task_column][:]) for part in parts]
    if test is None:
        return Dataset.from_arrays(x[0], y[0], name=name, seed=seed, arrival=tasks[0], form=form)
    return Dataset.from_arrays(
        x[0], y[0], x[1], y[1], name=name, arrival=tasks[0], arrival_test=tasks[1], form=form
    )


def _parts(data: Any) -> tuple[Any, Any]:
    if isinstance(data, Mapping):
        if "train" not in data:
            raise InputError(f"there is no part 'train' among {', '.join(map(str, data))}: give one part alone")
        return data["train"], next((data[name] for name in TESTS if name in data), None)
    if not hasattr(data, "features") or not hasattr(data, "column_names") or not hasattr(data, "__len__"):
        raise InputError(
            f"{type(data).__name__} is no datasets.Dataset: load it with load_dataset(…), without streaming"
        )
    return data, None


def _label(features: Mapping[str, Any], label: str | None) -> str:
    if label is not None:
        if label not in features:
            raise unknown("column", label, features)
        return label
    named = [name for name, kind in features.items() if type(kind).__name__ == "ClassLabel"]
    usual = [name for name in features if name.lower() in USUAL_LABELS]
    if not named and not usual:
        raise InputError(f"no column of {', '.join(features)} is declared as class labels: give label=")
    return (named or usual)[0]


def _inputs(features: Mapping[str, Any], given: str | Sequence[str] | None, taken: set[str | None]) -> list[str]:
    if given is not None:
        return [given] if isinstance(given, str) else list(given)
    images = [name for name, kind in features.items() if _is_image(kind)]
    numbers = [name for name, kind in features.items() if name not in taken and _is_numeric(kind)]
    if not images and not numbers:
        raise InputError(f"no column of {', '.join(features)} holds images or numbers: give inputs=")
    return images[:1] or numbers


def _is_image(kind: Any) -> bool:
    return type(kind).__name__ == "Image"


def _is_numeric(kind: Any) -> bool:
    """A number, or arrays of numbers of any depth."""
    inner = getattr(kind, "feature", None)
    return _is_numeric(inner) if inner is not None else str(getattr(kind, "dtype", "")).startswith(NUMBERS)


def _arrays(
    parts: Sequence[Any], columns: list[str], features: Mapping[str, Any], size: int | None
) -> tuple[ImageForm | None, list[NDArray[Any]]]:
    if any(_is_image(features[column]) for column in columns):
        if len(columns) > 1:
            raise InputError(f"inputs {', '.join(columns)} mix images with other columns: give one image column")
        return _images(parts, columns[0], size)
    if size is not None:
        raise InputError("size is of images, and there are none: leave it out")
    return None, [_numbers(part, columns) for part in parts]


def _images(parts: Sequence[Any], column: str, size: int | None) -> tuple[ImageForm, list[NDArray[Any]]]:
    found = {(1 if image.mode in GREY else 3, *image.size) for part in parts for image in part[column]}
    sizes = sorted({each[1:] for each in found})
    if size is None and len(sizes) > 1:
        (a, b), (c, d) = sizes[0], sizes[-1]
        raise InputError(f"images have {a} × {b} to {c} × {d} pixels: choose one size for all, size=32")
    width, height = sizes[0] if size is None else (size, size)
    form = ImageForm(max(channels for channels, *_ in found), height, width, size)
    read = [[pixels_of(image, form) for image in part[column]] for part in parts]
    if any(pixels.dtype != np.uint8 for part in read for pixels in part):  # 16 bits
        read = [[unit_pixels(pixels) for pixels in part] for part in read]
    return form, [np.stack(part) for part in read]


def _numbers(part: Any, columns: list[str]) -> NDArray[np.float64]:
    found = []
    for column in columns:
        try:
            values = np.array([np.asarray(value, dtype=np.float64) for value in part[column]])
        except (TypeError, ValueError):
            raise InputError(f"column {column!r} is not numbers of one shape: name others with inputs=") from None
        found.append(values[:, None] if values.ndim == 1 else values)
    if len(found) == 1:
        return found[0]
    return np.concatenate([values.reshape(len(values), -1) for values in found], axis=1)


def _classes(part: Any, label: str) -> NDArray[Any]:
    """Class names, if the column has names for its numbers."""
    values, names = part[label][:], getattr(part.features[label], "names", None)
    if names is None or not all(isinstance(value, int) and 0 <= value < len(names) for value in values):
        return np.asarray(values)
    return np.array([names[value] for value in values])
