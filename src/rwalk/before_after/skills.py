"""Skills of a language model: questions with expected answers, scored by how probable the answers are."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rwalk.atomic_files import checked_json, with_checksum, write_atomically
from rwalk.errors import InputError, first_line
from rwalk.escaping import shown
from rwalk.guard import own_samples
from rwalk.guard.drift.batches import TOKENS, device_of
from rwalk.guard.drift.eval_mode import eval_mode
from rwalk.studies.json_records import from_json, to_json

FIELDS = ("skill", "prompt", "answer", "choices")
EXPECTED = 'a line is {"skill": "sums", "prompt": "2 + 2 =", "answer": " 4"}, with "choices": […] if there are any'
MOST = 10  # questions that are shown because they changed most
OWN_PROMPT, OWN_ANSWER = 32, 8  # tokens of a question that is made from a model's own sample
CAUSAL = 1e-3  # of the logits' variance: rounding moves those of earlier tokens less than that
LIMIT = 0.05  # nats that answers may lose


@dataclass(frozen=True)
class Answer:
    """The tokens of a prompt and an answer; the answer's begin at `start`."""

    tokens: tuple[int, ...]
    start: int


@dataclass(frozen=True)
class Question:
    """A prompt and the answers to choose from.

    Args:
        skill: the group that it belongs to.
        prompt: as it is shown.
        answer: the one that is expected, as it is shown.
        choices: every answer to choose from, as tokens; one if the model answers freely.
        expected: which of them is right.
    """

    skill: str
    prompt: str
    answer: str
    choices: tuple[Answer, ...]
    expected: int = 0


@dataclass(frozen=True)
class Scores:
    """What a model makes of each question.

    Args:
        nats: the answer's loss: the mean of its tokens; with choices, of the choice among them.
        right: whether the model would give the answer.
    """

    nats: tuple[float, ...]
    right: tuple[bool, ...]


