"""Divergences of detectors, segmenters, taggers and other models: what is drift to them, and what is not."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rwalk import InputError
from rwalk.guard import Guard, Probes, divergences
from rwalk.guard.drift.divergences import DIVERGENCES

seeds = given(seed=st.integers(0, 10**6))
CLASSES = {"segmentation": 0, "tagging": 0, "ctc": 0}  # the class of everything else
few = settings(max_examples=15)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def detected(images: int = 3, rows: int = 7, classes: int = 4, seed: int = 0) -> Tensor:
    """Boxes inside the image, and logits of which some are sure."""
    boxes = normal(images, rows, 4, seed=seed).sigmoid() * torch.tensor([1, 1, 0.3, 0.3]) + 0.01
    return torch.cat([boxes, 4 * normal(images, rows, classes, seed=seed + 1) - 3], -1)


# ── detection ────────────────────────────────────────────────────────────────────────────────────────────────

KINDS = {"detection": divergences.detection, "detr": partial(divergences.detection, background=-1)}
both = pytest.mark.parametrize("kind", KINDS)


@both
@few
@seeds
def test_detections_are_zero_at_home_and_positive_elsewhere_with_finite_gradients(kind: str, seed: int) -> None:
    old = detected(seed=seed)
    same = old.clone().requires_grad_()
    value = KINDS[kind](old, same)
    (slope,) = torch.autograd.grad(value.sum(), same)
    assert value.shape == (3,) and float(value.detach().abs().max()) < 1e-5
    assert bool(slope.isfinite().all())
    moved = detected(seed=seed + 7).requires_grad_()
    value = KINDS[kind](old, moved)
    (slope,) = torch.autograd.grad(value.sum(), moved)
    assert bool((value > 0).all()) and bool(slope.isfinite().all())


@both
@few
@seeds
def test_order_of_detections_and_scale_of_images_are_free(kind: str, seed: int) -> None:
    old, new = detected(seed=seed), detected(seed=seed + 7)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    assert float(KINDS[kind](old, old[:, order]).abs().max()) < 1e-5
    expected = KINDS[kind](old, new)
    torch.testing.assert_close(KINDS[kind](old, new[:, order]), expected)
    pixels = torch.cat([torch.full((4,), 640.0), torch.ones(4)])
    torch.testing.assert_close(KINDS[kind](old * pixels, new * pixels), expected)


@few
@seeds
def test_classes_that_detectors_get_do_not_count(seed: int) -> None:
    old, new = detected(seed=seed), detected(seed=seed + 7)
    sure_of_new = torch.full((3, 7, 2), 20.0)
    grown = torch.cat([new, sure_of_new], -1)
    torch.testing.assert_close(divergences.detection(old, grown), divergences.detection(old, new))
    with pytest.raises(InputError, match="the model has 3 outputs, and had 4"):
        divergences.detection(old, old[..., :-1])


def test_new_objects_may_come_out_of_no_object_but_not_out_of_old_objects() -> None:
    """As DETR has it: "no object" is the last class before the new class, and after it."""
    box = torch.tensor([0.5, 0.5, 0.2, 0.2])
    far = torch.tensor([0.1, 0.1, 0.1, 0.1])

    def rows(*logits: list[float]) -> Tensor:
        return torch.stack(
            [torch.cat([where, torch.tensor(each)]) for where, each in zip((box, far), logits, strict=True)]
        )[None]

    old = rows([9.0, 0.0, 0.0], [0.0, 0.0, 9.0])  # an object of class 0, and no object
    detr = DIVERGENCES["detr"]
    assert detr.compare is not None

    def between(new: Tensor) -> float:
        return float(detr.between(detr.keep(old), new))

    assert between(rows([9.0, 0.0, -9.0, 0.0], [0.0, 0.0, -9.0, 9.0])) < 1e-4  # nothing happened
    assert between(rows([9.0, 0.0, -9.0, 0.0], [0.0, 0.0, 9.0, 0.0])) < 0.01  # a new object
    assert between(rows([0.0, 0.0, 9.0, 0.0], [0.0, 0.0, -9.0, 9.0])) > 1  # it took an old one's place
    assert between(rows([0.0, 0.0, -9.0, 9.0], [0.0, 0.0, -9.0, 9.0])) > 1  # an old one is lost
    assert between(rows([9.0, 0.0, -9.0, 0.0], [0.0, 9.0, -9.0, 0.0])) > 1  # an old class where nothing is


def test_boxes_count_where_the_old_model_was_sure() -> None:
    sure, unsure = detected(1, 1, 2), detected(1, 1, 2)
    sure[..., 4:], unsure[..., 4:] = torch.tensor([5.0, -5.0]), torch.tensor([-5.0, -5.0])
    shift = torch.zeros(6)
    shift[0] = 0.05
    drifts = [float(divergences.detection(old, old + shift)) for old in (unsure, sure)]
    assert drifts[1] > 0.1 and drifts[0] < 1e-3 * drifts[1]
    further = float(divergences.detection(sure, sure + 2 * shift))
    assert further > drifts[1]


@few
@seeds
def test_overlap_of_boxes_agrees_with_counted_points(seed: int) -> None:
    boxes = normal(2, 4, seed=seed).sigmoid() * 0.4 + 0.3
    grid = torch.stack(torch.meshgrid(*[(torch.arange(400) + 0.5) / 400] * 2, indexing="ij"), -1)
    inside = [((grid - box[:2]).abs() * 2 <= box[2:]).all(-1) for box in boxes]
    union, inner = (inside[0] | inside[1]).float().mean(), (inside[0] & inside[1]).float().mean()
    corners = torch.cat([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], -1)
    hull = (corners[:, 2:].amax(0) - corners[:, :2].amin(0)).prod()
    found = divergences._giou(boxes[0], boxes[1])
    assert float(found) == pytest.approx(float(inner / union - (hull - union) / hull), abs=0.03)


class Detector(nn.Module):
    """Returns what transformers' detectors return, with queries whose order depends on their scores."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.body = nn.Linear(8, 10 * 8)
        self.boxes, self.scores = nn.Linear(8, 4), nn.Linear(8, classes)

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        queries = self.body(pixel_values).unflatten(-1, (10, 8)).relu()
        logits = self.scores(queries)
        order = logits.amax(-1).argsort(-1)[..., None]
        boxes = self.boxes(queries).sigmoid()
        return {
            "logits": logits.gather(1, order.expand_as(logits)),
            "pred_boxes": boxes.gather(1, order.expand_as(boxes)),
        }


