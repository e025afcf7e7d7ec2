"""Texts and wide sparse inputs: the same promises as for other inputs, and accuracy beside TF-IDF with an SVM."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from rwalk import IncrementalClassifier
from rwalk.classifier import texts
from rwalk.classifier.sparse_sums import Sample
from rwalk.errors import InputError

ANIMALS = {
    "cat": "the cat purrs on the sofa; a kitten with soft paws; cats chase mice; the cat drinks milk",
    "dog": "the dog barks at the door; a puppy wags its tail; dogs fetch sticks; the dog guards a bone",
    "fish": "the fish swims in water; a carp with silver fins; fish breathe through gills; the trout leaps",
}
TEXTS = [text for own in ANIMALS.values() for text in own.split("; ")]
LABELS = np.array([name for name in ANIMALS for _ in range(4)])


def small() -> IncrementalClassifier:
    """Few common columns: quick."""
    return IncrementalClassifier(size=64)


def scores(clf: IncrementalClassifier) -> np.ndarray:
    return clf.decision_function(["the cat sits by the dog", "fins and gills", ""])


def docstrings() -> tuple[list[str], np.ndarray]:
    """Sentences of real documentation, by the module that they are from."""
    import argparse
    import inspect
    import logging
    import pathlib
    import statistics
    import tarfile
    import unittest.mock

    texts, labels = [], []
    for module in (argparse, logging, pathlib, statistics, tarfile, unittest.mock):
        for line in inspect.getsource(module).splitlines():
            if len(line.split()) >= 5:
                texts.append(line.strip())
                labels.append(module.__name__)
    return texts, np.array(labels)


def test_texts_are_learned_and_predicted() -> None:
    clf = small().fit(TEXTS, LABELS)
    assert clf.predict(["kittens purr", "puppies bark", "gills and fins"]).tolist() == ["cat", "dog", "fish"]
    assert np.allclose(clf.predict_proba(TEXTS).sum(1), 1)
    assert clf.class_count_.tolist() == [4, 4, 4] and clf.n_samples_seen_ == 12


def test_texts_any_order_and_any_portions_give_the_same_scores() -> None:
    whole = scores(small().fit(TEXTS, LABELS))
    parts = small()
    for place in np.random.default_rng(0).permutation(len(TEXTS)):
        parts.partial_fit([TEXTS[place]], LABELS[[place]])
    assert np.allclose(scores(parts), whole, atol=1e-9)


def test_texts_merged_without_a_common_begin_equal_one_that_learned_all() -> None:
    one = small().fit(TEXTS[:7], LABELS[:7])
    other = small().fit(TEXTS[7:], LABELS[7:])
    assert np.allclose(scores(one + other), scores(small().fit(TEXTS, LABELS)), atol=1e-9)


def test_texts_forgotten_leave_no_trace_and_their_class_is_gone() -> None:
    clf = small().fit(TEXTS, LABELS).forget(TEXTS[8:], LABELS[8:])
    assert clf.classes_.tolist() == ["cat", "dog"]
    assert np.allclose(scores(clf), scores(small().fit(TEXTS[:8], LABELS[:8])), atol=1e-9)


@pytest.mark.parametrize("foreign", ["a text never learned", TEXTS[4]])
def test_forget_of_a_foreign_text_or_of_another_class_is_refused(foreign: str) -> None:
    clf = small().fit(TEXTS, LABELS)
    before = scores(clf)
    with pytest.raises(InputError, match="not the ones that were learned"):
        clf.forget([foreign], ["cat"])
    assert np.array_equal(scores(clf), before)


def test_forget_twice_is_refused() -> None:
    clf = small().fit(TEXTS, LABELS).forget(TEXTS[:1], LABELS[:1])
    with pytest.raises(InputError, match="not the ones that were learned"):
        clf.forget(TEXTS[:1], LABELS[:1])


def test_texts_saved_and_loaded_continue_exactly(tmp_path: Path) -> None:
    clf = small().fit(TEXTS[:8], LABELS[:8])
    clf.save(tmp_path / "clf.safetensors")
    loaded = IncrementalClassifier.load(tmp_path / "clf.safetensors")
    assert np.array_equal(scores(loaded), scores(clf))
    assert np.array_equal(
        scores(loaded.partial_fit(TEXTS[8:], LABELS[8:])), scores(clf.partial_fit(TEXTS[8:], LABELS[8:]))
    )
    assert (tmp_path / "clf.safetensors").stat().st_size < 20e6


@pytest.mark.parametrize("scale", [1e-6, 3.0, 1e6])
def test_texts_weights_have_no_unit(scale: float) -> None:
    weight = np.arange(1.0, 13)
    once = scores(small().fit(TEXTS, LABELS, sample_weight=weight))
    assert np.allclose(scores(small().fit(TEXTS, LABELS, sample_weight=scale * weight)), once, atol=1e-6)


def test_texts_whole_weights_are_repetitions_up_to_the_unit() -> None:
    clf = small().fit(TEXTS, LABELS, sample_weight=np.full(12, 2.0))
    assert np.allclose(scores(clf), scores(small().fit(TEXTS, LABELS)), atol=1e-9)


def test_texts_in_every_container_are_the_same() -> None:
    pd = pytest.importorskip("pandas")
    expected = scores(small().fit(TEXTS, LABELS))
    table = pd.DataFrame({"body": TEXTS})
    for given in (tuple(TEXTS), np.array(TEXTS), np.array(TEXTS, dtype=object), table["body"], table):
        assert np.array_equal(scores(small().fit(given, LABELS)), expected)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ("one text", "give a list of texts"),
        (["text", None], "input 1 is missing"),
        (["text", 7], "input 1 is int"),
        (["a"], "1 inputs but 2 labels"),
    ],
)
def test_texts_that_cannot_be_learned_are_refused(X: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        small().fit(X, ["a", "b"])


def test_chinese_and_japanese_need_no_spaces_between_words() -> None:
    clf = small().fit(["我喜欢猫", "我看见狗", "吾輩は猫である"], ["cat", "dog", "cat"])
    assert clf.predict(["猫", "狗", "黑狗", "猫が好き"]).tolist() == ["cat", "dog", "dog", "cat"]


def test_texts_and_numbers_do_not_mix() -> None:
    with pytest.raises(InputError, match="inputs were texts before"):
        small().fit(TEXTS, LABELS).predict(sparse.eye(3, 9000, format="csr"))
    with pytest.raises(InputError, match="texts"):
        IncrementalClassifier(method="rwalk").fit(TEXTS, LABELS)


def test_texts_in_many_calls_are_within_a_point_and_a_half_of_tfidf_and_svc_on_all() -> None:
    texts, labels = docstrings()
    order = np.random.default_rng(0).permutation(len(texts))[:3000]
    train, test = order[:2000], order[2000:]
    clf = IncrementalClassifier()
    for name in np.unique(labels):  # one class per call
        own = train[labels[train] == name]
        clf.partial_fit([texts[place] for place in own], labels[own])
    judged = [texts[place] for place in test]
    reference = make_pipeline(TfidfVectorizer(), LinearSVC()).fit([texts[place] for place in train], labels[train])
    assert clf.score(judged, labels[test]) > reference.score(judged, labels[test]) - 0.015


def test_wide_sparse_inputs_are_learned_like_texts_and_narrow_ones_as_vectors(tmp_path: Path) -> None:
    texts, labels = docstrings()
    order = np.random.default_rng(0).permutation(len(texts))[:1500]
    counts = CountVectorizer(ngram_range=(1, 2)).fit_transform([texts[place] for place in order])
    assert counts.shape[1] > 4096
    y, half = labels[order], 1000
    clf = small().partial_fit(counts[:500], y[:500]).partial_fit(counts[500:half], y[500:half])
    assert clf.score(counts[half:], y[half:]) > 0.7
    clf.save(tmp_path / "clf.safetensors")
    again = IncrementalClassifier.load(tmp_path / "clf.safetensors")
    assert np.array_equal(again.predict(counts[half:]), clf.predict(counts[half:]))
    with pytest.raises(InputError, match="columns"):
        clf.predict(counts[:, :5000])
    narrow = sparse.random(60, 30, 0.2, format="csr", random_state=0)
    y = np.arange(60) % 3
    dense = IncrementalClassifier(size=50).fit(narrow.toarray(), y)
    assert np.array_equal(
        IncrementalClassifier(size=50).fit(narrow, y).predict(narrow), dense.predict(narrow.toarray())
    )


def test_texts_probabilities_fit_unseen_texts_and_survive_a_file(tmp_path: Path) -> None:
    texts, labels = docstrings()
    order = np.random.default_rng(0).permutation(len(texts))[:1600]
    x, y = [texts[place] for place in order], labels[order]
    clf = IncrementalClassifier(size=128).fit(x[:1200], y[:1200])
    probability = clf.predict_proba(x[1200:])
    accuracy = clf.score(x[1200:], y[1200:])
    assert abs(probability.max(1).mean() - accuracy) < 0.1
    clf.save(tmp_path / "clf.safetensors")
    loaded = IncrementalClassifier.load(tmp_path / "clf.safetensors")
    np.testing.assert_array_equal(loaded.predict_proba(x[1200:]), probability)


def test_texts_forgotten_are_not_in_the_sample_of_probabilities() -> None:
    clf = small().fit(TEXTS * 30, np.tile(LABELS, 30))
    clf.predict_proba(TEXTS)
    clf.forget(TEXTS[:1], LABELS[:1])
    assert clf._inner._sample is None  # type: ignore[union-attr]
    assert np.isfinite(clf.predict_proba(TEXTS)).all()


def test_call_that_is_interrupted_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clf = IncrementalClassifier().fit(["the cat purrs", "the dog barks"], ["cat", "dog"])
    before = clf.coef_
    monkeypatch.setattr(texts, "ROWS", 1)
    done = iter([1])

    def stopped(*args: object) -> Any:
        next(done)
        return Sample.of(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(texts, "Sample", SimpleNamespace(of=stopped))
    with pytest.raises(StopIteration):
        clf.partial_fit(["a bird sings", "a fish swims"], ["bird", "fish"])
    np.testing.assert_array_equal(clf.coef_, before)
    assert clf.classes_.tolist() == ["cat", "dog"] and clf.n_samples_seen_ == 2
