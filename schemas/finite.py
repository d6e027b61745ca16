"""Numbers that every reader of JSON takes: finite as a double, and small enough to be added up.

    1e308 1.5 123456789012345678901        finite
    NaN Infinity 1e400, 400 digits         refused: other parsers fail on them, or read infinity or null

Fields that a model types as floats refuse them by the model's settings (``schemas/model.py``). Free-form JSON (a tool's
result, an answer) is not looked at by a model: here its bytes are, before it is read and after it is written.
"""

import json
import math
import re
from typing import Annotated, NoReturn

from annotated_types import Ge, Le

MAX_REWARD = 1e12
"""Largest absolute value of an outcome, of feedback and of a reward with its components. A billion of them, and the sum
of their squares, are finite in double precision; those of a group also in single precision."""

RewardValue = Annotated[float, Ge(-MAX_REWARD), Le(MAX_REWARD)]
"""A number that rewards are made of."""

_SHORTEST = b"0" * 200
"""Digits in a row without which no number with an exponent of two digits is beyond a double."""

_LONG_EXPONENT = re.compile(rb"\d[eE]\+?\d{3,}+(?=[\s,}\]]|\Z)")
"""A number with an exponent of three digits, and not a piece of a hash: those go on, or end in a quote."""

_ALIKE = bytes(
    ord("0") if chr(byte) in "0123456789" else ord("e") if byte == ord("E") else byte for byte in range(256)
)  # fmt: skip


class NotFinite(ValueError):
    """A payload holds a number that is not finite; the message names it."""


def refuse_not_finite(value: bytes) -> None:
    """Raise :class:`NotFinite` where the JSON in ``value`` holds a number that is not finite as a double.

    Takes time linear in ``value``. What is no JSON at all is left to whoever reads it.
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
    """Whether ``value`` cannot hold such a number; ``False`` says that it must be looked at more closely."""
    if b"NaN" in value or b"Infinity" in value:
        return False
    alike = value.translate(_ALIKE)
    if (b"0e000" in alike or b"0e+000" in alike) and _LONG_EXPONENT.search(value):
        return False
    return _SHORTEST not in alike


def _refuse(text: str) -> NoReturn:
    shown = text if len(text) <= 24 else f"{text[:20]}… ({len(text)} characters)"
    raise NotFinite(f"{shown} is no finite number: send null, or a text, in its place")


def _checked(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _refuse(text)
    return number