class Skills:
    """Questions by skill, for one tokenizer.

    Args:
        questions: see `read` and `own`.
    """

    def __init__(self, questions: Sequence[Question]) -> None:
        if not questions:
            raise InputError(f"there are no questions: {EXPECTED}")
        self.questions = tuple(questions)

    @classmethod
    def read(cls, path: str | Path, tokenizer: Any) -> Skills:
        """Read a file of JSON lines.

        Each line has a prompt (a text, or a list of chat messages) and an answer. The answer follows the prompt as
        it is written, so it usually begins with a space. With "choices", a list of texts, the answer is one of
        them, or its number from 0 on. "skill" names the group.

        Args:
            path: the file.
            tokenizer: of the models that will be compared.
        """
        questions = []
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path} cannot be read: {error}") from error
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    questions.append(_question(json.loads(line), tokenizer))
                except (ValueError, RecursionError) as error:  # InputError is a ValueError
                    reason = error if isinstance(error, InputError) else EXPECTED
                    raise InputError(f"{path}, line {number}: {reason}") from error
        return cls(questions)

    @classmethod
    def own(cls, model: nn.Module, tokenizer: Any, n: int = 64, seed: int = 0) -> Skills:
        """Questions that a language model makes itself: the beginning of a sample, and how the model goes on.

        The model that makes them gives every answer.

        Args:
            model: the model before training.
            tokenizer: shows them as text, and has the start token.
            n: how many.
            seed: of the draws.
        """
        prompts = own_samples(model, tokenizer, n, OWN_PROMPT, seed)["input_ids"]
        whole = prompts
        with eval_mode(model), torch.no_grad():
            for _ in range(OWN_ANSWER):
                following = torch.cat([_logits(model, part)[:, -1].argmax(-1) for part in whole.split(64)])
                whole = torch.cat([whole, following[:, None]], 1)
        return cls(
            [
                Question(
                    "own text",
                    _decoded(tokenizer, ids[:OWN_PROMPT]),
                    _decoded(tokenizer, ids[OWN_PROMPT:]),
                    (Answer(tuple(ids), OWN_PROMPT),),
                )
                for ids in whole.tolist()
            ]
        )

    def score(self, model: nn.Module) -> Scores:
        """What this model makes of each question; its mode and the random numbers stay as they are."""
        rows = [answer for question in self.questions for answer in question.choices]
        found: dict[int, tuple[float, bool, int]] = {}
        with eval_mode(model), torch.no_grad():
            _check_causal(model, rows)
            for part in _batches(rows):
                found.update(_scored(model, rows, part))
        nats, right, start = [], [], 0
        for question in self.questions:
            answers = [found[start + number] for number in range(len(question.choices))]
            start += len(answers)
            logs, exact, length = zip(*answers, strict=True)
            if len(answers) == 1:
                nats.append(-logs[0] / length[0])
                right.append(exact[0])
            else:
                nats.append(float(np.logaddexp.reduce(logs)) - logs[question.expected])
                right.append(int(np.argmax(logs)) == question.expected)
        if not np.isfinite(nats).all():
            raise InputError("the model's outputs on the questions are not finite")
        return Scores(tuple(map(float, nats)), tuple(map(bool, right)))

    def compare(self, before: Scores, after: Scores, limit: float = LIMIT) -> SkillsReport:
        """Each skill before and after.

        Args:
            before: scores of the model before training.
            after: scores of the model after training.
            limit: how much the answers' mean loss may rise, in nats.
        """
        members: dict[str, list[int]] = {}
        for number, question in enumerate(self.questions):
            members.setdefault(question.skill, []).append(number)
        skills = []
        for name, numbers in members.items():
            nats = _mean_change(np.array(before.nats)[numbers], np.array(after.nats)[numbers], len(members))
            right = _share_change(np.array(before.right)[numbers], np.array(after.right)[numbers], len(members))
            skills.append(Skill(name, len(numbers), right, nats, _verdict(right, nats, limit)))
        nats_of, right_of = zip(before.nats, after.nats, strict=True), zip(before.right, after.right, strict=True)
        moved = zip(self.questions, nats_of, right_of, strict=True)
        changed = [
            ChangedQuestion(question.skill, question.prompt, question.answer, *nats, *right)
            for question, nats, right in moved
            if nats[0] != nats[1]
        ]
        changed.sort(key=lambda each: -abs(each.nats_after - each.nats_before))
        return SkillsReport(tuple(skills), tuple(changed[:MOST]), limit)

    def save(self, path: Path, scores: Scores) -> None:
        """Write the questions and a model's scores into a file, so that they outlive the process."""
        write_atomically(path, with_checksum(to_json({"questions": self.questions, "scores": scores})))

    @classmethod
    def load(cls, path: Path) -> tuple[Skills, Scores]:
        """The questions and the scores that `save` has written."""
        try:
            record, _ = checked_json(path.read_bytes())
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {error}") from error
        saved = from_json(_Saved, record, str(path))
        if not len(saved.questions) == len(saved.scores.nats) == len(saved.scores.right):
            raise InputError(f"{path} has scores for other questions: the file was altered")
        return cls(saved.questions), saved.scores


@dataclass(frozen=True)
class _Saved:
    questions: tuple[Question, ...]
    scores: Scores


# ── the comparison ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Change:
    """A number before and after, and the 95 % interval of its change, which allows for the number of skills."""

    before: float
    after: float
    low: float
    high: float


@dataclass(frozen=True)
class Skill:
    """One skill.

    Args:
        right: the share of questions that the model answers as expected.
        nats: the mean loss of the expected answers.
        verdict: "lost", "kept", or "undecided" where there are too few questions to tell.
    """

    name: str
    questions: int
    right: Change
    nats: Change
    verdict: str


@dataclass(frozen=True)
class ChangedQuestion:
    """One question whose answer has become more or less probable."""

    skill: str
    prompt: str
    answer: str
    nats_before: float
    nats_after: float
    right_before: bool
    right_after: bool


