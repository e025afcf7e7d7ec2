"""Models and probes from files and folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from rwalk.errors import InputError, first_line
from rwalk.escaping import shown
from rwalk.registry import imported

OWN = "own:"  # how a number of own samples is written
ADAPTER = "adapter_config.json"


def read_model(path: Path, factory: str | None = None, base: Path | None = None) -> nn.Module:
    """The model of a Hugging Face folder, of an adapter's folder, or of a file of weights.

    Args:
        path: the folder, or a .safetensors file.
        factory: package.module:name of a function that makes the network of a .safetensors file.
        base: for an adapter, the folder of the model that it was trained on.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist: give a Hugging Face folder or a .safetensors file")
    try:
        if not path.is_dir():
            return _of_weights(path, factory)
        return _adapted(path, base) if (path / ADAPTER).is_file() else _of_folder(path)
    except InputError:
        raise
    except Exception as error:  # any error of a library that cannot read the file
        reason = shown(" ".join(str(error).split()), 300)
        raise InputError(f"{path} cannot be loaded: {reason}") from error


def read_tokenizer(path: Path) -> Any:
    """The tokenizer in a Hugging Face folder."""
    try:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(path)
    except ImportError as error:
        raise InputError("texts need a tokenizer: pip install 'rwalk[huggingface]'") from error
    except Exception as error:  # whatever transformers raises for a folder without one
        raise InputError(f"{path} has no tokenizer that can be read: {first_line(error)}") from error


def _of_folder(path: Path) -> nn.Module:
    try:
        import transformers
    except ImportError as error:
        raise InputError("a Hugging Face folder needs transformers: pip install 'rwalk[huggingface]'") from error
    transformers.utils.logging.disable_progress_bar()
    kinds = transformers.AutoConfig.from_pretrained(path).architectures or []
    kind = getattr(transformers, kinds[0], None) if kinds else None
    if kind is None:
        raise InputError(f"{path}/config.json names no model that transformers has ({', '.join(kinds) or 'none'})")
    model: nn.Module = kind.from_pretrained(path)
    return model


def _adapted(path: Path, base: Path | None) -> nn.Module:
    try:
        import peft
    except ImportError as error:
        raise InputError("an adapter needs peft: pip install 'rwalk[peft]'") from error
    if base is None or (base / ADAPTER).is_file():
        raise InputError(f"{path} is an adapter: give the folder of the whole model it was trained on as BEFORE")
    model: nn.Module = peft.PeftModel.from_pretrained(_of_folder(base), path, is_trainable=True)
    return model


def _of_weights(path: Path, factory: str | None) -> nn.Module:
    from safetensors.torch import load_file

    if factory is None:
        raise InputError(f"{path} holds weights alone: add --factory package.module:name, which makes the network")
    model = imported(factory, "factory")()
    if not isinstance(model, nn.Module):
        raise InputError(f"factory {factory!r} must return a torch.nn.Module, not {type(model).__name__}")
    model.load_state_dict(load_file(path))
    return model


# ── probes ───────────────────────────────────────────────────────────────────────────────────────────────────


def number_of_own(given: str) -> int | None:
    """64 for "own:64"; None if something else is given."""
    if not given.startswith(OWN):
        return None
    number = given.removeprefix(OWN)
    if not number.isdecimal() or int(number) < 1:
        raise InputError(f"{given}: own: takes a number, as in own:64")
    return int(number)


def read_probes(given: str, model: nn.Module, folder: Path, tokens: int) -> Any:
    """Inputs from a file, or a language model's own samples.

    Args:
        given: a .safetensors, .npy, .npz or .txt file, or own:64.
        model: draws the samples.
        folder: where its tokenizer is, for a text.
        tokens: per sequence, of a text or of own samples.
    """
    number = number_of_own(given)
    if number is not None:
        from rwalk.guard import own_samples

        return own_samples(model, None, number, tokens)
    path = Path(given)
    readers: dict[str, Callable[[Path], Any]] = {
        ".txt": lambda path: _text(path, folder, tokens),
        ".safetensors": _tensors,
        ".npy": _array,
        ".npz": _arrays,
    }
    if not path.is_file() or path.suffix not in readers:
        raise InputError(f"--probes {given}: give a file ending in {', '.join(readers)}, or own:64")
    try:
        return readers[path.suffix](path)
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise InputError(f"--probes {given} cannot be read: {first_line(error)}") from error


def _text(path: Path, folder: Path, tokens: int) -> Any:
    ids = torch.tensor(read_tokenizer(folder)(path.read_text(encoding="utf-8"))["input_ids"])
    whole = len(ids) // tokens
    return {"input_ids": ids[: whole * tokens].view(whole, tokens) if whole else ids[None]}


def _tensors(path: Path) -> Any:
    """One tensor is the input; several are keywords. Tokens are keywords too."""
    from safetensors.torch import load_file

    found = load_file(path)
    return next(iter(found.values())) if len(found) == 1 and "input_ids" not in found else found


def _array(path: Path) -> Any:
    import numpy as np

    return torch.from_numpy(np.load(path, allow_pickle=False))


def _arrays(path: Path) -> Any:
    import numpy as np

    with np.load(path, allow_pickle=False) as file:
        found = {name: torch.from_numpy(file[name]) for name in file.files}
    return next(iter(found.values())) if len(found) == 1 else found
