"""Ids as tables print them: ``01a1fdd9…111111``. What compares ids takes this form, what looks one up refuses it."""

import click

ELLIPSIS = "…"

MAX_ID_CHARACTERS = 24
"""Longest id that is never shortened."""


def shortened(name: str) -> str:
    """Returns the start and the end of a long id, as in ``01a1fdd9…111111``; ``--trajectory`` accepts this form."""
    return name if len(name) <= MAX_ID_CHARACTERS else f"{name[:8]}{ELLIPSIS}{name[-6:]}"


def is_id(name: str, wanted: str) -> bool:
    """Whether ``name`` is the id ``wanted``, which may be shortened."""
    head, ellipsis, tail = wanted.partition(ELLIPSIS)
    return name.startswith(head) and name.endswith(tail) if ellipsis else name == wanted


def whole_id(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Callback of an option or argument: returns the id. Raises ``click.BadParameter`` for a shortened one: a record is
    looked up by the hash of its whole id."""
    if value is not None and ELLIPSIS in value:
        raise click.BadParameter(f"{value} is shortened: `headrace tail … --full` prints ids whole.")
    return value
