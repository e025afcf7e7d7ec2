"""A network that learns new classes from arrays, by scikit-learn's conventions.

There is no training loop here. A call of `partial_fit` is one task of a fleet of one, which continues from the
parameters, the method's vectors and the exemplars that the last call left.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from rwalk import parts
from rwalk.classifier import estimator_files
from rwalk.classifier.base import ArrayClassifier
from rwalk.classifier.call_as_task import (
    Call,
    Knowledge,
    Place,
    Scaling,
    Settings,
    check_method,
    learned,
    scale_of,
    trained_network,
)
from rwalk.classifier.estimator_files import Contents, Stored, fingerprint, section
from rwalk.classifier.parameters import NetworkParameters
from rwalk.data.memory import RESERVOIR, MemorySpec
from rwalk.decision_rules import Classifier
from rwalk.engine import architectures
from rwalk.engine.architectures import Factory
from rwalk.engine.parameter_matrix import Layout, Networks
from rwalk.errors import InputError, warn_caller
from rwalk.labels import columns_of, labels_of, whole
from rwalk.learners import LAMS, Learner, learner, with_lam
from rwalk.methods import Method
from rwalk.model_file import expect, is_whole
from rwalk.threads import few_threads
from rwalk.training import Training

FORMAT = "rwalk.IncrementalClassifier/2"
AUTO = "auto"
AT_ONCE = 4096  # inputs

WITHOUT_MEMORY = (
    "without exemplars no batch shows old and new classes together, "
    "and the newest classes win; set memory=10 to keep ten "
    "examples of every class, or method='closed-form', which forgets nothing and keeps none"
)

NOTHING_TO_HOLD = (
    "one call of fit has nothing to forget, so lam has no effect: to find a good one, use "
    "rwalk.stream_search over several calls, or lam='auto'"
)


class NetworkClassifier(NetworkParameters, Stored, ArrayClassifier):
    """A network that learns new classes call by call and keeps the old ones.

    Every call of `partial_fit` is a task: it may bring new classes, repeat old ones, or both.

    Parameters as for `IncrementalClassifier`.

    On a CPU it computes in one thread, which is as fast as several for small networks and safe on a busy machine.
    For large ones on an idle machine, the environment variable RWALK_THREADS sets more; how many there are shows
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

    _formats = (FORMAT,)
    _dtype = np.float32
    _warned = False

    # ── learning ──────────────────────────────────────────────────────────────────────────────────────────────

    def fit(self, X: ArrayLike | Tensor, y: ArrayLike | Tensor) -> Self:
        """Forget everything, then learn this as the first task."""
        if self.lam is not None:
            warn_caller(NOTHING_TO_HOLD)
        return self._learn(X, y, None, afresh=True)

    def partial_fit(
        self, X: ArrayLike | Tensor, y: ArrayLike | Tensor, classes: ArrayLike | Tensor | None = None
    ) -> Self:
        """Learn one more task. `classes` may announce labels that are still to come; it need not.

        A call that fails leaves the classifier as it was.
        """
        if learner_of(self).memory is None and not self._warned:
            self._warned = True
            warn_caller(WITHOUT_MEMORY)
        return self._learn(X, y, classes, afresh=not hasattr(self, "classes_"))

    @few_threads()
    def _learn(self, X: Any, y: Any, classes: Any, afresh: bool) -> Self:
        settings = settings_of(self)
        x, labels, _ = self._examples(X, y, None, afresh)
        labels = labels_of(labels)
        known, every = self._classes_after(labels, classes, afresh)
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
        return contents(self, self._knowledge)

    @classmethod
    def _restored(cls, record: dict[str, Any], tensors: Mapping[str, Tensor], given: Mapping[str, Any]) -> Self:
        self = cls(**_checked_params(record["params"], cls._get_param_names(), given))
        estimator_files.restore_inputs(self, record)
        classes, settings = estimator_files.checked_labels(record["classes"]), settings_of(self)
        known = _checked_knowledge(record, tensors, self.input_shape_)
        _check_tensors(known, settings.network, settings.learner.method, self.input_shape_, len(classes))
        self._become(settings, classes, self.input_shape_, known)
        return self


# ── the parameters, checked ────────────────────────────────────────────────────────────────────────────────────


def settings_of(estimator: Any) -> Settings:
    epochs = estimator.epochs
    training = Training(
        epochs=1 if epochs is None else whole(epochs),
        batch=whole(estimator.batch_size),
        lr=estimator.learning_rate,
    )
    return Settings(
        factory_of(estimator),
        learner_of(estimator),
        training,
        estimator._device(),
        every_lam=estimator.lam == AUTO,
        measured=epochs is None,
    )


def factory_of(estimator: Any) -> str | Factory:
    if isinstance(estimator.network, nn.Module):
        raise InputError(
            "network is a module, but classes may still come: give a function (input_shape, classes) that "
            "makes one, or take the module's features, method='closed-form'"
        )
    return "mlp" if estimator.network is None else estimator.network