def test_detector_under_a_guard_with_a_head_that_grows() -> None:
    torch.manual_seed(0)
    x = normal(64, 8)
    drifts = []
    for guarded in (False, True):
        torch.manual_seed(1)
        model = Detector()
        probes = Probes(x, divergence="detection")
        probes.keep(model)
        old = model.scores
        model.scores = nn.Linear(8, 4)
        with torch.no_grad():
            model.scores.weight[:3], model.scores.bias[:3] = old.weight, old.bias
        assert probes.drift(model) < 1e-5
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        if guarded:
            Guard(model, optimizer, probes=x, divergence="detection")
        for _ in range(60):
            output = model(x)
            new = output["logits"][:, 5:, 3]
            (nn.functional.softplus(-new).mean() + output["logits"][..., :3].sigmoid().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
        drifts.append(probes.drift(model))
    assert drifts[1] < 0.3 * drifts[0]


class Embedder(nn.Linear):
    def __init__(self) -> None:
        super().__init__(8, 3)

    def forward(self, x: Tensor) -> Any:
        return {"embeddings": super().forward(x)}


def test_boxes_without_a_divergence_are_an_error_that_names_both() -> None:
    with pytest.raises(InputError, match=r"give divergence='detr' if .* otherwise 'detection'"):
        Probes(normal(4, 8)).keep(Detector())
    with pytest.raises(InputError, match=r"without pred_boxes and logits: give outputs="):
        Probes(normal(4, 8), divergence="detection").keep(Embedder())
    with pytest.raises(
        InputError, match=r"detections are \[images, detections, 4 \+ classes\].*got shapes \(4, 3\)"
    ):
        probes = Probes(normal(4, 8), divergence="detection")
        probes.keep(nn.Linear(8, 3))
        probes.drift(nn.Linear(8, 3))


# ── classes beside a background ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", CLASSES)
@few
@seeds
def test_background_may_become_a_new_class_and_an_old_class_may_not(name: str, seed: int) -> None:
    compare = DIVERGENCES[name].compare
    assert compare is not None
    old = 3 * normal(20, 4, seed=seed)
    unused = torch.full((20, 2), -50.0)
    for background in (0, 2, -1):
        grown = torch.cat([old, unused], 1) if background != -1 else torch.cat([old[:, :3], unused, old[:, 3:]], 1)
        assert float(compare(old, grown, background).abs().max()) < 1e-4
        column = background if background != -1 else 5
        moved = grown.clone()
        moved[:, -1 if background != -1 else 3] = grown[:, column]  # half of the background's odds, twice
        moved[:, [column, -1 if background != -1 else 3]] -= torch.log(torch.tensor(2.0))
        assert float(compare(old, moved, background).abs().max()) < 1e-4
        stolen = grown.clone()
        other = 1
        stolen[:, -1 if background != -1 else 3] = grown[:, other]
        stolen[:, other] = -50
        assert float(compare(old, stolen, background).mean()) > 0.1
    with pytest.raises(InputError, match="the model has 3 outputs, and had 4"):
        compare(old, old[:, :3], 0)


@few
@seeds
def test_shift_of_all_logits_is_no_drift_to_classes(seed: int) -> None:
    old, new = 2 * normal(9, 4, seed=seed), 2 * normal(9, 5, seed=seed + 1)
    for name in (*CLASSES, "kl", "seq2seq"):
        kind = DIVERGENCES[name]
        expected = kind.between(kind.keep(old), new)
        torch.testing.assert_close(kind.between(kind.keep(old + 3), new - 5), expected, rtol=1e-3, atol=1e-5)


def test_drift_of_pixels_does_not_depend_on_how_much_background_there_is() -> None:
    old = torch.cat([torch.tensor([[0.0, 9.0]]).repeat(20, 1), torch.tensor([[9.0, 0.0]]).repeat(20, 1)])
    new = old.clone()
    new[:5] = torch.tensor([9.0, 0.0])
    empty = torch.tensor([[9.0, 0.0]]).repeat(60, 1)
    drift = divergences.segmentation(old, new).mean()
    diluted = divergences.segmentation(torch.cat([old, empty]), torch.cat([new, empty])).mean()
    assert float(diluted) == pytest.approx(float(drift), rel=0.01)


class Pixels(nn.Module):
    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.layer = (nn.Conv2d if dimensions == 2 else nn.Conv3d)(1, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@pytest.mark.parametrize("dimensions", [2, 3])
@pytest.mark.parametrize("name", ["segmentation", "kl"])
def test_classes_of_pixels_are_in_dimension_1_of_images_and_volumes(name: str, dimensions: int) -> None:
    model, x = Pixels(dimensions), normal(4, 1, *[5] * dimensions)
    probes = Probes(x, divergence=name)
    probes.keep(model)
    kept = probes.kept[0]["output"]
    assert next(iter(kept.values())).shape == (4 * 5**dimensions, 3)
    with torch.no_grad():
        model.layer.bias += 1.0
    assert probes.drift(model) == pytest.approx(0, abs=1e-5)  # a shift of all classes
    with torch.no_grad():
        model.layer.bias[1] += 1.0
    assert probes.drift(model) > 0.01


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Embedding(20, 3)

    def forward(self, input_ids: Tensor, attention_mask: Any = None, labels: Any = None, **rest: Any) -> Any:
        return {"logits": self.layer(input_ids)}


def moved_by(model: Tagger, token: int, probes: Probes) -> float:
    """Drift if one token's outputs change."""
    probes.keep(model)
    before = model.layer.weight.detach().clone()
    with torch.no_grad():
        model.layer.weight[token] = torch.tensor([0.0, 9.0, 0.0])
    drift = probes.drift(model)
    with torch.no_grad():
        model.layer.weight.copy_(before)
    return drift


def test_padding_and_parts_of_words_do_not_count_to_taggers() -> None:
    torch.manual_seed(0)
    model = Tagger()
    ids = torch.tensor([[1, 2, 3, 4], [5, 2, 6, 7]])
    batch = {
        "input_ids": ids,
        "attention_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0]]),  # 4 and 7 are padding
        "labels": torch.tensor([[0, -100, 1, -100], [2, -100, 0, -100]]),  # 2 is a part of a word
    }
    drifts = [moved_by(model, token, Probes(batch, divergence="tagging")) for token in (1, 2, 4, 7)]
    assert drifts[0] > 0.01 and drifts[1:] == [0, 0, 0]
    del batch["labels"]
    assert moved_by(model, 2, Probes(batch, divergence="tagging")) > 0.01


def test_target_tokens_count_to_a_translator_and_source_tokens_do_not() -> None:
    torch.manual_seed(0)
    model = Tagger()
    targets = torch.tensor([[1, 2, 3, 4], [5, 2, 6, 7]])
    source = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0]])  # as long as targets by chance
    masked = torch.where(targets < 4, targets, -100)
    batch = {"input_ids": targets, "attention_mask": source, "labels": masked}
    probes = Probes(batch, divergence="seq2seq")
    assert moved_by(model, 3, probes) > 0.01
    assert moved_by(model, 7, Probes(batch, divergence="seq2seq")) == 0
    by_mask = {"input_ids": targets, "attention_mask": source, "decoder_attention_mask": targets < 4}
    by_mask["decoder_attention_mask"] = by_mask["decoder_attention_mask"].long()
    assert moved_by(model, 3, Probes(by_mask, divergence="seq2seq")) > 0.01
    assert moved_by(model, 7, Probes(by_mask, divergence="seq2seq")) == 0


