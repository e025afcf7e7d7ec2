"""Guard in trainers that own the loop, as callbacks: `lightning.GuardCallback` and `huggingface.GuardCallback`.

One call of the trainer is one task. Everything within a step is left to the optimizer's hooks: nothing here
depends on where a trainer accumulates, clips or scales.
"""
