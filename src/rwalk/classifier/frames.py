"""DataFrames with text, categories or row numbers: read as `rwalk fit` reads tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from rwalk.classifier.encoders import texts_of
from rwalk.data.datasets import TableEncoder
from rwalk.data.datasets.columns import FEW, IDENTIFIER
from rwalk.data.streams import Form
from rwalk.errors import warn_caller
from rwalk.labels import check_present, is_frame


def form_of_table(X: Any, encoder: Any) -> tuple[TableEncoder | None, Any]:
    """How rows of a DataFrame become inputs, and these inputs; None for plain numbers, and for texts to encode.

    Columns of text and columns that number the rows are read as `rwalk fit` reads those of a file.
    """
    if encoder is not None or not is_frame(X) or not len(X) or texts_of(X) is not None:
        return None, X
    kinds = [getattr(kind, "kind", "O") for kind in X.dtypes]
    named = [name for name in X.columns if isinstance(name, str) and IDENTIFIER.fullmatch(name)]
    if not named and all(kind in "biufMmcV" for kind in kinds):
        _warn_of_counters(X, kinds)
        return None, X  # dates and complex numbers are refused there
    _check_values(X, [str(name) for name in X.columns])
    form = TableEncoder.fit(X, labelled=False)
    for doubt in form.doubts:
        warn_caller(doubt)
    if form.id is None and all(column.values is None for column in form.columns):
        return None, X
    if form.id is not None:
        warn_caller(f"column {form.id!r} is not learned: it numbers or names the rows")
    return form, form.transform(X)


def rows_of(form: Form | None, X: Any) -> Any:
    """The inputs of a DataFrame's rows, if the first inputs were one with text; else X as it is."""
    if not isinstance(form, TableEncoder) or not is_frame(X):
        return X
    _check_values(X, [column.name for column in form.columns])
    return form.transform(X)


def names_of(form: Form) -> Any:
    """The columns of a table that are learned; None for other inputs."""
    return np.array([each.name for each in form.columns], dtype=object) if isinstance(form, TableEncoder) else None


def _warn_of_counters(X: Any, kinds: list[str]) -> None:
    """Warn of a column that counts the rows: on rows sorted by class it would be all that is learned."""
    for place, kind in enumerate(kinds):
        column = X.iloc[:, place]
        if kind in "iu" and len(X) >= FEW and (column.diff().iloc[1:] == 1).all():
            warn_caller(f"column {X.columns[place]!r} counts the rows: leave it out, if that is no accident")


def _check_values(X: Any, names: list[str]) -> None:
    """Refuse a DataFrame with gaps in these columns."""
    for place, name in enumerate(X.columns):
        if str(name) in names:
            check_present(name, X.iloc[:, place])
