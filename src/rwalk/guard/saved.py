"""A guard in checkpoints and files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rwalk.guard import io as files
from rwalk.guard.attached import Attached
from rwalk.guard.state import sharded as shards


class Saved(Attached):
    """What was learned can be written down, and gone on from."""

    def state_dict(self) -> dict[str, Any]:
        """All that was learned, for a checkpoint of your own; of sharded parameters, called on all ranks."""
        return self._work.state_dict()

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict` or a file; the model has its weights already, and may have grown since.

        Whatever cannot be right is refused before anything changes.
        """
        assert self._following is not None
        self._work.load_state_dict(state, self.model)
        self._following.forget_failed_step(at_once=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one checked file, all of it or nothing; the model's weights are yours to save."""
        state = self.state_dict()
        sharded = any(shards.groups(piece.parameter) for piece in self._work.learned.guarded)
        try:
            if not sharded or dist.get_rank() == 0:
                files.write(Path(path), state)
        finally:
            if sharded:
                dist.barrier()  # whoever reads it next finds it whole
