"""The command line: the only place where strings become objects.

Heavy imports wait until a command runs, so that `rwalk --help` answers at once.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rwalk.store import Row, Store
    from rwalk.studies import Study

app = typer.Typer(
    name="rwalk",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

DEFAULT_METHODS = "vanilla,ewc,ewc++,pi,rwalk"
DEFAULT_EPOCHS = {"digits": 20}  # small data needs several passes; 1 everywhere else

Data = Annotated[Path | None, typer.Option(envvar="RWALK_DATA", help="folder with the official dataset files")]
Workers = Annotated[int | None, typer.Option(help="processes on a CPU (default: its cores)")]
CheckpointEvery = Annotated[
    int | None, typer.Option(help="steps between checkpoints (default: as often as costs 2 % of the time)")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="no live display")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object for scripts instead of tables")]


def main() -> None:
    """The entry point `rwalk`."""
    with _friendly_errors():
        raise SystemExit(app(prog_name="rwalk", standalone_mode=False))


@contextmanager
def _friendly_errors() -> Iterator[None]:
    """One clear line and exit code 2 for what the user can mend."""
    from rwalk.errors import InputError

    try:
        yield
    except InputError as error:
        print(f"rwalk: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except typer.Abort:
        raise SystemExit(130) from None
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        # A command line that cannot be parsed: typer would take four lines to say so.
        message, context = error.format_message().rstrip("."), getattr(error, "ctx", None)
        if "\n" in message:  # nothing was asked for: that is the help
            print(message, file=sys.stderr)
        else:
            print(f"rwalk: {message} (see {context.command_path if context else 'rwalk'} --help)", file=sys.stderr)
        raise SystemExit(2) from None


def _tell_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"rwalk {version('rwalk')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="which rwalk this is")
    ] = False,
) -> None:
    """Learn new classes without the old data, and measure honestly what was forgotten."""


@app.command()
def run(
    dataset: Annotated[
        str,
        typer.Option(
            help="digits, mnist, fashion-mnist, cifar10, cifar100, cifar100-pixels, folder:PATH, FILE.npz"
        ),
    ] = "digits",
    methods: Annotated[str, typer.Option(help="comma-separated; `rwalk methods` lists them")] = DEFAULT_METHODS,
    seeds: Annotated[int, typer.Option(help="how many seeds: 0, 1, …")] = 5,
    lam: Annotated[
        str, typer.Option(help="λ, or several comma-separated: a sweep (default: each method's own)")
    ] = "",
    epochs: Annotated[
        int | None, typer.Option(help="passes over a task's data (default 1; 20 for digits)")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="steps a task, instead of epochs")] = None,
    batch: Annotated[int, typer.Option(help="examples a step")] = 64,
    lr: Annotated[float, typer.Option(help="learning rate")] = 1e-3,
    optimizer: Annotated[str, typer.Option(help="adam or sgd")] = "adam",
    network: Annotated[
        str, typer.Option(help="mlp, cnn, resnet18, resnet18-full, or package.module:factory")
    ] = "",
    classes_per_task: Annotated[
        int | None, typer.Option(help="classes a task (default 2; 10 for cifar100)")
    ] = None,
    tasks: Annotated[str, typer.Option(help="explicit tasks: labels by comma, tasks by slash: 0,1/2,3,4/5")] = "",
    permuted: Annotated[int | None, typer.Option(help="so many permuted-pixels tasks instead of a split")] = None,
    order_seed: Annotated[
        int | None, typer.Option(help="shuffle the classes (or the permutations) by this seed")
    ] = None,
    memory: Annotated[int | None, typer.Option(help="exemplars kept of every class")] = None,
    memory_total: Annotated[
        int | None, typer.Option(help="exemplars kept in all, shared by the classes seen")
    ] = None,
    sampler: Annotated[str, typer.Option(help="uniform, plane, entropy, mof, plane-top, entropy-top")] = "mof",
    replay: Annotated[
        str, typer.Option(help="balanced, concat or half: how batches mix exemplars in")
    ] = "balanced",
    penalty: Annotated[str, typer.Option(help="gradient (the paper) or proximal (stable for any λ)")] = "gradient",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="a method's number: alpha=0.1 or rwalk.dt=50; repeatable")
    ] = None,
    reference: Annotated[
        str, typer.Option(help="reference models for intransigence: final, all or none")
    ] = "final",
    validation: Annotated[
        float | None, typer.Option(help="test on this fraction of the training data instead")
    ] = None,
    data: Data = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …; auto takes cuda where there is one")] = "auto",
    workers: Workers = None,
    checkpoint_every: CheckpointEvery = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="bfloat16 autocast")] = False,
    out: Annotated[Path | None, typer.Option(help="study folder (default: rwalk-studies/NAME-HASH)")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Learn a stream of tasks with several methods and seeds, and compare them.

    Without any option: digits, five methods, five seeds, in under a minute.
    """
    from dataclasses import replace

    from rwalk.errors import InputError
    from rwalk.fleet import Training
    from rwalk.learners import learner
    from rwalk.memory import MemorySpec
    from rwalk.methods import METHODS
    from rwalk.specs import DT, NETWORK, RunSpec, StreamSpec
    from rwalk.store import Store
    from rwalk.studies import Study

    _check_seeds(seeds)
    _let_import(network)
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
        memory=_memory(memory, memory_total, sampler, replay),
        training=Training(
            epochs=DEFAULT_EPOCHS.get(dataset, 1) if epochs is None else epochs,
            steps=steps,
            batch=batch,
            lr=lr,
            optimizer=optimizer,
        ),
        autocast=bf16,
    )
    specs = []
    names = [name.strip().lower() for name in methods.split(",")]
    compared = {}
    for name in names:
        made = learner(name, base.memory or MemorySpec(per_class=1))
        compared[name] = {*vars(made.method), *(vars(made.projector) if made.projector else ())}
    chosen = _settings(settings or [], compared)
    for name in names:
        fields = compared[name]
        numbers: dict[str, Any] = {"dt": DT[dataset]} if "dt" in fields and dataset in DT else {}
        if name in METHODS and name != "vanilla" and penalty != "gradient":
            numbers["penalty"] = penalty
        numbers |= {key: value for key, value in chosen.get("", {}).items() if key in fields}
        numbers |= chosen.get(name, {})
        sweep = _numbers(lam, "--lam") if lam and name in METHODS and name != "vanilla" else [None]
        for value in sweep:
            per_run = numbers if value is None else {**numbers, "lam": value}
            specs += [replace(base, method=name, numbers=per_run, seed=seed) for seed in range(seeds)]
    study = Study(tuple(specs), reference, data, _device(device), workers, checkpoint_every=checkpoint_every)
    folder = (
        out or Path("rwalk-studies") / f"{Path(dataset.replace(':', '-')).name}-{study.describe()['hash'][:8]}"
    )
    _run(study, Store(folder), quiet, as_json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="the study folder of an interrupted `rwalk run`")],
    data: Data = None,
    network: Annotated[
        str, typer.Option(help="confirm a network of your own, package.module:factory, that the study names")
    ] = "",
    device: Annotated[str, typer.Option(help="where to go on (default: where it began)")] = "",
    workers: Workers = None,
    checkpoint_every: CheckpointEvery = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Go on with an interrupted study, exactly where it stopped."""
    from rwalk.errors import InputError
    from rwalk.store import Store
    from rwalk.studies import Study

    _let_import(network)
    store = Store(folder)
    record = store.study()
    began = record.get("environment")
    where = device or (str(began.get("device", "auto")) if isinstance(began, dict) else "auto")
    study = Study.from_json(
        record, data=data, device=_device(where), workers=workers, checkpoint_every=checkpoint_every
    )
    for run in study.runs:
        if ":" in run.network and run.network != network:  # a file must not decide which code is run
            raise InputError(f"{folder} imports code: add --network {run.network} if you trust it")
    _run(study, store, quiet, as_json)


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(help="a study folder")],
    b: Annotated[Path, typer.Argument(help="another one")],
) -> None:
    """Say why two studies differ: settings, data, versions, device, and which rows by how much.

    Like diff(1), exits with 0 where there is no difference and with 1 where there is one.
    """
    from rwalk.compare import compare
    from rwalk.store import Store

    lines = compare(Store(a), Store(b))
    print("\n".join(lines) or f"no difference: {a} and {b} hold the same results")
    if lines:
        raise typer.Exit(1)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="a study folder, or a folder of *.jsonl files or of studies")],
    out: Annotated[Path | None, typer.Option(help="the page to write (default: FOLDER/report.html)")] = None,
) -> None:
    """Make one HTML page of results: tables and interactive plots, complete in itself."""
    from rwalk.paper.experiments import published_values
    from rwalk.report.html import write_report

    page = write_report(folder, out, published_values())
    print(f"{page}: {page.stat().st_size / 1e6:.1f} MB, opens in any browser")


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="table1, figure2, mnist, table1-mnist …; all by default")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="how many seeds (default: the experiment's, 5 or 3)")] = None,
    only: Annotated[str, typer.Option(help="of these methods alone: rwalk,pi (default: all)")] = "",
    tune: Annotated[
        str,
        typer.Option(
            help="choose the budgets of a dataset, or of one setting, on validation data: what is missing runs"
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="say what would run and how long, from a measured rate")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(envvar="RWALK_DATA", help="folder with the official dataset files")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …; auto takes cuda where there is one")] = "auto",
    workers: Annotated[int | None, typer.Option(help="processes on a CPU (default: its cores)")] = None,
    out: Annotated[
        Path,
        typer.Option(help="where the rows are kept, a folder an experiment; RESULTS.md is put beside it"),
    ] = Path("results"),
    budgets_file: Annotated[
        Path | None,
        typer.Option(
            "--budgets",
            help="a file of budgets to prefer to rwalk's own; --tune writes it (default: OUT/tuning/budgets.json)",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no live display")] = False,
) -> None:
    """Regenerate the paper's tables and figures, beside the published values; only what is missing runs."""
    from rwalk.errors import InputError, unknown
    from rwalk.paper import budgets
    from rwalk.paper import reproduce as paper
    from rwalk.paper.results import write_results
    from rwalk.store import Store

    _check_seeds(seeds)
    where: dict[str, Any] = {"data": data, "device": _device(device), "workers": workers}
    wanted = tuple(name.strip().lower() for name in only.split(",")) if only else ()
    if tune:
        if names or seeds or only:
            raise InputError("--tune chooses budgets and runs nothing else: drop experiments, --seeds, --only")
        out /= "tuning"
    chosen = budgets_file or out / "budgets.json"
    with budgets.taken_from(None if tune else budgets_file):
        plan = paper.plan_tuning(tune, out, **where) if tune else paper.plan(names or [], out, seeds, **where)
        compared = dict.fromkeys(run.method for planned in plan for run in planned.study.runs)
        for name in wanted:
            if name not in compared:
                raise unknown("method here", name, compared)
        if dry_run:
            for line in paper.dry_run(plan, paper.known_rows(out), wanted):
                print(line)
            return
        for name, title, _, study, folder in plan:
            print(f"{name}: {title}")
            store, known = Store(folder), paper.known_rows(out)
            rows = store.rows()
            if study.missing({row["hash"] for row in rows}, wanted):  # otherwise no data are needed
                rows = _execute(study, store, show=not quiet, known=known, only=wanted, go_on="the same command")
            if tune:
                print(budgets.decide(name, rows, chosen))
        if tune:
            print(f"to use what is in {chosen}: rwalk reproduce --budgets {shlex.quote(str(chosen))}")
            return
        for path in write_results(out):
            print(path)
    print(f"interactive, in one page: rwalk report {out}")