def test_frames_of_ctc_may_come_first_or_second() -> None:
    old, new = 3 * normal(6, 2, 5), 3 * normal(6, 2, 5, seed=1)
    kind = DIVERGENCES["ctc"]

    def drift(a: Tensor, b: Tensor) -> Tensor:
        return kind.between(kind.keep(divergences.flattened(a)), divergences.flattened(b)).mean()

    torch.testing.assert_close(drift(old, new), drift(old.transpose(0, 1), new.transpose(0, 1)))
    torch.testing.assert_close(drift(old.log_softmax(-1), new.log_softmax(-1)), drift(old, new))


# ── embeddings and numbers ───────────────────────────────────────────────────────────────────────────────────


@few
@seeds
def test_lengths_are_free_to_cosine_and_rotations_to_similarity(seed: int) -> None:
    old, new = normal(6, 4, seed=seed), normal(6, 4, seed=seed + 1)
    turn = torch.linalg.qr(normal(4, 4, seed=seed + 2)).Q
    cosine, similarity = DIVERGENCES["cosine"], DIVERGENCES["similarity"]
    expected = cosine.between(cosine.keep(old), new)
    torch.testing.assert_close(cosine.between(cosine.keep(3 * old), 0.1 * new), expected, rtol=1e-4, atol=1e-6)
    expected = similarity.between(similarity.keep(old), new)
    torch.testing.assert_close(
        similarity.between(similarity.keep(old), new @ turn), expected, rtol=1e-3, atol=1e-5
    )
    assert float(similarity.between(similarity.keep(old), old @ turn).max()) < 1e-9
    assert float(cosine.between(cosine.keep(old), old @ turn).max()) > 1e-3


