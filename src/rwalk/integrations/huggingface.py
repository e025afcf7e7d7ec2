"""Guard in Hugging Face's Trainer: `Trainer(callbacks=[guarding])`, one `train` per task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rwalk.errors import InputError
from rwalk.integrations.tasks import TaskGuard

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise InputError("this callback is for Hugging Face's Trainer: pip install 'rwalk[huggingface]'") from error

FILE = "guard.safetensors"  # beside a checkpoint's other files


class GuardCallback(TaskGuard, TrainerCallback):
    """Keep it from task to task, with a new Trainer each::

        guarding = GuardCallback(RWalk(lam=1.0), params="*lora_*")
        for task in tasks:
            Trainer(model, args, train_dataset=task, callbacks=[guarding]).train()
        guarding.guard.save("skills.safetensors")

    Every checkpoint gets a `guard.safetensors`; give it as `load=` where training resumes from that checkpoint.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trained: Any
    ) -> None:
        self.begin_task(trained["model"], trained["optimizer"])

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **trained: Any,
    ) -> None:
        """λ, penalty and drift beside the loss; trackers that Trainer sets up itself have logged by then."""
        if logs is not None and "loss" in logs and self.guard is not None and self.guard.tasks:
            logs.update(self.guard.log())
            if state.log_history:
                state.log_history[-1].update(self.guard.log())

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trained: Any
    ) -> None:
        assert self.guard is not None and args.output_dir is not None
        self.guard.save(Path(args.output_dir) / f"checkpoint-{state.global_step}" / FILE)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **trained: Any
    ) -> None:
        self.end_task(trained["model"])
