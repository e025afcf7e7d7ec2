"""Short names that installed packages declare for their parts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rwalk import IncrementalClassifier, augmentations, parts, registry
from rwalk.data import samplers
from rwalk.data.memory import MemorySpec
from rwalk.engine import architectures
from rwalk.errors import InputError
from rwalk.studies.specs import RunSpec
from rwalk.training import Training

MODULE = """
from dataclasses import dataclass

import numpy as np
from torch import nn

from rwalk import Augmentation
from rwalk.data.samplers import SAMPLERS
from rwalk.methods import Vanilla


@dataclass(frozen=True)
class Still(Vanilla):
    pass


class Noise(Augmentation):
    pass


LAST = SAMPLERS["uniform"]


def small(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], classes))


def lengths(batch):
    return np.array([[len(each), each.count("a")] for each in batch], dtype=float)
"""
ENTRIES = """
[rwalk.methods]
still = other_parts:Still
vanilla = other_parts:Still
[rwalk.networks]
small = other_parts:small
[rwalk.samplers]
last = other_parts:LAST
[rwalk.augmentations]
noise = other_parts:Noise
[rwalk.encoders]
lengths = other_parts:lengths
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on Python's path with an installed package in it."""
    about = tmp_path / "other_parts-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other-parts\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    (tmp_path / "other_parts.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    registry.installed.cache_clear()
    yield tmp_path
    registry.installed.cache_clear()
    sys.modules.pop("other_parts", None)


@pytest.mark.usefixtures("package")
def test_installed_parts_are_found_by_their_short_names() -> None:
    assert parts.find("still").__name__ == "Still"
    assert architectures.find("small").__name__ == "small"  # type: ignore[attr-defined]
    assert samplers.find("last") is samplers.SAMPLERS["uniform"]
    assert type(augmentations.find("noise")).__name__ == "Noise"


@pytest.mark.usefixtures("package")
def test_rows_name_installed_parts_in_full_so_that_their_code_is_confirmed() -> None:
    run = RunSpec(
        method="still", network="small", memory=MemorySpec(1, sampler="last"), training=Training(augment="noise")
    )
    assert run.own_code() == ("other_parts:small", "other_parts:Still", "other_parts:LAST", "other_parts:Noise")
    assert "other_parts" not in sys.modules  # naming imports nothing


@pytest.mark.usefixtures("package")
def test_names_of_rwalk_win_over_installed_ones() -> None:
    assert RunSpec(method="vanilla").method == "vanilla" and parts.find("vanilla").__name__ == "Vanilla"


@pytest.mark.usefixtures("package")
def test_unknown_name_lists_installed_ones() -> None:
    with pytest.raises(InputError, match="did you mean 'still'"):
        parts.find("stil")


@pytest.mark.usefixtures("package")
def test_classifier_takes_an_installed_encoder_by_its_name() -> None:
    texts = ["aaaa", "a", "aaaaaa", "bb", "bbbb", "bbb"]
    clf = IncrementalClassifier(encoder="lengths", random_state=0).partial_fit(texts, np.repeat(["a", "b"], 3))
    assert clf.predict(["aaaaa", "bbbbb"]).tolist() == ["a", "b"]


def test_command_trains_an_installed_method_and_lists_it(package: Path, tmp_path: Path) -> None:
    environ = {"PYTHONPATH": f"{package}:{':'.join(sys.path)}", "PATH": "/usr/bin:/bin"}
    listed = subprocess.run(
        [sys.executable, "-m", "rwalk", "methods"], capture_output=True, text=True, env=environ, cwd=tmp_path
    )
    assert "from other_parts:Still" in listed.stdout, listed.stderr
