"""Numbers that every JSON reader accepts: finite as a double, and small enough to be summed.

    1e308 1.5 123456789012345678901        finite
    NaN Infinity 1e400, 400 digits         refused: other parsers fail on them, or read infinity or null

Float fields of models refuse other numbers by the models' configuration (``schemas/model.py``). Models do not validate
free-form JSON (a tool's result, an answer); this module checks its bytes, before decoding and after encoding.
"""

import json
import math
import re
from typing import Annotated, NoReturn

from annotated_types import Ge, Le

MAX_REWARD = 1e12
"""Largest absolute value of outcomes, feedback, rewards and reward components. The sum of a billion such values, and of
their squares, is finite in double precision; for the values of a group it is also finite in single precision."""

RewardValue = Annotated[float, Ge(-MAX_REWARD), Le(MAX_REWARD)]
"""A reward, or a number from which rewards are computed."""

_SHORTEST = b"0" * 200
"""A number with an exponent of at most two digits overflows a double only if it has at least this many digits."""

_LONG_EXPONENT = re.compile(rb"\d[eE]\+?\d{3,}+(?=[\s,}\]]|\Z)")
"""A number with an exponent of three or more digits. A similar piece of a hash is followed by a letter or a quote."""

_ALIKE = bytes(
    ord("0") if chr(byte) in "0123456789" else ord("e") if byte == ord("E") else byte for byte in range(256)
)  # fmt: skip


class NotFinite(ValueError):
    """A payload contains a number that is not finite; the message shows it."""


def refuse_not_finite(value: bytes) -> None:
    """Raise :class:`NotFinite` if the JSON in ``value`` contains a number that is not finite as a double.

    Takes time linear in ``value``. Invalid JSON raises nothing here; the decoder reports it.
    """
    if is_plainly_finite(value):
        return
    text = value.decode(errors="replace")
    try:
        json.loads(text, parse_constant=_refuse, parse_float=_checked, parse_int=_checked)
    except NotFinite:
        raise
    except (ValueError, RecursionError):
        return


def is_plainly_finite(value: bytes) -> bool:
    """Return whether a quick scan of ``value`` rules out such numbers; ``False`` means that it must be parsed."""
    if b"NaN" in value or b"Infinity" in value:
        return False
    alike = value.translate(_ALIKE)
    if (b"0e000" in alike or b"0e+000" in alike) and _LONG_EXPONENT.search(value):
        return False
    return _SHORTEST not in alike


def _refuse(text: str) -> NoReturn:
    shown = text if len(text) <= 24 else f"{text[:20]}… ({len(text)} characters)"
    raise NotFinite(f"{shown} is not a finite number: send null or a string instead")


def _checked(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _refuse(text)
    return number
