"""iCaRL as DER's authors compared with it (Mammoth, October 2020): exemplars classify, but are not trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rwalk.classifiers import Classifier, NearestMean
from rwalk.data.batches import Replay
from rwalk.losses.base import Batch
from rwalk.losses.icarl import ICaRL


@dataclass(frozen=True)
class ICaRL2020(ICaRL):
    """iCaRL's loss as a mean over the outputs trained so far, on new examples alone.

    The code that was to add exemplars to a task's data was never called; its authors mended that a month later.
    Features are compared as they are, not made unit length; the sampler that goes with it is `mof-plain`.

    temperature as in ICaRL
    """

    name: ClassVar[str] = "icarl-2020"
    summary: ClassVar[str] = "iCaRL as in DER's comparison of 2020: exemplars classify, but are not trained on"
    replay: ClassVar[Replay | None] = "none"
    classifier: ClassVar[Classifier] = NearestMean(unit=False)

    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        return super().__call__(logits, batch) / (batch.new | batch.old).sum()