def learner_of(estimator: Any) -> Learner:
    memory, lam = memory_of(estimator), estimator.lam
    made = learner("vanilla" if estimator.method is None else estimator.method, memory)
    if lam == AUTO and memory is None:
        raise InputError("lam='auto' is judged by exemplars: set memory=10, or give a number")
    if isinstance(lam, str) and lam != AUTO:
        raise InputError(f"lam={lam!r} is unknown: give a number, 'auto' or None")
    if lam is not None and not isinstance(lam, str):
        made = with_lam(made, lam)
    if made.solver is not None:
        raise InputError(f"{made.solver.name} trains no network: set method='closed-form'")
    if made.loss.everything:
        raise InputError(f"{made.loss.name} learns from all data together: call fit with all of them")
    if made.loss.keeps:
        raise InputError(f"{made.loss.name} stores {', '.join(made.loss.keeps)}, which the classifier cannot yet")
    return made


def memory_of(estimator: Any) -> MemorySpec | None:
    """How exemplars are kept. A wrong sampler is refused even if none are kept."""
    if estimator.sampler == RESERVOIR:
        raise InputError("the classifier chooses exemplars class by class: take another sampler")
    absent = estimator.memory is None and estimator.memory_total is None
    spec = MemorySpec(1 if absent else whole(estimator.memory), whole(estimator.memory_total), estimator.sampler)
    return None if absent else spec


# ── a trained network in use ───────────────────────────────────────────────────────────────────────────────────


class Predictor:
    """A trained network as a module that gives scores; it has `classes` outputs."""

    def __init__(
        self,
        network: str | Factory,
        shape: tuple[int, ...],
        classes: int,
        knowledge: Knowledge,
        device: torch.device,
    ) -> None:
        self.module = trained_network(network, shape, classes, knowledge).to(device)
        self.knowledge = knowledge
        self.classes = classes

    @torch.no_grad()
    def scores(self, x: Tensor, classifier: Classifier) -> Tensor:
        """A score for every class, −∞ for one that was only announced: float64 [n, classes], on the CPU."""
        x = self.knowledge.scaled(x)
        by_exemplars = classifier.needs_exemplars and self.knowledge.exemplars
        scores = self._by_exemplars(x, classifier) if by_exemplars else self._logits(x)
        unseen = torch.tensor(self.knowledge.last_seen) < 0
        return scores.double().masked_fill(unseen, -torch.inf)

    def as_module(self) -> nn.Module:
        """A copy that maps unscaled inputs to logits."""
        module = copy.deepcopy(self.module)
        scale = self.knowledge.scale
        return nn.Sequential(Scaling(**scale), module).eval() if scale else module

    def _logits(self, x: Tensor) -> Tensor:
        device = next(self.module.parameters()).device
        return torch.cat([self.module(part.to(device)).cpu() for part in x.split(AT_ONCE)])

    def _by_exemplars(self, x: Tensor, classifier: Classifier) -> Tensor:
        kept = self.knowledge.exemplars
        labels = [column for column, each in kept.items() for _ in each]
        exemplars = self.knowledge.scaled(torch.cat([*kept.values()]))
        fitted = classifier.fit(self._features(exemplars)[None], labels)
        logits = x.new_empty(1, len(x), self.classes)
        return classifier.scores(self._features(x)[None], logits, fitted)[0]

    def _features(self, x: Tensor) -> Tensor:
        head = architectures.head_of(self.module, self.classes)
        assert head is not None, "the fleet refuses to train by features where there are none"
        features: list[Tensor] = []
        tap = head.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0].flatten(1).cpu()))
        try:
            self._logits(x)
        finally:
            tap.remove()
        return torch.cat(features)


# ── files ──────────────────────────────────────────────────────────────────────────────────────────────────────


def contents(estimator: NetworkClassifier, known: Knowledge) -> Contents:
    """The record and the tensors of an estimator with these parameters, classes, inputs and knowledge."""
    inputs = _inputs(known)
    record = {
        **estimator_files.about_inputs(estimator),
        "params": _params_to_json(estimator.get_params(deep=False)),
        "classes": estimator_files.labels_to_json(estimator.classes_),
        "seed": known.seed,
        "tasks": known.tasks,
        "last_seen": known.last_seen,
        "best": known.best,
        "sharpness": known.sharpness,
        "inputs": {name: fingerprint(each) for name, each in inputs.items()},
    }
    tensors = {"theta": known.theta, **inputs}
    for prefix, held in (("method", known.method), ("buffer", known.buffer), ("scale", known.scale)):
        tensors |= {f"{prefix}.{name}": each for name, each in held.items()}
    return record, tensors


def _inputs(known: Knowledge) -> dict[str, Tensor]:
    """The examples a file holds, by kind and class."""
    return {
        f"{kind}.{column}": x
        for kind, each in (("exemplars", known.exemplars), ("judges", known.judges))
        for column, x in each.items()
    }


