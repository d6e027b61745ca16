"""JSON as bytes that are safe inside a line of a server-sent event.

Some clients split lines where Python's ``str.splitlines`` does, also at U+0085, U+2028 and U+2029, which JSON allows in
strings: they are escaped, which vLLM 0.32 does not do. A lone surrogate, which UTF-8 cannot express, becomes U+FFFD,
one for each, so that the result does not depend on where a text was cut.
"""

import json
import re
from json.encoder import encode_basestring
from typing import Any

_SEPARATORS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))
_LONE = re.compile("[\ud800-\udfff]")
_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def well_formed(text: str) -> str:
    """Return ``text`` with every surrogate replaced by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return _LONE.sub("\ufffd", text)
    return text


def quote(text: str) -> bytes:
    """Return ``text`` as a JSON string in UTF-8, with its quotes."""
    quoted = encode_basestring(text)
    return quoted.encode() if text.isascii() else _without_separators(quoted)


def encode(value: Any) -> bytes:
    """Return ``value`` as JSON in UTF-8 on one line.

    Raises:
        ValueError: For a number that is not finite.
        TypeError: For a value that is not JSON.
    """
    return _without_separators(_dumps(value))


def _without_separators(text: str) -> bytes:
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        encoded = well_formed(text).encode()
    for raw, escaped in _SEPARATORS:
        encoded = encoded.replace(raw, escaped)
    return encoded


def event(name: bytes, data: bytes) -> bytes:
    """Return a named server-sent event."""
    return b"event: " + name + b"\ndata: " + data + b"\n\n"
