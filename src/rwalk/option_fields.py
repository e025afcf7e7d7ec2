"""Fields of records with one line of help each: settings of the Python interface, options of the command line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from inspect import cleandoc
from textwrap import wrap
from typing import Any, TypeVar, get_args, get_type_hints

Record = TypeVar("Record")


@dataclass(frozen=True)
class Option:
    """The description of a field for the command line, beside its type and default."""

    help: str
    name: str
    depends: bool
    read: Callable[[str], Any] | None


def option(
    default: Any,
    help: str,
    *,
    name: str = "",
    depends: bool = False,
    read: Callable[[str], Any] | None = None,
) -> Any:
    """A field of a record, and the option that sets it.

    Args:
        default: The field's default.
        help: The option's line of help.
        name: The option's name, if it is not the field's.
        depends: Whether the default on the command line depends on other options; then `help` names it.
        read: Reads the option's text, if the field is no plain value.
    """
    return field(default=default, metadata={"option": Option(help, name, depends, read)})


def setting(default: Any, help: str) -> Any:
    """A field of a record that is no option of the command line; `help` describes it in Python."""
    return field(default=default, metadata={"help": help})


def described(*records: type[Any], but: Collection[str] = (), width: int = 110, indent: int = 4) -> str:
    """The fields of records with their help, in two columns: a part of a docstring, which is indented so far."""
    helps = {each.name: help_of(each) for record in records for each in fields(record) if each.name not in but}
    margin = 15
    lines = []
    for name, text in helps.items():
        first, *more = wrap(text, width - margin - indent)
        lines += [f"{name:<{margin}}{first}", *(" " * margin + line for line in more)]
    return f"\n{' ' * indent}".join(lines)


def documented(record: type[Record]) -> type[Record]:
    """Add an Args section to a record's docstring: its fields with their help."""
    helps = {each.name: help_of(each) for each in fields(record)}  # type: ignore[arg-type]
    listed = [f"    {name}: {text}" for name, text in helps.items() if text]
    record.__doc__ = "\n".join([cleandoc(record.__doc__ or ""), "", "Args:", *listed])
    return record


def help_of(each: Field[Any]) -> str:
    """The help of a field that was made by `option` or `setting`."""
    return str(each.metadata.get("help") or (each.metadata["option"].help if "option" in each.metadata else ""))


def options_of(record: type[Any]) -> Iterator[tuple[type[Any], Field[Any], Any]]:
    """The fields of a record that are options, and those of the records in it: the record, the field, its type."""
    types = get_type_hints(record)
    for each in fields(record):
        kind = types[each.name]
        if "option" in each.metadata:
            yield record, each, kind
        for inner in (kind, *get_args(kind)):
            if is_dataclass(inner):
                yield from options_of(inner)  # type: ignore[arg-type]
