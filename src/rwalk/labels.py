"""Arrays and labels as users pass them, converted for the engine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from rwalk.data.datasets.tables import UNUSABLE
from rwalk.errors import InputError

WHOLE = {"i": np.int64, "u": np.uint64, "b": np.bool_}
KINDS = {"U": "strings", "S": "bytes", "M": "times", "m": "durations"}  # of labels, by NumPy's letters


@contextmanager
def one_line() -> Iterator[None]:
    """scikit-learn's complaints about arrays, as our errors: one line."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if isinstance(error, TypeError) and "Feature names" not in str(error):
            raise
        message = re.sub(r":?\s*array=\[.*?\]+\.", ".", " ".join(str(error).split()))  # without the array itself
        if "contains NaN" in message:  # scikit-learn then recommends other estimators
            message = f"{message.partition('.')[0]}: fill in or leave out missing values"
        elif "contains infinity" in message:
            message = f"{message.partition(' or a value')[0]}: leave such values out, or bring inputs to scale"
        elif "arrays of bytes/strings" in message:
            message = "an input is text: give numbers, a list of texts, or a DataFrame with columns of text"
        raise InputError(message) from error


def array(values: Any) -> Any:
    """Tensors of any device and type, NumPy's new strings, pandas' integers and booleans, for scikit-learn."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values if values.layout == torch.strided else values.to_dense()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    if isinstance(values, np.ndarray) and values.dtype.kind == "T":
        return values.astype(object)
    if (kind := _extended(values)) in WHOLE and not values.isna().any():
        return values.to_numpy(dtype=WHOLE[kind])  # scikit-learn would make them floats
    return values


def is_frame(X: Any) -> bool:
    """Whether inputs are a table with named columns."""
    return hasattr(X, "columns") and hasattr(X, "iloc")


def inputs(X: Any) -> Any:
    """Inputs for scikit-learn. Values that are not numbers are refused; the message names a DataFrame's column."""
    if is_frame(X):
        for place, name in enumerate(X.columns):
            _check_column(name, X.iloc[:, place])
    X = array(X)
    if isinstance(X, np.ma.MaskedArray) and np.ma.is_masked(X):
        raise InputError("inputs have masked values: fill them in, or leave them out")
    if isinstance(X, np.ndarray) and X.dtype.kind in UNUSABLE:
        if X.dtype.kind == "c":
            raise InputError(
                "Complex data not supported: give real numbers"
            )  # in the words of scikit-learn's checks
        raise InputError(f"inputs are {UNUSABLE[X.dtype.kind]}: give numbers")
    return X


def _check_column(name: Any, column: Any) -> None:
    """Refuse a DataFrame's column that is not numbers, or lacks some."""
    if (kind := getattr(column.dtype, "kind", "O")) in UNUSABLE:
        raise InputError(f"column {name!r} holds {UNUSABLE[kind]}: turn it into numbers, or leave it out")
    check_present(name, column)
    if kind not in "biuf":
        for value in column.unique():
            try:
                float(value)
            except (TypeError, ValueError):
                raise InputError(
                    f"column {name!r} holds {str(value)[:40]!r}, which is no number: turn its values into numbers "
                    "(pandas.get_dummies), or leave it out"
                ) from None


def check_present(name: Any, column: Any) -> None:
    """Refuse a DataFrame's column with gaps."""
    if (missing := np.asarray(column.isna())).any():
        row = int(missing.argmax()) + 1
        raise InputError(f"row {row} has no value in column {name!r}: fill it in, or leave the row or column out")


def _extended(values: Any) -> str | None:
    """NumPy's letter for the type of a column that is of a type pandas added to NumPy's."""
    if not hasattr(values, "to_numpy") or isinstance(getattr(values, "dtype", np.dtype(float)), np.dtype):
        return None
    return str(values.dtype.kind)


def whole(number: Any) -> Any:
    """NumPy's integers, which parameter grids often contain, as Python's."""
    return int(number) if isinstance(number, Integral) and not isinstance(number, bool) else number


def check_kind(y: Any) -> None:
    """Refuse a list of strings and numbers: NumPy would turn 1 into "1"."""
    if isinstance(y, list | tuple) and len({isinstance(label, str) for label in y if label is not None}) > 1:
        raise InputError("labels are numbers and strings: give labels of one type")


def labels_of(y: Any) -> NDArray[Any]:
    """Labels that can name classes."""
    check_kind(y)
    labels = np.asarray(array(y))
    if labels.ndim != 1:
        raise InputError(f"labels have shape {list(labels.shape)}: give one per example, as [n]")
    if labels.dtype.kind == "O" and any(label is None or label != label for label in labels):
        raise InputError("a label is missing (None or NaN): name every example's class")
    if labels.dtype.kind == "f":
        with one_line():
            check_classification_targets(labels)
    return labels


def merged(known: NDArray[Any], *arrivals: NDArray[Any]) -> NDArray[Any]:
    """Every label once; sorted, or in the order of arrival where labels have no order.

    >>> merged(np.array(["b", "c"]), np.array(["aa", "b"])).tolist()
    ['aa', 'b', 'c']
    """
    parts = [part for part in (known, *arrivals) if len(part)]
    # NumPy would turn 1 and "1" into one label. An array of objects keeps them apart.
    kinds = sorted({KINDS.get(part.dtype.kind, "numbers") for part in parts if part.dtype.kind != "O"})
    if len(kinds) > 1:
        raise InputError(f"labels are {' and '.join(kinds)}: give labels of one type in all calls")
    unique = [np.unique(part) if part.dtype.kind not in "O" else part for part in parts]
    labels = list(dict.fromkeys(label for part in unique for label in part))
    if len(labels) == len(known):
        return known
    with suppress(TypeError):
        labels = sorted(labels)
    together = np.empty(len(labels), dtype=np.result_type(*parts))
    for place, label in enumerate(labels):  # one by one: a label may itself be a sequence
        together[place] = label
    return together


def columns_of(labels: NDArray[Any], classes: NDArray[Any]) -> Tensor:
    """The index of every label among the classes; −1 if it is not one of them."""
    if labels.dtype.kind != "O" and classes.dtype.kind != "O" and len(classes):
        order = np.argsort(classes)
        place = np.searchsorted(classes[order], labels).clip(max=len(classes) - 1)
        found = order[place]
        return torch.from_numpy(np.where(classes[found] == labels, found, -1))
    column = {label: place for place, label in enumerate(classes)}
    return torch.tensor([column.get(label, -1) for label in labels], dtype=torch.int64)
