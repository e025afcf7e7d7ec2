"""`rwalk run`: a study of methods, hyper-parameters and seeds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rwalk.cli import execute, trust
from rwalk.cli.options import (
    AsJson,
    CheckpointEvery,
    Data,
    Device,
    ExecutorName,
    Quiet,
    Track,
    Workers,
    check_seeds,
    chosen_device,
)

if TYPE_CHECKING:
    from rwalk.data.memory import MemorySpec

DEFAULT_METHODS = "vanilla,ewc,ewc++,pi,rwalk"
USUAL_REPLAY = {"reservoir": "beside"}
DEFAULT_EPOCHS = {"digits": 20}  # small data needs several passes; 1 everywhere else


def run(
    dataset: Annotated[
        str,
        typer.Option(
            help="digits, mnist, fashion-mnist, cifar10, cifar100, cifar100-pixels, folder:PATH, FILE.npz"
        ),
    ] = "digits",
    methods: Annotated[
        str, typer.Option(help="comma-separated: what `rwalk methods` lists, or package.module:Name")
    ] = DEFAULT_METHODS,
    seeds: Annotated[int, typer.Option(help="how many seeds: 0, 1, …")] = 5,
    lam: Annotated[
        str, typer.Option(help="λ, or several comma-separated: a sweep (default: each method's own)")
    ] = "",
    epochs: Annotated[
        int | None, typer.Option(help="passes over a task's data (default 1; 20 for digits)")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="steps per task, instead of epochs")] = None,
    batch: Annotated[int | None, typer.Option(help="examples per step (default 64)")] = None,
    online: Annotated[
        bool, typer.Option("--online", help="every example is seen once, ten per step: --epochs 1 --batch 10")
    ] = False,
    lr: Annotated[float, typer.Option(help="learning rate")] = 1e-3,
    optimizer: Annotated[str, typer.Option(help="adam or sgd")] = "adam",
    keep_optimizer: Annotated[
        bool,
        typer.Option("--keep-optimizer", help="its moments go on from task to task: it does not start afresh"),
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
    permuted: Annotated[int | None, typer.Option(help="so many permuted-pixels tasks instead of a split")] = None,
    rotated: Annotated[int | None, typer.Option(help="so many rotated-images tasks instead of a split")] = None,
    scenario: Annotated[
        str,
        typer.Option(
            help="what is asked, and so which classes compete in training: task (those of a task), domain (all "
            "tasks have the same labels) or class (all); without it, trained as in the paper"
        ),
    ] = "",
    blurry: Annotated[
        float | None, typer.Option(help="this fraction of every task's examples is taught by its neighbours")
    ] = None,
    order_seed: Annotated[
        int | None, typer.Option(help="shuffle the classes (or the permutations) by this seed")
    ] = None,
    memory: Annotated[int | None, typer.Option(help="exemplars kept of every class")] = None,
    memory_total: Annotated[
        int | None, typer.Option(help="exemplars kept in all, shared by the classes seen")
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(
            help="uniform, plane, entropy, mof, plane-top, entropy-top, reservoir, or package.module:NAME"
        ),
    ] = "mof",
    replay: Annotated[
        str,
        typer.Option(
            help="how batches mix exemplars in: balanced (default), concat, half, beside (a reservoir's); some "
            "methods say so"
        ),
    ] = "",
    beside: Annotated[
        int | None, typer.Option(help="exemplars beside every batch (default: as many as new examples)")
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
        typer.Option(help="measure within tasks too, every so many steps: the stability gap"),
    ] = None,
    calibration: Annotated[
        bool, typer.Option("--calibration", help="measure expected calibration errors with the accuracies")
    ] = False,
    data: Data = None,
    device: Device = "auto",
    workers: Workers = None,
    checkpoint_every: CheckpointEvery = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="bfloat16 autocast")] = False,
    out: Annotated[Path | None, typer.Option(help="study folder (default: rwalk-studies/NAME-HASH)")] = None,
    executor: ExecutorName = "local",
    track: Track = "",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Learn a stream of tasks with several methods and seeds, and compare them.

    Without any option: digits, five methods, five seeds, in under a minute.
    """
    from rwalk.cli import sweep
    from rwalk.errors import InputError
    from rwalk.studies import Study
    from rwalk.studies.specs import NETWORK, RunSpec, StreamSpec
    from rwalk.studies.store import Store
    from rwalk.training import ONLINE_BATCH, Training

    check_seeds(seeds)
    names = sweep.method_names(methods)
    trust.let_import([network, sampler, augment, *names])
    if steps is not None and epochs is not None:
        raise InputError("give --epochs or --steps, not both")
    if online and (epochs, steps, batch) != (None, None, None):
        raise InputError("--online is one epoch in batches of ten: drop --epochs, --steps and --batch")
    base = RunSpec(
        stream=StreamSpec(
            dataset=dataset,
            classes_per_task=classes_per_task,
            tasks=tuple(tuple(task.split(",")) for task in tasks.split("/")) if tasks else None,
            order_seed=order_seed,
            permuted=permuted,
            validation=validation,
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
        raise InputError("--replay says how exemplars are mixed in: give --memory or --memory-total too")
    if beside is not None and base.memory is None:
        raise InputError("--beside counts exemplars beside a batch: give --memory or --memory-total too")
    runs = sweep.runs(base, names, seeds, lam, penalty, settings or ())
    if beside is not None and not any(each.memory.replay in ("beside", "none") for each in runs if each.memory):
        raise InputError("no method here replays exemplars beside its batches: drop --beside, or --replay beside")
    if replay:
        for name in dict.fromkeys(each.method for each in runs if each.memory != base.memory):
            print(f"rwalk: {name} is not {name} with --replay {replay}: it runs as it is defined", file=sys.stderr)
    where = chosen_device(device)
    study = Study(
        tuple(runs), reference, data, where, workers, checkpoint_every=checkpoint_every, executor=executor
    )
    hashed = f"{Path(dataset.replace(':', '-')).name}-{study.describe()['hash'][:8]}"
    execute.run_and_show(study, Store(out or Path("rwalk-studies") / hashed), quiet, as_json, track)


def _memory(
    per_class: int | None, total: int | None, sampler: str, replay: str, beside: int | None
) -> MemorySpec | None:
    from rwalk.data.memory import MemorySpec

    absent = per_class is None and total is None
    spec = MemorySpec(1 if absent else per_class, total, sampler, replay, beside)  # type: ignore[arg-type]
    return None if absent else spec  # made all the same: a wrong name is wrong without a memory too
