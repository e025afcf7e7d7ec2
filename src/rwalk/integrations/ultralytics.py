"""Guard in ultralytics' trainer: a YOLO gets new classes and keeps those it has.

It uses public callbacks and attributes of the `ultralytics.YOLO` it is given, and of its trainer. The package
itself is not imported here. Tested with ultralytics 8.4.190 on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rwalk.data.distorted_images import distorted
from rwalk.errors import InputError
from rwalk.guard import Anchor, Guard, Probes
from rwalk.guard.report import Report
from rwalk.guard.select import unwrapped

MOST = 300  # detections per image that are compared, the most confident ones


class YoloGuard:
    """Guards the next `yolo.train(…)`, whose data have the old classes first and new ones after them.

    When training begins, the old weights are put into the grown model, because the trainer draws every layer anew
    whose size depends on the number of classes. Then the old classes are held on the probes::

        yolo = YOLO("best.pt")
        guarding = YoloGuard(yolo)
        yolo.train(data="grown.yaml", epochs=20)
        print(guarding.report)

    Args:
        yolo: an `ultralytics.YOLO` that detects.
        probes: images [n, 3, height, width] between 0 and 1. By default the new training images, distorted.
        n: the number of probes that are made of training images.
        method: see `rwalk.Guard`.
    """

    def __init__(
        self, yolo: Any, probes: Tensor | None = None, *, n: int = 256, method: Anchor | None = None
    ) -> None:
        if getattr(yolo, "task", None) != "detect" or not isinstance(getattr(yolo, "model", None), nn.Module):
            raise InputError("YoloGuard holds a trained detector: give YOLO('best.pt'), with task 'detect'")
        self.guard: Guard | None = None
        self._names = list(yolo.names.values())
        self._weights = {name: each.detach().clone() for name, each in yolo.model.state_dict().items()}
        self._probes, self._n, self._method = probes, n, method
        self._report: Report | None = None
        yolo.add_callback("on_pretrain_routine_end", self._begin)
        yolo.add_callback("on_train_end", self._end)

    @property
    def report(self) -> Report:
        """How far the detections of old classes have moved."""
        if self._report is None:
            raise InputError(
                "no training with this guard has ended; on several GPUs the trainer starts processes that have no "
                "callbacks: train on one device"
            )
        return self._report

    def _begin(self, trainer: Any) -> None:
        names = list(trainer.data["names"].values())
        if names[: len(self._names)] != self._names:
            raise InputError(
                f"the first classes of the data must be those of the model, in its order: {', '.join(self._names)}"
            )
        if trainer.resume:
            raise InputError("a guarded training cannot be resumed: begin again with the old model")
        for model in (unwrapped(trainer.model), trainer.ema.ema):
            put(self._weights, model)
        images = self._images(trainer) if self._probes is None else self._probes
        probes = Probes(
            images.to(trainer.device), divergence="detection", call=self._detections, batch=trainer.batch_size
        )
        self.guard = Guard(trainer.model, trainer.optimizer, self._method, probes=probes)

    def _end(self, trainer: Any) -> None:
        assert self.guard is not None
        self._report = self.guard.finish()

    def _images(self, trainer: Any) -> Tensor:
        """Training images as the trainer feeds them to the model, distorted."""
        found: list[Tensor] = []
        for batch in trainer.train_loader:
            found.append(trainer.preprocess_batch(batch)["img"].float())
            if sum(map(len, found)) >= self._n:
                break
        return distorted(torch.cat(found), self._n)

    def _detections(self, model: nn.Module, images: Tensor) -> Tensor:
        """The most confident detections of old classes, [images, detections, 4 + classes], boxes and logits."""
        output = model(images)
        found = output[0] if isinstance(output, tuple | list) else output
        classes = len(self._names)
        if found.shape[-1] == 6:  # without NMS: corners, a score, and its class
            low, high, score, kind = found.split([2, 2, 1, 1], -1)
            boxes = torch.cat([(low + high) / 2, high - low], -1)
            scores = score * (kind == torch.arange(classes, device=kind.device))
        else:
            boxes, scores = found.movedim(1, 2)[..., : 4 + classes].split([4, classes], -1)
        chosen = scores.amax(-1).topk(min(MOST, scores.shape[1])).indices[..., None]
        packed = torch.cat([boxes, scores.float().logit(1e-6)], -1)
        return packed.gather(1, chosen.expand(-1, -1, packed.shape[-1]))


@torch.no_grad()
def put(weights: Mapping[str, Tensor], model: nn.Module) -> None:
    """Copy old weights into a model with more classes, so that its scores of old classes stay the same."""
    for name, now in model.state_dict().items():
        then = weights[name].to(now)
        if then.shape != now.shape and now.ndim > 1:
            now[: len(then)] = 0.0  # old outputs get nothing from new inputs
        now[tuple(slice(side) for side in then.shape)] = then
