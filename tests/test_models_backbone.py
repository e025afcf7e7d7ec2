"""`rwalk fit FOLDER --network module:factory`: images through the user's own network, and its preprocessing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import little
from command_line import Rwalk, refused
from rwalk import IncrementalClassifier, InputError, model_file
from rwalk.data.datasets.images import ImageForm
from rwalk.models.network_factory import Preparation

DATA = load_digits()
FIT = ("fit", "week1", "--out=clf.safetensors")
PREPARED = "--network=little:prepared_eyes"


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(little.__file__), prepend=os.pathsep)
    folder("week1", slice(200))
    folder("week2", slice(200, 400))
    return tmp_path


def folder(root: str, rows: slice) -> None:
    """Real images, by class."""
    for number, (image, label) in enumerate(zip(DATA.images[rows], DATA.target[rows], strict=True)):
        inner = Path(root) / f"digit{label}"
        inner.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15).astype(np.uint8)).resize((16, 16)).save(inner / f"{number}.png")


def accuracy(rwalk: Rwalk, network: str, model: str = "clf.safetensors") -> float:
    outcome = rwalk("predict", model, "week2", "--score", "--out=p.csv", f"--network=little:{network}")
    assert outcome.code == 0, outcome
    return float(outcome.err.split("accuracy ")[1].rstrip("%\n")) / 100


@pytest.mark.parametrize("network", ["prepared_eyes", "array_eyes", "eyes"])
def test_fit_and_predict_with_a_network_of_ones_own(rwalk: Rwalk, network: str) -> None:
    assert rwalk(*FIT, f"--network=little:{network}").code == 0
    assert accuracy(rwalk, network) > 0.8
    note = model_file.note_of(Path("clf.safetensors"))
    assert note is not None and note["form"]["network"] == f"little:{network}"


def test_network_of_a_model_is_named_again_and_must_be_the_same(rwalk: Rwalk) -> None:
    assert rwalk(*FIT, PREPARED).code == 0
    shutil.copy("clf.safetensors", "copy.safetensors")
    asked = "needs its network, which is code: add --network little:prepared_eyes if you trust it"
    for command in (
        ("predict", "clf.safetensors", "week2"),
        ("forget", "clf.safetensors", "week1"),
        ("merge", "clf.safetensors", "copy.safetensors", "--out=both"),
        ("fit", "week2", "--continue=clf.safetensors"),
    ):
        refused(rwalk(*command), asked)
    predict = ("predict", "clf.safetensors", "week2")
    refused(rwalk(*predict, "--network=little:other_eyes"), "give the same network")
    refused(rwalk(*predict, "--network=little:brighter_eyes"), "learned with another preprocessing")
    refused(rwalk(*predict, "--network=little:eyes"), "was learned with a preprocessing")


def test_network_continues_forgets_and_merges(rwalk: Rwalk) -> None:
    assert rwalk(*FIT, PREPARED).code == 0
    assert rwalk("fit", "week2", "--like=clf.safetensors", "--out=other", PREPARED).code == 0
    assert rwalk("merge", "clf.safetensors", "other", "--out=both", PREPARED).code == 0
    assert rwalk("fit", "week2", "--continue=clf.safetensors", PREPARED).code == 0
    assert rwalk("forget", "clf.safetensors", "week2", PREPARED, "--out=left").code == 0
    network = little.eyes()
    known = {
        name: IncrementalClassifier.load(name, network=network)
        for name in ("clf.safetensors", "both", "left", "clf.safetensors.before")
    }
    for one, other in (("clf.safetensors", "both"), ("left", "clf.safetensors.before")):
        scale = np.abs(known[one].coef_).max()
        np.testing.assert_allclose(known[one].coef_ / scale, known[other].coef_ / scale, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        ("little", (), "name it package.module:name"),
        ("little:missing", (), "cannot be imported"),
        ("little:no_eyes", (), "makes a str: return an nn.Module"),
        ("little:Sum", (), "fails (TypeError"),
        ("little:random_eyes", (), "two results for one image"),
        ("little:uneven_eyes", (), "let it resize and crop"),
        ("little:prepared_eyes", ("--size=8",), "drop --size"),
        ("little:prepared_eyes", ("--text=body",), "give a folder of images"),
    ],
)
def test_networks_that_cannot_be_used_are_one_line(
    rwalk: Rwalk, network: str, options: tuple[str, ...], message: str
) -> None:
    refused(rwalk(*FIT, f"--network={network}", *options), message)
    assert not Path("clf.safetensors").exists()


def test_network_that_takes_other_images_is_one_line() -> None:
    with pytest.raises(InputError, match=r"the network does not take inputs of shape \[3, 16, 16\]"):
        IncrementalClassifier(network=little.eyes()).fit(np.zeros((4, 3, 16, 16)), [0, 1, 0, 1])


def test_model_without_a_network_refuses_one_and_its_form_is_that_of_earlier_versions(rwalk: Rwalk) -> None:
    IncrementalClassifier(size=20).fit(np.eye(4), [0, 1, 0, 1]).save("plain")
    np.savez("x.npz", x=np.eye(4))
    refused(rwalk("predict", "plain", "x.npz", PREPARED), "network=Sequential cannot be given: leave it out")
    record = {"kind": "images", "shape": [3, 8, 8], "size": 8}
    assert ImageForm.from_json(record).to_json() == record


def test_a_file_with_numbers_of_fewer_channels_is_refused() -> None:
    own = Preparation("mine:network", lambda image: image, False, (3, 4, 4), (0.5,) * 6)
    own.check(ImageForm(3, 4, 4, prepared=(0.5,) * 6), Path("model"))
    with pytest.raises(InputError, match="learned with another preprocessing"):
        own.check(ImageForm(3, 4, 4, prepared=(0.5,) * 4), Path("model"))
