"""Weights interpolated from a trained model back towards the model before, until drift keeps a limit (WiSE-FT)."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from rwalk.atomic_files import folder_beside, replacing
from rwalk.errors import InputError
from rwalk.guard import Probes
from rwalk.guard.drift.reference import Reference

WEIGHTS = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".gguf",
    ".index.json",
)  # files that are written anew, or left out


@dataclass(frozen=True)
class Rewound:
    """The result of `rewind`.

    Args:
        left: the share of the way from the old weights to the new ones that is left.
        drift_before, drift: on the probes, before and after.
    """

    left: float
    drift_before: float
    drift: float


def rewind(before: nn.Module, after: nn.Module, probes: Probes, max_drift: float) -> Rewound:
    """Interpolate the weights of `after` towards those of `before`, no further than the limit needs.

    Args:
        before: the model before training.
        after: the trained model, changed in place; or the same model with a LoRA adapter.
        probes: inputs; drift is measured from what `before` answers.
        max_drift: the limit, in the unit of the probes' divergence.
    """
    if not max_drift > 0:
        raise InputError(f"the limit of drift must be above 0, not {max_drift:g}")
    reference = _reference(before, after)
    probes.keep(before)
    probes.settle(before, None)
    first = probes.drift(after)
    left = reference.rewind(after, lambda: probes.drift(after) <= max_drift)
    if left is None:
        raise InputError(
            "even with the old weights drift is beyond the limit: the models differ in more than their weights"
        )
    return Rewound(left, first, probes.drift(after))


def _reference(before: nn.Module, after: nn.Module) -> Reference:
    """What the weights of `after` are to become: those of `before`, or an adapter that adds nothing."""
    if not hasattr(after, "peft_config"):
        old, new = before.state_dict(), after.state_dict()
        differing = [name for name in new if name not in old or old[name].shape != new[name].shape]
        if differing or len(old) != len(new):
            name = differing[0] if differing else next(iter(old.keys() - new.keys()))
            raise InputError(f"the two models are not alike: {name} is not in both, or has another shape")
        return Reference(
            {name: tensor.detach().cpu() for name, tensor in old.items() if tensor.is_floating_point()}
        )
    adapters: list[Any] = list(cast(Any, after).peft_config.values())
    kinds = {str(getattr(each.peft_type, "value", each.peft_type)) for each in adapters}
    if kinds != {"LORA"} or any(getattr(each, "use_dora", False) for each in adapters):
        raise InputError(f"adapters can be interpolated if they are LoRA, not {', '.join(sorted(kinds))}")
    found: dict[str, Tensor] = {}
    modules = dict(after.named_parameters())
    for name, parameter in modules.items():
        if "lora_B" in name or "lora_embedding_B" in name:
            found[name] = torch.zeros_like(parameter, device="cpu")
        elif ".modules_to_save." in name:
            path, _, rest = name.partition(".modules_to_save.")
            original = modules[f"{path}.original_module.{rest.partition('.')[2]}"]
            found[name] = original.detach().cpu().clone()
    return Reference(found)


def write_like(model: nn.Module, source: Path, out: Path) -> None:
    """Write a model in the form of the file or folder that it was read from; all of it or nothing."""
    if not source.is_dir():
        from safetensors.torch import save_file

        with replacing(out) as beside:
            # Copies, because a weight may have two names.
            copies = {
                name: each.clone(memory_format=torch.contiguous_format)
                for name, each in model.state_dict().items()
            }
            save_file(copies, beside)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with folder_beside(out) as folder:
        model.save_pretrained(folder)  # type: ignore[operator]
        for file in source.iterdir():  # the tokenizer and the like
            if file.is_file() and not file.name.endswith(WEIGHTS) and not (folder / file.name).exists():
                shutil.copyfile(file, folder / file.name)
        folder.rename(out)
