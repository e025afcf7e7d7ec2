"""`rwalk run`: a study of methods, hyper-parameters and seeds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rwalk.cli import execute, trust
from rwalk.cli.options import (
    AsJson,
    CheckpointEvery,
    Data,
    Device,
    Drop,
    ExecutorName,
    Join,
    Keep,
    Label,
    Missing,
    Quiet,
    Size,
    Track,
    Workers,
    check_join,
    check_seeds,
    chosen_device,
    how,
    says_what_to_learn,
    with_label,
)

if TYPE_CHECKING:
    from rwalk.data.memory import MemorySpec

DEFAULT_METHODS = "vanilla,ewc,ewc++,pi,rwalk"
USUAL_REPLAY = {"reservoir": "beside"}
DEFAULT_EPOCHS = {"digits": 20}  # small data needs several passes; 1 everywhere else


def run(
    context: typer.Context,
    dataset: Annotated[
        str,
        typer.Option(
            help="digits, mnist, mnist-32, fashion-mnist, cifar10, cifar100, cifar100-pixels, a folder of images, "
            "a table (.csv, .tsv, .parquet), or a FILE.npz"
        ),
    ] = "digits",
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
    epochs: Annotated[
        int | None, typer.Option(help="passes over a task's data (default 1; 20 for digits)")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="steps per task, instead of epochs")] = None,
    batch: Annotated[int | None, typer.Option(help="examples per step (default 64)")] = None,
    online: Annotated[
        bool, typer.Option("--online", help="see every example once, ten per step: --epochs 1 --batch 10")
    ] = False,
    lr: Annotated[float, typer.Option(help="learning rate")] = 1e-3,
    optimizer: Annotated[str, typer.Option(help="adam or sgd")] = "adam",
    keep_optimizer: Annotated[
        bool,
        typer.Option("--keep-optimizer", help="keep its moments from task to task instead of starting afresh"),
    ] = False,
    augment: Annotated[
        str, typer.Option(help="change training inputs at random: an augmentation's name, or package.module:Name")
    ] = "",
    network: Annotated[
        str, typer.Option(help="mlp, cnn, resnet18, resnet18-full, or package.module:factory")
    ] = "",
    classes_per_task: Annotated[
        int | None, typer.Option(help="classes per task (default 2; 10 for cifar100)")
    ] = None,
    tasks: Annotated[str, typer.Option(help="explicit tasks: labels by comma, tasks by slash: 0,1/2,3,4/5")] = "",
    permuted: Annotated[
        int | None, typer.Option(help="number of permuted-pixels tasks, instead of a split")
    ] = None,
    rotated: Annotated[int | None, typer.Option(help="number of rotated-images tasks, instead of a split")] = None,
    scenario: Annotated[
        str,
        typer.Option(
            help="which classes compete in training: task (those of a task), domain (all tasks have the same "
            "labels) or class (all); by default, as in the paper"
        ),
    ] = "",
    blurry: Annotated[
        float | None, typer.Option(help="this fraction of every task's examples is taught by its neighbours")
    ] = None,
    order_seed: Annotated[
        int | None, typer.Option(help="shuffle the classes (or draw the permutations) with this seed")
    ] = None,
    label: Label = None,
    task_column: Annotated[
        str | None, typer.Option(help="of a table: the column that says in which task an example arrives")
    ] = None,
    drop: Drop = None,
    missing: Missing = "refuse",
    size: Size = None,
    memory: Annotated[int | None, typer.Option(help="exemplars kept per class")] = None,
    memory_total: Annotated[
        int | None, typer.Option(help="exemplars kept in total, shared by the classes seen")
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(
            help="uniform, plane, entropy, mof, mof-plain, plane-top, entropy-top, reservoir, or "
            "package.module:NAME"
        ),
    ] = "mof",
    replay: Annotated[
        str,
        typer.Option(
            help="how exemplars are replayed: balanced (default), concat, half, beside (a reservoir's); some "
            "methods prescribe it"
        ),
    ] = "",
    beside: Annotated[
        int | None, typer.Option(help="exemplars added to every batch (default: as many as new examples)")
    ] = None,
    penalty: Annotated[str, typer.Option(help="gradient (the paper) or proximal (stable for any λ)")] = "gradient",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="a hyper-parameter: alpha=0.1, rwalk.dt=50, or several: dt=10,50; repeatable"),
    ] = None,
    reference: Annotated[
        str, typer.Option(help="reference models for intransigence: final, all or none")
    ] = "final",
    validation: Annotated[
        float | None, typer.Option(help="test on this fraction of the training data instead")
    ] = None,
    measure_every: Annotated[
        int | None,
        typer.Option(help="measure accuracy within tasks too, every N steps: shows the stability gap"),
    ] = None,
    calibration: Annotated[
        bool, typer.Option("--calibration", help="also measure expected calibration errors")
    ] = False,
    data: Data = None,
    device: Device = "auto",
    workers: Workers = None,
    checkpoint_every: CheckpointEvery = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="bfloat16 autocast")] = False,
    out: Annotated[Path | None, how(help="study folder (default: rwalk-studies/NAME-HASH)")] = None,
    keep: Keep = "",
    join: Join = False,
    executor: ExecutorName = "local",
    track: Track = "",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Learn a stream of tasks with several methods and seeds, and compare them.

    Without options: a demonstration of what forgetting is and what helps against it, in under a minute. With any
    option that chooses the data or the methods, a study; by default digits in five tasks of two classes each, five
    methods and five seeds.
    """
    from rwalk.cli import sweep
    from rwalk.data.datasets import Reading, is_folder
    from rwalk.errors import InputError
    from rwalk.files import at_home
    from rwalk.studies import Study
    from rwalk.studies.specs import NETWORK, RunSpec, StreamSpec
    from rwalk.training import ONLINE_BATCH, Training

    check_seeds(seeds)
    check_join(join, workers=workers, executor=executor, track=track, keep=keep)
    names = sweep.method_names(methods)
    trust.let_import([network, sampler, augment, *names])
    if steps is not None and epochs is not None:
        raise InputError("give --epochs or --steps, not both")
    if online and (epochs, steps, batch) != (None, None, None):
        raise InputError("--online is one epoch in batches of ten: drop --epochs, --steps and --batch")
    remarks: list[str] = []
    reading = Reading(label, task_column, tuple(drop or ()), missing, size)
    base = RunSpec(
        stream=StreamSpec(
            dataset=dataset,
            classes_per_task=classes_per_task,
            tasks=tuple(tuple(task.split(",")) for task in tasks.split("/")) if tasks else None,
            order_seed=order_seed,
            permuted=permuted,
            validation=validation,
            reading=with_label(dataset, reading, remarks.append),
            scenario=scenario or None,
            rotated=rotated,
            blurry=blurry,
        ),
        network=network or NETWORK.get(dataset, "mlp"),
        memory=_memory(memory, memory_total, sampler, replay or USUAL_REPLAY.get(sampler, "balanced"), beside),
        training=Training(
            epochs=epochs if epochs is not None else 1 if online else DEFAULT_EPOCHS.get(dataset, 1),
            steps=steps,
            batch=batch if batch is not None else ONLINE_BATCH if online else 64,
            lr=lr,
            optimizer=optimizer,
            augment=augment,
            keep_optimizer=keep_optimizer,
        ),
        autocast=bf16,
        measure_every=measure_every,
        calibration=calibration,
    )
    if replay and base.memory is None:
        raise InputError("--replay needs exemplars: give --memory or --memory-total too")
    if beside is not None and base.memory is None:
        raise InputError("--beside counts the exemplars added to a batch: give --memory or --memory-total too")
    runs = sweep.runs(base, names, seeds, lam, penalty, settings or ())
    if beside is not None and not any(each.memory.replay in ("beside", "none") for each in runs if each.memory):
        raise InputError("no method here adds exemplars to its batches: drop --beside, or give --replay beside")
    if replay:
        for name in dict.fromkeys(each.method for each in runs if each.memory != base.memory):
            remarks.append(f"--replay {replay} is ignored for {name}, which prescribes its own replay")
    if lam and not any("lam" in each.numbers for each in runs):
        remarks.append(f"--lam is ignored: {', '.join(names)} {'has' if len(names) == 1 else 'have'} no λ")
    name = at_home(dataset).resolve().name if is_folder(dataset) else dataset
    if not says_what_to_learn(context):
        from rwalk.demonstration.runs import runs as demonstration
        from rwalk.demonstration.story import INTRODUCTION

        runs, reference, remarks, name = [*demonstration()], "none", [*INTRODUCTION], "demonstration"
    where = chosen_device(device)
    study = Study(
        tuple(runs), reference, data, where, workers, checkpoint_every=checkpoint_every, executor=executor
    )
    remarks += execute.remarks_on(study, keep)
    hashed = f"{Path(name.replace(':', '-')).name}-{study.hash()[:8]}"
    folder = out or Path("rwalk-studies") / hashed
    study, store = execute.placed(study, folder, join)
    go_on = execute.SAME_COMMAND if join else ""
    execute.run_and_show(study, store, quiet, as_json, track, remarks, keep, go_on)


def _memory(
    per_class: int | None, total: int | None, sampler: str, replay: str, beside: int | None
) -> MemorySpec | None:
    from rwalk.data.memory import MemorySpec

    absent = per_class is None and total is None
    spec = MemorySpec(1 if absent else per_class, total, sampler, replay, beside)  # type: ignore[arg-type]
    return None if absent else spec  # made in any case, to refuse a wrong sampler even without a memory
