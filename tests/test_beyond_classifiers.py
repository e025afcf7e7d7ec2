"""Examples of detectors, taggers and other models under a guard, at the smallest size that still shows it."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from benchmarks import guard_families as families
from torch import Tensor

import rwalk

EXAMPLES = Path(__file__).parent.parent / "examples"


@cache
def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ── the detector ─────────────────────────────────────────────────────────────────────────────────────────────


def slow_precision(found: Any, labels: Any, digit: int, threshold: float) -> float:
    """COCO's average precision, cut by cut: matched anew with the detections above every score."""
    objects = [label["boxes"][label["class_labels"] == digit] for label in labels]
    scores = sorted({float(s) for _, kinds, sure in found for s in sure[kinds == digit]})
    curve = []
    for cut in scores:
        hits = misses = 0
        for (boxes, kinds, sure), true in zip(found, objects, strict=True):
            mine = [i for i in range(len(sure)) if int(kinds[i]) == digit and float(sure[i]) >= cut]
            free = list(range(len(true)))
            for row in sorted(mine, key=lambda i: -float(sure[i])):
                overlaps = {j: one_overlap(boxes[row], true[j]) for j in free}
                best = max(overlaps, key=lambda j: overlaps[j], default=None)
                if best is not None and overlaps[best] >= threshold:
                    free.remove(best)
                    hits += 1
                else:
                    misses += 1
        curve.append((hits / max(1, sum(map(len, objects))), hits / (hits + misses)))
    recalls = [step / 100 for step in range(101)]
    return sum(max((p for r, p in curve if r >= least - 1e-9), default=0.0) for least in recalls) / 101


def one_overlap(first: Tensor, second: Tensor) -> float:
    sides = [
        min(float(a + w / 2), float(b + v / 2)) - max(float(a - w / 2), float(b - v / 2))
        for a, b, w, v in zip(first[:2], second[:2], first[2:], second[2:], strict=True)
    ]
    inner = max(0.0, sides[0]) * max(0.0, sides[1])
    return inner / (float(first[2:].prod()) + float(second[2:].prod()) - inner)


@pytest.mark.parametrize("seed", range(4))
def test_average_precision_agrees_with_one_computed_cut_by_cut(seed: int) -> None:
    detector = example("guard_detector")
    torch.manual_seed(seed)
    labels, found = [], []
    for _ in range(5):
        n = int(torch.randint(0, 4, ()))
        boxes = torch.cat([torch.rand(n, 2), 0.2 + 0.2 * torch.rand(n, 2)], 1)
        labels.append({"boxes": boxes, "class_labels": torch.randint(2, (n,))})
        near = boxes.repeat(2, 1) + 0.03 * torch.randn(2 * n, 4)
        rows = torch.cat([near, torch.rand(3, 4) * 0.5 + 0.1]).clamp(min=0.05)
        found.append((rows, torch.randint(2, (len(rows),)), torch.rand(len(rows))))
    for threshold in (0.5, 0.75):
        expected = slow_precision(found, labels, 1, threshold)
        assert detector.average_precision(found, labels, 1, threshold) == pytest.approx(expected, abs=1e-6)
    assert expected < 1


def test_scenes_show_what_their_labels_say() -> None:
    detector = example("guard_detector")
    torch.manual_seed(0)
    parts = detector.Parts(torch.ones(3, 8, 8), torch.tensor([0, 6, 0]), torch.zeros(2, 3, 32, 32))
    found = detector.scenes(parts, [0, 6], 20, 32, seed=1)
    for image, label in zip(found.images, found.labels, strict=True):
        shown = torch.zeros(32, 32, dtype=torch.bool)
        for x, y, w, h in (label["boxes"] * 32).tolist():
            shown[round(y - h / 2) : round(y + h / 2), round(x - w / 2) : round(x + w / 2)] = True
        assert bool((image.amax(0) > 0).logical_not().logical_or(shown).all())
        assert shown.sum() == round(float((label["boxes"][:, 2:] * 32).prod(-1).sum()))  # none covers another
    new = detector.labelled_new(found)
    assert all(bool((label["class_labels"] == 6).all()) and len(label["boxes"]) for label in new.labels)