@app.command()
def methods() -> None:
    """List the methods, one line each."""
    from rwalk.learners import LEARNERS

    _list(LEARNERS)


@app.command()
def datasets() -> None:
    """List the datasets, one line each."""
    from rwalk.datasets import describe

    _list(describe())


def _check_seeds(seeds: int | None) -> None:
    from rwalk.errors import InputError

    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds must be at least 1, not {seeds}")


def _run(study: Study, store: Store, quiet: bool, as_json: bool) -> None:
    rows = _execute(study, store, show=not (quiet or as_json))
    if as_json:
        print(json.dumps({"rows": [_public(row) for row in rows], "study": study.describe()}, default=list))
    else:
        _show(rows, store.folder)


def _execute(
    study: Study,
    store: Store,
    show: bool,
    known: dict[str, Row] | None = None,
    only: Collection[str] = (),
    go_on: str = "",
) -> list[Row]:
    """Run what is missing, watched; `known` rows of other studies, by hash, need not be run again.

    `go_on` names what goes on where this is interrupted, if it is not `rwalk resume`.
    """
    from rich.console import Console

    from rwalk.interrupts import Interrupts
    from rwalk.report.live import Live
    from rwalk.workers import WorkerDied

    study.prepare()  # whatever is wrong with it is said before anything is written
    with store.opened(study.describe()), Interrupts() as interrupts:
        there = {row["hash"] for row in store.rows()}
        if shared := [
            known[h] for h in (run.hash() for run in study.runs) if known and h in known and h not in there
        ]:
            store.add(*shared)
            there |= {row["hash"] for row in shared}
        todo = study.missing(there, only)
        live = Live(study, len(todo), Console(stderr=True))
        try:
            if not show or not todo:
                return study.execute(store, stop=interrupts, only=only)
            live.expect([*study.references(todo), *todo])
            with live:
                return study.execute(store, live.watch, interrupts, only)
        except (KeyboardInterrupt, WorkerDied) as error:
            print(
                f"rwalk: {str(error) or 'stopped'}; {len(store.rows())} of {len(study.runs)} runs are kept in "
                f"{store.folder}, and those at work are saved: "
                f"{go_on or f'`{_resuming(study, store)}`'} goes on from there",
                file=sys.stderr,
            )
            code = 1 if isinstance(error, WorkerDied) else 128 + (interrupts.caught or 2)
            raise SystemExit(code) from None


