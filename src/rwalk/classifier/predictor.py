"""A trained network in use: by its outputs, or by the features of the exemplars."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from rwalk.classifier.lessons import Knowledge, Scaling, trained_network
from rwalk.classifiers import Classifier
from rwalk.engine import networks
from rwalk.engine.networks import Factory

AT_ONCE = 4096  # inputs


class Predictor:
    """What was learned, as a module that gives scores; `classes` outputs."""

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
        """From inputs as they come to logits: a copy, for what its owner does with it is nobody else's concern."""
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
        head = networks.head_of(self.module, self.classes)
        assert head is not None, "the fleet refuses to train by features where there are none"
        features: list[Tensor] = []
        tap = head.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0].flatten(1).cpu()))
        try:
            self._logits(x)
        finally:
            tap.remove()
        return torch.cat(features)
