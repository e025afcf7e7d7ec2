"""Guard in Lightning: `Trainer(callbacks=[guarding])`, one `fit` per task."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from rwalk.errors import InputError
from rwalk.guard.select import selected
from rwalk.integrations.tasks import ModelCall, TaskGuard

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise InputError("this callback is for Lightning: pip install 'rwalk[lightning]'") from error


class GuardCallback(TaskGuard, Callback):
    """Guard a model in Lightning's `Trainer`.

    It takes the options of `rwalk.Guard`::

        guarding = GuardCallback(probes=known_inputs)
        Trainer(callbacks=[guarding]).fit(model, data)
        print(guarding.guard.last_report)

    Checkpoints hold the guard, and `fit(…, ckpt_path=…)` continues with it. The same callback serves one task
    after another, with a new Trainer each. A module with two optimizers takes a callback for each one that is to
    be guarded, with `params=` that this optimizer alone holds.
    """

    _checkpoint: dict[str, Any] | None = None

    @property
    def state_key(self) -> str:
        params = self._options.get("params")
        return type(self).__qualname__ if params is None else f"{type(self).__qualname__}({params!r})"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        state, self._checkpoint = self._checkpoint, None
        resumed = bool(trainer.ckpt_path) and trainer.global_step > 0
        if resumed and state is None and self._file is None:
            raise InputError(
                f"training resumes at step {trainer.global_step}, and its checkpoint holds no guard with these "
                "params: the model that was to be held is not known. Resume from a checkpoint that holds one; to "
                "hold the model as it is now, load its weights and fit without ckpt_path"
            )
        wrapped = trainer.strategy.model
        model = wrapped if isinstance(wrapped, nn.parallel.DistributedDataParallel) else pl_module
        precision = trainer.precision_plugin

        def around(call: ModelCall) -> ModelCall:
            def called(model: Any, batch: Any) -> Any:
                with precision.forward_context():
                    return call(model, precision.convert_input(batch))

            return called

        self.begin_task(model, self._optimizer(trainer, pl_module), state if resumed else None, around=around)

    def _optimizer(self, trainer: Trainer, pl_module: LightningModule) -> Optimizer:
        """The one that holds the guarded parameters."""
        guarded = set(selected(pl_module, self._options.get("params")).values())
        found = [
            optimizer
            for optimizer in trainer.optimizers
            if not guarded.isdisjoint(p for group in optimizer.param_groups for p in group["params"])
        ]
        if len(found) != 1:
            raise InputError(
                f"{len(found)} of {len(trainer.optimizers)} optimizers hold the parameters to guard: give "
                "params=, patterns of the names of parameters that one optimizer holds; a second callback can "
                "guard another"
            )
        return found[0]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log drift, or λ and penalty, as often as the trainer logs."""
        assert self.guard is not None
        steps: int = getattr(trainer, "log_every_n_steps", 50)  # Lightning's own default
        if steps and trainer.global_step % steps == 0:
            pl_module.log_dict(self.guard.log())

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.end_task(pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.guard is None else self.guard.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._checkpoint = state_dict or None
