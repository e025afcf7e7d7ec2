"""Estimators on the Hugging Face Hub, against a folder: what is written there, and what comes back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris

pytest.importorskip("huggingface_hub")
from rwalk.errors import InputError
from rwalk.integrations.hub import IncrementalClassifier, IncrementalRegressor

X, Y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica`\x1b[31m"])[Y]


def test_saved_folder_gives_the_same_classifier_back(tmp_path: Path) -> None:
    clf = IncrementalClassifier(random_state=3).partial_fit(X, NAMES)
    clf.save_pretrained(tmp_path / "iris")
    again = IncrementalClassifier.from_pretrained(tmp_path / "iris")
    assert {each.name for each in (tmp_path / "iris").iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
    }
    assert type(again) is IncrementalClassifier and again.random_state == 3
    assert np.array_equal(again.predict_proba(X), clf.predict_proba(X))
    assert again.partial_fit(X[:5], NAMES[:5]).n_samples_seen_ == 155


def test_saved_folder_gives_the_same_regressor_back(tmp_path: Path) -> None:
    model = IncrementalRegressor(random_state=0).fit(X[:, :3], X[:, 3])
    model.save_pretrained(tmp_path)
    again = IncrementalRegressor.from_pretrained(str(tmp_path))
    np.testing.assert_allclose(again.predict(X[:, :3]), model.predict(X[:, :3]), rtol=1e-12)


def test_model_card_names_classes_escaped_and_says_how_to_load(tmp_path: Path) -> None:
    clf = IncrementalClassifier(random_state=3).partial_fit(X, NAMES)
    clf.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: rwalk\n") and "- 3 classes: `setosa`" in card
    assert "random_state=3" in card and "IncrementalClassifier.from_pretrained" in card
    assert "\x1b" not in card


def test_model_saved_elsewhere_can_be_pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub itself is replaced: what would be uploaded is a folder that `from_pretrained` reads."""
    import huggingface_hub.hub_mixin as mixin

    class Api:
        def __init__(self, token: str | None = None) -> None: ...

        def create_repo(self, repo_id: str, **_: object) -> object:
            return type("Url", (), {"repo_id": repo_id})

        def upload_folder(self, *, folder_path: Path, **_: object) -> str:
            (tmp_path / "hub").mkdir()
            for file in folder_path.iterdir():
                (tmp_path / "hub" / file.name).write_bytes(file.read_bytes())
            return "done"

    monkeypatch.setattr(mixin, "HfApi", Api)
    IncrementalClassifier().partial_fit(X, Y).save(tmp_path / "iris.safetensors")
    assert IncrementalClassifier.load(tmp_path / "iris.safetensors").push_to_hub("me/iris") == "done"
    assert IncrementalClassifier.from_pretrained(tmp_path / "hub").classes_.tolist() == [0, 1, 2]


def test_damaged_file_is_refused(tmp_path: Path) -> None:
    IncrementalClassifier().partial_fit(X, Y).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(InputError):
        IncrementalClassifier.from_pretrained(tmp_path)


def test_it_is_cloned_and_shown_like_any_estimator() -> None:
    clf = IncrementalClassifier(random_state=3)
    assert clone(clf).random_state == 3
    assert "random_state" in clf._repr_html_() and "<div" in clf.partial_fit(X, Y)._repr_html_()
