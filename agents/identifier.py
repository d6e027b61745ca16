"""What may identify something in an event: text that stands in keys and headers, and means the same to everyone.

``7`` → ``"7"`` (said once in the log), ``"order-17"`` as it is; ``None``, ``""`` and ``["a"]`` identify nothing.
"""

from enum import Enum
from typing import Any, Final, cast
from uuid import UUID

from headrace.agents.json_form import is_int64
from headrace.agents.raised import type_name

MAX_CHARACTERS: Final = 512
"""Longest identifier; events with longer ones would be dead letters."""


class BadIdentifier(ValueError):
    """The value cannot identify anything; the message says which argument it was and what is expected."""


def identifier(value: object, argument: str) -> str:
    """``value`` as an identifier: Unicode text of 1 to ``MAX_CHARACTERS`` characters; integers and UUIDs as text.

    Raises :class:`BadIdentifier`, which names the ``argument``.
    """
    kind, unchecked = type(value), cast(Any, value)  # isinstance() would ask a lazy object for its class
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
        raise BadIdentifier(f"{argument} is {text[:40]!a}, which is no Unicode text: expected a str") from None
    return text


def is_plain(value: object) -> bool:
    """Whether ``value`` is an identifier as it stands, as nearly all are: the quick question of the host's thread."""
    return type(value) is str and 0 < len(value) <= MAX_CHARACTERS and value.isascii()
