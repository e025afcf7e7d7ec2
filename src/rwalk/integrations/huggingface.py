"""Guard in Hugging Face's Trainer, and in TRL's: `Trainer(callbacks=[guarding])`, one `train` per task."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from torch import nn

from rwalk.before_after.skills import Scores, Skills, SkillsReport
from rwalk.errors import InputError
from rwalk.integrations.tasks import FILE, TaskGuard

try:
    from transformers import Trainer, TrainerCallback
    from transformers import TrainerControl as Control
    from transformers import TrainerState as State
    from transformers import TrainingArguments as Arguments
except ImportError as error:
    raise InputError("this callback is for Hugging Face's Trainer: pip install 'rwalk[huggingface]'") from error


SCORES = "skills.json"  # the scores of the model before training, in every checkpoint


class GuardCallback(TaskGuard, TrainerCallback):
    """Guard a model in `Trainer`, or in TRL's trainers.

    It takes the options of `rwalk.Guard`::

        guarding = GuardCallback(probes="own-samples")
        Trainer(model, args, train_dataset=data, callbacks=[guarding]).train()
        print(guarding.guard.last_report)

    Every checkpoint gets a `guard.safetensors`, and `train(resume_from_checkpoint=True)` continues with it. At the
    end of training another one is written into `output_dir`: with `GuardCallback(load=output_dir)` the next task
    continues from there. Within one process the same callback serves one task after another, with a new Trainer
    each.
    """

    def on_train_begin(self, args: Arguments, state: State, control: Control, **trained: Any) -> None:
        trainer, checkpoint = _caller()
        model = trained["model"]
        if trainer is not None:
            callbacks = trainer.callback_handler.callbacks  # in this order: trackers must come after this one
            callbacks.remove(self)
            callbacks.insert(0, self)
            if isinstance(trainer.model_wrapped, nn.parallel.DistributedDataParallel):
                model = trainer.model_wrapped
        saved = self._saved(args, state, checkpoint) if state.global_step else None
        self.begin_task(model, trained["optimizer"], saved, trained.get("processing_class"))

    def _saved(self, args: Arguments, state: State, checkpoint: str | None) -> Path:
        """The guard's file in the checkpoint that training resumes from."""
        folder = Path(checkpoint) if checkpoint else _folder(args, state)
        if (folder / FILE).is_file():
            return folder / FILE
        if self._file is not None:
            return self._file
        raise InputError(
            f"training resumes at step {state.global_step}, and {folder} has no {FILE}, so the model to hold is "
            "not known. If training was killed while this checkpoint was written, delete the folder and resume "
            "from the one before. Otherwise give load=, the file of an older guard; or, to hold the model as it "
            "is now, load its weights and train without resume_from_checkpoint"
        )

    def on_log(
        self,
        args: Arguments,
        state: State,
        control: Control,
        logs: dict[str, float] | None = None,
        **trained: Any,
    ) -> None:
        """Add drift, or λ and penalty, to each report of the loss."""
        if logs is not None and "loss" in logs and self.guard is not None:
            found = self.guard.log()
            logs.update(found)
            state.log_history[-1].update(found)

    def on_save(self, args: Arguments, state: State, control: Control, **trained: Any) -> None:
        assert self.guard is not None
        if not state.is_hyper_param_search:  # whose runs are not resumed
            self.guard.save(_folder(args, state) / FILE)

    def on_train_end(self, args: Arguments, state: State, control: Control, **trained: Any) -> None:
        self.end_task(trained["model"])
        assert self.guard is not None and args.output_dir is not None
        if args.save_strategy != "no" and not state.is_hyper_param_search:
            self.guard.save(Path(args.output_dir) / FILE)


class SkillsCallback(TrainerCallback):
    """Watch which skills a language model loses in `Trainer`.

    The questions are scored when training begins, at every evaluation and at the end::

        watching = SkillsCallback(rwalk.Skills.read("skills.jsonl", tokenizer))
        Trainer(model, args, …, callbacks=[watching]).train()
        print(watching.report)

    Evaluations report "skills/NAME/right" and "skills/NAME/nats", to trackers too.

    Args:
        skills: the questions; None for 64 that the model makes itself before training.
    """

    def __init__(self, skills: Skills | None = None) -> None:
        self.skills = skills
        self.before: Scores | None = None
        self.report: SkillsReport | None = None

    def on_train_begin(self, args: Arguments, state: State, control: Control, **trained: Any) -> None:
        trainer, checkpoint = _caller()
        if trainer is not None:
            callbacks = trainer.callback_handler.callbacks
            callbacks.sort(key=lambda each: not isinstance(each, TaskGuard | SkillsCallback))  # before trackers
        if state.global_step:  # the model is half trained: its first scores are in the checkpoint
            self.skills, self.before = Skills.load(
                (Path(checkpoint) if checkpoint else _folder(args, state)) / SCORES
            )
            return
        model = trained["model"]
        if self.skills is None:
            self.skills = Skills.own(model, trained.get("processing_class"))
        self.before = self.skills.score(model)

    def on_log(
        self,
        args: Arguments,
        state: State,
        control: Control,
        logs: dict[str, float] | None = None,
        **trained: Any,
    ) -> None:
        """Add the scores to each report of an evaluation."""
        if logs is not None and "eval_loss" in logs and self.before is not None:
            for each in self._compared(trained["model"]).skills:
                found = {
                    f"skills/{each.name}/right": each.right.after,
                    f"skills/{each.name}/nats": each.nats.after,
                }
                logs.update(found)
                state.log_history[-1].update(found)

    def on_save(self, args: Arguments, state: State, control: Control, **trained: Any) -> None:
        assert self.skills is not None and self.before is not None
        if not state.is_hyper_param_search:
            self.skills.save(_folder(args, state) / SCORES, self.before)

    def on_train_end(self, args: Arguments, state: State, control: Control, **trained: Any) -> None:
        self._compared(trained["model"])

    def _compared(self, model: nn.Module) -> SkillsReport:
        assert self.skills is not None and self.before is not None
        self.report = self.skills.compare(self.before, self.skills.score(model))
        return self.report


def _folder(args: Arguments, state: State) -> Path:
    assert args.output_dir is not None
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _caller() -> tuple[Trainer | None, str | None]:
    """The trainer at work and the checkpoint it resumes from, which callbacks are not given."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        found = frame.f_locals
        if "resume_from_checkpoint" in found and isinstance(found.get("self"), Trainer):
            return found["self"], found["resume_from_checkpoint"]
        frame = frame.f_back
    return None, None
