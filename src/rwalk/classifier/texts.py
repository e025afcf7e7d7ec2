"""Texts, and sparse inputs of many columns: hashed n-grams, and sums of them.

The hash is fixed, so nothing is made of the first examples: any two classifiers of texts can be merged, and
forgetting leaves no trace.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.preprocessing import normalize
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from rwalk.classifier import estimator_files
from rwalk.classifier.base import (
    ArrayClassifier,
    Summable,
    checked_weights,
    positive,
)
from rwalk.classifier.encoders import texts_of
from rwalk.classifier.estimator_files import Contents, Stored, check_tensors
from rwalk.classifier.parameters import TextParameters
from rwalk.classifier.sparse_sums import Sample, Solution, SparseSums
from rwalk.data.datasets.images import is_image
from rwalk.errors import InputError
from rwalk.labels import array, columns_of, labels_of, merged
from rwalk.model_file import expect, is_whole

COLUMNS = 1 << 17  # of hashed n-grams
COMMON = 512  # columns whose products with all others are summed
MOST_DENSE = 4096  # columns of sparse inputs that are learned as vectors
CHARACTERS = 0.7  # the length of a text's vector of character n-grams; that of words has 1
ROWS = 4096  # hashed at a time
UNSPACED = r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"  # Chinese and Japanese: each a word
WORDS = {"ngram_range": (1, 2), "token_pattern": rf"{UNSPACED}|(?:(?!{UNSPACED})\w)+"}
LETTERS = {"analyzer": "char_wb", "ngram_range": (3, 5)}
SHORT_WORDS = {"token_pattern": r"(?u)\b\w{1,4}\b"}
TRIPLES = {"analyzer": "char_wb", "ngram_range": (3, 3)}
ROOM = ("texts", "sparse")
# The tensors of a file by their dimensions: equal letters are equal sizes.
DIMENSIONS = {"seen": "h", "products": "hk", "squares": "h", "present": "h", "cross": "hC", "fit": "hC",
              "common": "kk", "mixed": "kC", "weights": "C", "counts": "C"}  # fmt: skip
WHOLE, NOT_NEGATIVE = ("seen", "counts"), ("seen", "squares", "present", "weights", "counts")


def is_sparse(X: Any) -> bool:
    """Whether inputs are a sparse matrix of more columns than are learned as vectors."""
    return bool(sparse.issparse(X) and X.shape[1] > MOST_DENSE)


def hashed(texts: list[str], columns: int = COLUMNS) -> Any:
    """Vectors of words, pairs of words and character n-grams [n, columns], in CSR."""
    return (_counted(texts, columns, WORDS) + CHARACTERS * _counted(texts, columns, LETTERS)).tocsr()


def common(texts: list[str], columns: int) -> Any:
    """Vectors of short words and triples of characters, which are the frequent ones: [n, columns], in CSR."""
    return (_counted(texts, columns, SHORT_WORDS) + _counted(texts, columns, TRIPLES)).tocsr()


def _counted(texts: list[str], columns: int, how: Mapping[str, Any]) -> Any:
    counts = HashingVectorizer(n_features=columns, norm=None, alternate_sign=False, **how).transform(texts)
    counts.data = 1 + np.log(counts.data)
    return normalize(counts)


class TextClassifier(TextParameters, Summable, Stored, ArrayClassifier):
    """Closed form for texts, and for sparse inputs of many columns. Parameters as for `IncrementalClassifier`."""

    _formats = ("rwalk.texts/1",)
    _sums: SparseSums
    _kind: str
    _fit: Solution | None
    _sample: Sample | None = None  # in memory only: no file holds examples
    _factor: float | None = None  # of scores whose softmax is a probability, once it is measured
    _measured: float | None = None  # the factor of scores, when the sample was last dropped

    # ── learning ──────────────────────────────────────────────────────────────────────────────────────────────

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Forget everything, then learn this."""
        return self._learn(X, y, None, sample_weight, afresh=True)

    def partial_fit(
        self, X: Any, y: ArrayLike, classes: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Learn some more."""
        return self._learn(X, y, classes, sample_weight, afresh=not self.__sklearn_is_fitted__())

    def _learn(self, X: Any, y: Any, classes: Any, sample_weight: Any, afresh: bool) -> Self:
        if self.method != "closed-form":
            raise InputError(
                f"method={self.method!r} takes no texts and no wide sparse inputs: set method='closed-form'"
            )
        kind, x, labels, weight = self._examples_of(X, y, sample_weight, None if afresh else self._kind)
        known, every = self._classes_after(labels, classes, afresh)
        if afresh:
            width = COLUMNS if kind == "texts" else min(COLUMNS, X.shape[1])
            size = COMMON if self.size is None else positive("size", self.size, whole=True)
            shape = width, min(size, width)
        else:
            self._check_width(X)
            shape = self._sums.shape
        call, sample = SparseSums(*shape, len(every)), None if afresh else self._sample
        places, y = columns_of(known, every).tolist(), columns_of(labels, every).numpy()
        sample = None if sample is None else sample.moved(places)
        for rows, columns, some in _portions(x, kind, shape):
            call.add(columns, some, y[rows], weight[rows])
            drawn = Sample.of(columns, some, y[rows], weight[rows])
            sample = drawn if sample is None else sample.joined(drawn)
        sums = call if afresh else self._sums.moved(places, len(every))
        if not afresh:
            sums.take(call.tensors())  # all of the call together: an interrupted one changes nothing
        if afresh:
            self._measured = None
            if kind == "sparse":
                self.n_features_in_ = X.shape[1]
        self._kind, self.classes_, self._sums, self._fit, self._sample = kind, every, sums, None, sample
        self.input_shape_ = (sums.columns,)
        return self

    def forget(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Remove these examples exactly, as if they had never been learned."""
        check_is_fitted(self)
        _, x, labels, weight = self._examples_of(X, y, sample_weight, self._kind)
        self._check_width(X)
        columns = columns_of(labels, self.classes_)
        if (columns < 0).any():
            raise InputError("an example of an unknown class is to be forgotten: give only learned examples")
        sums = self._sums
        measured = self._sharpness()
        for rows, part, some in _portions(x, self._kind, sums.shape):
            sums = sums.removed(part, some, columns.numpy()[rows], weight[rows])
        self._sample, self._measured = None, measured  # it may hold texts that are to be forgotten
        gone = (self._sums.counts > 0) & (sums.counts == 0)
        places = np.where(gone, -1, np.cumsum(~gone) - 1).tolist()
        self._sums, self.classes_, self._fit = sums.moved(places, int((~gone).sum())), self.classes_[~gone], None
        return self

    def merge(self, other: Self) -> Self:
        """Learn all that another has learned."""
        check_is_fitted(self)
        check_is_fitted(other)
        if self._kind != other._kind or self._sums.shape != other._sums.shape:
            raise InputError(
                "the two have learned inputs of different kinds or sizes: only equal ones can be merged"
            )
        if getattr(self, "n_features_in_", 0) != getattr(other, "n_features_in_", 0):
            raise InputError("the two have learned inputs of different widths: only equal ones can be merged")
        every = merged(self.classes_, other.classes_)
        sums = self._sums.moved(columns_of(self.classes_, every).tolist(), len(every))
        sums = copy.deepcopy(sums)
        sums.take(other._sums.moved(columns_of(other.classes_, every).tolist(), len(every)).tensors())
        if self._sample is not None and other._sample is not None:
            mine = self._sample.moved(columns_of(self.classes_, every).tolist())
            self._sample = mine.joined(other._sample.moved(columns_of(other.classes_, every).tolist()))
        self._sums, self.classes_, self._fit = sums, every, None
        return self

    def fresh(self) -> Self:
        """One that has learned nothing yet: for another worker, to be merged later."""
        check_is_fitted(self)
        twin = copy.copy(self)
        columns, some = self._sums.shape
        twin._sums = SparseSums(columns, some, 0)
        twin.classes_, twin._fit, twin._sample = self.classes_[:0], None, None
        return twin

    # ── using ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _scores(self, X: Any) -> Tensor:
        solution = self._solution()
        x = self._checked(X, self._kind)[1]
        self._check_width(X)
        scores = np.concatenate(
            [part @ solution.weights for _, part, _ in _portions(x, self._kind, self._sums.shape)]
        )
        return torch.from_numpy(scores).masked_fill(torch.from_numpy(self._sums.counts == 0), -torch.inf)

    def _sharpness(self) -> float:
        """Measured when a probability is first needed: it takes a second solution."""
        solution = self._solution()
        if self._factor is None:
            drawn = self._sample
            if drawn is not None:
                self._factor = self._sums.measured(positive("ridge", self.ridge), self._kind == "texts", drawn)
            if self._factor is None:
                self._factor = solution.sharpness if self._measured is None else self._measured
        return self._factor

    def _solution(self) -> Solution:
        check_is_fitted(self)
        if self._fit is None:
            self._factor = None
            self._fit = self._sums.solve(positive("ridge", self.ridge), self._kind == "texts")
        return self._fit

    def novelty(self, X: Any) -> NDArray[np.float64]:
        """Refused: sums of n-grams cannot measure how unlike a text is."""
        raise InputError("novelty needs vectors of texts: give an encoder=, or leave unknown= out")

    @property
    def class_count_(self) -> NDArray[np.int64]:
        """Examples learned and not forgotten, by class."""
        return self._sums.counts.copy()

    @property
    def n_samples_seen_(self) -> int:
        """Examples learned and not forgotten."""
        return int(self._sums.counts.sum())

    @property
    def coef_(self) -> NDArray[np.float64]:
        """Weights of the hashed columns, one row per class."""
        return self._solution().weights.T.copy()

    @property
    def intercept_(self) -> NDArray[np.float64]:
        return np.zeros(len(self.classes_))

    @property
    def ridge_(self) -> float:
        """The λ in use."""
        return self._solution().ridge

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_sums")

    # ── inputs ────────────────────────────────────────────────────────────────────────────────────────────────

    def _checked(self, X: Any, kind: str | None) -> tuple[str, Any]:
        """Texts, or a sparse matrix with finite numbers, and which of the two."""
        texts = texts_of(X)
        found = "sparse" if texts is None else "texts"
        if kind not in (None, found):
            raise InputError(f"inputs were {kind} before: give {kind} again")
        if texts is not None:
            if all(is_image(Path(each)) for each in texts):
                raise InputError(f"{texts[0]!r} names an image: give pathlib.Path objects, whose images are read")
            return found, texts
        if not sparse.issparse(X):
            raise InputError("inputs were sparse before: give a sparse matrix again")
        x = X.tocsr().astype(np.float64)
        if not np.isfinite(x.data).all():
            raise InputError("a sparse input is not finite: fill in or leave out missing values")
        x.sum_duplicates()
        x.eliminate_zeros()
        return found, x

    def _examples_of(self, X: Any, y: Any, sample_weight: Any, kind: str | None) -> tuple[str, Any, Any, Any]:
        found, x = self._checked(X, kind)
        labels, n = labels_of(array(y)), len(x) if found == "texts" else x.shape[0]
        if len(labels) != n or not n:
            raise InputError(f"{n} inputs but {len(labels)} labels: give one label per example, and at least one")
        weight, some = checked_weights(sample_weight, np.zeros((n, 1)))
        if len(some) < n:
            x = [x[place] for place in some] if found == "texts" else x[some]
        return found, x, labels[some], weight

    def _check_width(self, X: Any) -> None:
        if self._kind == "sparse" and X.shape[1] != self.n_features_in_:
            raise InputError(f"inputs have {X.shape[1]} columns: give {self.n_features_in_}, as learned")

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _contents(self) -> Contents:
        sums, solution = self._sums.tensors(), self._solution()
        self._factor = self._measured = self._sharpness()
        self._sample = None
        sums["fit"] = solution.weights[sums["seen"]]
        record = {
            "params": {"size": self.size, "ridge": self.ridge, "method": self.method},
            "kind": self._kind,
            "width": getattr(self, "n_features_in_", None),
            "columns": list(self._sums.shape),
            "classes": estimator_files.labels_to_json(self.classes_),
            "fit": [solution.ridge, self._factor, self.ridge],
        }
        return record, {name: torch.from_numpy(np.ascontiguousarray(each)) for name, each in sums.items()}

    @classmethod
    def _restored(cls, record: dict[str, Any], tensors: Mapping[str, Tensor], given: Mapping[str, Any]) -> Self:
        self = cls(**estimator_files.checked_params(record["params"], cls._get_param_names(), given))
        expect(record["kind"] in ROOM and len(record["columns"]) == 2, "the kind of inputs")
        columns, some = record["columns"]
        expect(is_whole(columns, 1, COLUMNS + 1) and is_whole(some, 1, columns + 1), "the number of columns")
        self._kind, self.classes_ = record["kind"], estimator_files.checked_labels(record["classes"])
        if self._kind == "sparse":
            expect(is_whole(record["width"], MOST_DENSE + 1), "the number of columns")
            self.n_features_in_ = record["width"]
        classes = len(self.classes_)
        expect(tensors.keys() == DIMENSIONS.keys(), "the list of tensors")
        check_tensors(tensors, DIMENSIONS, {"k": some, "C": classes}, WHOLE)
        expect(all(bool((tensors[name] >= 0).all()) for name in NOT_NEGATIVE), "the sums")
        arrays = {name: each.numpy() for name, each in tensors.items()}
        seen, weights = arrays["seen"], arrays.pop("fit")
        expect(bool((np.diff(seen) > 0).all()) and (not len(seen) or seen[-1] < columns), "the columns")
        self._sums, self._fit, self.input_shape_ = SparseSums(columns, some, classes), None, (columns,)
        self._sums.take(arrays)
        ridge, sharpness, rule = record["fit"]
        expect(type(ridge) is type(sharpness) is float, "the fit")
        self._measured = sharpness
        if rule == self.ridge and self._sums.counts.any():
            full = np.zeros((columns, classes))
            full[seen] = weights
            self._fit = Solution(full, ridge, sharpness)
        return self


def _portions(x: Any, kind: str, shape: tuple[int, int]) -> Iterator[tuple[slice, Any, Any]]:
    """Rows, and their hashed inputs and common columns."""
    columns, some = shape
    for start in range(0, len(x) if kind == "texts" else x.shape[0], ROWS):
        rows = slice(start, start + ROWS)
        if kind == "texts":
            yield rows, hashed(x[rows], columns), common(x[rows], some)
        else:
            part = folded(x[rows], columns, 0) if x.shape[1] > columns else x[rows]
            yield rows, part, folded(part, some, 1)


def folded(x: Any, columns: int, which: int) -> Any:
    """A sparse matrix of fewer columns, each the sum of some of the others, with signs."""
    draw = np.random.default_rng([x.shape[1], columns, which])
    to, sign = draw.integers(columns, size=x.shape[1]), draw.choice([-1.0, 1.0], x.shape[1])
    narrow = sparse.csr_matrix(
        (x.data * sign[x.indices], to[x.indices], x.indptr.copy()), shape=(x.shape[0], columns)
    )
    narrow.sum_duplicates()
    return narrow
