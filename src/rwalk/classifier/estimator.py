"""The estimator: a network that learns new classes from arrays, by scikit-learn's conventions.

There is no training loop here. A call of `partial_fit` is one task of a fleet of one, which takes up what the
last call left: the parameters, the method's vectors and the exemplars. The exemplars are copies, for the data of
earlier calls are gone; in the call's stream they stand for the tasks they came from.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from rwalk.classifier import files
from rwalk.classifier.lessons import Knowledge, stream_of, take_up, trained_network
from rwalk.data.memory import MemorySpec
from rwalk.data.samplers import RESERVOIR
from rwalk.engine import networks
from rwalk.engine.fleet import Fleet, Progress
from rwalk.engine.networks import Factory
from rwalk.engine.vectors import Layout
from rwalk.errors import InputError, first_line
from rwalk.labels import array, labels_of, merged, one_line, whole
from rwalk.learners import Learner, learner
from rwalk.losses import Loss
from rwalk.methods import Method
from rwalk.projectors import Projector
from rwalk.threads import few_threads
from rwalk.training import Training, steps_per_epoch

STEPS = 200  # per call, unless `epochs` says otherwise: exemplars are learned by then, and not yet by heart

WITHOUT_MEMORY = (
    "learning classes call by call without exemplars is hard: no batch ever shows old and new classes together, "
    "so nothing teaches the network to tell them apart, and the newest classes win; set memory=10 to keep ten "
    "examples of every class, or take rwalk.ClosedFormClassifier, which forgets nothing and keeps none"
)


class IncrementalClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A network that learns new classes call by call and keeps the old ones.

    Every call of `partial_fit` is a task: it may bring new classes, repeat old ones, or both.

    method         what holds the old: "rwalk", "ewc", "ewc++", "pi", "icarl", "gem", "a-gem"; an object with
                   hyper-parameters of your own, such as RWalk(lam=10); None for nothing
    memory         exemplars kept of every class; None for no exemplars
    memory_total   instead of `memory`: exemplars of all classes together, shared equally
    sampler        which examples are kept: "mof", "uniform", "plane", "entropy" …
    network        "mlp", "cnn", "resnet18", "package.module:factory", or a function (input_shape, classes) that
                   makes an nn.Module
    epochs         passes over a call's data; None for as many as make 200 steps, and at least one
    batch_size     examples in a step
    learning_rate  of Adam
    device         "cpu", "cuda" …, or "auto"
    random_state   a number makes everything repeatable
    verbose        one line per call

    On a CPU it computes in one thread, which is as fast as several for small networks and safe on a busy machine.
    For large ones on an idle machine, the environment variable RWALK_THREADS allows more; how many there are shows
    in the last digits.

    Inputs are [n, features] or images [n, channels, height, width], used as they are: scale them first. Labels
    are of any one type. After a call there are

    classes_       labels of all classes seen or announced, sorted
    network_       a copy of the trained network: a plain nn.Module whose outputs follow `classes_`
    exemplars_     the examples kept, by label
    tasks_seen_    calls so far

    >>> clf = IncrementalClassifier(memory=2, random_state=0)
    >>> clf = clf.partial_fit([[0.0, 0.0], [1.0, 0.0]], ["left", "right"])
    >>> clf = clf.partial_fit([[0.5, 1.0]], ["up"])
    >>> clf.predict([[1.0, 0.0], [0.0, 0.0], [0.5, 1.0]]).tolist()
    ['right', 'left', 'up']
    """

    _warned = False

    def __init__(
        self,
        *,
        method: str | Method | Loss | Projector | None = "rwalk",
        memory: int | None = None,
        memory_total: int | None = None,
        sampler: str = "mof",
        network: str | Factory = "mlp",
        epochs: int | None = None,
        batch_size: int = 64,
        learning_rate: float = 1e-3,
        device: str | torch.device = "cpu",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool | int = False,
    ) -> None:
        self.method = method
        self.memory = memory
        self.memory_total = memory_total
        self.sampler = sampler
        self.network = network
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    # ── learning ──────────────────────────────────────────────────────────────────────────────────────────────

    def fit(self, X: ArrayLike | Tensor, y: ArrayLike | Tensor) -> Self:
        """Forget everything, then learn this as the first task."""
        return self._learn(X, y, None, afresh=True)

    def partial_fit(
        self, X: ArrayLike | Tensor, y: ArrayLike | Tensor, classes: ArrayLike | Tensor | None = None
    ) -> Self:
        """Learn one more task. `classes` may announce labels that are still to come; it need not.

        A call that fails leaves the classifier as it was.
        """
        if self.memory is None and self.memory_total is None and not self._warned:
            self._warned = True
            warnings.warn(WITHOUT_MEMORY, stacklevel=2)
        return self._learn(X, y, classes, afresh=not hasattr(self, "classes_"))

    @few_threads()
    def _learn(self, X: Any, y: Any, classes: Any, afresh: bool) -> Self:
        recipe, device = self._learner(), self._device()
        x, labels = self._examples(X, y, afresh)
        announced = labels[:0] if classes is None else labels_of(classes)
        known = labels[:0] if afresh else self.classes_
        every = merged(known, labels, announced)
        column = {label: place for place, label in enumerate(every)}
        moves = [column[label] for label in known]
        past = Knowledge(self._seed()) if afresh else self._knowledge
        past = past.moved(moves, len(every))
        if recipe.memory is None:
            past = replace(past, exemplars={})

        stream, exemplars = stream_of(x, torch.tensor([column[label] for label in labels]), past)
        training = self._training(len(stream.tasks[-1].train))
        gone = past.tasks - (len(stream) - 1)
        fleet = Fleet(stream, self.network, [recipe], [past.seed], training, device, past=gone)
        if not afresh:
            take_up(fleet, past, Layout.of(self._network), moves, exemplars)
        progress: list[Progress] = []
        fleet.train(lambda news: progress.append(news) if isinstance(news, Progress) else None)
        if fleet.stopped[0]:
            raise InputError(fleet.stopped[0])

        self._become(every, tuple(stream.shape), past.after(fleet), device)
        if self.verbose:
            self._say(len(labels), progress[-1], fleet)
        return self

    def _become(
        self, classes: NDArray[Any], shape: tuple[int, ...], knowledge: Knowledge, device: torch.device
    ) -> None:
        self._network = trained_network(self.network, shape, len(classes), knowledge).to(device)
        self._knowledge = knowledge
        self.classes_ = classes
        self.input_shape_ = shape

    def _say(self, examples: int, end: Progress, fleet: Fleet) -> None:
        *old, new = fleet.accuracy["single"][0, -1]
        kept = f", {np.mean(old):.1%} of the old exemplars" if old else ""
        print(
            f"task {self.tasks_seen_}: {examples} examples, {len(self.classes_)} classes in all; "
            f"{end.steps} steps, loss {end.loss:.3f}; right now {new:.1%} of the task's data{kept}"
        )

    # ── using ─────────────────────────────────────────────────────────────────────────────────────────────────

    def predict(self, X: ArrayLike | Tensor) -> NDArray[Any]:
        """The most likely of all classes seen."""
        best = self._scores(X).argmax(1).numpy()
        predicted: NDArray[Any] = self.classes_[best]
        return predicted

    def predict_proba(self, X: ArrayLike | Tensor) -> NDArray[np.float64]:
        """Softmax over all classes seen, a column for each of `classes_`; only announced classes have 0."""
        probability: NDArray[np.float64] = self._scores(X).softmax(1).numpy()
        return probability

    def score(self, X: ArrayLike | Tensor, y: ArrayLike | Tensor, sample_weight: ArrayLike | None = None) -> float:
        """The accuracy."""
        # Not scikit-learn's own, which sorts the labels: not all can be.
        predicted, labels = self.predict(X), labels_of(y)
        merged(self.classes_, labels)  # 1 is not "1": mixing them is an error
        if len(predicted) != len(labels):
            raise InputError(f"{len(predicted)} inputs but {len(labels)} labels: give one label per example")
        right = np.array([guess == label for guess, label in zip(predicted, labels, strict=True)], dtype=float)
        return float(np.average(right, weights=None if sample_weight is None else np.asarray(sample_weight)))

    @few_threads()
    @torch.no_grad()
    def _scores(self, X: Any) -> Tensor:
        """A score for every class of `classes_`, −∞ for one only announced: float64 [n, classes], on the CPU."""
        check_is_fitted(self)
        x = self._inputs(X)
        by_exemplars = self._learner().classifier.needs_exemplars and self._knowledge.exemplars
        scores = self._by_exemplars(x) if by_exemplars else self._logits(x)
        unseen = torch.tensor(self._knowledge.last_seen) < 0
        return scores.double().masked_fill(unseen, -torch.inf)

    def _logits(self, x: Tensor) -> Tensor:
        device = next(self._network.parameters()).device
        return torch.cat([self._network(part.to(device)).cpu() for part in x.split(4096)])

    def _by_exemplars(self, x: Tensor) -> Tensor:
        classifier = self._learner().classifier
        labels = [column for column, kept in self._knowledge.exemplars.items() for _ in kept]
        fitted = classifier.fit(self._features(torch.cat([*self._knowledge.exemplars.values()]))[None], labels)
        logits = x.new_empty(1, len(x), len(self.classes_))
        return classifier.scores(self._features(x)[None], logits, fitted)[0]

    def _features(self, x: Tensor) -> Tensor:
        head = networks.head_of(self._network, len(self.classes_))
        assert head is not None, "the fleet refuses to train by features where there are none"
        features: list[Tensor] = []
        tap = head.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0].flatten(1).cpu()))
        try:
            self._logits(x)
        finally:
            tap.remove()
        return torch.cat(features)

    @property
    def tasks_seen_(self) -> int:
        return self._knowledge.tasks

    @property
    def exemplars_(self) -> dict[Any, NDArray[np.float32]]:
        return {self.classes_[column]: x.numpy().copy() for column, x in self._knowledge.exemplars.items()}

    @property
    def network_(self) -> nn.Module:
        # A copy: what its owner does with it must not change what is predicted and learned here.
        return copy.deepcopy(self._network)

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────

    def save(self, path: str | Path) -> None:
        """Write everything into one safetensors file, all of it or nothing; `load` goes on exactly from there.

        Code is not written: a network or a method of your own has to be given to `load` again. Labels must be
        strings or numbers.
        """
        check_is_fitted(self)
        names = [*getattr(self, "feature_names_in_", [])]
        params = self.get_params(deep=False)
        saved = files.Saved(params, self.classes_, self.input_shape_, names, self._knowledge)
        files.write(Path(path), saved)

    @classmethod
    @few_threads()
    def load(cls, path: str | Path, **params: Any) -> Self:
        """The classifier in a file; `params` replace the constructor's parameters written there.

        Nothing in the file is executed, and all of it is checked.
        """
        try:
            saved = files.read(Path(path), cls._get_param_names(), params)
            self = cls(**saved.params)
            self._training(1)
            files.check_tensors(saved, self.network, self._learner().method)
            self._become(saved.classes, saved.shape, saved.knowledge, self._device())
        except InputError as error:
            raise InputError(f"{path} cannot be loaded: {error}") from error
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise InputError(f"{path} is damaged ({type(error).__name__}): use another copy") from error
        self.n_features_in_ = saved.shape[0]
        if saved.feature_names:
            self.feature_names_in_ = np.array(saved.feature_names, dtype=object)
        return self

    # ── parameters, made into what the engine takes ───────────────────────────────────────────────────────────

    def _learner(self) -> Learner:
        memory = None
        if self.memory is not None or self.memory_total is not None:
            if self.sampler == RESERVOIR:
                raise InputError("the classifier chooses exemplars class by class: take another sampler")
            memory = MemorySpec(whole(self.memory), whole(self.memory_total), self.sampler)
        made = learner("vanilla" if self.method is None else self.method, memory)
        if made.solver is not None:
            raise InputError(f"{made.solver.name} trains no network: take ClosedFormClassifier")
        if made.loss.everything:
            raise InputError(f"{made.loss.name} learns from all data together: call fit with all of them")
        if made.loss.keeps:
            raise InputError(
                f"{made.loss.name} stores {', '.join(made.loss.keeps)}, which the classifier cannot yet"
            )
        return made

    def _training(self, examples: int) -> Training:
        training = Training(
            epochs=1 if self.epochs is None else whole(self.epochs),
            batch=whole(self.batch_size),
            lr=self.learning_rate,
        )
        if self.epochs is not None:
            return training
        once = steps_per_epoch(examples, training.batch)
        return replace(training, steps=max(STEPS, once))

    def _device(self) -> torch.device:
        name = self.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            return torch.empty(0, device=name).device
        except (AssertionError, RuntimeError) as error:
            reason = first_line(error)
            raise InputError(f"device {str(name)!r} cannot be used ({reason}): set device='cpu'") from error

    def _seed(self) -> int:
        state = check_random_state(self.random_state)
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(state.randint(2**31 - 1))

    # ── inputs ────────────────────────────────────────────────────────────────────────────────────────────────

    def _inputs(self, X: Any) -> Tensor:
        with one_line():
            x = validate_data(self, array(X), reset=False, dtype=np.float32, allow_nd=True)
        return self._of_known_shape(torch.from_numpy(x))

    def _examples(self, X: Any, y: Any, afresh: bool) -> tuple[Tensor, NDArray[Any]]:
        with one_line():
            x, y = validate_data(self, array(X), array(y), reset=afresh, dtype=np.float32, allow_nd=True)
        x, labels = torch.from_numpy(x), labels_of(y)
        return (x if afresh else self._of_known_shape(x)), labels

    def _of_known_shape(self, x: Tensor) -> Tensor:
        if x.shape[1:] != self.input_shape_:
            raise InputError(f"inputs have shape {list(x.shape[1:])}: give {list(self.input_shape_)}, as learned")
        return x
