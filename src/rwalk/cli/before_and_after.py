"""`rwalk check`, `rewind` and `probes`: a model before and after training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rwalk.atomic_files import replacing, write_atomically, writing
from rwalk.cli.command_options import Device, check_spares, checked_device, let_import, say, told_warnings
from rwalk.errors import InputError, first_line

if TYPE_CHECKING:
    from torch import nn

    from rwalk.before_after.skills import Skills

Before = Annotated[Path, typer.Argument(help="a Hugging Face folder, or a .safetensors file (with --factory)")]
After = Annotated[Path, typer.Argument(help="the same after training, or the folder of an adapter")]
PROBES = "inputs: .safetensors, .npy, .npz; for a language model also .txt, or own:64, its own samples"
Factory = Annotated[
    str | None, typer.Option(help="package.module:name of a function that makes the network of the weights")
]
GIVE = ": give another name"
Tokens = Annotated[int, typer.Option(help="per sequence, of a text or of own samples")]


@told_warnings()
def check(
    before: Before,
    after: After,
    probes: Annotated[str | None, typer.Option(help=PROBES)] = None,
    skills: Annotated[
        str | None,
        typer.Option(
            help="questions with answers, a .jsonl file; or own:64, beginnings of own samples and how they went on"
        ),
    ] = None,
    max_drift: Annotated[
        float, typer.Option(help="the limit, in nats: mean KL(before ‖ after), or the loss of a skill's answers")
    ] = 0.05,
    factory: Factory = None,
    tokens: Tokens = 256,
    device: Device = "auto",
    json_file: Annotated[Path | None, typer.Option("--json", help="write the result into this file")] = None,
    page: Annotated[Path | None, typer.Option(help="write the table of skills as an HTML page")] = None,
) -> None:
    """Compare two checkpoints: exit code 1 if they differ by more than a limit, or a skill is lost.

    Drift is the mean divergence KL(before ‖ after) of the predictions on the probes. A skill is lost if its share
    of right answers fell, or the loss of its answers rose by more than the limit, by more than chance. Exit code
    2: wrong input.
    """
    let_import([factory or ""])
    _check_limit(max_drift)
    if probes is None and skills is None:
        raise InputError("give --probes, to measure drift, or --skills, to see which skills are lost")
    if page is not None and skills is None:
        raise InputError("--page shows skills: add --skills")
    read = [before, after, *(Path(each) for each in (probes, skills) if each)]
    check_spares("--json", json_file, read)
    check_spares("--page", page, [*read, *([json_file] if json_file else [])])
    asked = None if skills is None else _questions(skills, before)
    old, new = _models(before, after, factory, device)
    found: dict[str, object] = {"before": str(before), "after": str(after), "max_drift": max_drift}
    within = True
    if probes is not None:
        from rwalk.before_after.read_models import read_probes
        from rwalk.guard.drift.probes import Probes

        kept = Probes(read_probes(probes, old, before, tokens), divergence="kl")
        kept.keep(old)
        kept.settle(old, None)
        with _comparing(before, after):
            drift = kept.drift(new)
        within = drift <= max_drift
        found |= {"drift": drift if isfinite(drift) else None, "probes": kept.examples}
        print(
            f"drift {drift:.4f} nats on {kept.examples} probes: {'within' if within else 'beyond'} {max_drift:g}"
        )
    if skills is not None:
        from rwalk.before_after.read_models import number_of_own, read_tokenizer
        from rwalk.before_after.skills import Skills

        questions = asked or Skills.own(old, read_tokenizer(before), number_of_own(skills) or 1)
        with _comparing(before, after):
            report = questions.compare(questions.score(old), questions.score(new), max_drift)
        within &= not report.lost
        found |= report.to_dict()
        print(report)
        say(f"lost: {', '.join(report.lost)}" if report.lost else "no skill is lost")
        if page is not None:
            with writing(page, GIVE):
                write_atomically(page, report.page(f"Skills of {after.name} beside {before.name}"))
    if json_file is not None:
        with writing(json_file, GIVE):
            write_atomically(json_file, json.dumps(found, indent=1) + "\n")
    if not within:
        raise typer.Exit(1)


@told_warnings()
def rewind(
    before: Before,
    after: After,
    out: Annotated[Path, typer.Option(help="a new folder, or a new .safetensors file")],
    probes: Annotated[str, typer.Option(help=PROBES)] = "own:64",
    max_drift: Annotated[float, typer.Option(help="the limit, in nats: mean KL(before ‖ result)")] = 0.05,
    factory: Factory = None,
    tokens: Tokens = 256,
    device: Device = "auto",
) -> None:
    """Interpolate trained weights back towards the old ones until drift is within a limit (WiSE-FT).

    It works for models of any trainer. A guard during training learns more at the same drift.
    """
    from rwalk.before_after.read_models import read_probes
    from rwalk.before_after.rewind import rewind as rewound
    from rwalk.before_after.rewind import write_like
    from rwalk.guard.drift.probes import Probes

    let_import([factory or ""])
    _check_limit(max_drift)
    if out.exists():
        raise InputError(f"{out} exists already: give a new name")
    old, new = _models(before, after, factory, device)
    inputs = Probes(read_probes(probes, old, before, tokens), divergence="kl")
    with _comparing(before, after):
        result = rewound(old, new, inputs, max_drift)
    with writing(out, GIVE):
        write_like(new, after, out)
    say(
        f"drift {result.drift_before:.4f} → {result.drift:.4f} nats on {inputs.examples} probes; "
        f"{result.left:.0%} of the way from {before} to {after} is left; written to {out}"
    )


def probes(
    model: Before,
    out: Annotated[Path, typer.Option(help="a new .safetensors file")],
    n: Annotated[int, typer.Option("--n", help="how many sequences")] = 256,
    tokens: Tokens = 256,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="of the draws")] = 0,
    device: Device = "auto",
) -> None:
    """Let a language model write texts: probes of what it knows, for a guard, `check` or `rewind`."""
    from safetensors.torch import save_file

    from rwalk.before_after.read_models import read_model
    from rwalk.guard import own_samples

    if out.suffix != ".safetensors":
        raise InputError(f"--out {out}: the name must end in .safetensors")
    if out.exists():
        raise InputError(f"{out} exists already: give a new name")
    drawn = own_samples(read_model(model).to(checked_device(device)), None, n, tokens, seed)
    with writing(out, GIVE), replacing(out) as beside:
        save_file({"input_ids": drawn["input_ids"].cpu()}, beside)
    say(f"{n} own samples of {tokens} tokens, written to {out}")


def _check_limit(max_drift: float) -> None:
    if not max_drift > 0:
        raise InputError(f"--max-drift must be above 0, not {max_drift:g}")


def _models(before: Path, after: Path, factory: str | None, device: str) -> tuple[nn.Module, nn.Module]:
    from rwalk.before_after.read_models import read_model

    place = checked_device(device)
    return read_model(before, factory).to(place), read_model(after, factory, before).to(place)


@contextmanager
def _comparing(before: Path, after: Path) -> Iterator[None]:
    """Whatever a model raises that is of another kind than the one before it, in one line."""
    try:
        yield
    except (InputError, RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise InputError(f"{after} cannot be compared with {before}: {first_line(error)}") from error


def _questions(given: str, folder: Path) -> Skills | None:
    """The questions of a file; None for those that the model will make itself."""
    from rwalk.before_after.read_models import number_of_own, read_tokenizer
    from rwalk.before_after.skills import Skills

    return Skills.read(given, read_tokenizer(folder)) if number_of_own(given) is None else None
