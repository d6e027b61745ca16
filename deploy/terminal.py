"""Printing to the terminal.

Every command prints through these functions, so that no control character of a record reaches the terminal.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from headrace.schemas.safe_text import printable, printable_json, printable_lines, redacted

SENTENCE = 1_000
"""Longest first sentence of a command's help in a list of commands, in characters: it is shown whole."""

_TWO_STOPS = re.compile(r"([.?!])\.\Z")


class CommandGroup(click.Group):
    """A command with commands of its own, whose help shows the first sentence of each, whole."""

    def sections(self, ctx: click.Context) -> Mapping[str, Sequence[str]]:
        """Return the names of the commands under the headings of the help."""
        return {"Commands": self.list_commands(ctx)}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their first sentences, section by section."""
        for title, names in self.sections(ctx).items():
            commands = ((name, self.get_command(ctx, name)) for name in names)
            rows = [(name, each.get_short_help_str(limit=SENTENCE)) for name, each in commands if each is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def print_line(line: str, *, err: bool = False) -> None:
    """Print ``line``; control characters and line ends inside it are escaped."""
    click.echo(printable(line), err=err)


def print_lines(lines: Iterable[str]) -> None:
    """Print each of ``lines`` by :func:`print_line`."""
    for line in lines:
        print_line(line)


def print_redacted(line: str, *, err: bool = False) -> None:
    """Print a line that may hold an address from the settings, without its password."""
    print_line(redacted(line), err=err)


def print_text(text: str) -> None:
    """Print a text of several lines that headrace wrote; it ends with a line end, and its line ends are kept."""
    click.echo(printable_lines(text), nl=False)


def print_table(text: str) -> None:
    """Print an answer of ClickHouse; its tabs and line ends, which separate columns and rows, are kept."""
    click.echo("\t".join(map(printable_lines, text.split("\t"))), nl=False)


def print_json(value: Any, *, indent: int | None = None) -> None:
    """Print ``value`` as JSON, with escapes for characters that are not printable: every JSON reader can parse it."""
    click.echo(printable_json(value, indent=indent))


def show_counter(text: str) -> None:
    """Show a counter on the current line of standard error, over the previous one; only on a terminal."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{printable(text)}", nl=False, err=True)


def clear_counter() -> None:
    """Clear the counter's line."""
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)


def print_error(text: str) -> None:
    """Print an error on standard error, without secrets; the text's own line ends are kept."""
    click.echo(error_text(text), err=True)


def error_text(error: BaseException | str) -> str:
    """Returns the text of an error for users: without secrets, its line ends kept, one full stop at the end."""
    return _TWO_STOPS.sub(r"\1", printable_lines(redacted(str(error))))
