"""What an environment's server answers, read without trusting it: bounded in size and depth, and of the right form.

    object_of(b'{"reward": 1.0}', "/verify")      →  {"reward": 1.0}
    object_of(b'[[[[…', "/verify")                   raises ServerFailed

Whatever a server says, the rollout ends with a label; none of it ends the run.
"""

import json
import math
from typing import Any

import aiohttp

from headrace.schemas.nesting import MAX_NESTING, nesting

MAX_BODY = 1 << 24
"""Largest answer that is read as JSON, in bytes."""

SHOWN = 500
"""Longest part of an answer in an error message, in characters."""


class ServerFailed(RuntimeError):
    """The environment's server failed, broke off, or answered what it must not; the message has what it said."""


async def text_of(response: aiohttp.ClientResponse, most: int) -> str:
    """Return the text of an answer, as much of it as is in ``most`` bytes; the rest is not read."""
    text = await _bytes_of(response, most)
    try:
        return text.decode(response.charset or "utf-8", errors="replace")
    except (LookupError, ValueError):  # a charset that there is not, or that is none of texts
        return text.decode(errors="replace")


async def json_of(response: aiohttp.ClientResponse, what: str) -> dict[str, Any]:
    """Return the JSON object of an answer, whatever its content type. Raises :class:`ServerFailed`."""
    text = await _bytes_of(response, MAX_BODY + 1)
    if len(text) > MAX_BODY:
        raise ServerFailed(f"{what} answered more than {MAX_BODY} bytes")
    return object_of(text, what)


async def _bytes_of(response: aiohttp.ClientResponse, most: int) -> bytes:
    text = bytearray()
    while len(text) < most and (part := await response.content.read(most - len(text))):
        text += part
    if not response.content.at_eof():
        response.close()  # the connection, which has the rest, is not used again
    return bytes(text)


def object_of(text: bytes, what: str) -> dict[str, Any]:
    """Return the JSON object ``text``. Raises :class:`ServerFailed`."""
    try:
        found = json.loads(text) if nesting(text) <= MAX_NESTING else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ServerFailed(f"{what} answered no JSON object: {text[:SHOWN].decode(errors='replace')!r}")
    return found


def number_of(value: Any) -> float | None:
    """Return a number of JSON as a float, infinite if it is beyond all floats; ``None`` for anything else."""
    if not isinstance(value, (bool, int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
