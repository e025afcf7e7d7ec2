"""Guard in Lightning: `Trainer(callbacks=[guarding])`, one `fit` per task."""

from __future__ import annotations

from typing import Any

from rwalk.errors import InputError
from rwalk.integrations.tasks import TaskGuard

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise InputError("this callback is for Lightning: pip install 'rwalk[lightning]'") from error


class GuardCallback(TaskGuard, Callback):
    """Keep it from task to task, with a new Trainer each::

        guarding = GuardCallback(RWalk(lam=1.0))
        for task in tasks:
            Trainer(callbacks=[guarding]).fit(model, task)
        guarding.guard.save("skills.safetensors")

    A checkpoint written within a task holds the guard as well, and a resumed `fit` continues with it.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if len(trainer.optimizers) != 1:
            raise InputError(
                f"this model has {len(trainer.optimizers)} optimizers: give each its own rwalk.Guard, in "
                "the module's on_train_start"
            )
        self.begin_task(pl_module, trainer.optimizers[0])

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """λ, penalty and drift to the module's loggers, as often as these are written to."""
        assert self.guard is not None
        steps: int = getattr(trainer, "log_every_n_steps", 50)  # Lightning's own default
        if self.guard.tasks and steps and trainer.global_step % steps == 0:
            pl_module.log_dict(self.guard.log())

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.end_task(pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.guard is None else self.guard.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._checkpoint = state_dict or None
