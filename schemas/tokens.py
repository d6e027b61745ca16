"""The hash that identifies a prefix of a context. The SDK writes it and the assembler verifies it."""

import hashlib
import sys

from headrace.schemas.arrays import IntArray


def prefix_hash(token_ids: IntArray) -> str:
    """Return the SHA-256 (hex) of ``token_bytes(token_ids)``: ``ModelCalled.prefix_sha256``."""
    return hashlib.sha256(token_bytes(token_ids)).hexdigest()


def token_bytes(token_ids: IntArray) -> bytes:
    """Return int32 ``token_ids`` as little-endian bytes, on every machine."""
    if sys.byteorder == "big":
        token_ids = token_ids[:]
        token_ids.byteswap()
    return token_ids.tobytes()