@few
@seeds
def test_unit_of_numbers_is_free(seed: int) -> None:
    old, new = normal(8, 3, seed=seed), normal(8, 3, seed=seed + 1)
    kind = DIVERGENCES["mse"]
    expected = kind.between(kind.keep(old), new)
    changed = kind.between(kind.keep(1000 * old + 5), 1000 * new + 5)
    torch.testing.assert_close(changed, expected, rtol=1e-2, atol=1e-4)
    turn = torch.linalg.qr(normal(3, 3, seed=seed + 2)).Q  # as in a mean squared error
    torch.testing.assert_close(kind.between(kind.keep(old @ turn), new @ turn), expected, rtol=1e-2, atol=1e-4)


def test_a_number_that_hardly_varies_does_not_outweigh_all_others() -> None:
    """As the corner of an image: a small change of it is no drift."""
    old, kind = normal(64, 3), DIVERGENCES["mse"]
    old[:, 2] = 1e-4 * old[:, 2]
    new = old.clone()
    new[:, 2] += 0.01
    assert float(kind.between(kind.keep(old), new).mean()) < 1e-3


# ── all of them ──────────────────────────────────────────────────────────────────────────────────────────────


def outputs_for(name: str, seed: int = 0) -> Tensor:
    return detected(seed=seed) if DIVERGENCES[name].picks else 3 * normal(6, 5, seed=seed)


