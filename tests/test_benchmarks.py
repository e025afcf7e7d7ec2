"""The measuring itself is right: exact where it counts memory, and nothing measured is lost. Sizes are tiny."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from benchmarks import __main__ as command
from benchmarks import bars, class_incremental, gpu, growth, guard_gpu, record
from benchmarks.meter import meter
from benchmarks.rounds import beside, interleaved, ratios

from rwalk import IncrementalClassifier
from rwalk.methods import Method, State
from rwalk.parts import parts

WHEN = {"date": "today", "commit": "abc", "machine": {}}


@dataclass(frozen=True)
class Fake(Method):
    """Holds five vectors from the start, and does nothing with them."""

    name: ClassVar[str] = "fake"
    summary: ClassVar[str] = "five vectors"

    def start(self, theta: torch.Tensor) -> State:
        return {str(i): torch.zeros_like(theta) for i in range(5)}


def test_the_meter_counts_what_lives_and_the_peak_on_the_way() -> None:
    before = torch.zeros(1000)
    with meter("cpu") as readings:
        held = [torch.zeros(1000) for _ in range(3)]
        readings.mark("three")
        sum_of_all = held[0].add(held[1]).add_(held[2])
        held.clear()
        del before  # not on this meter's account
        readings.mark("one")
    assert readings.readings["three"] == (12_000, 12_000)
    assert readings.readings["one"] == (4_000, 16_000)
    assert sum_of_all.nbytes == 4_000


@pytest.mark.parametrize("runs", [1, 2])
def test_a_method_with_five_vectors_is_seen_to_hold_five(monkeypatch: pytest.MonkeyPatch, runs: int) -> None:
    monkeypatch.setitem(parts(), "fake", Fake)
    fake, vanilla = (growth.buffers(n, (1, 2), width=8, runs=runs, fuse=False) for n in ("fake", "vanilla"))
    for k in ("1", "2"):
        for moment in ("held", "step", "end"):
            assert fake[k][moment] - vanilla[k][moment] == pytest.approx(5, abs=1e-9)


def test_memory_grows_with_the_tasks_for_ewc_alone() -> None:
    held = {name: growth.buffers(name, (1, 2, 3), width=8, fuse=False) for name in growth.METHODS}
    more = {name: [round(by[k]["held"] - by["1"]["held"], 6) for k in ("2", "3")] for name, by in held.items()}
    assert more == {"vanilla": [0, 0], "ewc": [2, 4], "ewc++": [0, 0], "pi": [0, 0], "rwalk": [0, 0]}


def test_times_by_parameters_runs_and_tasks() -> None:
    found = growth.times(methods=("vanilla", "rwalk"), widths=(4, 8), runs=(1, 2), tasks=(1, 2), rounds=1)
    assert [list(found[what]) for what in ("by_runs", "by_tasks")] == [["1", "2"], ["1", "2"]]
    assert list(found["by_parameters"]) == ["3190", "6406"]  # 784·w + w, w² + w, 6w + 6
    assert min(ms for row in found["by_tasks"].values() for ms in row.values()) > 0
    assert set(found["most_by_fewest_tasks"]) == {"vanilla", "rwalk"}


def test_a_gpus_cases_are_measured_on_any_device_and_judged_by_their_bars() -> None:
    cases = (gpu.Case("mlp", 1), gpu.Case("mlp", 2, batch=2))  # the convolutions take a minute to compile
    found = gpu.bench("cpu", cases, steps=2, rounds=1)
    assert list(found) == [
        "vanilla: mlp, 1 run",
        "rwalk: mlp, 1 run",
        "vanilla: mlp, 2 runs",
        "rwalk: mlp, 2 runs",
    ]
    assert all(0 < spent["ms"] <= spent["slowest_ms"] for spent in found.values())
    slow = {"rwalk: mlp, 1 run": {"ms": 0.23}, "rwalk: cnn, 10 runs": {"ms": 2.4}, "measured": WHEN}
    assert [row.met for row in bars.rows({"gpu": slow})] == [False, True]


def test_guards_of_a_language_model_are_told_one_by_one() -> None:
    form = guard_gpu.Form(layers=1, width=16, heads=2, groups=1, inner=32, words=50, batch=2, length=4)
    told: list[dict[str, Any]] = []
    found = guard_gpu.bench("cpu", form, rounds=1, steps=1, names=("RWalk", "EWC", "Anchor"), tell=told.append)
    assert [{"RWalk", "EWC", "Anchor"} & set(each) for each in told] == [{"RWalk"}, {"EWC"}, {"Anchor"}]
    assert "before" in found["RWalk"] and "before" not in found["EWC"]
    assert 7.5 < found["RWalk"]["vectors"] <= 8 + found["largest"]
    slow = {"before": 1.09, "after": 1.11, "plain_ms": 60.0, "vectors": 8.0}
    rows = list(bars.rows({"guard-gpu": {"tensors": 2, "largest": 0.2, "RWalk": slow}}))
    assert [row.met for row in rows] == [None, True, False, True]
    coarse = {"after": 1.5, "plain_ms": 60.0, "vectors": 3.6}  # what is passing is no excuse there
    rows = list(bars.rows({"guard-gpu": {"tensors": 2, "largest": 0.2, "RWalk, 8 bit": coarse}}))
    assert [row.met for row in rows] == [None, None, False]


def test_guards_with_a_state_of_8_bits_can_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_gpu, "STEPS", 2)
    form = guard_gpu.Form(layers=2, width=128, heads=4, groups=2, inner=256, words=1500, batch=2, length=4)
    names = ("RWalk, 8 bit", "RWalk, 8 bit, offloaded")
    found = guard_gpu.bench("cpu", form, rounds=1, steps=1, names=names)
    assert all(2 < found[name]["vectors"] <= bars.ALL_VECTORS["RWalk, 8 bit"] for name in names)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_its_section_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["gpu", "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "gpu cannot be measured: there is no CUDA device here\n"
    assert "gpu" not in command.parsed([]).sections


def test_contenders_take_turns_and_ratios_are_of_the_same_round() -> None:
    turns: list[str] = []

    def contender(name: str, seconds: list[float]) -> Any:
        left = iter([99.0, *seconds])  # the first round only warms
        return lambda: turns.append(name) or next(left)

    times = interleaved({"a": contender("a", [1, 10, 100]), "b": contender("b", [2, 30, 200])}, rounds=3)
    assert turns == ["a", "b"] * 4
    assert ratios(times, "a") == {"a": 1, "b": 2}


def test_everyone_is_divided_by_the_bases_turn_before() -> None:
    base = iter([9.0, 9.0, 1.0, 10.0, 2.0, 5.0, 4.0, 20.0])  # two warm, then (before a, before b) three times
    a, b = iter([9.0, 2.0, 4.0, 8.0]), iter([9.0, 5.0, 10.0, 5.0])
    seconds, ratios = beside(lambda: next(base), {"a": lambda: next(a), "b": lambda: next(b)}, rounds=3)
    assert seconds == 4.5, "the median of 1, 10, 2, 5, 4, 20"
    assert ratios == {"a": 2.0, "b": 0.5}


def test_a_section_measured_again_leaves_the_others(tmp_path: Path) -> None:
    record.keep({"solo": {"vanilla": 1.0}, "fleet": {"ratio": 0.1}}, WHEN, tmp_path)
    record.keep({"fleet": {"ratio": 0.2}}, WHEN | {"date": "tomorrow"}, tmp_path)
    kept = record.load(tmp_path)
    assert kept["solo"] == {"vanilla": 1.0, "measured": WHEN}
    assert kept["fleet"]["ratio"] == 0.2
    assert kept["fleet"]["measured"]["date"] == "tomorrow"


def test_every_run_is_a_line_of_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(command.SECTIONS, "fleet", lambda: {"runs": 32, "ratio": 0.1})
    for _ in range(2):
        assert command.main(["fleet", "--results", str(tmp_path)]) == 0
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [line["sections"]["fleet"]["ratio"] for line in lines] == [0.1, 0.1]
    assert set(lines[0]) == {"date", "commit", "machine", "sections"}
    assert {"cpu", "cores", "torch", "python"} <= set(lines[0]["machine"])


def test_a_bar_that_is_missed_is_marked_so() -> None:
    results = {
        "solo": {"minimal_ms": 2.0, "minimal": 1.0, "vanilla": 1.04, "rwalk": 1.21},
    }
    marks = {row.what: row.met for row in bars.rows(results)}
    assert [met for what, met in marks.items() if what.startswith(("vanilla", "rwalk"))] == [True, False]


def test_an_unknown_section_is_refused() -> None:
    with pytest.raises(SystemExit) as refused:
        command.main(["sollo"])
    assert refused.value.code == 2


def test_class_incremental_learns_as_the_classifier_does() -> None:
    draw = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 60)
    images = draw.random((240, 1, 16, 16)).astype(np.float32)
    images[:, 0, :8, :8] *= (1 + y)[:, None, None] / 4
    order, learned = [2, 0, 3, 1], np.arange(240) % 6 > 0
    rows = np.concatenate([np.flatnonzero(learned), np.flatnonzero(~learned)])
    clf, expected = IncrementalClassifier(size=6, warm_up=1, mirror=False), {}
    for known in (2, 4):
        mine = learned & np.isin(y, order[known - 2 : known])
        clf.partial_fit(images[mine], y[mine])
        asked = ~learned & np.isin(y, order[:known])
        expected[known] = 100 * clf.score(images[asked], y[asked])
    phi = torch.from_numpy(clf._sums().features_of(images[rows]))
    found = dict(class_incremental.accuracies(phi, torch.from_numpy(y[rows]), learned.sum(), order, [2]))
    assert found == pytest.approx(expected)
