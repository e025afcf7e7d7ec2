"""The estimator: a network that learns new classes from arrays, by scikit-learn's conventions.

There is no training loop here. A call of `partial_fit` is one task of a fleet of one, which takes up what the
last call left: the parameters, the method's vectors and the exemplars. The exemplars are copies, for the data of
earlier calls are gone; in the call's stream they stand for the tasks they came from.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from rwalk.classifier import network_files as files
from rwalk.classifier import records
from rwalk.classifier.arrays import ArrayClassifier
from rwalk.classifier.lessons import Call, Knowledge, Scaling, stream_of, take_up, trained_network
from rwalk.classifier.trials import LAMS, HeldOut, longest, with_judges, with_lam, without
from rwalk.closed_form.features.vectors import moments
from rwalk.data.memory import MemorySpec
from rwalk.data.samplers import RESERVOIR
from rwalk.engine import networks
from rwalk.engine.fleet import Fleet, Progress
from rwalk.engine.networks import Factory
from rwalk.engine.vectors import Layout
from rwalk.errors import InputError
from rwalk.labels import columns_of, labels_of, merged, whole
from rwalk.learners import Learner, learner
from rwalk.losses import Loss
from rwalk.methods import Method
from rwalk.projectors import Projector
from rwalk.threads import few_threads
from rwalk.training import Training

WITHOUT_MEMORY = (
    "learning classes call by call without exemplars is hard: no batch ever shows old and new classes together, "
    "so nothing teaches the network to tell them apart, and the newest classes win; set memory=10 to keep ten "
    "examples of every class, or method='closed-form', which forgets nothing and keeps none"
)


NOTHING_TO_HOLD = (
    "one call of fit has nothing to hold on to, so lam changes nothing in it: to find a good one, use "
    "rwalk.stream_search over several calls, or lam='auto'"
)


class NetworkClassifier(ArrayClassifier):
    """A network that learns new classes call by call and keeps the old ones.

    Every call of `partial_fit` is a task: it may bring new classes, repeat old ones, or both.

    method         what holds the old: "rwalk", "ewc", "ewc++", "pi", "icarl", "gem", "a-gem"; an object with
                   hyper-parameters of your own, such as RWalk(lam=10); None for nothing
    memory         exemplars kept of every class; None for no exemplars
    memory_total   instead of `memory`: exemplars of all classes together, shared equally
    lam            how strongly the old is held; "auto" to have it chosen in every call; None for the method's own
    sampler        which examples are kept: "mof", "uniform", "plane", "entropy" …
    network        "mlp", "cnn", "resnet18", "package.module:factory", or a function (input_shape, classes) that
                   makes an nn.Module; None for "mlp"
    epochs         passes over a call's data; None for as many as pay, seen on examples held out
    batch_size     examples in a step
    learning_rate  of Adam
    device         "cpu", "cuda" …, or "auto"
    random_state   a number makes everything repeatable
    verbose        one line per call

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

    _dtype = np.float32
    _warned = False

    def __init__(
        self,
        *,
        method: str | Method | Loss | Projector | None = "rwalk",
        memory: int | None = None,
        memory_total: int | None = None,
        lam: float | str | None = None,
        standardize: bool = True,
        sampler: str = "mof",
        network: str | Factory | None = None,
        epochs: int | None = None,
        batch_size: int = 64,
        learning_rate: float = 1e-3,
        device: str | torch.device = "cpu",
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool | int = False,
    ) -> None:
        self.method = method
        self.memory = memory
        self.memory_total = memory_total
        self.lam = lam
        self.standardize = standardize
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
        if self.lam is not None:
            warnings.warn(NOTHING_TO_HOLD, stacklevel=3)
        return self._learn(X, y, None, afresh=True)

    def partial_fit(
        self, X: ArrayLike | Tensor, y: ArrayLike | Tensor, classes: ArrayLike | Tensor | None = None
    ) -> Self:
        """Learn one more task. `classes` may announce labels that are still to come; it need not.

        A call that fails leaves the classifier as it was.
        """
        if self._learner().memory is None and not self._warned:
            self._warned = True
            warnings.warn(WITHOUT_MEMORY, stacklevel=2)
        return self._learn(X, y, classes, afresh=not hasattr(self, "classes_"))

    @few_threads()
    def _learn(self, X: Any, y: Any, classes: Any, afresh: bool) -> Self:
        recipe = self._learner()
        x, labels, _ = self._examples(X, y, None, afresh)
        labels = labels_of(labels)
        announced = labels[:0] if classes is None else labels_of(classes)
        known = labels[:0] if afresh else self.classes_
        every = merged(known, labels, announced)
        moves = columns_of(known, every).tolist()
        past = Knowledge(self._seed(), scale=self._scale(x)) if afresh else self._knowledge
        past = past.moved(moves, len(every))
        if recipe.memory is None:
            past = replace(past, exemplars={})
        call = Call(x, columns_of(labels, every), past)
        held_out: HeldOut | None

        if self.lam == "auto":
            fleet, run, rest, held_out = self._with_every_lam(call, recipe, moves)
        else:
            rest, held_out = without(call) if self.epochs is None else (call, None)
            fleet, run = self._trained(rest, [recipe], moves, held_out), 0
        if reason := fleet.stopped[run]:
            raise InputError(reason)
        before = replace(rest.past, exemplars=past.exemplars)  # those held out are kept like the others
        if held_out is not None:
            before = replace(before, sharpness=held_out.sharpness(fleet, run))
        self._become(every, tuple(x.shape[1:]), before.after(fleet, rest.inputs, run))
        self.lam_ = fleet.learners[run].lam
        if self.verbose:
            self._say(len(labels), fleet)
        return self

    def _with_every_lam(self, call: Call, recipe: Learner, moves: list[int]) -> tuple[Fleet, int, Call, HeldOut]:
        """One fleet with a run for every λ, the run that the judges prefer, what was learned from, and the judges.

        Every run goes on with its own λ, from call to call: what is best now may not be in the long run.
        """
        assert recipe.memory is not None
        rest, judges = with_judges(call, recipe.memory.quota(len(call.past.last_seen)))
        enough = judges if self.epochs is None else None
        if not call.past.tasks:  # there is nothing to hold yet: all would be the same
            return self._trained(rest, [with_lam(recipe, 1.0)], moves, enough), 0, rest, judges
        fleet = self._trained(rest, [with_lam(recipe, lam) for lam in LAMS], moves, enough)
        return fleet, judges.best_run(fleet), rest, judges

    def _trained(self, call: Call, recipes: list[Learner], moves: list[int], held_out: HeldOut | None) -> Fleet:
        """A fleet that has learned the call, with as many runs as there are recipes."""
        stream, exemplars = stream_of(call)
        training = self._training(len(call.x), sum(len(kept) for kept in call.past.exemplars.values()))
        seeds, gone = [call.past.seed] * len(recipes), call.past.tasks - (len(stream) - 1)
        fleet = Fleet(stream, self._factory(), recipes, seeds, training, self._device(), past=gone)
        if call.past.tasks:
            take_up(fleet, call.past, Layout.of(self._network), moves, exemplars)
        news: list[Progress] = []
        fleet.train(lambda each: news.append(each) if isinstance(each, Progress) else None, enough=held_out)
        self.steps_ = news[-1].step
        return fleet

    def _scale(self, x: Tensor) -> dict[str, Tensor]:
        """Centre and deviation of every column, or of an image's every channel; nothing if not wanted."""
        if not self.standardize:
            return {}
        rows = x.movedim(1, -1).flatten(0, -2) if x.ndim > 2 else x
        centre, deviation = moments(rows.double(), torch.ones(len(rows), dtype=torch.float64))
        shape = (-1, *(1 for _ in x.shape[2:]))
        return {"centre": centre.float().view(shape), "deviation": deviation.float().view(shape)}

    def _become(self, classes: NDArray[Any], shape: tuple[int, ...], knowledge: Knowledge) -> None:
        self._network = trained_network(self._factory(), shape, len(classes), knowledge).to(self._device())
        self._knowledge = knowledge
        self.classes_ = classes
        self.input_shape_ = shape

    def _say(self, examples: int, fleet: Fleet) -> None:
        *old, new = fleet.accuracy["single"][0, -1]
        kept = f", {np.mean(old):.1%} of the old exemplars" if old else ""
        held = f", λ = {self.lam_:g}" if self.lam_ else ""
        print(
            f"task {self.tasks_seen_}: {examples} examples, {len(self.classes_)} classes in all; "
            f"{self.steps_} steps{held}; right now {new:.1%} of the task's data{kept}"
        )

    # ── using ─────────────────────────────────────────────────────────────────────────────────────────────────

    @few_threads()
    @torch.no_grad()
    def _scores(self, X: Any) -> Tensor:
        """A score for every class of `classes_`, −∞ for one only announced: float64 [n, classes], on the CPU."""
        check_is_fitted(self)
        x = self._inputs(X)
        by_exemplars = self._learner().classifier.needs_exemplars and self._knowledge.exemplars
        x = self._knowledge.scaled(x)
        scores = self._by_exemplars(x) if by_exemplars else self._logits(x)
        unseen = torch.tensor(self._knowledge.last_seen) < 0
        return scores.double().masked_fill(unseen, -torch.inf)

    def _sharpness(self) -> float:
        return self._knowledge.sharpness

    def _logits(self, x: Tensor) -> Tensor:
        device = next(self._network.parameters()).device
        return torch.cat([self._network(part.to(device)).cpu() for part in x.split(4096)])

    def _by_exemplars(self, x: Tensor) -> Tensor:
        classifier = self._learner().classifier
        labels = [column for column, kept in self._knowledge.exemplars.items() for _ in kept]
        exemplars = self._knowledge.scaled(torch.cat([*self._knowledge.exemplars.values()]))
        fitted = classifier.fit(self._features(exemplars)[None], labels)
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
        network = copy.deepcopy(self._network)
        return (
            nn.Sequential(Scaling(**self._knowledge.scale), network).eval() if self._knowledge.scale else network
        )

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
        with records.reading(path):
            saved = files.read(Path(path), cls._get_param_names(), params)
            self = cls(**saved.params)
            self._training(1, 0)
            files.check_tensors(saved, self._factory(), self._learner().method)
            self._become(saved.classes, saved.shape, saved.knowledge)
        self.n_features_in_ = saved.shape[0]
        if saved.feature_names:
            self.feature_names_in_ = np.array(saved.feature_names, dtype=object)
        return self

    # ── parameters, made into what the engine takes ───────────────────────────────────────────────────────────

    def _factory(self) -> str | Factory:
        if isinstance(self.network, nn.Module):
            raise InputError(
                "network is a module, but classes may still come: give a function (input_shape, classes) that "
                "makes one, or take the module's features, method='closed-form'"
            )
        return "mlp" if self.network is None else self.network

    def _learner(self) -> Learner:
        memory = None
        if self.memory is not None or self.memory_total is not None:
            if self.sampler == RESERVOIR:
                raise InputError("the classifier chooses exemplars class by class: take another sampler")
            memory = MemorySpec(whole(self.memory), whole(self.memory_total), self.sampler)
        made = learner("vanilla" if self.method is None else self.method, memory)
        if self.lam == "auto" and memory is None:
            raise InputError("lam='auto' is judged by exemplars: set memory=10, or give a number")
        if isinstance(self.lam, str) and self.lam != "auto":
            raise InputError(f"lam={self.lam!r} is unknown: give a number, 'auto' or None")
        if self.lam is not None and not isinstance(self.lam, str):
            made = with_lam(made, self.lam)
        if made.solver is not None:
            raise InputError(f"{made.solver.name} trains no network: set method='closed-form'")
        if made.loss.everything:
            raise InputError(f"{made.loss.name} learns from all data together: call fit with all of them")
        if made.loss.keeps:
            raise InputError(
                f"{made.loss.name} stores {', '.join(made.loss.keeps)}, which the classifier cannot yet"
            )
        return made

    def _training(self, examples: int, exemplars: int) -> Training:
        training = Training(
            epochs=1 if self.epochs is None else whole(self.epochs),
            batch=whole(self.batch_size),
            lr=self.learning_rate,
        )
        if self.epochs is not None:
            return training
        return replace(training, steps=longest(examples + exemplars, training.batch))
