"""The runner of PEFT's comparison, on a tiny model and a made-up dataset of the same form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from reproduction import peft_table
from reproduction.peft_table import Data, accuracy, number_in

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = [chr(code) for code in range(32, 127)] + ["\n"]
    vocabulary = {"</s>": 0, **{letter: 1 + number for number, letter in enumerate(letters)}}
    model = Tokenizer(models.WordLevel(vocabulary, unk_token="</s>"))
    model.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model, bos_token="</s>", eos_token="</s>")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "tiny")
    tokenizer().save_pretrained(tmp_path / "tiny")
    sums = [(f"What is {a} + {b}?", a + b) for a in range(6) for b in range(6)]
    files: dict[str, list[dict[str, str]]] = {
        "metamath": [{"query": q, "response": f"It is {n}. The answer is: {n}"} for q, n in sums],
        "gsm8k-train": [{"question": q, "answer": f"It is {n}.\n#### {n}"} for q, n in sums[:5]],
        "gsm8k-test": [{"question": q, "answer": f"It is {n}.\n#### {n}"} for q, n in sums[5:9]],
        "wiki": [{"text": f"Article {number} of a small encyclopedia."} for number in range(5)],
    }
    files["metamath"].append({"query": "long", "response": "x" * 2000})
    for name, rows in files.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_every_experiment_ends_with_a_file_in_pefts_form(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rwalk.guard.drift import probes

    monkeypatch.setattr(probes, "OWN", 8)
    monkeypatch.setattr(probes, "OWN_TOKENS", 16)
    monkeypatch.setattr(peft_table, "GENERATED", {"max_length": 64, "max_new_tokens": 4})
    words = ["--model", str(place / "tiny"), "--data", str(place), "--steps", "8", "--dtype", "float32"]
    peft_table.main([*words, "--out", str(place / "out"), "--only", "rwalk-guard"])
    peft_table.main([*words, "--out", str(place / "out")])
    assert capsys.readouterr().out.count("is there already") == 2
    found = {path.name: json.loads(path.read_text()) for path in (place / "out").iterdir()}
    assert len(found) == 6 and "lora--tiny-rank32-rwalk-budget.json" in found
    for name, result in found.items():
        assert result.keys() == {"run_info", "train_info", "meta_info"}
        first, last = result["train_info"]["metrics"]
        assert first["valid accuracy"] == 0 and {"test accuracy", "forgetting"} < last.keys()
        assert last["train samples"] == 32 and abs(last["forgetting"]) > 0
        assert (result["run_info"]["guard"] is not None) == ("rwalk" in name)
        assert (result["run_info"]["peft_config"] is not None) == name.startswith("lora")
        assert result["train_info"]["num_trainable_params"] <= result["train_info"]["num_total_params"]


def test_data_are_chosen_as_peft_does(place: Path) -> None:
    data = Data.read(place)
    assert len(data.train) == 36 and len(data.valid) == 5 and len(data.test) == 4 and len(data.articles) == 5
    (place / "wiki.jsonl").unlink()
    with pytest.raises(SystemExit):
        peft_table.main(["--model", str(place / "tiny"), "--data", str(place)])


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The answer is: $16$.", 16.0), ("x #### 1,000", "1,000"), ("The answer is 50%", 50.0),
        ("The answer is: 1/4\n\nQuestion", 0.25), ("The answer is: 1/0", "1/0"), ("16", None),
        ("The answer is: 3. The answer is: 4", 4.0), ("The final answer is: \\pi", "\\pi"),
    ],
)  # fmt: skip
def test_answers_are_found_and_compared_as_numbers(text: str, number: float | str | None) -> None:
    assert number_in(text) == number


def test_accuracy_counts_equal_answers() -> None:
    assert accuracy(
        ["The answer is: 0.5", "nothing", "#### 3"], ["#### 1/2", "#### 2", "#### 4"]
    ) == pytest.approx(1 / 3)
