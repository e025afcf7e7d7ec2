"""Skills before and after training: scores, verdicts, the files and commands around them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import rwalk
from rwalk import InputError, Skills, cli
from rwalk.before_after.skills import Answer, Question, Scores

transformers = pytest.importorskip("transformers")
LETTERS = "abcdefghijklmnopqrstuvwxyz 0123456789+=."


def tokenizer(start: bool = True) -> Any:
    """One token per letter; with or without a start token before every text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {"<s>": 0, "</s>": 1, "<unk>": 2, **{letter: 3 + n for n, letter in enumerate(LETTERS)}}
    model = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    if start:
        model.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>"
    )


def language_model(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=128, bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def trained(model: Any, texts: list[str], steps: int = 60) -> Any:
    """The model after it has learned these texts by heart."""
    ids = [torch.tensor([tokenizer().encode(text)]) for text in texts]
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(steps):
        each = ids[step % len(ids)]
        model(input_ids=each, labels=each).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


SUMS = [f"{a}+{b}={a + b}" for a in range(3) for b in range(3)]
LINES = [{"skill": "sums", "prompt": each[:4], "answer": each[4:]} for each in SUMS * 2]
LINES += [
    {"skill": "letters", "prompt": "abc", "choices": ["d", "x", "0"], "answer": "d"},
    {"skill": "letters", "prompt": "xy", "choices": ["a", "z"], "answer": 1},
    {"prompt": "", "answer": "no skill is named"},
]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "skills.jsonl"
    path.write_text("\n".join(map(json.dumps, LINES)) + "\n\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("skill", [{}, {"skill": "two\nlines"}], ids=["no skill", "named"])
def test_prompts_reach_the_model_as_they_are_written(skill: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "skills.jsonl"
    path.write_text(json.dumps({**skill, "prompt": "a\n\tb", "choices": ["\nc", "\n"], "answer": 0}))
    (question,) = Skills.read(path, tokenizer()).questions
    assert (question.prompt, question.answer) == ("a\n\tb", "\nc")
    assert [len(each.tokens) for each in question.choices] == [7, 6]
    assert question.skill == ("two\\nlines" if skill else "all")


def log_probability(model: Any, text: str, start: int, begin: bool = True) -> tuple[float, bool, int]:
    """One text at a time, one token at a time; the first `start` letters are the prompt."""
    ids = ([0] if begin else []) + [3 + LETTERS.index(letter) for letter in text]
    total, right = 0.0, True
    for place in range(start + begin, len(ids)):
        with torch.no_grad():
            logits = model(torch.tensor([ids[:place]])).logits[0, -1].double()
        total += float(logits.log_softmax(0)[ids[place]])
        right &= int(logits.argmax()) == ids[place]
    return total, right, len(ids) - start - begin


def test_scores_are_those_of_one_token_after_another(questions: Path) -> None:
    model = trained(language_model(), SUMS[:4])
    state, mode = torch.get_rng_state(), model.training
    found = Skills.read(questions, tokenizer()).score(model)
    assert torch.equal(torch.get_rng_state(), state) and model.training == mode
    nats, right = [], []
    for line in LINES:
        prompt = line["prompt"]
        if "choices" in line:
            logs = [log_probability(model, prompt + each, len(prompt))[0] for each in line["choices"]]
            expected = line["answer"] if isinstance(line["answer"], int) else line["choices"].index(line["answer"])
            nats.append(-float(torch.tensor(logs).log_softmax(0)[expected]))
            right.append(int(np.argmax(logs)) == expected)
        else:
            log, exact, length = log_probability(model, prompt + line["answer"], len(prompt))
            nats.append(-log / length)
            right.append(exact)
    np.testing.assert_allclose(found.nats, nats, rtol=1e-4, atol=1e-5)
    assert found.right == tuple(right) and 0 < sum(right) < len(right)


def test_tokenizers_without_a_start_token_and_chat_templates(tmp_path: Path) -> None:
    model, plain = language_model(), tokenizer(start=False)
    file = tmp_path / "one.jsonl"
    file.write_text('{"prompt": "ab", "answer": "c"}\n')
    log, _, length = log_probability(model, "abc", 2, begin=False)
    assert Skills.read(file, plain).score(model).nats[0] == pytest.approx(-log / length, rel=1e-4)
    chat = tokenizer()
    chat.chat_template = "{{ bos_token }}{% for m in messages %}{{ m.content }}={% endfor %}"
    file.write_text('{"prompt": [{"role": "user", "content": "1+1"}], "answer": "2"}\n')
    (question,) = Skills.read(file, chat).questions
    assert question.prompt == "<s>1+1="
    (answer,) = question.choices
    assert answer.start == len(answer.tokens) - 1 and answer.tokens[-1] == 3 + LETTERS.index("2")


def test_an_answer_that_changes_the_last_token_of_the_prompt_begins_there() -> None:
    class Pairs:
        """A tokenizer of pairs of letters, from the left."""

        bos_token_id, eos_token_id = None, 1

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [sum(map(ord, text[n : n + 2])) for n in range(0, len(text), 2)]

    from rwalk.before_after.skills import _tokens

    found = _tokens("abc", "d", Pairs())
    assert found == Answer((ord("a") + ord("b"), ord("c") + ord("d")), 1)


BAD = {
    "not JSON": ("{", "a line is"),
    "not an object": ("[1]", "a line is"),
    "no answer": ('{"prompt": "a"}', "a line is"),
    "another field": ('{"prompt": "a", "answer": "b", "anwser": 1}', "no field 'anwser'"),
    "an empty answer": ('{"prompt": "a", "answer": ""}', '"answer" must be a text'),
    "a number as answer": ('{"prompt": "a", "answer": 4}', '"answer" must be a text'),
    "one choice": ('{"prompt": "a", "answer": 0, "choices": ["b"]}', "at least two"),
    "an answer that is no choice": ('{"prompt": "a", "answer": "d", "choices": ["b", "c"]}', "one of the choices"),
    "true as a number": ('{"prompt": "a", "answer": true, "choices": ["b", "c"]}', "one of the choices"),
    "a number as prompt": ('{"prompt": 1, "answer": "b"}', '"prompt" must be a text'),
    "messages without a template": ('{"prompt": [{"role": "user", "content": "a"}], "answer": "b"}', "template"),
    "nested too deeply": ("[" * 100_000, "a line is"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_line_is_named(what: str, tmp_path: Path) -> None:
    line, reason = BAD[what]
    file = tmp_path / "bad.jsonl"
    file.write_text(f'{{"prompt": "a", "answer": "b"}}\n{line}\n')
    with pytest.raises(InputError, match="line 2: ") as error:
        Skills.read(file, tokenizer())
    assert reason in str(error.value) and "\n" not in str(error.value)


def test_no_question_and_no_file_are_errors(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9", "answer": "b"}')
    for name, reason in {"empty": "no questions", "latin": "cannot be read", "none": "cannot be read"}.items():
        with pytest.raises(InputError, match=reason):
            Skills.read(tmp_path / f"{name}.jsonl", tokenizer())
    with pytest.raises(InputError, match=r"needs a language model|must have|\.logits"):
        Skills([Question("a", "b", "c", (Answer((1, 2), 1),))]).score(Constant())


class Constant(nn.Module):
    """A network that is no language model."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        return self.weight


def test_models_that_cannot_be_asked_are_refused(questions: Path) -> None:
    skills = Skills.read(questions, tokenizer())
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    bert = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=64, initializer_range=1.0, **shape))
    with pytest.raises(InputError, match="depend on later tokens"):
        skills.score(bert)
    t5 = transformers.T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    with pytest.raises(InputError, match="cannot be called with the questions' tokens"):
        skills.score(transformers.T5ForConditionalGeneration(t5))
    few = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=8, **shape))
    with pytest.raises(InputError, match="cannot be called with the questions' tokens"):
        skills.score(few)
    short = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=64, n_positions=6, n_embd=16, n_layer=1, n_head=2)
    )
    with pytest.raises(InputError, match="the model takes 6 at most"):
        skills.score(short)


# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────────────────


def skills_of(**count: int) -> Skills:
    return Skills([Question(name, "p", "a", (Answer((1, 2), 1),)) for name, n in count.items() for _ in range(n)])


def scores(nats: Any, right: Any) -> Scores:
    return Scores(tuple(map(float, nats)), tuple(map(bool, right)))


def test_the_interval_of_nats_is_students() -> None:
    draw = np.random.default_rng(0)
    before, after = draw.random(30), draw.random(30) + 0.2
    report = skills_of(one=30).compare(scores(before, [True] * 30), scores(after, [True] * 30))
    (skill,) = report.skills
    low, high = stats.ttest_rel(after, before).confidence_interval(0.95)
    assert (skill.nats.low, skill.nats.high) == pytest.approx((low, high))
    assert skill.nats.before == pytest.approx(before.mean()) and skill.right.before == 1.0


def test_verdicts() -> None:
    same, half = [0.5] * 40, [True] * 20 + [False] * 20
    before = scores(same, half)

    def verdict(nats: Any, right: Any, limit: float = 0.05) -> str:
        return skills_of(one=40).compare(before, scores(nats, right), limit).skills[0].verdict

    noise = np.random.default_rng(0).normal(0, 1, 40)
    assert verdict(same, half) == "kept"
    assert verdict(np.add(same, 0.2), half) == "lost"
    assert verdict(np.add(same, 0.2), half, limit=0.3) == "kept"
    assert verdict(same, [False] * 40) == "lost"
    assert verdict(same, [*half[1:], False]) == "kept"  # one answer of forty may be chance
    assert verdict(same + noise, half) == "undecided"
    assert verdict(np.subtract(same, 0.2), [True] * 40) == "kept"
    alone = skills_of(one=1).compare(scores([1], [True]), scores([3], [False]))
    assert alone.skills[0].verdict == "undecided" and "one question" in str(alone)


def test_chance_alone_rarely_loses_a_skill() -> None:
    """Of 200 comparisons of 8 skills that did not change, about one in twenty may call any of them lost."""
    draw, wrong = np.random.default_rng(0), 0
    skills = skills_of(**{f"skill {n}": 25 for n in range(8)})
    for _ in range(200):
        level = draw.random(200)
        right = [draw.random(200) < level for _ in range(2)]
        nats = [draw.normal(1, 0.3, 200) for _ in range(2)]
        wrong += bool(skills.compare(*(scores(n, r) for n, r in zip(nats, right, strict=True))).lost)
    assert wrong <= 20


def test_the_report_as_text_as_html_and_as_a_dictionary() -> None:
    skills = Skills(
        [replace(each, prompt="<b>\x1b]0;x\x07" + "y" * 60) for each in skills_of(**{"<i>a": 3, "b": 1}).questions]
    )
    report = skills.compare(scores([1, 1, 1, 1], [True] * 4), scores([1, 3, 1.5, 1], [True] * 4))
    assert [(each.nats_before, each.nats_after) for each in report.changed_most] == [(1, 3), (1, 1.5)]
    assert "\x1b" not in str(report) and "1.00 → 3.00" in str(report)
    page = report.page("Skills of <a>")
    assert "<i>a" not in page and "&lt;i&gt;a" in page and "&lt;a&gt;" in page and "\x1b" not in page
    assert json.loads(json.dumps(report.to_dict()))["skills"][0]["questions"] == 3
    assert report.to_dict()["lost"] == report.lost == []


# ── own samples, files, commands ─────────────────────────────────────────────────────────────────────────────


def test_questions_of_its_own_are_all_answered_by_the_model_that_made_them() -> None:
    model = trained(language_model(), SUMS, 20)
    own = Skills.own(model, tokenizer(), 5)
    before = own.score(model)
    assert len(own.questions) == 5 and all(before.right)
    after = own.score(trained(model, ["zzzzzz"], 100))
    assert not all(after.right) and np.mean(after.nats) > np.mean(before.nats)


def test_scores_in_a_file_come_back_and_forged_ones_do_not(tmp_path: Path, questions: Path) -> None:
    skills = Skills.read(questions, tokenizer())
    before = skills.score(language_model())
    skills.save(tmp_path / "skills.json", before)
    again, found = Skills.load(tmp_path / "skills.json")
    assert again.questions == skills.questions and found == before
    text = (tmp_path / "skills.json").read_text()
    for old, new in {'"expected": 0': '"expected": 1', '"right"': '"wrong"'}.items():
        (tmp_path / "forged.json").write_text(text.replace(old, new, 1))
        with pytest.raises(InputError, match=r"forged\.json"):
            Skills.load(tmp_path / "forged.json")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Hugging Face folders of a model that can add, and of the same after it has learned another text."""
    place = tmp_path_factory.mktemp("models")
    model = trained(language_model(), SUMS, 800)
    for name in ("before", "after"):
        model.save_pretrained(place / name)
        tokenizer().save_pretrained(place / name)
        trained(model, ["hello world.", "other words."], 100)
    return place / "before", place / "after"


def run(monkeypatch: pytest.MonkeyPatch, *words: Any) -> int:
    monkeypatch.setattr(sys, "argv", ["rwalk", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_network_with_a_weight_of_two_names_is_written(tmp_path: Path) -> None:
    from rwalk.before_after.rewind import write_like

    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    network[1].weight = network[0].weight
    write_like(network, tmp_path / "network.safetensors", tmp_path / "out.safetensors")
    from safetensors.torch import load_file

    network.load_state_dict(load_file(tmp_path / "out.safetensors"))


def test_check_names_the_lost_skill_and_rewind_brings_it_back(
    folders: tuple[Path, Path], questions: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    files = [f"--json={tmp_path / 'found.json'}", f"--page={tmp_path / 'skills.html'}"]
    assert run(monkeypatch, "check", *folders, f"--skills={questions}", "--probes=own:4", *files) == 1
    said = capsys.readouterr().out
    assert said.endswith("lost: sums\n") and "changed most:" in said and "drift" in said
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["lost"] == ["sums"] and found["skills"][0]["right"]["before"] == 1.0 and found["drift"] > 0.05
    assert "Lost: sums." in (tmp_path / "skills.html").read_text()

    drawn = tmp_path / "drawn.safetensors"
    assert run(monkeypatch, "probes", folders[0], f"--out={drawn}", "--n=8", "--tokens=12") == 0
    expected = rwalk.own_samples(transformers.LlamaForCausalLM.from_pretrained(folders[0]), None, 8, 12)
    probes = rwalk.Probes(expected)
    out = tmp_path / "rewound"
    assert run(monkeypatch, "rewind", *folders, f"--probes={drawn}", "--max-drift=0.02", f"--out={out}") == 0
    assert "% of the way" in capsys.readouterr().out
    old, new = (transformers.LlamaForCausalLM.from_pretrained(each) for each in (folders[0], out))
    probes.keep(old)
    assert 0.01 < probes.drift(new) <= 0.02
    assert transformers.AutoTokenizer.from_pretrained(out).encode("abc") == tokenizer().encode("abc")
    assert run(monkeypatch, "check", folders[0], out, f"--probes={drawn}", "--max-drift=0.02") == 0
    for words in (["probes", folders[0], f"--out={drawn}"], ["rewind", *folders, f"--out={out}"]):
        assert run(monkeypatch, *words) == 2
        assert "exists already" in capsys.readouterr().err


def test_an_adapter_is_read_and_rewound(folders: tuple[Path, Path], tmp_path: Path, monkeypatch: Any) -> None:
    peft = pytest.importorskip("peft")
    base = transformers.LlamaForCausalLM.from_pretrained(folders[0])
    torch.manual_seed(0)
    config = peft.LoraConfig(
        target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(base, config)
    trained(model, ["hello world."], 60)
    model.save_pretrained(tmp_path / "adapter")
    drawn = tmp_path / "drawn.safetensors"
    assert run(monkeypatch, "probes", folders[0], f"--out={drawn}", "--n=8", "--tokens=12") == 0
    words = [folders[0], tmp_path / "adapter", f"--probes={drawn}", "--max-drift=0.02"]
    assert run(monkeypatch, "check", *words) == 1
    assert run(monkeypatch, "rewind", *words, f"--out={tmp_path / 'rewound'}") == 0
    assert run(monkeypatch, "check", folders[0], tmp_path / "rewound", *words[2:]) == 0
    assert run(monkeypatch, "check", tmp_path / "adapter", folders[0], *words[2:]) == 2


WRONG = {
    "neither probes nor skills": (["check", "{0}", "{1}"], "give --probes"),
    "a page of no skills": (["check", "{0}", "{1}", "--probes=own:2", "--page=x.html"], "--page shows skills"),
    "own of no number": (["check", "{0}", "{1}", "--skills=own:many"], "own: takes a number"),
    "own of nothing": (["check", "{0}", "{1}", "--skills=own:0"], "own: takes a number"),
    "no such skills": (["check", "{0}", "{1}", "--skills=none.jsonl"], "cannot be read"),
    "a limit of nothing": (["rewind", "{0}", "{1}", "--out=x", "--max-drift=0"], "must be above 0"),
    "another form of file": (["probes", "{0}", "--out=x.npy"], "must end in .safetensors"),
    "no model": (["probes", "nowhere", "--out=x.safetensors"], "does not exist"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_input_is_one_line(
    what: str, folders: tuple[Path, Path], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    words, reason = WRONG[what]
    monkeypatch.chdir(tmp_path)
    there = set(tmp_path.iterdir())
    assert run(monkeypatch, *(word.format(*folders) for word in words)) == 2
    said = capsys.readouterr().err.strip()
    assert reason in said and "\n" not in said
    assert set(tmp_path.iterdir()) == there


def test_models_that_are_not_alike_cannot_be_interpolated(folders: tuple[Path, Path], tmp_path: Path) -> None:
    from rwalk.before_after.rewind import rewind

    with pytest.raises(InputError, match="not alike"):
        rewind(nn.Linear(4, 3), nn.Linear(4, 2), rwalk.Probes(torch.randn(5, 4)), 0.1)
    with pytest.raises(InputError, match="not alike"):
        rewind(nn.Linear(4, 3), nn.Linear(4, 3, bias=False), rwalk.Probes(torch.randn(5, 4)), 0.1)


# ── in a Trainer ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_trainer_reports_skills_and_resuming_compares_with_the_model_before(
    questions: Path, tmp_path: Path
) -> None:
    from rwalk.integrations.huggingface import SkillsCallback

    rows = [{"input_ids": torch.tensor(tokenizer().encode(text)[:5])} for text in ["hello", "words"] * 4]
    rows = [{**row, "labels": row["input_ids"]} for row in rows]

    def training(model: Any, watching: Any, steps: int) -> Any:
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"), max_steps=steps, per_device_train_batch_size=4, learning_rate=1e-2,
            use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="steps", save_steps=4,
            eval_strategy="steps", eval_steps=4, lr_scheduler_type="constant",
        )  # fmt: skip
        return transformers.Trainer(
            model, arguments, train_dataset=rows, eval_dataset=rows[:2], callbacks=[watching]
        )

    model = trained(language_model(), SUMS, 200)
    start = {name: each.clone() for name, each in model.state_dict().items()}
    skills = Skills.read(questions, tokenizer())
    expected = skills.score(model)
    whole = SkillsCallback(skills)
    trainer = training(model, whole, 8)
    trainer.train()
    assert whole.before == expected and whole.report is not None
    logged = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert [entry["step"] for entry in logged] == [4, 8]
    last = {each.name: each for each in whole.report.skills}
    assert logged[-1]["skills/sums/nats"] == last["sums"].nats.after > last["sums"].nats.before
    assert logged[-1]["skills/sums/right"] == last["sums"].right.after

    again = language_model()
    again.load_state_dict(start)
    resumed = SkillsCallback(skills)
    training(again, resumed, 8).train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    assert resumed.before == expected and resumed.report == whole.report
    (tmp_path / "out" / "checkpoint-4" / "skills.json").unlink()
    with pytest.raises(InputError, match=r"skills\.json cannot be read"):
        training(again, SkillsCallback(skills), 8).train(
            resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4")
        )