@dataclass(frozen=True)
class SkillsReport:
    """Which skills a model has lost between two states. It prints as a table.

    Args:
        skills: one entry for each.
        changed_most: the questions whose answers changed most, at most ten.
        limit: nats that the answers of a skill may lose.
    """

    skills: tuple[Skill, ...]
    changed_most: tuple[ChangedQuestion, ...]
    limit: float

    @property
    def lost(self) -> list[str]:
        """The names of the skills that are lost."""
        return [each.name for each in self.skills if each.verdict == "lost"]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return {**asdict(self), "lost": self.lost}

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The table of skills as text, its head first."""
        yield "skill", "questions", "right before → after", "nats before → after", "verdict"
        for each in self.skills:
            right, nats = each.right, each.nats
            yield (
                shown(each.name),
                str(each.questions),
                f"{right.before:.0%} → {right.after:.0%} ({_between(right, 100, '.0f')})",
                f"{nats.before:.2f} → {nats.after:.2f} ({_between(nats, 1, '.2f')})",
                each.verdict,
            )

    def changes(self) -> Iterator[tuple[str, ...]]:
        """The questions that changed most, as text, the head of the table first."""
        yield "nats before → after", "expected answer", "end of the prompt"
        for each in self.changed_most:
            prompt = each.prompt if len(each.prompt) <= 40 else f"…{each.prompt[-39:]}"
            yield f"{each.nats_before:.2f} → {each.nats_after:.2f}", shown(each.answer)[:24], shown(prompt)

    def __str__(self) -> str:
        tables = [_aligned(self.rows())]
        if self.changed_most:
            tables.append(f"changed most:\n{_aligned(self.changes())}")
        return "\n\n".join(tables)

    def _repr_html_(self) -> str:
        tables = []
        for rows in (self.rows(), self.changes()):
            head, *body = list(rows)
            cells = [f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in body]
            heads = "".join(f"<th>{escape(cell)}</th>" for cell in head)
            tables.append(f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(cells)}</tbody></table>")
        return "\n".join(tables)

    def page(self, title: str) -> str:
        """A page of its own: HTML without scripts."""
        lost = f"Lost: {', '.join(map(shown, self.lost))}." if self.lost else "No skill is lost."
        return (
            f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(shown(title))}</title>\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>'
            ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;"
            "max-width:60rem;padding:0 1rem}main{overflow-x:auto}table{border-collapse:collapse;margin:1rem 0}"
            "th,td{padding:.3rem .8rem;text-align:left;border-bottom:1px solid #8886;"
            "font-variant-numeric:tabular-nums}</style>\n"
            f'<main tabindex="0"><h1>{escape(shown(title))}</h1>\n<p>{escape(lost)} A skill is lost '
            f"if its share of right answers fell, or the loss of its answers rose by more than {self.limit:g} "
            "nats, by more than chance; brackets are 95 % intervals of the change.</p>\n"
            f"{self._repr_html_()}</main></html>\n"
        )


def _verdict(right: Change, nats: Change, limit: float) -> str:
    if right.high < 0 or nats.low > limit:
        return "lost"
    return "kept" if nats.high <= limit else "undecided"


def _mean_change(before: NDArray[np.float64], after: NDArray[np.float64], skills: int) -> Change:
    """Student's interval of the mean of paired differences, by Bonferroni's rule for so many skills."""
    from scipy import stats

    change, count = after - before, len(before)
    reach = math.inf
    if count > 1:
        reach = float(stats.t.ppf(1 - 0.025 / skills, count - 1) * change.std(ddof=1) / math.sqrt(count))
    mean = float(change.mean())
    return Change(float(before.mean()), float(after.mean()), mean - reach, mean + reach)


def _share_change(before: NDArray[np.bool_], after: NDArray[np.bool_], skills: int) -> Change:
    """Agresti and Min's interval (2005) of a difference of paired shares: half a question more in each cell."""
    from scipy import stats

    count = len(before) + 2
    gained, lost = (~before & after).sum() + 0.5, (before & ~after).sum() + 0.5
    mean = (gained - lost) / count
    reach = stats.norm.ppf(1 - 0.025 / skills) * math.sqrt(gained + lost - (gained - lost) ** 2 / count) / count
    low, high = max(-1.0, float(mean - reach)), min(1.0, float(mean + reach))
    return Change(float(before.mean()), float(after.mean()), low, high)


def _between(change: Change, scale: float, form: str) -> str:
    low, high = scale * change.low, scale * change.high
    return f"{low:+{form}} to {high:+{form}}" if math.isfinite(low) else "one question"


def _aligned(rows: Iterator[tuple[str, ...]]) -> str:
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table)
    return "\n".join(line.rstrip() for line in lines)


# ── questions as tokens, and their answers' probabilities ────────────────────────────────────────────────────


