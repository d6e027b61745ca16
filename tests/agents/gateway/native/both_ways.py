"""Reads a stream by Python alone and with the extension module, and compares."""

import os
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.agents.gateway.engine_errors import EngineError
from headrace.agents.gateway.generate_stream import Chunk, EngineUsage, GenerateStream
from headrace.agents.gateway.native.available import SPEEDUPS, PlainReader, read_plain, reads_nothing

needs_speedups = pytest.mark.skipif(
    SPEEDUPS is None and not os.environ.get("CI"), reason="the extension module is not built: `make native`"
)

Read = tuple[list[Chunk], EngineUsage]


def read_one_way(data: Sequence[bytes], reader: PlainReader, **options: Any) -> Read | EngineError:
    """The chunks and the usage of a stream, or why it is refused."""
    stream = GenerateStream("http://engine", read_plain=reader, **options)
    try:
        chunks = [chunk for part in data for chunk in stream.feed(part)]
        return chunks, stream.end()
    except EngineError as error:
        return error


def read_both_ways(data: Sequence[bytes], **options: Any) -> Read:
    """The same, after it was read both ways; raises the error."""
    by_python, found = read_one_way(data, reads_nothing, **options), read_one_way(data, read_plain, **options)
    compare(by_python, found)
    if isinstance(found, EngineError):
        raise found
    return found


def compare(by_python: Read | EngineError, found: Read | EngineError) -> None:
    """Raises ``AssertionError`` unless both ways have read the same, or refused with the same words."""
    if isinstance(by_python, EngineError) or isinstance(found, EngineError):
        assert (type(by_python), str(by_python)) == (type(found), str(found))
        return
    # As text, in which −0 differs from 0, and an int from an equal float.
    assert repr(by_python) == repr(found)
