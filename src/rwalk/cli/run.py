"""`rwalk run`: a study of methods, hyper-parameters and seeds; `rwalk resume`; and `rwalk report`: its page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rwalk.atomic_files import at_home
from rwalk.cli.command_options import (
    AsJson,
    CheckpointEvery,
    Data,
    Device,
    Given,
    Join,
    Quiet,
    Workers,
    check_join,
    check_seeds,
    chosen_device,
    how,
    is_typed,
    let_import,
    say,
    says_what_to_learn,
    with_label,
)
from rwalk.errors import InputError

if TYPE_CHECKING:
    from rwalk.data.memory import MemorySpec
    from rwalk.studies.specs import RunSpec

DEFAULT_METHODS = "vanilla,ewc,ewc++,pi,rwalk"
USUAL_REPLAY = {"reservoir": "beside"}
DEFAULT_EPOCHS = {"digits": 20}  # small data needs several passes; 1 everywhere else


def run(
    context: typer.Context,
    *,
    methods: Annotated[
        str, typer.Option(help="comma-separated: what `rwalk methods` lists, or package.module:Name")
    ] = DEFAULT_METHODS,
    seeds: Annotated[int, typer.Option(help="how many seeds: 0, 1, …")] = 5,
    lam: Annotated[
        str,
        typer.Option(
            help="λ, or several comma-separated: a sweep (default: each method's own); auto: every run chooses "
            "its own, by trials on its training data"
        ),
    ] = "",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="a hyper-parameter: alpha=0.1, rwalk.dt=50, or several: dt=10,50; repeatable"),
    ] = None,
    reference: Annotated[
        str, typer.Option(help="reference models for intransigence: final, all or none")
    ] = "final",
    given: Given,
    data: Data = None,
    device: Device = "auto",
    workers: Workers = None,
    checkpoint_every: CheckpointEvery = None,
    out: Annotated[Path | None, how(help="study folder (default: rwalk-studies/NAME-HASH)")] = None,
    join: Join = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Learn a stream of tasks with several methods and seeds, and compare them.

    Without options: a demonstration of what forgetting is and what helps against it, in under a minute. With any
    option that chooses the data or the methods, a study; by default digits in five tasks of two classes each, five
    methods and five seeds.
    """
    from rwalk.cli import run_study, sweep
    from rwalk.data.datasets import Reading, is_folder
    from rwalk.data.memory import MemorySpec
    from rwalk.studies import Study
    from rwalk.studies.specs import NETWORK, RunSpec, StreamSpec
    from rwalk.training import Training

    check_seeds(seeds)
    check_join(join, workers)
    names = sweep.method_names(methods)
    stream, memory, training = given[StreamSpec], given[MemorySpec], given[Training]
    dataset, replay, beside = stream["dataset"], memory.get("replay"), memory.get("beside")
    own: dict[str, Any] = {"network": NETWORK.get(dataset, "mlp")} | given[RunSpec]
    let_import([own["network"], memory["sampler"], training["augment"], *names])
    if "steps" in training and "epochs" in training:
        raise InputError("give --epochs or --steps, not both")
    usual: dict[str, Any] = {"epochs": DEFAULT_EPOCHS.get(dataset, 1)}
    remarks: list[str] = []
    reading = with_label(dataset, Reading(**given[Reading]), remarks.append)
    base = RunSpec(
        stream=StreamSpec(**stream, reading=reading),
        memory=_memory(memory),
        training=Training(**usual | training),
        **own,
    )
    if replay and base.memory is None:
        raise InputError("--replay needs exemplars: give --memory or --memory-total too")
    if base.memory is None and memory["sampler"] != MemorySpec.sampler:
        raise InputError("--sampler chooses exemplars: give --memory or --memory-total too")
    if beside and base.memory is None:
        raise InputError("--beside counts the exemplars added to a batch: give --memory or --memory-total too")
    runs = sweep.runs(base, names, seeds, lam, settings or ())
    if beside and not any(each.memory.replay in ("beside", "none") for each in runs if each.memory):
        raise InputError("no method here adds exemplars to its batches: drop --beside, or give --replay beside")
    if replay:
        for name in dict.fromkeys(each.method for each in runs if each.memory != base.memory):
            remarks.append(f"--replay {replay} is ignored for {name}, which prescribes its own replay")
    if lam and not any("lam" in each.numbers for each in runs):
        remarks.append(f"--lam is ignored: {', '.join(names)} {'has' if len(names) == 1 else 'have'} no λ")
    remarks += _ignored(context, base, runs)
    name = at_home(dataset).resolve().name if is_folder(dataset) else dataset
    if not says_what_to_learn(context):
        from rwalk.demonstration import story as demonstration

        runs, reference, name = [*demonstration.runs()], "none", "demonstration"
        remarks = [*demonstration.INTRODUCTION]
    where = chosen_device(device)
    study = Study(tuple(runs), reference, data, where, workers, checkpoint_every=checkpoint_every)
    remarks += run_study.remarks_on(study)
    hashed = f"{Path(name.replace(':', '-')).name}-{study.hash()[:8]}"
    folder = out or Path("rwalk-studies") / hashed
    study, store = run_study.placed(study, folder, join)
    go_on = run_study.SAME_COMMAND if join else ""
    run_study.run_and_show(study, store, quiet, as_json, remarks, go_on)