def _resuming(study: Study, store: Store) -> str:
    """The command that goes on with a study: a file says neither where the data are nor which code to trust."""
    words = ["rwalk", "resume", str(store.folder)]
    words += [] if study.data is None else ["--data", str(study.data)]
    for network in dict.fromkeys(run.network for run in study.runs if ":" in run.network):
        words += ["--network", network]
    return shlex.join(words)


def _let_import(network: str) -> None:
    """A network of the user's own may lie in the folder that the command is given in."""
    if ":" in network and (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)


def _show(rows: list[Row], folder: Path) -> None:
    from rich.console import Console
    from rich.markup import escape

    from rwalk.report.summary import summarise
    from rwalk.report.tables import result_table

    console = Console()
    summaries = summarise(rows)
    for head in ("single", "multi"):
        console.print(result_table(summaries, head))
    for row in rows:
        if row["stopped"]:
            reason = escape(row["stopped"])
            console.print(f"[red]stopped[/red]: {escape(row['method'])}, seed {row['seed']}: {reason}")
    written = "study.json, runs.jsonl"
    try:
        from rwalk.report.figures import HEAD_NAMES, Block, accuracy_over_time

        blocks = [Block(head, summaries, f"{name} accuracy %") for head, name in HEAD_NAMES.items()]
        accuracy_over_time(blocks, folder / "accuracy.png")
        written += ", accuracy.png"
    except ImportError:
        written += " (for a picture too: pip install 'rwalk[plots]')"
    except OSError as error:
        written += f" (no picture: {error.strerror})"
    console.print(f"{folder}: {written}", soft_wrap=True, highlight=False)


