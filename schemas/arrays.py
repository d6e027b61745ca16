"""Token arrays on the wire: base64 of little-endian bytes, compressed with zstd from ``COMPRESS_FROM`` bytes on.

``array("i", [5, 6])`` ↔ ``"BQAAAAYAAAA="``; a longer array ↔ ``"zstd:KLUv/…"``. Three types share the form:
``TokenIds`` (int32), ``LogProbs`` (float32, at most 0) and ``LossMask`` (int8, 0 or 1). A plain list of numbers is
accepted when a model is built in Python; the wire always carries the string.
"""

import base64
import binascii
import math
import sys
import threading
from array import array
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import zstandard
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

if TYPE_CHECKING:
    IntArray: TypeAlias = array[int]
    FloatArray: TypeAlias = array[float]
else:  # array.array takes no parameters at run time before Python 3.12
    IntArray = FloatArray = array

COMPRESS_FROM = 1024
"""Size in bytes from which an array is compressed: below it zstd's frame and the call cost more than they save."""

MAX_BYTES = 16 * 1024 * 1024
"""Largest decoded array, in bytes (4 M tokens)."""

MAX_INFLATION = 64
"""Decoded bytes allowed per character of a compressed array, in addition to ``FREE_INFLATION``, so that the cost of
reading a record is linear in its size. Tokens of real text, repeated documents included, stay below this bound."""

FREE_INFLATION = {"i": 64 * 1024, "f": 64 * 1024, "b": 1024 * 1024}
"""Decoded bytes that a compressed array may have regardless of the length of its text, by typecode. For token ids and
log-probabilities that is one value repeated 16 k times. A loss mask consists of runs of 0 and 1, so it compresses to
almost nothing; no event contains one."""

_PREFIX = "zstd:"
_ITEM_BYTES = {typecode: array(typecode).itemsize for typecode in "ifb"}


class _Codec(threading.local):
    """Per-thread zstd contexts: creating one takes longer than using it, and threads must not share them."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1)
        self.decompressor = zstandard.ZstdDecompressor()


_CODEC = _Codec()


def encode_array(values: "array[Any]") -> str:
    """Return the wire form of ``values``, little-endian on every machine.

    The array is compressed from ``COMPRESS_FROM`` bytes on, unless :func:`decode_array` would reject the result, as it
    does for an array of one repeated value.
    """
    raw = values.tobytes()
    if sys.byteorder == "big":
        swapped = array(values.typecode, values)
        swapped.byteswap()
        raw = swapped.tobytes()
    if len(raw) < COMPRESS_FROM:
        return binascii.b2a_base64(raw, newline=False).decode("ascii")
    packed = binascii.b2a_base64(_CODEC.compressor.compress(raw), newline=False)
    if len(raw) > largest_inflated(len(packed), values.typecode):
        return binascii.b2a_base64(raw, newline=False).decode("ascii")
    return _PREFIX + packed.decode("ascii")


def largest_inflated(characters: int, typecode: str) -> int:
    """Return the largest decoded size, in bytes, of a compressed array of ``characters`` base64 characters."""
    return min(MAX_BYTES, FREE_INFLATION[typecode] + MAX_INFLATION * characters)


def decode_array(text: str, typecode: str) -> "array[Any]":
    """Decode ``text`` into an array. ``typecode`` is that of :mod:`array`: ``i``, ``f`` or ``b``.

    Raises ``ValueError`` if the text is not base64 or not zstd, if the array is larger than ``MAX_BYTES`` or than its
    compressed form allows (:func:`largest_inflated`), or if its size is not a multiple of the item size.
    """
    packed = text.startswith(_PREFIX)
    try:
        raw = _from_base64(text[len(_PREFIX) :] if packed else text)
        if packed:
            size = zstandard.frame_content_size(raw)
            most = largest_inflated(len(text) - len(_PREFIX), typecode)
            if not 0 <= size <= most:
                raise ValueError(
                    f"a compressed array of {len(text)} characters must state a size of at most {most} bytes, "
                    f"not {size}"
                )
            raw = _CODEC.decompressor.decompress(raw, max_output_size=MAX_BYTES)
    except (binascii.Error, zstandard.ZstdError) as error:
        raise ValueError(f"not a token array: {error}") from error
    size = _ITEM_BYTES[typecode]
    if len(raw) > MAX_BYTES or len(raw) % size:
        raise ValueError(f"a token array of {len(raw)} bytes: expected a multiple of {size}, ≤ {MAX_BYTES}")
    values: array[Any] = array(typecode, raw)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _from_base64(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error:
        return base64.b64decode(text, validate=True)  # slower, and takes superfluous padding


class ArrayType:
    """Defines how pydantic reads, writes and describes an :mod:`array` of one typecode."""

    def __init__(self, typecode: str, title: str, check: Callable[["array[Any]"], None]) -> None:
        self.typecode = typecode
        self.title = title
        self.check = check

    def read(self, value: object) -> "array[Any]":
        """Return ``value``, a wire form, an array or an iterable of numbers, as an array; otherwise raise
        ``ValueError``."""
        if isinstance(value, str):
            values = decode_array(value, self.typecode)
        elif isinstance(value, array) and value.typecode == self.typecode:
            values = value
        elif isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | memoryview):
            try:
                values = array(self.typecode, value)
            except (TypeError, OverflowError) as error:
                raise ValueError(f"not {self.title}: {error}") from error
        else:
            raise ValueError(f"expected {self.title} as a base64 string or a sequence, not {type(value).__name__}")
        self.check(values)
        return values

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.read,
            serialization=core_schema.plain_serializer_function_ser_schema(
                encode_array, return_schema=core_schema.str_schema()
            ),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "contentEncoding": "base64", "description": f"{self.title}; {_PREFIX} marks zstd"}


def _any(values: IntArray) -> None:
    """Accept every int32: vocabularies differ, and the trainer checks token ids against its own."""


MAX_LOGPROB = 1e-3
"""Largest accepted log-probability: a probability is at most 1, and float32 rounding adds far less than this."""


def _logprobs(values: FloatArray) -> None:
    # Summed as doubles, float32 values cannot overflow: the sum is finite unless one of them is not.
    if not math.isfinite(sum(values)):
        raise ValueError("a log-probability is not finite: leave log-probabilities out if they are unknown")
    if values and max(values) > MAX_LOGPROB:
        raise ValueError(f"a log-probability is {max(values):g}: it must be at most 0")


def _bits(values: IntArray) -> None:
    if values.tobytes().translate(None, b"\0\1"):
        raise ValueError("a loss mask holds 0 and 1 only")


TokenIds = Annotated[IntArray, ArrayType("i", "token ids (int32, little-endian)", _any)]
LogProbs = Annotated[FloatArray, ArrayType("f", "log-probabilities (float32, little-endian)", _logprobs)]
LossMask = Annotated[IntArray, ArrayType("b", "loss mask (int8, 0 or 1)", _bits)]
