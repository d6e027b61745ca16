"""Text that may be shown: secrets taken out, control characters escaped, markup of matplotlib escaped.

Ids, names and messages come from whoever may write to the log, and addresses from settings that may hold passwords. So
what is shown goes through one of these on its way out: to a terminal :func:`printable` or :func:`printable_json`, to a
log, a page, a file or an error :func:`redacted`, into a picture :func:`plain_text`. Each takes time linear in its
text. What a secret is says ``redaction.py``.
"""

import json
import re
from typing import Any

from headrace.schemas.redaction import HIDDEN, holds_secret, redacted, redacted_values

__all__ = [
    "HIDDEN",
    "holds_secret",
    "plain_text",
    "printable",
    "printable_json",
    "printable_lines",
    "redacted",
    "redacted_values",
]

# What Unicode calls default-ignorable and Python calls printable (variation selectors, joiners, fillers), and the blank
# of Braille: two names that look the same would be told apart by nobody.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def printable(text: str) -> str:
    """``text`` in one line that moves no terminal's cursor, colours or reading direction.

    Control characters (C0, C1, ESC), line ends, bidirectional overrides and other invisible characters are shown as
    escapes: ``\\x1b``, ``\\n``, ``\\u202e``.
    """
    return text if _is_visible(text) else "".join(map(_shown, text))


def printable_lines(text: str) -> str:
    """:func:`printable` for each line of a text whose line ends are meant."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(value: Any, *, indent: int | None = None) -> str:
    """``value`` as JSON, for programs and terminals alike: what is not printable is escaped as JSON has it."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if _is_visible(text):
        return text
    return "".join(each if each == "\n" or _is_shown(each) else json.dumps(each)[1:-1] for each in text)


def plain_text(text: str) -> str:
    """``text`` for a label of matplotlib, drawn as it is: a dollar sign begins no formula, control characters are
    escaped, so that an SVG holds none."""
    return printable(text).replace("$", r"\$")


def _is_visible(text: str) -> bool:
    return text.isprintable() and (text.isascii() or not _INVISIBLE.search(text))


def _is_shown(character: str) -> bool:
    if _INVISIBLE.match(character):
        return False
    # Spaces of other scripts (U+3000) are not "printable" for Python, and do no harm.
    return character.isprintable() or (character.isspace() and character > "\xa0" and character not in "\u2028\u2029")


def _shown(character: str) -> str:
    if _is_shown(character):
        return character
    if character in _ESCAPES:
        return _ESCAPES[character]
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
