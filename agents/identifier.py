"""Identifiers in events: valid Unicode text of bounded length, which can be used in record keys and headers.

``7`` → ``"7"`` (logged), ``"order-17"`` unchanged; ``None``, ``""`` and ``["a"]`` are not identifiers.
"""

from enum import Enum
from typing import Any, Final, cast
from uuid import UUID

from headrace.agents.json_form import is_int64
from headrace.agents.raised import type_name

MAX_CHARACTERS: Final = 512
"""Longest identifier; events with longer identifiers would become dead letters."""


class BadIdentifier(ValueError):
    """The value is not an identifier; the message names the argument and what is expected."""


def identifier(value: object, argument: str) -> str:
    """Convert ``value`` to an identifier, a Unicode text of 1 to ``MAX_CHARACTERS`` characters; integers and UUIDs
    become text.

    Raises :class:`BadIdentifier`, which names the ``argument``.
    """
    kind, unchecked = type(value), cast(Any, value)  # isinstance() would run code of a lazy object
    if issubclass(kind, str):
        text = str.__str__(unchecked)
    elif issubclass(kind, int) and kind is not bool and not issubclass(kind, Enum):
        number = int.__int__(unchecked)
        text = str(number) if is_int64(number) else "9" * (MAX_CHARACTERS + 1)
    elif kind is UUID:
        text = str(unchecked)
    else:
        raise BadIdentifier(f"{argument} is of type {type_name(kind)}: expected a str")
    if not 0 < len(text) <= MAX_CHARACTERS:
        raise BadIdentifier(f"{argument} has {len(text):,} characters: expected a str of 1 to {MAX_CHARACTERS}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadIdentifier(f"{argument} is not valid Unicode: expected a str") from None
    return text


def is_plain(value: object) -> bool:
    """Return whether ``value`` is an ASCII identifier, as almost all are: a fast check for the host's thread."""
    return type(value) is str and 0 < len(value) <= MAX_CHARACTERS and value.isascii()
