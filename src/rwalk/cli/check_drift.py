"""`rwalk check`: how far one checkpoint has drifted from another, so that a pipeline can stop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rwalk.cli.trust import let_import

if TYPE_CHECKING:
    from torch import nn

OWN = "own:"


def check(
    before: Annotated[Path, typer.Argument(help="a Hugging Face folder, or a .safetensors file (with --factory)")],
    after: Annotated[Path, typer.Argument(help="the same, after training")],
    probes: Annotated[
        str,
        typer.Option(
            help="inputs: .safetensors, .npy, .npz; for a language model also .txt, or own:64, its own samples"
        ),
    ],
    max_drift: Annotated[float, typer.Option(help="the limit, in nats: mean KL(before ‖ after)")] = 0.05,
    factory: Annotated[
        str | None, typer.Option(help="package.module:name of a function that makes the network of the weights")
    ] = None,
    tokens: Annotated[int, typer.Option(help="per sequence, of a text or of own samples")] = 256,
) -> None:
    """Compare the predictions of two checkpoints: exit code 1 if they differ by more than a limit.

    Drift is the mean divergence KL(before ‖ after) of the predictions on the probes. Exit code 2: wrong input.
    """
    from rwalk.errors import InputError
    from rwalk.guard.drift.probes import Probes

    let_import([factory or ""])
    if not max_drift > 0:
        raise InputError(f"--max-drift must be above 0, not {max_drift:g}")
    old = _model(before, factory)
    kept = Probes(_probes(probes, old, before, tokens))
    kept.keep(old)
    kept.settle(old, None)
    drift = kept.drift(_model(after, factory))
    within = drift <= max_drift
    print(f"drift {drift:.4f} nats on {kept.examples} probes: {'within' if within else 'beyond'} {max_drift:g}")
    if not within:
        raise typer.Exit(1)


def _model(path: Path, factory: str | None) -> nn.Module:
    from rwalk.errors import InputError, first_line

    if not path.exists():
        raise InputError(f"{path} does not exist: give a Hugging Face folder or a .safetensors file")
    try:
        return _of_folder(path) if path.is_dir() else _of_file(path, factory)
    except InputError:
        raise
    except Exception as error:  # any error of a library that cannot read the file
        raise InputError(f"{path} cannot be loaded: {first_line(error)}") from error


def _of_folder(path: Path) -> nn.Module:
    from rwalk.errors import InputError

    try:
        import transformers
    except ImportError as error:
        raise InputError("a Hugging Face folder needs transformers: pip install 'rwalk[huggingface]'") from error
    kinds = transformers.AutoConfig.from_pretrained(path).architectures or []
    kind = getattr(transformers, kinds[0], None) if kinds else None
    if kind is None:
        raise InputError(f"{path}/config.json names no model that transformers has ({', '.join(kinds) or 'none'})")
    model: nn.Module = kind.from_pretrained(path)
    return model


def _of_file(path: Path, factory: str | None) -> nn.Module:
    from safetensors.torch import load_file
    from torch import nn

    from rwalk.errors import InputError
    from rwalk.registry import imported

    if factory is None:
        raise InputError(f"{path} holds weights alone: add --factory package.module:name, which makes the network")
    model = imported(factory, "factory")()
    if not isinstance(model, nn.Module):
        raise InputError(f"factory {factory!r} must return a torch.nn.Module, not {type(model).__name__}")
    model.load_state_dict(load_file(path))
    return model


def _probes(given: str, model: nn.Module, folder: Path, tokens: int) -> Any:
    from rwalk.errors import InputError

    if given.startswith(OWN):
        from rwalk.guard import own_samples

        number = given.removeprefix(OWN)
        if not number.isdigit():
            raise InputError(f"--probes {given}: own: takes a number, as in own:64")
        return own_samples(model, None, int(number), tokens)
    path = Path(given)
    readers = {".txt": _text, ".safetensors": _tensors, ".npy": _array, ".npz": _arrays}
    if not path.is_file() or path.suffix not in readers:
        raise InputError(f"--probes {given}: give a file ending in {', '.join(readers)}, or own:64")
    try:
        return readers[path.suffix](path, folder, tokens)
    except (OSError, ValueError) as error:
        raise InputError(f"--probes {given} cannot be read: {error}") from error


def _text(path: Path, folder: Path, tokens: int) -> Any:
    import torch
    from transformers import AutoTokenizer

    ids = torch.tensor(AutoTokenizer.from_pretrained(folder)(path.read_text(encoding="utf-8"))["input_ids"])
    whole = len(ids) // tokens
    return {"input_ids": ids[: whole * tokens].view(whole, tokens) if whole else ids[None]}


def _tensors(path: Path, folder: Path, tokens: int) -> Any:
    """One tensor is the input; several are keywords."""
    from safetensors.torch import load_file

    found = load_file(path)
    return next(iter(found.values())) if len(found) == 1 else found


def _array(path: Path, folder: Path, tokens: int) -> Any:
    import numpy as np
    import torch

    return torch.from_numpy(np.load(path, allow_pickle=False))


def _arrays(path: Path, folder: Path, tokens: int) -> Any:
    import numpy as np
    import torch

    with np.load(path, allow_pickle=False) as file:
        found = {name: torch.from_numpy(file[name]) for name in file.files}
    return next(iter(found.values())) if len(found) == 1 else found
