"""Encoders: any function of a batch of inputs that gives a vector for each, such as a pretrained text model.

An encoder is code, so no file holds it and none is executed from a file. A file has its name and a fingerprint,
and `load` compares those with the encoder that it is given.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from torch import Tensor, nn

from rwalk.closed_form.features import checksum
from rwalk.errors import InputError, first_line
from rwalk.labels import is_frame
from rwalk.registry import imported, installed

BATCH = 256  # inputs encoded at a time
CALLED = ("encode", "embed", "transform")  # methods that encode; an object without them is called itself
PROBES = ("The quick brown fox jumps over the lazy dog.", "rwalk", "42")
TOLERANCE = 1e-2  # relative: the same weights on another machine round differently
_loaded: dict[str, Any] = {}


def texts_of(X: Any) -> list[str] | None:
    """The texts, if inputs are texts: a list, an array, a column of a table; None if they are anything else."""
    if isinstance(X, str):
        raise InputError("X is one text: give a list of texts")
    if isinstance(X, Tensor) or issparse(X):
        return None
    if is_frame(X):  # of one column
        if X.shape[1] != 1:
            return None
        X = X.iloc[:, 0]
    if not isinstance(X, list | tuple):
        values = np.asarray(X)
        if values.dtype.kind not in "UOT":
            return None
        X = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
        if X.ndim != 1:
            return None
    if not any(isinstance(each, str) for each in X):
        return None
    for place, each in enumerate(X):
        if not isinstance(each, str):
            what = "missing" if each is None or each != each else type(each).__name__
            raise InputError(f"input {place} is {what}, where others are texts: give a text, or leave it out")
    return [str(each) for each in X]


def encoded(encoder: Any, X: Any, verbose: bool = False) -> NDArray[Any]:
    """A vector for every input: [n, d]."""
    texts = texts_of(X)
    inputs = X if texts is None else texts
    n, call = len(inputs), _function_of(encoder)
    if not n:
        raise InputError("there is no input to encode: give at least one")
    parts = []
    for start in range(0, n, BATCH):
        parts.append(_vectors(call, inputs[start : start + BATCH]))
        if verbose:
            print(f"\rencoded {min(n, start + BATCH):,} of {n:,}", end="", file=sys.stderr, flush=True)
    if verbose:
        print(file=sys.stderr)
    if len({part.shape[1] for part in parts}) > 1:
        raise InputError("the encoder gives vectors of different lengths: pool them inside it")
    return np.concatenate(parts)


def about(encoder: Any, texts: bool) -> dict[str, Any]:
    """The name of an encoder, and its fingerprint: a checksum of weights, or vectors of fixed texts."""
    name = encoder if isinstance(encoder, str) else getattr(encoder, "__qualname__", type(encoder).__qualname__)
    weights = checksum(encoder.state_dict()) if isinstance(encoder, nn.Module) else None
    probe = encoded(encoder, list(PROBES)).tolist() if texts and weights is None else None
    return {"name": str(name), "weights": weights, "probe": probe}


def check_same(encoder: Any, stored: Any) -> None:
    """Refuse an encoder other than the one that a file was learned with."""
    now = about(encoder, stored["probe"] is not None)
    same = now["weights"] == stored["weights"]
    if same and stored["probe"] is not None:
        before, after = np.array(stored["probe"], dtype=np.float64), np.array(now["probe"], dtype=np.float64)
        same = before.shape == after.shape and math.isclose(
            np.abs(before - after).max(), 0, abs_tol=_slack(before)
        )
    if not same:
        raise InputError(
            f"its inputs were encoded by another encoder, {str(stored['name'])[:80]!r}: give the same, "
            "load(path, encoder=…)"
        )


def _slack(vectors: NDArray[np.float64]) -> float:
    return TOLERANCE * float(np.abs(vectors).max(initial=1e-12))


def _function_of(encoder: Any) -> Callable[[Any], Any]:
    if isinstance(encoder, str):
        if encoder not in _loaded:
            _loaded[encoder] = _named(encoder)
        encoder = _loaded[encoder]
    for name in CALLED:
        if callable(getattr(encoder, name, None)):
            return getattr(encoder, name)  # type: ignore[no-any-return]
    if isinstance(encoder, nn.Module):
        return lambda batch: _of_module(encoder, batch)
    if not callable(encoder):
        raise InputError(
            f"encoder={encoder!r} cannot be called: give a function, an object with encode(), or a name"
        )
    return encoder  # type: ignore[no-any-return]


def _named(name: str) -> Any:
    """An encoder by its name: an installed one, "wordllama", "timm:MODEL", or a model of sentence-transformers."""
    if name in installed("encoders"):
        return imported(installed("encoders")[name], "encoder")
    try:
        if name == "wordllama":
            import wordllama  # type: ignore[import-not-found]

            # Its wheel has the tokenizer, but it looks for it in a cache only: nothing need be downloaded.
            return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
        if name.startswith("timm:"):
            import timm  # type: ignore[import-not-found]

            return timm.create_model(name.removeprefix("timm:"), pretrained=True, num_classes=0)
        from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]

        return SentenceTransformer(name)
    except ImportError as error:
        raise InputError(
            f"encoder={name!r} needs a package ({error.name}): install it, or give a function"
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"encoder={name!r} cannot be loaded ({first_line(error)}): give a function") from error


@torch.no_grad()
def _of_module(module: nn.Module, batch: Any) -> Any:
    training = module.training
    own = next(module.parameters(), torch.zeros(0))
    try:
        return module.eval()(torch.as_tensor(np.asarray(batch)).to(own.device, own.dtype))
    finally:
        module.train(training)


def _vectors(call: Callable[[Any], Any], batch: Any) -> NDArray[Any]:
    """One vector per input; where there is one per token, their mean."""
    found = call(batch)
    if isinstance(found, Tensor):
        found = found.detach().float().cpu().numpy()
    if issparse(found):
        found = found.toarray()
    if isinstance(found, list | tuple):
        rows = [np.asarray(row.detach().float().cpu() if isinstance(row, Tensor) else row) for row in found]
        rows = [row.reshape(-1, row.shape[-1]).mean(0) if row.ndim > 1 else row for row in rows]
        if len({row.shape for row in rows}) > 1:
            raise InputError("the encoder gives vectors of different lengths: pool them inside it")
        found = np.stack(rows)
    vectors: NDArray[Any] = np.asarray(found)
    if vectors.ndim != 2 or len(vectors) != len(batch) or vectors.dtype.kind not in "fiub":
        raise InputError(
            f"the encoder gives {vectors.dtype.name} of shape {list(vectors.shape)} for {len(batch)} inputs: give "
            "one vector of numbers each"
        )
    return vectors