def _public(row: Row) -> Row:
    return {key: value for key, value in row.items() if key not in ("hash", "spec")}


def _memory(per_class: int | None, total: int | None, sampler: str, replay: str) -> Any:
    from rwalk.memory import MemorySpec

    absent = per_class is None and total is None
    spec = MemorySpec(1 if absent else per_class, total, sampler, replay)  # type: ignore[arg-type]
    return None if absent else spec  # made all the same: a wrong name is wrong without a memory too


def _settings(given: list[str], compared: Mapping[str, Collection[str]]) -> dict[str, dict[str, Any]]:
    """["alpha=0.1", "rwalk.dt=50"] → {"": {"alpha": 0.1}, "rwalk": {"dt": 50}}.

    `compared` are the methods that are run, each with what can be set of it.
    """
    from rwalk.errors import InputError, unknown

    chosen: dict[str, dict[str, Any]] = {}
    for item in given:
        key, equals, value = item.partition("=")
        method, _, name = key.rpartition(".")
        if not equals or not name:
            raise InputError(f"--set takes NAME=VALUE or METHOD.NAME=VALUE, not {item!r}")
        if method and method not in compared:
            raise unknown("method here", method, compared)
        known = {each for one in ([method] if method else compared) for each in compared[one]}
        if name not in known:
            raise unknown(f"setting of {method or ', '.join(compared)}", name, sorted(known))
        chosen.setdefault(method, {})[name] = _value(name, value)
    return chosen


def _value(name: str, text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text) if name == "dt" else float(text)
    except ValueError:
        return text


def _numbers(text: str, option: str) -> list[float]:
    from rwalk.errors import InputError

    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} takes numbers separated by commas, not {text!r}") from None


def _device(name: str) -> str:
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _list(lines: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, line in lines.items():
        table.add_row(f"[bold]{name}[/bold]", line)
    Console().print(table)
