"""The guard of YOLOs, with a trainer that calls the same callbacks, and with ultralytics where it is installed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rwalk import InputError
from rwalk.integrations.ultralytics import YoloGuard, put


class Head(nn.Module):
    """As a YOLO's: the width of the class branch may depend on the number of classes."""

    def __init__(self, classes: int, nms: bool) -> None:
        super().__init__()
        self.nms, width = nms, 16 + classes
        self.boxes = nn.Conv2d(8, 4, 1)
        self.scores = nn.Sequential(nn.Conv2d(8, width, 1), nn.BatchNorm2d(width), nn.Conv2d(width, classes, 1))

    def forward(self, features: Tensor) -> Any:
        boxes, logits = self.boxes(features).flatten(2).sigmoid() * 32, self.scores(features).flatten(2)
        if self.training:
            return {"boxes": boxes, "scores": logits}
        if self.nms:
            return torch.cat([boxes, logits.sigmoid()], 1), {"scores": logits}
        low, high = (boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2)
        each = [torch.cat([low, high, sure[:, None], torch.full_like(sure[:, None], kind)], 1)
                for kind, sure in enumerate(logits.sigmoid().unbind(1))]  # fmt: skip
        return torch.cat(each, 2).movedim(1, 2), {"scores": logits}


def yolo(classes: int = 2, nms: bool = True) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, 4, 1), nn.BatchNorm2d(8), nn.SiLU(), Head(classes, nms))


class Yolo:
    """What `YoloGuard` uses of `ultralytics.YOLO`; `train` calls what its trainer calls, in that order."""

    task = "detect"

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        self.model, self.names = model, dict(enumerate(names))
        self.callbacks: dict[str, list[Callable[[Any], None]]] = defaultdict(list)

    def add_callback(self, event: str, func: Callable[[Any], None]) -> None:
        self.callbacks[event].append(func)

    def train(self, names: list[str], steps: int = 60, nms: bool = True, resume: bool = False) -> Any:
        torch.manual_seed(1)
        model = yolo(len(names), nms).train()
        images = (255 * torch.rand(24, 3, 32, 32)).byte()
        trainer = SimpleNamespace(
            model=model,
            ema=SimpleNamespace(ema=yolo(len(names), nms)),
            data={"names": dict(enumerate(names))},
            optimizer=torch.optim.AdamW(model.parameters(), 1e-2),
            train_loader=[{"img": part} for part in images.split(8)],
            preprocess_batch=lambda batch: {"img": batch["img"].float() / 255},
            batch_size=8,
            device=torch.device("cpu"),
            resume=resume,
        )
        for each in self.callbacks["on_pretrain_routine_end"]:
            each(trainer)
        self.begun = {name: each.clone() for name, each in model.state_dict().items()}
        for step in range(steps):  # the last class is where the image is bright
            x = trainer.preprocess_batch(trainer.train_loader[step % 3])["img"]
            bright = (nn.functional.avg_pool2d(x.mean(1), 4).flatten(1) > 0.5).float()
            nn.functional.binary_cross_entropy_with_logits(model(x)["scores"][:, -1], bright).backward()
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
        for each in self.callbacks["on_train_end"]:
            each(trainer)
        return trainer


def sure_of_old_classes(nms: bool) -> nn.Module:
    torch.manual_seed(0)
    model = yolo(2, nms)
    with torch.no_grad():
        model[-1].scores[-1].weight.mul_(8)
    return model


@pytest.mark.parametrize("nms", [True, False])
def test_yolo_starts_from_old_weights_and_keeps_old_detections(nms: bool) -> None:
    x = torch.rand(16, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    moved = {}
    for guarded in (True, False):
        old = sure_of_old_classes(nms)
        given = Yolo(old, ["cat", "dog"])
        guarding = YoloGuard(given, n=32)
        if not guarded:
            given.callbacks["on_pretrain_routine_end"] = [lambda t, old=old: put(old.state_dict(), t.model)]
            given.callbacks["on_train_end"] = []
        trained = given.train(["cat", "dog", "owl"], nms=nms)
        start = yolo(3, nms)
        start.load_state_dict(given.begun)
        with torch.no_grad():
            before = old.eval()(x)[1]["scores"]
            torch.testing.assert_close(start.eval()(x)[1]["scores"][:, :2], before)
            if guarded:
                ema = trained.ema.ema.eval()(x)[1]["scores"][:, :2]
                torch.testing.assert_close(ema, before)
            after = trained.model.eval()(x)[1]["scores"][:, :2]
            moved[guarded] = float((after.sigmoid() - before.sigmoid()).abs().mean())
    assert moved[True] < 0.6 * moved[False]
    assert guarding.guard is None  # the one whose callbacks were removed


def test_yolo_guard_reports_and_leaves_no_hook() -> None:
    given = Yolo(sure_of_old_classes(True), ["cat", "dog"])
    guarding = YoloGuard(given, probes=torch.rand(8, 3, 32, 32))
    with pytest.raises(InputError, match="no training with this guard has ended; on several GPUs"):
        _ = guarding.report
    trainer = given.train(["cat", "dog", "owl"], steps=8)
    assert "drift" in str(guarding.report)
    hooks = (trainer.optimizer._optimizer_step_pre_hooks, trainer.optimizer._optimizer_step_post_hooks)
    assert not any(hooks)


def test_yolo_guard_refuses_what_it_cannot_hold() -> None:
    model = sure_of_old_classes(True)
    with pytest.raises(InputError, match=r"first classes of the data must be .* in its order: cat, dog"):
        given = Yolo(model, ["cat", "dog"])
        YoloGuard(given)
        given.train(["dog", "cat", "owl"])
    with pytest.raises(InputError, match="cannot be resumed"):
        given = Yolo(model, ["cat", "dog"])
        YoloGuard(given)
        given.train(["cat", "dog", "owl"], resume=True)
    with pytest.raises(InputError, match=r"give YOLO\('best\.pt'\), with task 'detect'"):
        YoloGuard(SimpleNamespace(task="segment", model=model))


TINY = """
nc: 2
depth_multiple: 1.0
width_multiple: 1.0
backbone:
  - [-1, 1, Conv, [8, 3, 4]]
  - [-1, 1, Conv, [16, 3, 2]]
head:
  - [[1], 1, Detect, [nc]]
"""


@pytest.mark.slow
@pytest.mark.parametrize("first_line", ["", "end2end: True\n"])
def test_real_yolo_trains_with_the_guard(first_line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path))
    ultralytics = pytest.importorskip("ultralytics", exc_type=Exception)
    image = pytest.importorskip("PIL.Image")
    for part in ("images", "labels"):
        (tmp_path / part).mkdir()
    for number in range(20):
        image.new("RGB", (64, 64), (number * 12, 0, 99)).save(tmp_path / "images" / f"{number}.png")
        (tmp_path / "labels" / f"{number}.txt").write_text("2 0.5 0.5 0.5 0.5\n")
    data = tmp_path / "grown.yaml"
    data.write_text(f"path: {tmp_path}\ntrain: images\nval: images\nnames: [cat, dog, owl]\n")
    (tmp_path / "tiny.yaml").write_text(first_line + TINY)
    model = ultralytics.YOLO(tmp_path / "tiny.yaml")
    model.model.names = {0: "cat", 1: "dog"}
    guarding = YoloGuard(model, n=16)
    common = {"imgsz": 64, "batch": 10, "workers": 0, "amp": False, "nbs": 10, "project": str(tmp_path)}
    model.train(data=str(data), epochs=4, device="cpu", plots=False, val=False, **common)
    assert guarding.guard is not None
    assert "8 steps" in str(guarding.report)