def _ignored(context: typer.Context, base: RunSpec, runs: Sequence[RunSpec]) -> list[str]:
    """Remarks on options that change no result of these runs."""
    learners, names = [run.learner() for run in runs], ", ".join(dict.fromkeys(run.method for run in runs))
    remarks = []
    if base.memory and not any(run.memory for run in runs):
        remarks.append(f"exemplars are ignored: {names} cannot use any")
    if all(learner.solver for learner in learners):
        given = [
            name for name in ("epochs", "steps", "lr", "optimizer", "keep_optimizer") if is_typed(context, name)
        ]
        remarks += [f"--{name.replace('_', '-')} is ignored: {names} takes no gradient" for name in given]
    elif base.training.keep_optimizer and base.training.optimizer == "sgd":
        remarks.append("--keep-optimizer is ignored: sgd has nothing to keep")
    unused = [
        run.method
        for run, learner in zip(runs, learners, strict=True)
        if run.memory
        and run.memory.replay == "none"
        and not (learner.projector or learner.classifier.needs_exemplars)
    ]
    remarks += [f"--replay none: {name} keeps exemplars and uses none" for name in dict.fromkeys(unused)]
    return remarks


def _memory(given: dict[str, Any]) -> MemorySpec | None:
    from rwalk.data.memory import MemorySpec

    absent = not given.keys() & {"per_class", "total"}
    usual = {"per_class": 1 if absent else None, "replay": USUAL_REPLAY.get(given["sampler"], "balanced")}
    spec = MemorySpec(**usual | given)
    return None if absent else spec  # made in any case, to refuse a wrong sampler even without a memory


def resume(
    folder: Annotated[Path, typer.Argument(help="the study folder of an interrupted `rwalk run`")],
    data: Data = None,
    trusted: Annotated[
        list[str] | None,
        typer.Option(
            "--trust", "--network", help="confirm that the study may import your package.module:name; repeatable"
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="the device to resume on (default: where it began)")] = "",
    workers: Workers = None,
    checkpoint_every: CheckpointEvery = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Resume an interrupted study, exactly where it stopped."""
    from rwalk.cli import run_study
    from rwalk.studies import Study
    from rwalk.studies.study_folder import Store

    store = Store(folder)
    record = store.study()
    # Before the study is made: that imports the parts it names.
    run_study.check_trusted(folder, record.runs, trusted or ())
    let_import(trusted or ())
    where = device or (record.environment or {}).get("device", "auto")
    study = Study.of(
        record,
        data=data,
        device=chosen_device(where),
        workers=workers,
        checkpoint_every=checkpoint_every,
    )
    run_study.run_and_show(study, store, quiet, as_json, run_study.remarks_on(study))


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="a study folder, or a folder of *.jsonl files or of studies; several are compared in one page",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="the page to write (default: FOLDER/report.html, of several ./report.html)")
    ] = None,
    title: Annotated[str, typer.Option(help="the page's title (default: the methods and the data)")] = "",
) -> None:
    """Make one self-contained HTML page of results: a verdict, tables, plots; exports as CSV, SVG and LaTeX."""
    from rwalk.report.html_page import write_report

    page = write_report(folders, out, title=title)
    say(f"{page}: {page.stat().st_size / 1e6:.1f} MB, opens in any browser")
