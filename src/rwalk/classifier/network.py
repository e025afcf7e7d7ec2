"""The estimator: a network that learns new classes from arrays, by scikit-learn's conventions.

There is no training loop here. A call of `partial_fit` is one task of a fleet of one, which takes up what the
last call left: the parameters, the method's vectors and the exemplars. The exemplars are copies, for the data of
earlier calls are gone; in the call's stream they stand for the tasks they came from.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from rwalk.classifier import network_files as files
from rwalk.classifier.arrays import ArrayClassifier
from rwalk.classifier.learning import Place, learned, scale_of
from rwalk.classifier.lessons import Call, Knowledge
from rwalk.classifier.network_settings import Settings, learner_of, settings_of
from rwalk.classifier.parameters import Takes
from rwalk.classifier.predictor import Predictor
from rwalk.classifier.stored import Contents, Stored
from rwalk.engine.vectors import Layout
from rwalk.labels import columns_of, labels_of, merged
from rwalk.threads import few_threads

WITHOUT_MEMORY = (
    "learning classes call by call without exemplars is hard: no batch ever shows old and new classes together, "
    "so nothing teaches the network to tell them apart, and the newest classes win; set memory=10 to keep ten "
    "examples of every class, or method='closed-form', which forgets nothing and keeps none"
)

NOTHING_TO_HOLD = (
    "one call of fit has nothing to hold on to, so lam changes nothing in it: to find a good one, use "
    "rwalk.stream_search over several calls, or lam='auto'"
)


class NetworkClassifier(Takes, Stored, ArrayClassifier):
    """A network that learns new classes call by call and keeps the old ones.

    Every call of `partial_fit` is a task: it may bring new classes, repeat old ones, or both.

    Parameters as for `IncrementalClassifier`.

    On a CPU it computes in one thread, which is as fast as several for small networks and safe on a busy machine.
    For large ones on an idle machine, the environment variable RWALK_THREADS allows more; how many there are shows
    in the last digits.

    Inputs are [n, features] or images [n, channels, height, width]. `standardize` brings columns, or channels, to
    scale by the first call's. Labels are of any one type. After a call there are

    classes_       labels of all classes seen or announced, sorted
    network_       a copy of the trained network: a plain nn.Module whose outputs follow `classes_`
    exemplars_     the examples kept, by label
    tasks_seen_    calls so far

    >>> clf = NetworkClassifier(memory=2, random_state=0)
    >>> clf = clf.partial_fit([[0.0, 0.0], [1.0, 0.0]], ["left", "right"])
    >>> clf = clf.partial_fit([[0.5, 1.0]], ["up"])
    >>> clf.predict([[1.0, 0.0], [0.0, 0.0], [0.5, 1.0]]).tolist()
    ['right', 'left', 'up']
    """

    _formats = (files.FORMAT, files.FIRST)
    _takes = ("method", "memory", "memory_total", "lam", "standardize", "sampler", "network", "epochs",
              "batch_size", "learning_rate", "device", "random_state", "verbose")  # fmt: skip
    _defaults: ClassVar = {"method": "rwalk"}
    _dtype = np.float32
    _warned = False

    # ── learning ──────────────────────────────────────────────────────────────────────────────────────────────

    def fit(self, X: ArrayLike | Tensor, y: ArrayLike | Tensor) -> Self:
        """Forget everything, then learn this as the first task."""
        if self.lam is not None:
            warnings.warn(NOTHING_TO_HOLD, stacklevel=3)
        return self._learn(X, y, None, afresh=True)

    def partial_fit(
        self, X: ArrayLike | Tensor, y: ArrayLike | Tensor, classes: ArrayLike | Tensor | None = None
    ) -> Self:
        """Learn one more task. `classes` may announce labels that are still to come; it need not.

        A call that fails leaves the classifier as it was.
        """
        if learner_of(self).memory is None and not self._warned:
            self._warned = True
            warnings.warn(WITHOUT_MEMORY, stacklevel=2)
        return self._learn(X, y, classes, afresh=not hasattr(self, "classes_"))

    @few_threads()
    def _learn(self, X: Any, y: Any, classes: Any, afresh: bool) -> Self:
        settings = settings_of(self)
        x, labels, _ = self._examples(X, y, None, afresh)
        labels = labels_of(labels)
        announced = labels[:0] if classes is None else labels_of(classes)
        known = labels[:0] if afresh else self.classes_
        every = merged(known, labels, announced)
        moves = columns_of(known, every).tolist()
        past, so_far = self._begun(x), None
        if not afresh:
            past, so_far = self._knowledge, Place(Layout.of(self._predictor.module), moves)
        past = past.moved(moves, len(every))
        if settings.learner.memory is None:
            past = replace(past, exemplars={})
        now = learned(Call(x, columns_of(labels, every), past), settings, so_far)
        self._become(settings, every, tuple(x.shape[1:]), now.knowledge)
        self.lam_, self.steps_ = now.lam, now.steps
        if self.verbose:
            print(self._said(len(labels), now.right))
        return self

    def _begun(self, x: Tensor) -> Knowledge:
        return Knowledge(self._seed(), scale=scale_of(x) if self.standardize else {})

    def _become(
        self, settings: Settings, classes: NDArray[Any], shape: tuple[int, ...], knowledge: Knowledge
    ) -> None:
        self._predictor = Predictor(settings.network, shape, len(classes), knowledge, settings.device)
        self.classes_ = classes
        self.input_shape_ = shape

    def _said(self, examples: int, right: Sequence[float]) -> str:
        *old, new = right
        kept = f", {np.mean(old):.1%} of the old exemplars" if old else ""
        held = f", λ = {self.lam_:g}" if self.lam_ else ""
        return (
            f"task {self.tasks_seen_}: {examples} examples, {len(self.classes_)} classes in all; "
            f"{self.steps_} steps{held}; right now {new:.1%} of the task's data{kept}"
        )

    # ── using ─────────────────────────────────────────────────────────────────────────────────────────────────

    @few_threads()
    def _scores(self, X: Any) -> Tensor:
        check_is_fitted(self)
        return self._predictor.scores(self._inputs(X), learner_of(self).classifier)

    def _sharpness(self) -> float:
        return self._knowledge.sharpness

    @property
    def _knowledge(self) -> Knowledge:
        return self._predictor.knowledge

    @property
    def tasks_seen_(self) -> int:
        return self._knowledge.tasks

    @property
    def exemplars_(self) -> dict[Any, NDArray[np.float32]]:
        return {self.classes_[column]: x.numpy().copy() for column, x in self._knowledge.exemplars.items()}

    @property
    def network_(self) -> nn.Module:
        return self._predictor.as_module()

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _contents(self) -> Contents:
        names = [*getattr(self, "feature_names_in_", [])]
        params = self.get_params(deep=False)
        return files.contents(files.Saved(params, self.classes_, self.input_shape_, names, self._knowledge))

    @classmethod
    def _restored(cls, record: dict[str, Any], tensors: Mapping[str, Tensor], given: Mapping[str, Any]) -> Self:
        saved = files.checked(record, tensors, cls._get_param_names(), given)
        self = cls(**saved.params)
        settings = settings_of(self)
        files.check_tensors(saved, settings.network, settings.learner.method)
        self._become(settings, saved.classes, saved.shape, saved.knowledge)
        self.n_features_in_ = saved.shape[0]
        if saved.feature_names:
            self.feature_names_in_ = np.array(saved.feature_names, dtype=object)
        return self
