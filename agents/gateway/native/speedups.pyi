"""What the extension module offers; README.md beside it says what for."""

from headrace.schemas.arrays import IntArray

SOURCES: str
"""SHA-256 of the files that it was built from."""

def read_plain(
    data: bytes, at: int, asked: bytes | None, longest: int, /
) -> tuple[int, int, bytes, bytes, str, bool, bytes | None] | None:
    """Read the plain lines of a stream that begin at ``at``: those of one choice that continues, or one that ends it.

    ``asked``: the prompt of the request as JSON without spaces. ``longest``: bytes of the longest line. Returns one
    past the last byte that was read, the choice, its token ids (int32) and log-probabilities (float32) as bytes, the
    text, whether the first line repeats the prompt, and of a line that ends its choice a choice in JSON that has
    nothing but the end; ``None`` if the line at ``at`` is not plain.
    """

def decode_ids(json: bytes, /) -> bytes | None:
    """Return a list of token ids in JSON as bytes of int32; ``None`` for an empty list, spaces, or anything else."""

def encode_ids(ids: IntArray, /) -> bytes:
    """Return token ids as JSON without spaces. Raises ``TypeError`` for other arrays."""
