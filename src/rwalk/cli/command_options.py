"""Options that several commands share, those that fields of records are, and how their values are read."""

from __future__ import annotations

import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from rwalk.atomic_files import at_home
from rwalk.errors import InputError
from rwalk.escaping import shown
from rwalk.option_fields import Option, options_of
from rwalk.registry import imported

if TYPE_CHECKING:
    from rwalk.data.datasets import Reading

HOW = "where and how"
Given = dict[type[Any], dict[str, Any]]  # by record, the values of its fields


def how(*names: str, **settings: Any) -> Any:
    """An option about the place of training and the display, not about the study itself."""
    return typer.Option(*names, rich_help_panel=HOW, **settings)


def is_typed(context: typer.Context, name: str) -> bool:
    """Whether an option was given, even with the value that it has by default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def says_what_to_learn(context: typer.Context) -> bool:
    """Whether any option given is about the study itself."""
    about = [each.name for each in context.command.params if getattr(each, "rich_help_panel", None) != HOW]
    return any(is_typed(context, name) for name in about if name)


Data = Annotated[Path | None, how(envvar="RWALK_DATA", help="folder with the official dataset files")]
Device = Annotated[str, how(help="cpu, cuda, cuda:1 …; auto uses cuda if available")]
Workers = Annotated[int | None, how(help="number of processes (default: one per core of a CPU, one per GPU)")]
CheckpointEvery = Annotated[
    int | None, how(help="steps between checkpoints (default: as often as 2 % of the time allows)")
]
Join = Annotated[bool, how("--join", help="share the work with other processes that join the same folder")]
Quiet = Annotated[bool, how("--quiet", help="no live display")]
AsJson = Annotated[bool, how("--json", help="print one JSON object for scripts instead of tables")]


class Command(TyperCommand):
    """A command that refuses an option given twice, of which only the last would count."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = self.make_parser(ctx).parse_args(args=[*args])[2]
        for each in given:
            once = each.param_type_name == "option" and not getattr(each, "multiple", False)
            if once and not getattr(each, "is_flag", False) and given.count(each) > 1:
                raise InputError(f"{each.opts[-1]} is given twice: drop one")
        return super().parse_args(ctx, args)


def check_once(paths: Sequence[Path]) -> None:
    """Refuse to learn, forget or merge the same file twice."""
    seen = set[Path]()
    for path in paths:
        if path.resolve() in seen:
            raise InputError(f"{path} is given twice: drop one")
        seen.add(path.resolve())


def check_spares(option: str, out: Path | None, read: Iterable[Path]) -> None:
    """Refuse to write over a file that is read, or that lies in a folder that is read."""
    if out is None or not out.exists():
        return
    for path in read:
        within = path.is_dir() and out.resolve().is_relative_to(path.resolve())
        if path.exists() and (within or out.samefile(path)):
            raise InputError(f"{option} {out} would overwrite what is read: give another name")


def add_command(app: typer.Typer, command: Callable[..., None], *records: str, but: str = "") -> None:
    """Add a command whose parameter `given` stands for the options that fields of records are.

    Records are not imported until the command is called: torch, which many need, takes seconds.

    Args:
        app: Where it is added.
        command: Its parameter `given` gets the values, by record.
        records: The records, as `package.module:Name`.
        but: A field that is no option here.
    """

    class FromRecord(TyperCommand):
        def make_context(self, *call: Any, **others: Any) -> Any:
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command(cls=Command)(_complete(command, [imported(each, "record") for each in records], but))
            return typer.main.get_command(alone).make_context(*call, **others)

    def named() -> None:
        """Only its name and help are used."""

    named.__name__, named.__doc__ = command.__name__, command.__doc__
    app.command(cls=FromRecord)(named)


def _complete(command: Callable[..., None], records: Sequence[type[Any]], but: str) -> Callable[..., None]:
    """A command with options for fields of records in the place of its parameter `given`."""
    options = (each for record in records for each in options_of(record))
    found = [_parameter(*each) for each in options if each[1].name != but]
    types, parameters = get_type_hints(command, include_extras=True), []
    for each in signature(command).parameters.values():
        own = each.replace(annotation=types[each.name], kind=Parameter.KEYWORD_ONLY)
        parameters += [parameter for parameter, _ in found] if each.name == "given" else [own]

    @wraps(command)
    def complete(**values: Any) -> None:
        given: Given = defaultdict(dict)
        for parameter, (kind, name, read) in found:
            value = values.pop(parameter.name)
            if value == "" != parameter.default:
                raise InputError(f"--{parameter.name.replace('_', '-')} is empty: give a value, or drop it")
            if parameter.default is not None or value not in (None, []):
                given[kind][name] = read(value) if read else value
        command(**values, given=given)

    complete.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]
    complete.__annotations__ = {each.name: each.annotation for each in parameters}
    return complete


def _parameter(record: type[Any], field: Any, kind: Any) -> tuple[Parameter, tuple[type[Any], str, Any]]:
    """The parameter for a field that is an option; None is not given."""
    option: Option = field.metadata["option"]
    name = option.name or field.name
    plain = next((each for each in (kind, *get_args(kind)) if each in (bool, int, float, str)), str)
    several = get_origin(kind) is tuple
    default = None if option.depends or several else field.default
    names = [f"--{name.replace('_', '-')}"] if plain is bool else []
    known: Any = list[str] | None if several else plain if default is not None else plain | None
    annotation = Annotated[known, typer.Option(*names, help=option.help)]
    parameter = Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    return parameter, (record, field.name, option.read)


def chosen_device(name: str) -> str:
    """The device of that name; `auto` is cuda if available."""
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def checked_device(name: str) -> str:
    """The device of that name, which this machine has."""
    from rwalk.studies.executor import Executor

    Executor.check_device(chosen := chosen_device(name))
    return chosen


def with_label(dataset: str, reading: Reading, tell: Callable[[str], None]) -> Reading:
    """A table's reading with its column of classes named; if the user named none, the choice is reported."""
    from rwalk.data.datasets import TableEncoder
    from rwalk.data.datasets.tables import is_table

    if reading.label is not None or not is_table(dataset):
        return reading
    found = TableEncoder.fit(at_home(dataset), reading=reading).label
    tell(f"the classes are in column {found!r} (--label names another)")
    return replace(reading, label=found)


def let_import(names: Iterable[str]) -> None:
    """Let Python find the user's own code, `package.module:name`, in the current folder."""
    if any(":" in name for name in names) and (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)


def say(line: object) -> None:
    """A line of results, whatever names it repeats."""
    print(shown(line), flush=True)


def to_stderr(line: object) -> None:
    """One line of text from us, whatever names it repeats; if it cannot be written, the work continues."""
    with suppress(OSError):
        print(f"rwalk: {shown(line)}", file=sys.stderr, flush=True)


@contextmanager
def told_warnings() -> Iterator[None]:
    """Warnings as messages of our own, each printed once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        finally:
            lines = dict.fromkeys(" ".join(str(each.message).split()) for each in caught)
    for line in lines:
        to_stderr(line)


def check_join(join: bool, workers: int | None) -> None:
    if join and workers is not None:
        raise InputError("--join trains one run at a time per process: drop --workers")


def check_seeds(seeds: int | None) -> None:
    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds must be at least 1, not {seeds}")
