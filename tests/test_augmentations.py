"""Augmentations: against literal versions, image by image, and the same however a run is executed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rwalk import Fleet, InputError, Stream, Training, from_arrays, learner
from rwalk.augmentations.crop_flip import PAD, CropFlip
from rwalk.engine.task_plan import batches_of


@pytest.fixture(scope="module")
def stream() -> Stream:
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(4).repeat(30)
    x = torch.randn(4, 3, 8, 8, generator=draw)[y] + torch.randn(120, 3, 8, 8, generator=draw)
    return from_arrays(x, y, classes_per_task=2)


def literal(image: Tensor, down: int, right: int, mirrored: bool) -> Tensor:
    """A window into the image with zeros around it, mirrored or not."""
    channels, height, width = image.shape
    large = torch.zeros(channels, height + 2 * PAD, width + 2 * PAD)
    large[:, PAD : PAD + height, PAD : PAD + width] = image
    window = large[:, down : down + height, right : right + width]
    return window.flip(-1) if mirrored else window


def test_a_crop_is_a_window_into_a_padded_image() -> None:
    x = torch.randn(2, 40, 3, 6, 5, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    draws = torch.stack([CropFlip().draw(1, 40, generator)[0] for _ in range(2)])
    out = CropFlip().apply(x, draws)
    for run in range(2):
        for i in range(40):
            down, right, mirrored = (int(each) for each in draws[run, i])
            assert torch.equal(out[run, i], literal(x[run, i], down, right, bool(mirrored)))
    assert draws[..., :2].unique().tolist() == list(range(2 * PAD + 1)) and draws[..., 2].unique().tolist() == [
        0,
        1,
    ]


def test_runs_see_the_same_crops_alone_and_in_a_fleet(stream: Stream) -> None:
    training = Training(steps=5, batch=8, augment="crop-flip", optimizer="sgd", lr=0.05)
    together = Fleet(stream, "mlp", [learner("rwalk")] * 2, [0, 1], training, dtype=torch.float64)
    together.train()
    for seed in (0, 1):
        alone = Fleet(stream, "mlp", [learner("rwalk")], [seed], training, dtype=torch.float64)
        alone.train()
        torch.testing.assert_close(alone.theta[0], together.theta[seed], rtol=0, atol=1e-10)
    plain = Fleet(stream, "mlp", [learner("rwalk")], [0], Training(steps=5, batch=8, optimizer="sgd", lr=0.05))
    plain.train()
    assert not torch.allclose(plain.theta[0].double(), together.theta[0], atol=1e-4)


def test_squares_of_single_examples_are_of_the_augmented_inputs(stream: Stream) -> None:
    """With α = 1 the Fisher is that of the last batch, whose inputs are drawn again here."""
    training = Training(steps=1, batch=8, augment="crop-flip", optimizer="sgd", lr=0.0 + 1e-12)
    each = learner("ewc++", alpha=1.0, fisher="example", normalize=False)
    fleet = Fleet(stream, "mlp", [each], [0], training, dtype=torch.float64)
    fleet.begin_task()
    ((index, draws),) = batches_of(fleet)
    x, y = fleet.stream.batch(index)
    expected = torch.zeros_like(fleet.theta)
    for image, label in zip(CropFlip().apply(x, draws)[0], y[0], strict=True):
        logits = fleet.net.forward(image[None, None]) + fleet.task_plan.head
        loss = torch.nn.functional.cross_entropy(logits[0], label[None])
        expected += fleet.net.gradient(loss[None]).square() / len(y[0])
    fleet.train_task()
    torch.testing.assert_close(fleet.state["fisher"], expected, rtol=1e-6, atol=1e-12)


def test_crops_are_of_images() -> None:
    vectors = from_arrays(torch.randn(8, 5), torch.arange(4).repeat(2), classes_per_task=2)
    with pytest.raises(InputError, match=r"crop-flip needs images"):
        Fleet(vectors, "mlp", [learner("vanilla")], [0], Training(augment="crop-flip"))
    with pytest.raises(InputError, match="did you mean 'crop-flip'"):
        Fleet(vectors, "mlp", [learner("vanilla")], [0], Training(augment="crop-flp"))
