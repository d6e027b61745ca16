"""Text that is safe to display: secrets removed, control characters escaped, matplotlib markup escaped.

Every program that may write to the log chooses ids, names and messages, and addresses come from settings that may
contain passwords. All such text therefore passes through one of these functions before it is displayed:
:func:`printable` or :func:`printable_json` for a terminal, :func:`redacted` for a log, a page, a file or an error,
:func:`plain_text` for a picture. Each takes time linear in its text. ``redaction.py`` defines what counts as a secret.
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

# Characters that are default-ignorable in Unicode and printable in Python (variation selectors, joiners, fillers), and
# the Braille blank: with them, two different names could look the same.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def printable(text: str) -> str:
    """Return ``text`` as one line that cannot change a terminal's cursor, colours or reading direction.

    Control characters (C0, C1, ESC), line ends, bidirectional overrides and other invisible characters become escape
    sequences: ``\\x1b``, ``\\n``, ``\\u202e``.
    """
    return text if _is_visible(text) else "".join(map(_shown, text))


def printable_lines(text: str) -> str:
    """Apply :func:`printable` to each line of ``text`` and keep the line ends."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(value: Any, *, indent: int | None = None) -> str:
    """Return ``value`` as JSON for programs and terminals; characters that are not printable become JSON escapes."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if _is_visible(text):
        return text
    return "".join(each if each == "\n" or _is_shown(each) else json.dumps(each)[1:-1] for each in text)


def plain_text(text: str) -> str:
    """Return ``text`` for a matplotlib label that is drawn literally: dollar signs start no formula, and control
    characters are escaped, so that an SVG contains none."""
    return printable(text).replace("$", r"\$")


def _is_visible(text: str) -> bool:
    return text.isprintable() and (text.isascii() or not _INVISIBLE.search(text))


def _is_shown(character: str) -> bool:
    if _INVISIBLE.match(character):
        return False
    # Python does not count spaces of other scripts (U+3000) as printable; they are harmless.
    return character.isprintable() or (character.isspace() and character > "\xa0" and character not in "\u2028\u2029")


def _shown(character: str) -> str:
    if _is_shown(character):
        return character
    if character in _ESCAPES:
        return _ESCAPES[character]
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