def _question(line: Any, tokenizer: Any) -> Question:
    if not isinstance(line, Mapping) or not {"prompt", "answer"} <= line.keys():
        raise InputError(EXPECTED)
    if unknown := sorted(line.keys() - set(FIELDS)):
        raise InputError(f"there is no field {shown(unknown[0])!r}: {', '.join(FIELDS)}")
    answer, choices = line["answer"], line.get("choices")
    expected = 0
    if choices is not None:
        if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(each, str) for each in choices):
            raise InputError('"choices" must be a list of at least two texts')
        if isinstance(answer, str) and answer in choices:
            answer = choices.index(answer)
        if type(answer) is not int or not 0 <= answer < len(choices):
            raise InputError('"answer" must be one of the choices, or its number from 0 on')
        expected, answer = answer, choices[answer]
    if not isinstance(answer, str) or not answer:
        raise InputError('"answer" must be a text')
    prompt = _prompt(line["prompt"], tokenizer)
    answers = tuple(_tokens(prompt, each, tokenizer) for each in choices or [answer])
    return Question(shown(line.get("skill") or "all"), prompt, answer, answers, expected)


def _prompt(given: Any, tokenizer: Any) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, list) and getattr(tokenizer, "chat_template", None):
        text: str = tokenizer.apply_chat_template(given, tokenize=False, add_generation_prompt=True)
        return text
    raise InputError('"prompt" must be a text, or a list of messages if the tokenizer has a chat template')


def _tokens(prompt: str, answer: str, tokenizer: Any) -> Answer:
    """The tokens of both together; the answer begins at the first token that it adds or changes."""
    alone = tokenizer.encode(prompt, add_special_tokens=False)
    whole = tokenizer.encode(prompt + answer, add_special_tokens=False)
    same = (n for n, (one, both) in enumerate(zip(alone, whole, strict=False)) if one != both)
    start = min(next(same, len(alone)), len(whole) - 1)
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    begins = tokenizer.encode("a")[:1] == [first] and whole[:1] != [first]  # a chat template may write it
    if begins or start == 0:
        if first is None:
            raise InputError("an empty prompt needs a tokenizer with a start token")
        whole, start = [first, *whole], start + 1
    return Answer(tuple(whole), start)


def _decoded(tokenizer: Any, ids: list[int]) -> str:
    text: str = tokenizer.decode(ids) if hasattr(tokenizer, "decode") else " ".join(map(str, ids))
    return text


def _batches(answers: Sequence[Answer]) -> Iterator[list[int]]:
    """The numbers of answers that go through the model together: of similar length, about two thousand tokens."""
    part: list[int] = []
    for number in sorted(range(len(answers)), key=lambda each: len(answers[each].tokens)):
        if part and (len(part) + 1) * len(answers[number].tokens) > TOKENS:
            yield part
            part = []
        part.append(number)
    yield part


def _scored(
    model: nn.Module, answers: Sequence[Answer], part: Sequence[int]
) -> Iterator[tuple[int, tuple[float, bool, int]]]:
    """For each answer its number, its log-probability, whether its tokens are the likeliest, and its length."""
    length = max(len(answers[number].tokens) for number in part)
    ids = torch.zeros(len(part), length, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, number in enumerate(part):
        tokens = torch.tensor(answers[number].tokens)
        ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
    logits = _logits(model, ids, mask)
    for row, number in enumerate(part):
        start, end = answers[number].start, len(answers[number].tokens)
        expected = ids[row, start:end].to(logits.device)
        logs = logits[row, start - 1 : end - 1].float().log_softmax(-1)
        log = logs.gather(1, expected[:, None]).double().sum()
        yield number, (float(log), bool((logs.argmax(-1) == expected).all()), end - start)


def _logits(model: nn.Module, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    device = device_of(model)
    mask = torch.ones_like(ids) if mask is None else mask
    try:
        output = model(input_ids=ids.to(device), attention_mask=mask.to(device))
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise InputError(f"the model cannot be called with the questions' tokens: {first_line(error)}") from error
    found = getattr(output, "logits", None)
    if not isinstance(found, Tensor) or found.ndim != 3:
        raise InputError("skills need a language model, whose output has .logits [sequences, tokens, vocabulary]")
    return found


def _check_causal(model: nn.Module, answers: Sequence[Answer]) -> None:
    """A model that sees later tokens, such as BERT, would be asked nothing; nor may a sequence be too long."""
    longest = max(answers, key=lambda each: len(each.tokens))
    most = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if type(most) is int and len(longest.tokens) > most:
        raise InputError(f"a question has {len(longest.tokens)} tokens, and the model takes {most} at most")
    ids = torch.tensor([longest.tokens])
    part = _logits(model, ids[:, :-1]).float()
    moved = _logits(model, ids)[:, :-1].float() - part
    if moved.square().mean() > CAUSAL * part.var():
        raise InputError("the model's predictions depend on later tokens: skills need a causal language model")