@pytest.mark.parametrize("name", DIVERGENCES)
@few
@seeds
def test_order_of_probes_is_free(name: str, seed: int) -> None:
    kind, old, new = DIVERGENCES[name], outputs_for(name, seed), outputs_for(name, seed + 1)
    order = torch.randperm(len(old), generator=torch.Generator().manual_seed(seed))
    expected = kind.between(kind.keep(old), new)[order]
    torch.testing.assert_close(kind.between(kind.keep(old[order]), new[order]), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_classes_that_were_added_and_are_not_found_are_no_drift(name: str) -> None:
    """They are the last columns, or stand before "no object"; embeddings keep their width."""
    kind, old = DIVERGENCES[name], outputs_for(name)
    parts = [old[..., :-1], old[..., -1:]] if name == "detr" else [old, old[..., :0]]
    grown = torch.cat([parts[0], torch.full_like(old[..., :2], -60.0), parts[1]], -1)
    if name in ("cosine", "similarity"):
        with pytest.raises(InputError, match="embeddings have shape"):
            kind.between(kind.keep(old), grown)
        return
    assert float(kind.between(kind.keep(old), grown).abs().max()) < 1e-4
    assert float(kind.between(kind.keep(old), grown.flip(0)).mean()) > 0.01


# ── settings of a divergence ─────────────────────────────────────────────────────────────────────────────────


def test_settings_of_a_divergence_are_given_by_partial_and_survive_a_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Pixels(2), normal(8, 1, 4, 4)
    last = partial(divergences.segmentation, background=2)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    guard = Guard(model, optimizer, probes=x, divergence=last)
    with torch.no_grad():
        model.layer.bias[1] += 1.0
    drift = guard.drift()
    assert drift > 0.01
    guard.save(tmp_path / "guard")
    guard.detach()
    with pytest.raises(InputError, match="a function of yours: give divergence= again"):
        Guard.load(tmp_path / "guard", model, optimizer, probes=x)
    again = Guard.load(tmp_path / "guard", model, optimizer, probes=x, divergence=last)
    assert again.drift() == pytest.approx(drift)
    again.detach()
    with pytest.raises(InputError, match="a function of yours: give divergence= again"):
        other = partial(divergences.segmentation, background=1)
        Guard.load(tmp_path / "guard", model, optimizer, probes=x, divergence=other)


@pytest.mark.parametrize("name", ["segmentation", "tagging", "ctc", "detection", "detr"])
def test_every_structured_divergence_survives_a_file(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model: nn.Module = Detector() if "det" in name else Pixels(2) if name == "segmentation" else nn.Linear(8, 3)
    x = normal(8, 1, 4, 4) if name == "segmentation" else normal(8, 8)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    guard = Guard(model, optimizer, probes=x, divergence=name)
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(0.7)
    drift = guard.drift()
    guard.save(tmp_path / "guard")
    guard.detach()
    assert Guard.load(tmp_path / "guard", model, optimizer, probes=x).drift() == pytest.approx(drift)
