"""Estimators on disk: each is one safetensors file of a record and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from rwalk import sealed
from rwalk.classifier import records
from rwalk.errors import InputError
from rwalk.threads import few_threads

Contents = tuple[dict[str, Any], dict[str, Tensor]]  # the record, and the tensors


class Stored:
    """An estimator that can be written and read; subclasses say what a file holds."""

    _formats: ClassVar[tuple[str, ...]]  # that can be read; the first is the one written

    def save(self, path: str | Path) -> None:
        """Write everything into one safetensors file, all of it or nothing; `load` goes on exactly from there.

        Code is not written: a network or a method of your own has to be given to `load` again. Labels must be
        strings or numbers.
        """
        check_is_fitted(self)
        sealed.write(Path(path), self._formats[0], *self._contents())

    @classmethod
    @few_threads()
    def load(cls, path: str | Path, **params: Any) -> Self:
        """The estimator in a file; `params` replace the constructor's parameters written there.

        Nothing in the file is executed, and all of it is checked.
        """
        with records.reading(path):
            metadata, tensors = sealed.read(Path(path))
            if metadata.get("format") not in cls._formats:
                raise InputError(
                    f"it is not an estimator that this version can read: its format is not {cls._formats[0]}"
                )
            return cls._restored(sealed.unsealed(metadata, tensors), tensors, params)

    def _contents(self) -> Contents:
        raise NotImplementedError

    @classmethod
    def _restored(cls, record: dict[str, Any], tensors: Mapping[str, Tensor], given: Mapping[str, Any]) -> Self:
        """What `_contents` gave, checked; parameters that are given replace those in the record."""
        raise NotImplementedError
