"""Herding 500 exemplars from 5,000 images of 512 features for 10 runs, against Algorithm 4 as written."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from rwalk.data.samplers import mean_of_features


def literal(features: NDArray[np.float32], m: int) -> list[int]:
    """iCaRL's Algorithm 4 for one class of one run, image by image, in float64."""
    phi = features.astype(np.float64)
    phi /= np.linalg.norm(phi, axis=1, keepdims=True)
    mu, total = phi.mean(axis=0), np.zeros(phi.shape[1])
    left, kept = list(range(len(phi))), []
    for k in range(1, m + 1):
        distances = [np.linalg.norm(mu - (total + phi[i]) / k) for i in left]
        nearest = left.pop(int(np.argmin(distances)))
        kept.append(nearest)
        total += phi[nearest]
    return kept


def bench(
    runs: int = 10, images: int = 5_000, width: int = 512, m: int = 500, literal_m: int = 50
) -> dict[str, float | bool]:
    """Seconds of both, on one thread.

    The literal version spends the same time on every exemplar and every run, so it is timed on the first
    `literal_m` exemplars of the first run, which must be ours too, and scaled to all of them.
    """
    features = torch.randn(runs, images, width, generator=torch.Generator().manual_seed(0)).relu()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    start = perf_counter()
    kept = mean_of_features(features, m)
    batched_s = perf_counter() - start
    torch.set_num_threads(threads)

    start = perf_counter()
    expected = literal(features[0].numpy(), literal_m)
    literal_s = (perf_counter() - start) * runs * m / literal_m
    return {
        "batched_s": batched_s,
        "literal_s": literal_s,
        "speedup": literal_s / batched_s,
        "same": kept[0, :literal_m].tolist() == expected,
    }


if __name__ == "__main__":
    print(
        "herding 500 of 5,000 images for 10 runs: {batched_s:.1f} s, literally {literal_s:.0f} s (scaled), "
        "{speedup:.0f}× faster, same exemplars: {same}".format(**bench())
    )
