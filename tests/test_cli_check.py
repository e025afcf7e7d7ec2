"""`rwalk check` prints the drift between two checkpoints, and its exit code stops a pipeline."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from rwalk import cli

FACTORY = """
import torch

def make():
    return torch.nn.Linear(4, 3)

def wrong():
    return 3

def either(sizes=[4, 5]):
    return torch.nn.Linear(sizes.pop(0), 3)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Weights before and after, with their factory and probes beside them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "net_to_check", raising=False)
    (tmp_path / "net_to_check.py").write_text(FACTORY)
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    save_file(model.state_dict(), "before.safetensors")
    with torch.no_grad():
        model.weight += 0.05
        model.weight[0] += 0.3
    save_file(model.state_dict(), "after.safetensors")
    x = torch.randn(20, 4)
    save_file({"x": x}, "probes.safetensors")
    np.save("probes.npy", x.numpy())
    np.savez("probes.npz", x=x.numpy())
    save_file(nn.Linear(5, 3).state_dict(), "larger.safetensors")
    np.save("texts.npy", np.array(["a"] * 20))
    (tmp_path / "damaged.safetensors").write_bytes(b"damaged")
    return tmp_path


def rwalk(monkeypatch: pytest.MonkeyPatch, *words: Any) -> int:
    monkeypatch.setattr(sys, "argv", ["rwalk", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


WEIGHTS = ("check", "before.safetensors", "after.safetensors", "--factory=net_to_check:make")


@pytest.mark.parametrize("probes", ["probes.safetensors", "probes.npy", "probes.npz"])
def test_the_limit_decides_the_exit_code(
    probes: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rwalk(monkeypatch, *WEIGHTS, f"--probes={probes}", "--max-drift=1") == 0
    within = capsys.readouterr().out
    assert within.startswith("drift 0.0") and within.endswith("nats on 20 probes: within 1\n")
    assert rwalk(monkeypatch, *WEIGHTS, f"--probes={probes}", "--max-drift=1e-4") == 1
    assert capsys.readouterr().out == within.replace("within 1", "beyond 0.0001")
    unchanged = [WEIGHTS[0], WEIGHTS[1], WEIGHTS[1], WEIGHTS[3]]
    assert rwalk(monkeypatch, *unchanged, f"--probes={probes}", "--max-drift=1e-6") == 0


WRONG = {
    "no such checkpoint": ({1: "nowhere"}, "nowhere does not exist"),
    "no weights": ({1: "net_to_check.py"}, "cannot be loaded"),
    "no factory": ({3: "--tokens=3"}, "add --factory"),
    "a factory that is none": ({3: "--factory=net_to_check:nobody"}, "cannot be imported"),
    "a factory of something else": ({3: "--factory=net_to_check:wrong"}, "must return a torch.nn.Module"),
    "probes nobody can read": ({4: "--probes=net_to_check.py"}, "give a file ending in"),
    "samples of no number": ({4: "--probes=own:few"}, "takes a number"),
    "texts as probes": ({4: "--probes=texts.npy"}, "cannot be read: can't convert"),
    "damaged probes": ({4: "--probes=damaged.safetensors"}, "cannot be read: "),
    "another kind of model": ({2: "larger.safetensors", 3: "--factory=net_to_check:either"}, "cannot be compared"),
    "no such device": ({5: "--device=abacus"}, "device 'abacus' cannot be used"),
    "a device without numbers": ({5: "--device=meta"}, "device 'meta' cannot be used"),
    "a limit of nothing": ({5: "--max-drift=0"}, "must be above 0"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_input_is_one_line_and_exit_code_2(
    what: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, reason = WRONG[what]
    words = [*WEIGHTS, "--probes=probes.npy", "--max-drift=1"]
    for place, word in changes.items():
        words[place] = word
    assert rwalk(monkeypatch, *words) == 2
    said = capsys.readouterr().err.strip()
    assert reason in said and "\n" not in said


@pytest.mark.parametrize("read", ["before.safetensors", "after.safetensors", "probes.npy"])
def test_a_file_that_is_read_is_not_overwritten(
    read: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = (folder / read).read_bytes()
    assert rwalk(monkeypatch, *WEIGHTS, "--probes=probes.npy", f"--json=./{read}") == 2
    assert capsys.readouterr().err == f"rwalk: --json {read} would overwrite what is read: give another name\n"
    assert (folder / read).read_bytes() == content
    for _ in ("first", "again"):
        assert rwalk(monkeypatch, *WEIGHTS, "--probes=probes.npy", "--json=drift.json", "--max-drift=9") == 0


def test_drift_that_is_not_finite_is_beyond_every_limit_and_valid_json(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({"weight": torch.full((3, 4), torch.nan), "bias": torch.zeros(3)}, "nan.safetensors")
    words = ["check", WEIGHTS[1], "nan.safetensors", WEIGHTS[3], "--probes=probes.npy", "--json=drift.json"]
    assert rwalk(monkeypatch, *words, "--max-drift=1e9") == 1
    assert capsys.readouterr() == ("drift nan nats on 20 probes: beyond 1e+09\n", "")
    assert (
        "NaN" not in Path("drift.json").read_text() and json.loads(Path("drift.json").read_text())["drift"] is None
    )


def test_a_result_that_cannot_be_written_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "file").touch()
    assert rwalk(monkeypatch, *WEIGHTS, "--probes=probes.npy", "--json=file/drift.json") == 2
    said = capsys.readouterr().err
    assert said.startswith("rwalk: cannot write file/drift.json: ") and said.endswith(": give another name\n")
    assert rwalk(monkeypatch, "rewind", *WEIGHTS[1:], "--probes=probes.npy", "--out=file/x.safetensors") == 2
    assert capsys.readouterr().err.startswith("rwalk: cannot write file/x.safetensors: ")


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_that_torch_does_not_take_is_one_line(
    seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rwalk(monkeypatch, "probes", "before.safetensors", "--out=p.safetensors", f"--seed={seed}") == 2
    said = capsys.readouterr().err.strip()
    assert "--seed" in said and "\n" not in said


def test_hostile_names_of_files_are_escaped(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["before\x1b]0;owned\x07.safetensors", "after\x9b31m.safetensors"]
    for old, new in zip(WEIGHTS[1:3], names, strict=True):
        Path(old).rename(new)
    words = [*names, WEIGHTS[3], "--probes=probes.npy"]
    assert rwalk(monkeypatch, "check", *words, "--max-drift=9", "--json=found.json") == 0
    assert [json.loads(Path("found.json").read_text())[each] for each in ("before", "after")] == names
    assert rwalk(monkeypatch, "rewind", *words, "--max-drift=0.01", "--out=out\x1b.safetensors") == 0
    said = capsys.readouterr().out
    assert r"\x1b]0;owned\x07" in said and all(line.isprintable() for line in said.splitlines())


def test_folders_of_hugging_face_are_compared_by_their_own_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, max_position_embeddings=32, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "before")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path / "after")
    words = ["check", tmp_path / "before", tmp_path / "after", "--probes=own:6", "--tokens=8"]
    assert rwalk(monkeypatch, *words, "--max-drift=10") == 0
    assert "on 6 probes" in capsys.readouterr().out
    assert rwalk(monkeypatch, *words, "--max-drift=0.001") == 1
