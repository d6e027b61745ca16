"""The hash that identifies a prefix of a context. The SDK writes it and the assembler verifies it."""

import hashlib
import sys

from headrace.schemas.arrays import IntArray


def prefix_hash(token_ids: IntArray) -> str:
    """Return the SHA-256 (hex) of int32 ``token_ids`` as little-endian bytes: ``ModelCalled.prefix_sha256``."""
    if sys.byteorder == "big":
        token_ids = token_ids[:]
        token_ids.byteswap()
    return hashlib.sha256(token_ids.tobytes()).hexdigest()
