"""How long one waits before anything happens: medians over fresh processes, which take turns."""

from __future__ import annotations

import subprocess
import sys
from statistics import median
from time import perf_counter

from benchmarks.rounds import Contender, interleaved

HELP = "import sys; sys.argv = ['rwalk', '--help']; from rwalk.cli import main; main()"
METHODS = HELP.replace("--help", "methods")
TORCH = "import torch"
FACE = "import torch, rwalk"
EVERYTHING = "import torch, rwalk; [getattr(rwalk, name) for name in rwalk.__all__]"


def process(script: str) -> Contender:
    def contender() -> float:
        start = perf_counter()
        subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)
        return perf_counter() - start

    return contender


def bench(rounds: int = 7) -> dict[str, float]:
    """Seconds: `rwalk --help` and `rwalk methods` as a whole; what importing rwalk adds to importing torch.

    `import rwalk` is lazy, so the price of every public name, once it is touched, is given beside it.
    """
    scripts = {"help": HELP, "methods": METHODS, "torch": TORCH, "face": FACE, "everything": EVERYTHING}
    times = interleaved({name: process(script) for name, script in scripts.items()}, rounds)

    def beyond_torch(name: str) -> float:
        return median(own - torch for own, torch in zip(times[name], times["torch"], strict=True))

    return {
        "help_s": median(times["help"]),
        "methods_s": median(times["methods"]),
        "torch_s": median(times["torch"]),
        "import_s": beyond_torch("face"),
        "every_name_s": beyond_torch("everything"),
    }


if __name__ == "__main__":
    print(bench())
