"""How a context's prefix is named: the one hash that the SDK writes and the assembler checks."""

import hashlib
import sys

from headrace.schemas.arrays import IntArray


def prefix_hash(token_ids: IntArray) -> str:
    """SHA-256 (hex) of int32 ``token_ids`` as little-endian bytes: ``ModelCalled.prefix_sha256``."""
    if sys.byteorder == "big":
        token_ids = token_ids[:]
        token_ids.byteswap()
    return hashlib.sha256(token_ids.tobytes()).hexdigest()