def _check_tensors(
    known: Knowledge, network: str | Factory, method: Method, shape: tuple[int, ...], classes: int
) -> None:
    """The tensors are those of this network, trained by this method."""
    expect(len(known.last_seen) == classes, "the list of classes")
    # The file must hold as much as it makes us build.
    _check_network(known.theta, _size_of(network, shape, classes))
    check_method(method, known)
    net = Networks(architectures.builder(network, shape, classes), [known.seed] * len(known.theta))
    _check_network(known.theta, net.layout.size)
    expect(known.buffer.keys() == net.buffers.keys(), "the list of tensors")
    pairs = [("theta", known.theta, net.theta)]
    pairs += [(name, vector, net.theta) for name, vector in known.method.items()]
    pairs += [(name, buffer, net.buffers[name]) for name, buffer in known.buffer.items()]
    for name, tensor, like in pairs:
        expect(tensor.shape == like.shape and tensor.dtype == like.dtype, name)
        expect(not tensor.is_floating_point() or bool(tensor.isfinite().all()), name)
    stiff = (importance for _, importance, _ in method.springs(known.method))
    expect(all(bool((each >= 0).all()) for each in stiff), "an importance")


def _size_of(network: str | Factory, shape: tuple[int, ...], classes: int) -> int | None:
    """A network's parameters, counted where nothing is allocated; None if it cannot be built there."""
    try:
        with torch.device("meta"):
            return Layout.of(architectures.find(network)(shape, classes)).size
    except Exception:  # a user's network: building it for real shows the error
        return None


def _check_network(theta: Tensor, size: int | None) -> None:
    """The checksum holds, so a network of another size is another network."""
    if size is not None and theta.shape[1:] != (size,):
        raise InputError(
            f"the network has {size:,} parameters, its own {theta[0].numel():,}: give the one it was trained with"
        )


def _checked_knowledge(
    record: Mapping[str, Any], tensors: Mapping[str, Tensor], shape: tuple[int, ...]
) -> Knowledge:
    seed, tasks, last_seen = record["seed"], record["tasks"], record["last_seen"]
    expect(is_whole(seed, 0, 2**63), "the seed")
    expect(is_whole(tasks, 1, 2**63), "the number of tasks")
    expect(isinstance(last_seen, list) and all(is_whole(task, -1, tasks) for task in last_seen), "last_seen")
    expect(max(last_seen, default=-1) >= 0, "last_seen")
    exemplars, judges = (_inputs_by_class(tensors, kind, last_seen, shape) for kind in ("exemplars", "judges"))
    if "inputs" in record:  # not in files of 0.2.0
        held = [name for name in tensors if name.startswith(("exemplars.", "judges."))]
        expect(record["inputs"] == {name: fingerprint(tensors[name]) for name in held}, "the list of exemplars")
    method, buffer, scale = (section(tensors, prefix) for prefix in ("method.", "buffer.", "scale."))
    expect("theta" in tensors, "the list of tensors")
    known = sum(len(each) for each in (method, buffer, scale, exemplars, judges))
    expect(1 + known == len(tensors), "the list of tensors")
    expect(scale.keys() in (set(), {"centre", "deviation"}), "the scale")
    for name, each in scale.items():
        expect(each.shape == (shape[0], *(1 for _ in shape[1:])) and each.dtype == torch.float32, name)
        expect(bool(each.isfinite().all()) and (name == "centre" or bool((each > 0).all())), name)
    expect(tensors["theta"].ndim == 2 and len(tensors["theta"]) in (1, len(LAMS)), "theta")
    sharp = record["sharpness"]
    expect(isinstance(sharp, float) and 0 < sharp < 100, "the sharpness")
    expect(is_whole(record["best"], 0, len(tensors["theta"])), "the best run")
    return Knowledge(
        seed, tasks, last_seen, exemplars, tensors["theta"], method, buffer, scale, judges, record["best"], sharp
    )


def _inputs_by_class(
    tensors: Mapping[str, Tensor], kind: str, last_seen: Sequence[int], shape: tuple[int, ...]
) -> dict[int, Tensor]:
    found = {}
    for column, task in enumerate(last_seen):
        if (name := f"{kind}.{column}") in tensors:
            x = found[column] = tensors[name]
            expect(task >= 0 and x.ndim == 1 + len(shape) and len(x) > 0, name)
            expect(x.shape[1:] == shape and x.dtype == torch.float32 and bool(x.isfinite().all()), name)
    return found


def _params_to_json(params: Mapping[str, Any]) -> dict[str, Any]:
    """The constructor's parameters, without those that are code."""
    stored = estimator_files.plain(params)
    method = params["method"]
    if type(method) in parts.parts().values():
        settings = {each.name: getattr(method, each.name) for each in fields(method)}
        stored["method"] = {"name": method.name, **settings}
    elif not (method is None or (isinstance(method, str) and ":" not in method)):
        del stored["method"]
    return stored


def _checked_params(stored: Any, names: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters for the constructor, which checks their values."""
    params = estimator_files.checked_params(stored, names, given)
    estimator_files.check_complete(params, names)
    if isinstance(method := params["method"], dict):
        settings = {name: value for name, value in method.items() if name != "name"}
        params["method"] = parts.parts()[method["name"]](**settings)
    return params
