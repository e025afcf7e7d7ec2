"""What other libraries' steps cost, as ratios to the same minimal loop.

Given figures, measured earlier on a machine of this kind; nothing here measures them. The first figure is with
tensors in memory, the second with the library's usual dataset pipeline; None where there is none. `python -m
benchmarks --against avalanche` measures Avalanche beside us, where it is installed.
"""

from __future__ import annotations

PEERS: dict[str, dict[str, tuple[float | None, float | None]]] = {
    "vanilla": {"Avalanche": (1.6, 4.0), "FACIL": (1.6, 4.7), "Mammoth": (1.9, 4.9)},
    "pi": {
        "Avalanche": (2.6, 4.8),
        "Mammoth": (2.7, 5.8),
        "FACIL": (2.7, 5.9),
        "van de Ven": (None, 4.8),
        "clearn-ai": (2.2, None),
    },
    "ewc++": {"Avalanche": (3.2, 7.4), "Mammoth": (25.0, 31.0)},  # their online EWC
    "rwalk": {"Avalanche": (3.9, 6.0), "FACIL": (3.9, 10.4)},
}
