"""Probes: inputs on which a model's outputs are to stay as they are, and drift, how far they have moved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rwalk.errors import InputError, first_line
from rwalk.guard.drift import batches, divergences
from rwalk.guard.drift.batches import PARTS, TOKENS, Batch, device_of
from rwalk.guard.drift.divergences import Divergence, Kept
from rwalk.guard.drift.eval_mode import eval_mode

Call = Callable[[Any, Batch], Any]
OWN, OWN_TOKENS = 256, 256  # samples that a language model draws as its own probes, and their length


class Probes:
    """Inputs, the way to compare a model's outputs on them, and the outputs they had.

    Args:
        inputs: a tensor, a dict of keywords, a tuple of arguments, a list of such batches, a DataLoader, a
            dataset, texts (with a tokenizer), or "own-samples" for a language model's own.
        divergence: "kl" (classes, tokens), "binary_kl" (yes-or-no labels), "mse" (numbers, in units of their
            variance), "cosine" or "similarity" (embeddings), "detection" or "detr" (boxes), "segmentation",
            "tagging", "seq2seq", "ctc", a function of old and new outputs, or a dict of these by output. Chosen
            by the outputs where they leave no doubt.
        outputs: the name of a field of the model's output, several names, or a function that picks a tensor or a
            dict of tensors. By default logits, embeddings or the tensor itself.
        call: a function of the model and a batch, if calling the model is not enough.
        tokenizer: for texts, and for own samples.
        collate: makes a batch of a dataset's items.
        batch: examples per pass; by default as many as a training batch has, and at most 64, or about two thousand
            tokens.

    >>> model = nn.Linear(2, 3)
    >>> probes = Probes(torch.randn(8, 2))
    >>> probes.keep(model)
    >>> probes.drift(model)
    0.0
    """

    def __init__(
        self,
        inputs: Any,
        *,
        divergence: Any = None,
        outputs: Any = None,
        call: Call | None = None,
        tokenizer: Any = None,
        collate: Callable[[list[Any]], Batch] | None = None,
        batch: int | None = None,
    ) -> None:
        self.own = isinstance(inputs, str) and inputs == batches.OWN_SAMPLES
        self.given = inputs
        self.divergence, self.outputs = divergence, outputs
        self.tokenizer, self.collate, self.batch = tokenizer, collate, batch
        self.batches: list[Batch] = []
        self.kept: list[dict[str, Kept]] = []  # by batch, by output
        self.fitted: int | None = None  # examples per pass, once they were fitted to a training batch
        self._predictions: list[dict[str, list[int]]] = []  # of each example, by batch, by output
        self.held_out = False  # whether drift is measured on probes that are not pulled on
        self.divergences: dict[str, Divergence] = {}  # by output
        self.guessed: set[str] = set()  # outputs whose divergence is a guess; the loss will tell
        self._labels: Tensor | None = None  # of the first batch, if a loader brought some along
        self._call = call or _call
        for each in divergence.values() if isinstance(divergence, Mapping) else [divergence]:
            if each is not None:
                divergences.named(each)

    @property
    def examples(self) -> int:
        """The number of inputs in all batches."""
        return sum(map(batches.length_of, self.batches))

    @property
    def watched(self) -> range:
        """The batches that drift is measured on: all, or the first quarter if they are held out of pulls."""
        several = self.held_out and len(self.batches) > 1
        return range(-(-len(self.batches) // 4) if several else len(self.batches))

    @property
    def pulled(self) -> range:
        """The batches that an anchor pulls on."""
        held_out = len(self.watched) if len(self.watched) < len(self.batches) else 0
        return range(held_out, len(self.batches))

    @property
    def fingerprint(self) -> str:
        """A hash of the inputs, to recognise them again."""
        return batches.fingerprint(self.batches)

    def read(self, model: nn.Module) -> None:
        """Turn the inputs into batches on the model's device."""
        if not self.batches:
            given = self.given
            if self.own:
                given = own_samples(model, self.tokenizer, OWN, OWN_TOKENS)
            parts = PARTS if self.held_out else 1
            found = batches.of(given, self.batch, self.tokenizer, self.collate, parts)
            taken = batches.accepted(model, found)
            self._labels = batches.labels_in(found, taken)
            self.batches = list(map(batches.copied, taken))
            self.given = None
        self.batches = [batches.to(batch, device_of(model)) for batch in self.batches]

    def keep(self, model: nn.Module) -> None:
        """Store the outputs that the model has now; drift is measured from them.

        Args:
            model: the model with its old weights.
        """
        self.read(model)
        with eval_mode(model), torch.no_grad():
            self.kept, self._predictions = [], []
            for number in range(len(self.batches)):
                found = self._compared(model, number)
                self._check_names(found)
                flat = {name: each.rows() for name, each in found.items()}
                for each in flat.values():
                    _check_finite(each)
                self.kept.append({name: self.divergences[name].keep(each) for name, each in flat.items()})
                length = batches.length_of(self.batches[number])
                self._predictions.append({name: each.of_examples(length) for name, each in found.items()})

    def fit(self, examples: int, tokens: int) -> None:
        """Cut batches to the size of a training batch, so that a pull costs no more than a step.

        A size that the user gave stays, and so do outputs that do not follow from single examples.

        Args:
            examples: of a training batch.
            tokens: all in that batch; 0 if it has none.
        """
        if self.batch is not None or self.fitted is not None or not all(self._predictions):
            return
        of_example = max(map(batches.tokens_of_example, self.batches))
        most = max(batches.FEWEST, examples)
        if of_example and tokens:
            most = max(1, max(batches.FEWEST_TOKENS, tokens) // of_example)
        whole, self.fitted = list(zip(self.batches, self.kept, self._predictions, strict=True)), most
        if any(not counts for *_, of_outputs in whole for counts in of_outputs.values()):
            return
        self.kept = [
            {name: _cut(kept[name], counts, start, start + most) for name, counts in of_outputs.items()}
            for batch, kept, of_outputs in whole
            for start in range(0, batches.length_of(batch), most)
        ]
        self.cut()

    def cut(self) -> None:
        """Cut the inputs as `fit` did."""
        if self.fitted is not None:
            self.batches = [small for batch in self.batches for small in batches.cut(batch, self.fitted)]

    def drift(self, model: nn.Module, errors: float = 0.0) -> float:
        """The mean divergence of the outputs from the old ones, on the batches that drift is measured on.

        Args:
            model: the model now.
            errors: how many standard errors of this mean are added, because few probes measure roughly.

        Returns:
            The drift, in the units of the divergence.

        Raises:
            InputError: There are no old outputs yet: `keep` comes first.
        """
        if not self.kept:
            raise InputError("there are no old outputs to measure drift from: call keep(model) first")
        with eval_mode(model), torch.no_grad():
            found = [self._between(model, number) for number in self.watched]
        means = torch.stack([_total(each) for each in found]).double().tolist()
        mean = weighted_mean(means, [batches.length_of(self.batches[number]) for number in self.watched])
        return mean + errors * math.sqrt(sum(_squared_error(each) for each in zip(*found, strict=True)))

    def of_batch(self, model: nn.Module, number: int) -> Tensor:
        """The drift of one batch, with its graph; the model is in evaluation mode already."""
        return _total(self._between(model, number))

    def _between(self, model: nn.Module, number: int) -> list[Tensor]:
        """The divergences of one batch, by output: one number per prediction, or one for all."""
        found = []
        for name, output in self._outputs(model, number).items():
            kept = self._kept(number, name, output.device)
            self._check_rows(name, kept, output)
            found.append(self.divergences[name].between(kept, output))
        return found

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """Logits [predictions, classes] of any batch, for measures that need class probabilities."""
        found = self._picked(self._call(model, batch))
        if len(found) != 1:
            raise InputError("importance is measured from the logits of one output: pick it by outputs=")
        ((name, output),) = found.items()
        kind = self.divergences.get(name) or self._kind(name, output, batch)
        if kind.name != "kl":
            raise InputError(
                f"importance is measured from class probabilities, and outputs are compared by {kind.name!r}: "
                "use method='anchor', or guard.begin(losses=…)"
            )
        return divergences.flattened(output, divergences.mask_of(batch, kind, output), kind.pixels)

    def _outputs(self, model: nn.Module, number: int) -> dict[str, Tensor]:
        return {name: each.rows() for name, each in self._compared(model, number).items()}

    def _compared(self, model: nn.Module, number: int) -> dict[str, _Compared]:
        batch = self.batches[number] = batches.to(self.batches[number], device_of(model))
        found = self._picked(self._called(model, batch))
        for name, output in found.items():
            if name not in self.divergences:
                self.divergences[name] = self._kind(name, output, batch)
        kinds = {name: self.divergences[name] for name in found}
        return {
            name: _Compared(output, divergences.mask_of(batch, kinds[name], output), kinds[name])
            for name, output in found.items()
        }

    def _picked(self, output: Any) -> dict[str, Tensor]:
        """The outputs that are compared, by name."""
        if self.outputs is None and self.divergence is not None and not isinstance(self.divergence, Mapping):
            kind = divergences.named(self.divergence)
            if kind.picks is not None:
                return divergences.picked(output, kind.picks)
        if self.outputs is None and self.divergence is None:
            divergences.check_no_boxes(output)
        return divergences.picked(output, self.outputs)

    def _called(self, model: nn.Module, batch: Batch) -> Any:
        """The model's output; if it refuses the batch, the batch's form beside the model's message."""
        try:
            return self._call(model, batch)
        except (InputError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            form = batches.described(batch)
            raise InputError(f"the model cannot be called with the probes, {form}: {first_line(error)}") from error

    def _check_names(self, found: Mapping[str, Any]) -> None:
        given = self.divergence if isinstance(self.divergence, Mapping) else {}
        if unknown := [name for name in given if name not in found]:
            raise InputError(
                f"divergence= is given for {unknown}, and outputs are {list(found)}: pick them by outputs="
            )

    def chosen(self, outputs: Iterable[str]) -> dict[str, Divergence]:
        """The divergences that the user chose for outputs with these names."""
        asked = self.divergence
        found = {name: asked.get(name) if isinstance(asked, Mapping) else asked for name in outputs}
        return {name: divergences.named(each) for name, each in found.items() if each is not None}

    def output_name(self, model: nn.Module) -> str:
        """The name of the output that is compared first."""
        with eval_mode(model), torch.no_grad():
            return next(iter(self._outputs(model, 0)))

    def _kind(self, name: str, output: Tensor, batch: Batch) -> Divergence:
        _check_finite(output)
        asked = self.divergence.get(name) if isinstance(self.divergence, Mapping) else self.divergence
        if asked is not None:
            return divergences.named(asked)
        if output.ndim == 1 and all(tensor.ndim < 2 for tensor in batches.tensors(batch)):
            raise InputError(
                f"probes of shape {batches.described(batch)} give outputs of shape {tuple(output.shape)}: give "
                "batches of inputs, with rows in the first dimension; if this is one, give divergence="
            )
        found, guess = divergences.fitting(name, output, batches.are_tokens(batch), self._labels)
        if guess:
            self.guessed.add(name)
        return found

    def settle(self, model: nn.Module, evidence: Tensor | None, always: bool = False) -> None:
        """Replace guesses by what the loss of a training pass tells; the model still has its old weights.

        Args:
            model: the model.
            evidence: see `divergences.evidence`; without it guesses stay.
            always: whether such a guess is a warning, or only if outputs do not look like it.
        """
        guessed, self.guessed = self.guessed, set()
        if self.outputs is not None:  # a function of the model's output, whose gradient was not seen
            evidence, always = None, False
        with eval_mode(model), torch.no_grad():
            outputs = self._outputs(model, 0)
        changed = False
        for name in guessed:
            kind = None if evidence is None else divergences.by_loss(evidence, outputs[name].shape[-1])
            if kind is None and self.divergences[name].name == "kl":
                divergences.warn_of_guess(outputs[name], always)
            elif kind is not None and kind != self.divergences[name]:
                self.divergences[name], changed = kind, True
        if changed:
            self.keep(model)

    def _check_rows(self, name: str, kept: Kept, output: Tensor) -> None:
        before = len(next(iter(kept.values())))
        if self.divergences[name].rows and len(output) != before:
            raise InputError(f"the model makes {len(output)} predictions on probes where it made {before} before")

    def _kept(self, number: int, name: str, device: torch.device) -> Kept:
        kept = self.kept[number].get(name)
        if kept is None:
            raise InputError(f"the model returns {name!r}, which it did not when probes were kept")
        if any(tensor.device != device for tensor in kept.values()):
            kept = self.kept[number][name] = {key: tensor.to(device) for key, tensor in kept.items()}
        return kept


class _Compared(NamedTuple):
    """An output of the model, and which of its predictions are none of padding."""

    output: Tensor
    mask: Tensor | None
    kind: Divergence

    def rows(self) -> Tensor:
        """As the divergence takes it."""
        if not self.kind.rows:
            return self.output
        return divergences.flattened(self.output, self.mask, self.kind.pixels)

    def of_examples(self, length: int) -> list[int]:
        """How many of the rows belong to each example; none if examples are not in the first dimension."""
        if len(self.output) != length or self.kind.name.startswith("ctc"):  # whose frames often come first
            return []
        if self.mask is not None and self.kind.rows:
            return [int(each) for each in self.mask.flatten(1).sum(1)]
        return [len(self.rows()) // length] * length


def _cut(kept: Kept, counts: Sequence[int], start: int, end: int) -> Kept:
    """The old outputs of some examples of a batch, each of which has so many rows."""
    rows, of_all = slice(sum(counts[:start]), sum(counts[:end])), (divergences.SCALE, divergences.COLUMNS)
    return {key: tensor if key in of_all else tensor[rows].clone() for key, tensor in kept.items()}


def _call(model: nn.Module, batch: Batch) -> Any:
    return batches.call(model, batch)


def _check_finite(output: Tensor) -> None:
    if not bool(output.isfinite().all()):
        raise InputError("the model's outputs on the probes are not finite: check the model and the probes")


def _total(found: Sequence[Tensor]) -> Tensor:
    """The means of all outputs, added."""
    total = found[0].mean()
    for each in found[1:]:
        total = total + each.mean()
    return total


def _squared_error(found: Iterable[Tensor]) -> float:
    """The squared standard error of the mean of one output's divergences."""
    predictions = torch.cat([each.detach().double().flatten() for each in found])
    return float(predictions.var() / len(predictions)) if len(predictions) > 1 else 0.0


def weighted_mean(values: Sequence[float], weights: Iterable[int]) -> float:
    weights = list(weights)
    return sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)


# ── own samples of a language model ──────────────────────────────────────────────────────────────────────────


@torch.no_grad()
def own_samples(
    model: nn.Module, tokenizer: Any, n: int, tokens: int = 256, seed: int = 0, temperature: float = 1.0
) -> dict[str, Tensor]:
    """Sequences drawn from a language model, from its start token on: {"input_ids": [n, tokens]}.

    A model of Hugging Face draws with its own `generate`. Any other model is called once per token, with all
    tokens so far.

    Args:
        model: the language model.
        tokenizer: its start token begins every sequence; or the number of that token.
        n: sequences to draw.
        tokens: tokens in each sequence; if the model ends a text, another one follows.
        seed: seed of the draws; torch's own random numbers stay as they were.
        temperature: divides the logits before the softmax.

    Returns:
        One batch of keywords, as `Probes` takes it.

    Raises:
        InputError: The start token cannot be found, or a count is not a whole number of at least 1.
    """
    for name, number in (("n", n), ("tokens", tokens)):
        if type(number) is not int or number < 1:
            raise InputError(f"{name} must be a whole number, at least 1, not {number!r}")
    first = _first_token(model, tokenizer)
    device = device_of(model)
    rows = max(1, 16 * TOKENS // tokens)
    with eval_mode(model):
        torch.manual_seed(seed)
        parts = [
            _drawn(model, torch.full((min(rows, n - start), 1), first, device=device), tokens, temperature)
            for start in range(0, n, rows)
        ]
    return {"input_ids": torch.cat(parts)}


def _drawn(model: nn.Module, ids: Tensor, tokens: int, temperature: float) -> Tensor:
    if tokens == 1:
        return ids
    if hasattr(model, "generate"):
        options = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        length = {"min_new_tokens": tokens - 1, "max_new_tokens": tokens - 1, "pad_token_id": int(ids[0, 0])}
        generate: Any = model.generate
        drawn: Tensor = generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options, **length)
        return drawn
    while ids.shape[1] < tokens:
        (logits,) = divergences.picked(model(ids), None).values()
        logits = logits[:, -1].float() / temperature
        ids = torch.cat([ids, logits.softmax(-1).multinomial(1)], 1)
    return ids


def _first_token(model: Any, tokenizer: Any) -> int:
    if type(tokenizer) is int:
        return tokenizer
    for holder in (tokenizer, getattr(model, "config", None)):
        for name in ("bos_token_id", "eos_token_id"):
            found = getattr(holder, name, None)
            if type(found) is int:
                return found
    raise InputError("the tokenizer and the model name no start token: give its number as tokenizer=")