@pytest.mark.parametrize("kind", ["dense", "rt_detr", "d_fine", "yolos"])
def test_grown_detector_finds_the_same_as_before(kind: str) -> None:
    if kind != "dense":
        pytest.importorskip("transformers")
    detector = example("guard_detector")
    torch.manual_seed(0)
    model = detector.Dense(6) if kind == "dense" else detector.transformers_detector(kind, 6, 64)
    x = torch.rand(2, 3, 64, 64)
    model.eval()
    with torch.no_grad():
        before, _ = model(x), detector.grow(model)
        after = model(x)
    columns = [0, 1, 2, 3, 4, 5, 7] if kind == "yolos" else list(range(6))
    assert after["logits"].shape[-1] == before["logits"].shape[-1] + 1
    torch.testing.assert_close(after["logits"][..., columns], before["logits"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(after["pred_boxes"], before["pred_boxes"])
    label = {"class_labels": torch.tensor([6]), "boxes": torch.tensor([[0.5, 0.5, 0.3, 0.3]])}
    model.train()
    model(x, labels=[label, label])["loss"].backward()  # the new class can be trained
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("kind", ["rt_detr", "d_fine", "yolos"])
def test_guard_holds_a_detector_of_transformers_whose_head_has_grown(kind: str) -> None:
    pytest.importorskip("transformers")
    detector = example("guard_detector")
    torch.manual_seed(0)
    model = detector.transformers_detector(kind, 6, 64)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    probes = rwalk.Probes(
        rwalk.distorted(torch.rand(4, 3, 64, 64), 4), divergence="detr" if kind == "yolos" else "detection"
    )
    guard = rwalk.Guard(model, optimizer, rwalk.Anchor(every=1), probes=probes)
    detector.grow(model)
    guard.attach(torch.optim.AdamW(model.parameters(), 1e-4))
    assert guard.drift() < 0.05  # of a softmax, the new class takes a hundredth of "no object"
    label = {"class_labels": torch.tensor([6]), "boxes": torch.tensor([[0.5, 0.5, 0.3, 0.3]])}
    model.train()
    for _ in range(2):
        model(torch.rand(2, 3, 64, 64), labels=[label, label])["loss"].backward()
        guard.optimizer.step()
        guard.optimizer.zero_grad()
    assert 0 < guard.finish().drift < 100
    assert all(bool(each.isfinite().all()) for each in model.parameters())


@pytest.mark.filterwarnings("ignore:the guard saw")
def test_detector_example_runs_in_every_way(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    detector = example("guard_detector")
    words = ["--size=32", "--images=80", "--test=8", "--first=3", "--steps=2", "--rows=4", "--probes=8", "--out"]
    rows = detector.main([*words, str(tmp_path / "rows")])
    assert [row["way"] for row in rows] == ["before", *detector.WAYS]
    assert all(0 <= row[name] <= 100 for row in rows for name in detector.Scores._fields)
    assert len((tmp_path / "rows").read_text().splitlines()) == len(rows)


@pytest.mark.slow
def test_detector_keeps_its_classes_with_unlabelled_images_of_the_new_one() -> None:
    pytest.importorskip("sklearn")
    detector = example("guard_detector")
    rows = {row["way"]: row for row in detector.main(["--ways", "no guard", "guard, new images distorted"])}
    before, without, guarded = (rows[way] for way in ("before", "no guard", "guard, new images distorted"))
    assert before["old"] > 30
    assert guarded["old"] > 0.75 * before["old"] and guarded["old"] > without["old"] + 5
    assert guarded["new"] > 0.6 * without["new"]


# ── taggers, segmenters, embedders, regressors ───────────────────────────────────────────────────────────────

FAMILIES = ["tagger", "segmenter", "embedder", "regressor"]


def test_windows_of_a_time_series_stay_within_their_part_and_begin_at_zero() -> None:
    months = torch.arange(300.0)
    whole = families.PAST + families.FUTURE
    first, _, third = parts = families.windows(months)
    assert [len(part) for part in parts] == [180 - whole + 1, 60 - whole + 1, 60 - whole + 1]
    step = first[:, 1] - first[:, 0]
    torch.testing.assert_close(step, step[0].expand_as(step))
    torch.testing.assert_close(third[:, : families.PAST].mean(1), torch.zeros(len(third)), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", [*FAMILIES, "forecaster"])
def test_example_and_its_table_run_for_a_few_steps(
    name: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    waves = torch.arange(600.0) / 3
    monkeypatch.setattr(families, "series", lambda: (waves.sin(), waves.cos() + waves))  # no statsmodels needed
    families.main([name, "--quick", "--seeds", "1", "--out", str(tmp_path)])
    rows = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
    ways = [row["way"] for row in rows]
    assert {"before", "no guard", "interpolated halfway", "guard, 128 new", "guard, 128 old"} <= {*ways}
    table = capsys.readouterr().out.splitlines()[-len(rows) :]
    assert [line.split(" | ")[0].removeprefix("| ") for line in table] == ways
    if name == "regressor":  # a run that was stopped continues
        families.main([name, "--quick", "--seeds", "1", "--out", str(tmp_path)])
        assert len((tmp_path / f"{name}.jsonl").read_text().splitlines()) == len(rows)


@pytest.mark.parametrize("name", ["tagger", "segmenter"])
def test_grown_model_gives_old_classes_as_before(name: str) -> None:
    pytest.importorskip("matplotlib")
    module = families.example(name)
    torch.manual_seed(0)
    model = module.Tagger(3) if name == "tagger" else module.Segmenter(3)
    x = {"words": torch.randint(9, (2, 5, 4)), "attention_mask": torch.ones(2, 5)} if name == "tagger" else None
    model.eval()
    with torch.no_grad():
        before = model(**x) if x else model(torch.ones(2, 3, 8, 8)).movedim(1, -1)
        module.grow(model)
        after = model(**x) if x else model(torch.ones(2, 3, 8, 8)).movedim(1, -1)
    assert after.shape[-1] == 4
    torch.testing.assert_close(after[..., :3], before)
    assert bool((after[..., 3] < before.amax(-1)).all())


@pytest.mark.parametrize("name", ["tagger", "segmenter"])
def test_loss_with_unknown_annotations_counts_them_as_any_class_that_was_not_annotated(name: str) -> None:
    pytest.importorskip("matplotlib")
    module = families.example(name)
    torch.manual_seed(0)
    logits, labels = torch.randn(50, 4), torch.randint(4, (50,))
    whole = torch.nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(module.loss_of(logits, labels, [1, 2, 3]), whole)
    some = torch.where(labels == 3, 3, 0)
    share = logits.softmax(-1)
    expected = -torch.where(labels == 3, share[:, 3], 1 - share[:, 3]).log().mean()
    torch.testing.assert_close(module.loss_of(logits, some, [3]), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_guard_with_old_inputs_keeps_more_than_no_guard(name: str) -> None:
    pytest.importorskip("matplotlib")
    module = families.example(name)
    task = module.prepare(0)
    first, *_, last = task.scores(task.model)
    without, guarded = (task.scores(module.learn(task, probes)) for probes in (None, task.probes("old")))
    assert without[first] < guarded[first] < 1.1 * task.scores(task.model)[first]
    assert guarded[last] > 0.7 * without[last]
