"""How deep JSON is nested, without parsing it."""

from itertools import accumulate

MAX_NESTING = 150
"""Deepest JSON nesting of an event. Parsers stop at 200, and a trajectory adds levels around its events."""

_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def nesting(value: bytes) -> int:
    """Returns an upper bound of the depth of JSON, exact if there are more than ``MAX_NESTING`` brackets. Takes time
    linear in the length for any bytes: each step is one pass.
    """
    # replace() searches for the next bracket by vectors of bytes, count() byte by byte: five times as long.
    most = MAX_NESTING + 1
    brackets = 2 * len(value) - len(value.replace(b"{", b"", most)) - len(value.replace(b"[", b"", most))
    if brackets <= MAX_NESTING:
        return brackets
    # Without escapes every other piece between quotes is outside of strings; an open string reaches to the end.
    unescaped = value.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(unescaped.split(b'"')[::2]).translate(None, _NO_BRACKETS)
    return max(accumulate((1 if bracket in b"[{" else -1 for bracket in outside), initial=0))
