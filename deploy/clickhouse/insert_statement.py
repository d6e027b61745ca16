"""Splits an insert into its statement and its data: pure, in one pass over the statement's tokens.

INSERT INTO t (a, b) FORMAT CSV\\n1,2  →  head "INSERT INTO t (a, b)", format "CSV", data "1,2"
INSERT INTO t VALUES (1, 'x')          →  head "INSERT INTO t", format "Values", data "(1, 'x')"
INSERT INTO t SELECT …                 →  None: a statement without data
"""

import re
from dataclasses import dataclass

# Each alternative starts with a character of its own, or is possessive (++, *+), so that there is no backtracking.
_TOKEN = re.compile(
    rb"""(?P<space>\s++|--[^\n]*+(?:\n|\Z)|\#[!\x20][^\n]*+(?:\n|\Z)|/\*.*?\*/)
    |(?P<quoted>"(?:[^"\\]++|\\.|"")*+"|`(?:[^`\\]++|\\.|``)*+`|'(?:[^'\\]++|\\.|'')*+')
    |(?P<word>[A-Za-z0-9_\x80-\xff]++)
    |(?P<other>[().,=;{}:+*\-]|/(?!\*))""",
    re.VERBOSE | re.DOTALL,
)
_FORMAT_NAME = re.compile(rb"(\w++)[ \t]*+(?:\r?\n|;|\Z|[ ]|(?<=[ \t]))")


@dataclass(frozen=True, slots=True)
class Insert:
    """The parts of an insert."""

    head: str
    """The statement without format and data."""
    format: str
    """The format of the data."""
    data: bytes
    """The data."""


def split_insert(text: bytes) -> Insert | None:
    """Returns the parts of ``text`` if it is an insert with data; ``None`` for any other statement.

    Raises ``UnicodeDecodeError`` if the statement without the data is not UTF-8. Takes time proportional to the length
    of the statement.
    """
    depth, position, words = 0, 0, 0
    while token := _TOKEN.match(text, position):
        position = token.end()
        if token.lastgroup == "other":
            depth += {b"(": 1, b")": -1}.get(token[0], 0)
        if token.lastgroup != "word" or depth:
            continue
        word, words = token[0].upper(), words + 1
        if words <= 2:
            if word != (b"INSERT", b"INTO")[words - 1]:
                return None
        elif word in (b"SELECT", b"WITH", b"WATCH", b"INFILE", b"FUNCTION"):
            return None
        elif word == b"VALUES":
            return Insert(text[: token.start()].decode(), "Values", text[position:])
        elif word == b"FORMAT":
            space = re.compile(rb"\s++").match(text, position)
            named = _FORMAT_NAME.match(text, space.end()) if space else None
            if named is None:
                return None
            return Insert(text[: token.start()].decode(), named[1].decode(), text[named.end() :])
    return None
