"""What headrace prints: everything for a terminal goes through here, so that no record moves a person's cursor."""

import re
import sys
from collections.abc import Iterable
from typing import Any

import click

from headrace.schemas.safe_text import printable, printable_json, printable_lines, redacted

_TWO_STOPS = re.compile(r"([.?!])\.\Z")


def tell(*lines: str, err: bool = False) -> None:
    """Print ``lines``; control characters and line ends inside one are shown as escapes."""
    for line in lines:
        click.echo(printable(line), err=err)


def tell_lines(lines: Iterable[str]) -> None:
    """:func:`tell` for a page of lines."""
    tell(*lines)


def tell_address(line: str, *, err: bool = False) -> None:
    """Print a line that may hold an address of the settings: without its password."""
    tell(redacted(line), err=err)


def tell_page(text: str) -> None:
    """Print a text of our own, which ends with a line end; those inside it are meant."""
    click.echo(printable_lines(text), nl=False)


def tell_table(text: str) -> None:
    """Print an answer of ClickHouse: its tabs and line ends divide columns and rows."""
    click.echo("\t".join(map(printable_lines, text.split("\t"))), nl=False)


def tell_json(value: Any, *, indent: int | None = None) -> None:
    """Print ``value`` as JSON; characters that are not printable are escaped, so that it is JSON for every reader."""
    click.echo(printable_json(value, indent=indent))


def tell_count(text: str) -> None:
    """Show a counter in its own line of a terminal, over the last one; nothing where nobody watches."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{printable(text)}", nl=False, err=True)


def end_count() -> None:
    """Take the counter away."""
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)


def tell_error(text: str) -> None:
    """Print on standard error what went wrong, without secrets; the text's own line ends are kept."""
    click.echo(error_text(text), err=True)


def error_text(error: BaseException | str) -> str:
    """An error as a person reads it: without secrets, its own line ends kept, one full stop at the end."""
    return _TWO_STOPS.sub(r"\1", printable_lines(redacted(str(error))))
