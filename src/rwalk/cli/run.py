"""`rwalk run`: a study of methods, hyper-parameters and seeds."""

from __future__ import annotations

import sys
from dataclasses import replace
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
    batch: Annotated[int, typer.Option(help="examples per step")] = 64,
    lr: Annotated[float, typer.Option(help="learning rate")] = 1e-3,
    optimizer: Annotated[str, typer.Option(help="adam or sgd")] = "adam",
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
    order_seed: Annotated[
        int | None, typer.Option(help="shuffle the classes (or draw the permutations) with this seed")
    ] = None,
    memory: Annotated[int | None, typer.Option(help="exemplars kept per class")] = None,
    memory_total: Annotated[
        int | None, typer.Option(help="exemplars kept in total, shared by the classes seen")
    ] = None,
    sampler: Annotated[
        str, typer.Option(help="uniform, plane, entropy, mof, plane-top, entropy-top, or package.module:NAME")
    ] = "mof",
    replay: Annotated[
        str,
        typer.Option(
            help="how exemplars are replayed: balanced (default), concat, half, beside; some methods prescribe it"
        ),
    ] = "",
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
    data: Data = None,
    device: Device = "auto",
    workers: Workers = None,
    checkpoint_every: CheckpointEvery = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="bfloat16 autocast")] = False,
    out: Annotated[Path | None, typer.Option(help="study folder (default: rwalk-studies/NAME-HASH)")] = None,
    join: Annotated[
        bool, typer.Option("--join", help="share the study with other processes that join the same folder")
    ] = False,
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
    from rwalk.studies.store import SharedStore, Store
    from rwalk.training import Training

    check_seeds(seeds)
    names = sweep.method_names(methods)
    trust.let_import([network, sampler, augment, *names])
    if steps is not None and epochs is not None:
        raise InputError("give --epochs or --steps, not both")
    base = RunSpec(
        stream=StreamSpec(
            dataset=dataset,
            classes_per_task=classes_per_task,
            tasks=tuple(tuple(task.split(",")) for task in tasks.split("/")) if tasks else None,
            order_seed=order_seed,
            permuted=permuted,
            validation=validation,
        ),
        network=network or NETWORK.get(dataset, "mlp"),
        memory=_memory(memory, memory_total, sampler, replay or "balanced"),
        training=Training(
            epochs=DEFAULT_EPOCHS.get(dataset, 1) if epochs is None else epochs,
            steps=steps,
            batch=batch,
            lr=lr,
            optimizer=optimizer,
            augment=augment,
        ),
        autocast=bf16,
    )
    if replay and base.memory is None:
        raise InputError("--replay says how exemplars are replayed: give --memory or --memory-total too")
    runs = sweep.runs(base, names, seeds, lam, penalty, settings or ())
    if replay:
        for name in dict.fromkeys(each.method for each in runs if each.memory != base.memory):
            print(
                f"rwalk: --replay {replay} is ignored for {name}, which prescribes its own replay", file=sys.stderr
            )
    where = chosen_device(device)
    study = Study(
        tuple(runs), reference, data, where, workers, checkpoint_every=checkpoint_every, executor=executor
    )
    hashed = f"{Path(dataset.replace(':', '-')).name}-{study.describe()['hash'][:8]}"
    folder = out or Path("rwalk-studies") / hashed
    if not join:
        execute.run_and_show(study, Store(folder), quiet, as_json, track)
        return
    if track or executor != "local" or workers is not None:
        raise InputError("--join trains one run at a time per process: drop --workers, --executor and --track")
    study = replace(study, executor="join", cache=folder)
    execute.run_and_show(study, SharedStore(folder), quiet, as_json, go_on="the same command")


def _memory(per_class: int | None, total: int | None, sampler: str, replay: str) -> MemorySpec | None:
    from rwalk.data.memory import MemorySpec

    absent = per_class is None and total is None
    spec = MemorySpec(1 if absent else per_class, total, sampler, replay)  # type: ignore[arg-type]
    return None if absent else spec  # made in any case, to refuse a wrong sampler even without a memory
