"""Encoders: any function of a batch that gives vectors; never in a file, and recognised when a file is loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import HashingVectorizer
from torch import nn

from rwalk import IncrementalClassifier
from rwalk.errors import InputError

TEXTS = ["good day", "fine day", "bad night", "dark night"] * 5
LABELS = ["good", "good", "bad", "bad"] * 5
ENCODER = HashingVectorizer(n_features=16)


def letters(texts: list[str]) -> np.ndarray:
    return np.array([[text.count(letter) for letter in "adghtnk"] for text in texts], dtype=float)


class Embedder:
    """As wordllama's objects have it."""

    def embed(self, texts: list[str]) -> np.ndarray:
        return letters(texts)


def tokens(texts: list[str]) -> list[list[list[list[float]]]]:
    """As a pipeline of Hugging Face gives features: [1, tokens, d] for every text."""
    return [[letters(text.split()).tolist()] for text in texts]


@pytest.mark.parametrize("encoder", [letters, Embedder(), ENCODER, tokens, lambda x: torch.tensor(letters(x))])
def test_encoder_of_every_form_learns_texts(encoder: object) -> None:
    clf = IncrementalClassifier(encoder=encoder, size=20).partial_fit(TEXTS, LABELS)
    assert clf.predict(["good fine day", "bad dark night"]).tolist() == ["good", "bad"]


def test_encoder_that_is_a_module_takes_arrays() -> None:
    x = np.random.default_rng(0).normal(size=(600, 3, 4))
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 5)).train()
    clf = IncrementalClassifier(encoder=module, size=20).fit(x, x[:, 0, 0] > 0)
    assert clf.input_shape_ == (5,) and module.training
    assert len(clf.predict(x)) == 600


def test_encoder_in_batches_with_progress(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = []

    def counting(texts: list[str]) -> np.ndarray:
        sizes.append(len(texts))
        return letters(texts)

    IncrementalClassifier(encoder=counting, size=20, verbose=True).fit(TEXTS * 15, LABELS * 15)
    assert sizes == [256, 44] and "encoded 300 of 300" in capsys.readouterr().err


def test_encoder_is_not_in_the_file_and_has_to_be_given_again(tmp_path: Path) -> None:
    path = tmp_path / "clf.safetensors"
    clf = IncrementalClassifier(encoder=letters, size=20).fit(TEXTS, LABELS)
    clf.save(path)
    with pytest.raises(InputError, match=r"encoder 'letters'.* load\(path, encoder="):
        IncrementalClassifier.load(path)
    with pytest.raises(InputError, match="another encoder"):
        IncrementalClassifier.load(path, encoder=lambda texts: letters(texts) + 1)
    again = IncrementalClassifier.load(path, encoder=letters)
    assert np.array_equal(again.predict_proba(TEXTS), clf.predict_proba(TEXTS))
    plain = IncrementalClassifier(size=20).fit(letters(TEXTS), LABELS)
    plain.save(path)
    with pytest.raises(InputError, match="without an encoder"):
        IncrementalClassifier.load(path, encoder=letters)


def test_encoder_module_with_other_weights_is_refused(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    module = nn.Linear(4, 3)
    IncrementalClassifier(encoder=module, size=20).fit(x, x[:, 0] > 0).save(tmp_path / "clf.safetensors")
    IncrementalClassifier.load(tmp_path / "clf.safetensors", encoder=module)
    with pytest.raises(InputError, match="another encoder"):
        IncrementalClassifier.load(tmp_path / "clf.safetensors", encoder=nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (3, "cannot be called"),
        (lambda texts: letters(texts)[:1], "one vector of numbers each"),
        (lambda texts: [[1.0]] * (len(texts) - 1) + [[1.0, 2.0]], "different lengths"),
        ("no-such-model", "give a function"),
    ],
)
def test_encoder_that_gives_no_vectors_is_refused(
    encoder: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match=message):
        IncrementalClassifier(encoder=encoder).fit(TEXTS, LABELS)
