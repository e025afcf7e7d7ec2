"""The benchmark on a language model, on a tiny one: every way is walked, and a stopped run goes on."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import language_model, language_page, language_rows

from rwalk.errors import InputError

transformers = pytest.importorskip("transformers")
FIRST = "der hund und die katze gehen durch das haus und der vogel singt im baum " * 60
SECOND = "le chien et le chat vont dans la maison et un oiseau chante sur une branche " * 60


def tiny_model() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=2,
        tie_word_embeddings=True,
    )  # fmt: skip
    model: torch.nn.Module = transformers.LlamaForCausalLM(config)
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model in Hugging Face's form whose tokens are characters."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({chr(n): n for n in range(128)}, unk_token=chr(0)))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=chr(1), eos_token=chr(2))
    fast.save_pretrained(tmp_path / "model")
    tiny_model().save_pretrained(tmp_path / "model")  # type: ignore[operator]
    (tmp_path / "first.txt").write_text(FIRST)
    (tmp_path / "second.txt").write_text(SECOND)
    return tmp_path


def test_every_way_is_walked_and_a_stopped_run_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_rows, "BUDGETS", (0.05,))
    monkeypatch.setattr(language_rows, "RATES", (1e-4, 3e-4))
    words = [str(folder / name) for name in ("model", "first.txt", "second.txt")]
    words += f"--out {folder}/rows.jsonl --folder {folder}/prepared --seeds 1 --steps 3 --batch 4".split()
    words += ["--tokens", "16", "--probes", "4", "--probe-tokens", "8", "--test", "2"]
    language_model.main([*words, "--minutes", "0"])
    assert "time is up" in capsys.readouterr().out
    language_model.main([*words, "--only", "held"])
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == len(language_rows.held()) == 2 + 2 * 3
    language_model.main(words)
    assert "budgets held:" in capsys.readouterr().out
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == len(language_rows.plan(1, None))
    assert {row["method"] for row in rows} >= {"plain", "replay", "l2", "ewc", "rwalk", "anchor"}
    assert all(row["drift"] >= 0 and row["after"]["second"] < 6 for row in rows)
    language_model.main(words)
    said = capsys.readouterr().out
    assert "seed 0" not in said and "| without a guard, at 1e-4 | 1 |" in said
    assert len((folder / "rows.jsonl").read_text().splitlines()) == len(rows)
    with pytest.raises(InputError, match="another --folder"):
        language_model.main([*words, "--steps", "4", "--out", str(folder / "others.jsonl")])


def test_processes_side_by_side_share_the_ways_out_among_them(tmp_path: Path) -> None:
    planned = language_rows.plan(1, "held")[:3]
    one, other = (language_rows.Rows(tmp_path / "rows.jsonl", tmp_path) for _ in range(2))
    walking = one.missing(planned)
    assert next(walking) == planned[0]
    assert list(other.missing(planned)) == planned[1:], "the first is taken, the others are not"
    seed, way = planned[0]
    one.add({"seed": seed, **asdict(way)})
    assert list(walking) == planned[1:]
    assert list(other.missing(planned)) == planned[1:], "there is a row of the first"


def row(method: str, rise: float, learned: float, drift: float, seed: int = 0, **way: float) -> dict[str, Any]:
    """As the benchmark would have written it."""
    chosen = asdict(language_rows.Way(method, **{"rate": 1e-4, **way}))
    losses = {"before": {"first": 2.0, "second": 3.0}, "after": {"first": 2.0 + rise, "second": learned}}
    return {**chosen, "seed": seed, **losses, "drift": drift, "held_out_drift": drift}


def test_budgets_are_marked_where_they_were_not_held_or_had_not_to_be() -> None:
    rows = [row("plain", 0.3, 2.0, 0.15)]
    ends = {0.02: 0.0252, 0.05: 0.0401, 0.1: 0.079, 0.2: 0.12}
    rows += [row("rwalk", 0.1, 2.0, drift, budget=budget) for budget, drift in ends.items()]
    assert "| RWalk | 1e-4 | **1.26** | 0.80 | **0.79** | (0.60) |" in language_page.held_table(rows)
    assert language_page.verdict(rows).startswith("budgets held: 2 of 4; 1 would be without a guard; not: RWalk")
    more = [{**each, "seed": 1, "drift": each["drift"] * 1.1} for each in rows]
    assert "| RWalk | 1e-4 | **1.26–1.39** | 0.80–0.88 |" in language_page.held_table([*rows, *more])


def test_the_frontier_is_what_nothing_else_betters(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.rand(40, 2, generator=generator).tolist()
    rows = [row("ewc", rise, loss, rise + 0.1, strength=n) for n, (rise, loss) in enumerate(numbers, 1)]
    rows.append({**row("plain", 0.5, 0.99, 0.6), "seed": 1})
    ways = language_page.found(rows)
    best = {(each.rise, each.learned) for each in language_page.on_frontier(ways)}
    places = {(each.rise, each.learned) for each in ways}
    assert best == {a for a in places if not any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in places)}
    drawn = tmp_path / "frontier.svg"
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    language_page.main([str(tmp_path / "rows.jsonl"), "--names", "German", "French", "--picture", str(drawn)])
    assert "rise of the loss on German" in drawn.read_text()


def test_ways_of_fewer_seeds_are_not_compared_with_those_of_more() -> None:
    rows = [row("plain", 0.3, 2.0, 0.3, seed) for seed in range(2)]
    lucky = row("ewc", 0.0, 1.0, 0.01, strength=1.0)
    found = language_page.found([*rows, lucky])
    assert [each.way.method for each in language_page.with_all_seeds(found)] == ["plain"]
    assert "| **without a guard, at 1e-4** | 2 | +0.300 |" in language_page.frontier_table([*rows, lucky])
