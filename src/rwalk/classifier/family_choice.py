"""The choice between families: all of them learn, and examples held out from all of them decide which one is used.

The judges are some examples of every class, as many as there are exemplars at most, taken out of the calls that
brought them before anybody learned from those. After every call each candidate predicts all judges so far.
Closed form is used unless a network is better by more than chance: among the judges that only one of the two
recognises, b the network and c closed form, if b − c > √(b + c).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from rwalk.classifier import estimator_files
from rwalk.classifier.base import ArrayClassifier
from rwalk.classifier.call_as_task import FOR_JUDGES, some_of_each
from rwalk.classifier.closed_form import ClosedFormClassifier
from rwalk.classifier.estimator_files import Contents, Stored, section
from rwalk.classifier.network import NetworkClassifier, memory_of
from rwalk.classifier.parameters import Parameters
from rwalk.data.memory import MemorySpec
from rwalk.errors import InputError
from rwalk.labels import columns_of, labels_of
from rwalk.model_file import expect
from rwalk.seeds import generator

Candidate = ClosedFormClassifier | NetworkClassifier
FORMAT = "rwalk.auto/1"
CLOSED = "closed-form"
CANDIDATES = (CLOSED, "rwalk", "er", "icarl")
WITH_LAM = ("rwalk",)


class Judges(NamedTuple):
    """Examples that no candidate has learned: inputs as they came, and their labels."""

    x: Tensor
    y: NDArray[Any]


class AutoClassifier(Parameters, Stored, ArrayClassifier):
    """Learns with every candidate, and uses the one that recognises most examples held out from all of them.

    chosen_  the method in use
    judged_  the share of the judges that each candidate recognises
    """

    _formats = (FORMAT,)
    _candidates: dict[str, Candidate]
    _judges: Judges
    chosen_: str
    judged_: dict[str, float]

    def fit(self, X: ArrayLike | Tensor, y: ArrayLike | Tensor) -> Self:
        """Forget everything, then learn this."""
        return self._learn(X, y, None, afresh=True)

    def partial_fit(
        self, X: ArrayLike | Tensor, y: ArrayLike | Tensor, classes: ArrayLike | Tensor | None = None
    ) -> Self:
        """Learn some more. `classes` may announce labels that are still to come; it need not."""
        return self._learn(X, y, classes, afresh=not hasattr(self, "_candidates"))

    def _learn(self, X: Any, y: Any, classes: Any, afresh: bool) -> Self:
        memory = self._memory()
        x, labels, _ = self._examples(X, y, None, afresh)
        labels = labels_of(labels)
        _, every = self._classes_after(labels, classes, afresh)
        before = None if afresh else self._judges
        judges, out = _with_judges(before, x, labels, every, memory, self._seed())
        learned = {}
        for name in reversed(CANDIDATES):  # closed form last: nothing can fail once its sums have changed
            candidate = self._made(name) if afresh else copy.copy(self._with_params(name))
            learned[name] = candidate.partial_fit(x[~out], labels[~out], every)
        self._candidates = {name: learned[name] for name in CANDIDATES}
        self._judges, self.classes_, self.input_shape_ = judges, every, tuple(x.shape[1:])
        self._choose()
        return self

    def _choose(self) -> None:
        x, y = self._judges
        right = {name: np.zeros(0, dtype=bool) for name in CANDIDATES}
        if len(y):
            right = {name: each.predict(x) == y for name, each in self._candidates.items()}
        best = max((name for name in CANDIDATES if name != CLOSED), key=lambda name: right[name].sum())
        ahead, behind = (right[best] & ~right[CLOSED]).sum(), (right[CLOSED] & ~right[best]).sum()
        self.chosen_ = best if ahead - behind > np.sqrt(ahead + behind) else CLOSED
        self.judged_ = {name: float(each.sum()) / max(1, len(y)) for name, each in right.items()}
        self._used: Candidate | None = None

    def _in_use(self) -> Candidate:
        """The one chosen. After the choice, closed form learns the judges too."""
        if self._used is None:
            used = self._with_params(self.chosen_)
            if self.chosen_ == CLOSED and len(self._judges.y):
                used = copy.deepcopy(used).partial_fit(self._judges.x, self._judges.y)
            self._used = used
        return self._used

    def _scores(self, X: Any) -> Tensor:
        return self._in_use()._scores(self._inputs(X))

    def _sharpness(self) -> float:
        return self._in_use()._sharpness()

    # ── candidates ────────────────────────────────────────────────────────────────────────────────────────────

    def _memory(self) -> MemorySpec:
        memory = memory_of(self)
        if memory is None:
            raise InputError("method='auto' is judged by examples that are kept: set memory=10, or name a method")
        if isinstance(self.network, nn.Module):
            raise InputError(
                "method='auto' trains networks of its own: give a function (input_shape, classes) that makes one, "
                "or take the module's features, method='closed-form'"
            )
        return memory

    def _made(self, name: str) -> Candidate:
        return _kind(name)(**self._params_of(name))

    def _params_of(self, name: str) -> dict[str, Any]:
        params = {each: getattr(self, each) for each in _kind(name)._get_param_names()} | {"method": name}
        if name == CLOSED:
            params |= {"network": None, "encoder": None, "backbone": "frozen"}
        elif name not in WITH_LAM:
            params["lam"] = None
        return params

    def _with_params(self, name: str) -> Candidate:
        """A candidate, with the parameters as they are now."""
        candidate = self._candidates[name]
        return candidate.set_params(**self._params_of(name))  # type: ignore[no-any-return]

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _contents(self) -> Contents:
        x, y = self._judges
        tensors = {"judges.x": x.cpu().contiguous(), "judges.y": columns_of(y, self.classes_)}
        own = {name: each._contents() for name, each in self._candidates.items()}
        for name, (_, held) in own.items():
            tensors |= {f"{name}/{key}": tensor for key, tensor in held.items()}
        record = {
            **estimator_files.about_inputs(self),
            "params": estimator_files.plain(self.get_params(deep=False)),
            "classes": estimator_files.labels_to_json(self.classes_),
            "candidates": {name: about for name, (about, _) in own.items()},
        }
        return record, tensors

    @classmethod
    def _restored(cls, record: dict[str, Any], tensors: Mapping[str, Tensor], given: Mapping[str, Any]) -> Self:
        names = cls._get_param_names()
        params = estimator_files.checked_params(record["params"], names, given)
        estimator_files.check_complete(params, names)
        expect(params["method"] == "auto", "the method")
        self = cls(**params)
        self._memory()
        estimator_files.restore_inputs(self, record)
        classes = self.classes_ = estimator_files.checked_labels(record["classes"])
        x, columns = tensors["judges.x"], tensors["judges.y"]
        expect(tuple(x.shape[1:]) == self.input_shape_ and bool(x.isfinite().all()), "a judge")
        expect(columns.dtype == torch.int64 and columns.shape == (len(x),), "a judge")
        expect(bool(((columns >= 0) & (columns < len(classes))).all()), "a judge")
        self._judges = Judges(x, classes[columns.numpy()])
        own = {name: section(tensors, f"{name}/") for name in record["candidates"]}
        expect(2 + sum(map(len, own.values())) == len(tensors), "the list of tensors")
        self._candidates = {
            name: _kind(name)._restored(record["candidates"][name], own[name], self._params_of(name))
            for name in CANDIDATES
        }
        self._choose()
        return self


def _kind(name: str) -> type[Candidate]:
    return ClosedFormClassifier if name == CLOSED else NetworkClassifier


def _with_judges(
    before: Judges | None, x: Tensor, labels: NDArray[Any], classes: NDArray[Any], memory: MemorySpec, seed: int
) -> tuple[Judges, Tensor]:
    """The judges so far and some examples of this call, and which those are [n]."""
    columns, quota = columns_of(labels, classes), memory.quota(len(classes))
    draw = generator(seed, "auto", "judges", len(classes), 0 if before is None else len(before.y))
    out = some_of_each(columns, FOR_JUDGES, 2, draw, at_most=quota)
    new = Judges(x[out].double(), labels[out.numpy()])
    if before is None:
        return new, out
    pool = Judges(torch.cat([new.x, before.x]), np.concatenate([new.y, before.y]))
    places = torch.randperm(len(pool.y), generator=draw)
    of = columns_of(pool.y, classes)[places]
    kept = torch.cat([places[of == column][:quota] for column in range(len(classes))]).sort().values
    return Judges(pool.x[kept], pool.y[kept.numpy()]), out
