"""Characters of any script → those of ASCII that they stand for, so that presets find what is written in them.

４１１１ ada＠mill。example  →  4111 ada@mill.example
"""

import unicodedata
from collections.abc import Callable
from typing import Final

PIECE: Final = 16_384
"""Characters that are folded in one step of the interpreter."""

_KEPT: Final = 16_384
"""Most characters of a table: a text may contain a million different ones."""

_DOTS: Final = "\u3002\uff61"
"""Full stops that domain names may be written with (RFC 3490), beside those that are forms of ASCII's."""


_IGNORABLE: Final = (
    *(range(code, code + 1) for code in (0x034F, 0x2065, 0x3164, 0xFFA0)),
    *(range(0x115F, 0x1161), range(0x17B4, 0x17B6), range(0x180B, 0x1810)),
    *(range(0xFE00, 0xFE10), range(0xFFF0, 0xFFF9), range(0xE0000, 0xE1000)),
)
"""Characters that fonts do not show (Unicode's ``Default_Ignorable_Code_Point``), beside those of category ``Cf``."""


class _Table(dict[int, int | None]):
    """What ``str.translate`` makes of characters, computed when one occurs first, and kept for the first so many."""

    def __init__(self, form_of: Callable[[str], int | None]) -> None:
        self._form_of = form_of

    def __missing__(self, code: int) -> int | None:
        form = self._form_of(chr(code))
        if len(self) < _KEPT:
            self[code] = form
        return form


def folded(text: str) -> str:
    """Return ``text`` with forms of ASCII characters, digits, spaces and hyphens as those of ASCII, combining marks as
    hyphens, and without invisible characters: as long as :func:`visible` of it."""
    return _translated(text, _FOLDED)


def visible(text: str) -> str:
    """Return ``text`` without invisible characters, such as zero-width spaces and soft hyphens."""
    return _translated(text, _VISIBLE)


def _translated(text: str, table: _Table) -> str:
    return "".join(text[at : at + PIECE].translate(table) for at in range(0, len(text), PIECE))


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) == "Cf" or any(ord(character) in each for each in _IGNORABLE)


def _folded(character: str) -> int | None:
    if _is_invisible(character):
        return None
    if (digit := unicodedata.decimal(character, None)) is not None:
        return ord("0") + digit
    match unicodedata.category(character):
        case "Zs":
            return ord(" ")
        case "Pd" | "Mn" | "Mc" | "Me":  # accents and vowels apart from their letter: parts of a word, as hyphens are
            return ord("-")
    plain = "." if character in _DOTS else unicodedata.normalize("NFKC", character)
    return ord(plain) if len(plain) == 1 and plain.isascii() else ord(character)


def _visible(character: str) -> int | None:
    return None if _is_invisible(character) else ord(character)


_FOLDED: Final = _Table(_folded)
_VISIBLE: Final = _Table(_visible)
