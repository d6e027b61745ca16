"""Regular expressions over chunks, in time linear in their text, by RE2.

    grep(passages, r"COPY_BUFSIZE\\s*=") → [Chunk("d0408-2", …)]

A policy writes the pattern, so it must not be able to cost more than a scan: RE2 has no back-references and no
look-around, and rejects what would need much memory.
"""

from functools import lru_cache
from typing import Any

import re2

from headrace.agents.retrieval.passages import Chunk, Passages

MAX_CHUNKS = 5
"""Most chunks of a result; published for Context-1."""
MAX_PATTERN = 200
"""Longest pattern, in characters."""
MAX_MEMORY = 4 << 20
"""Most bytes of a compiled pattern and its automaton."""


class BadPattern(ValueError):
    """A pattern that RE2 does not take; the message says why."""


def grep(passages: Passages, pattern: str, most: int = MAX_CHUNKS) -> list[Chunk]:
    """Return the first ``most`` chunks that match ``pattern``, case-sensitively, in the corpus's order.

    Raises :class:`BadPattern` if the pattern is empty, too long, or not of RE2's syntax.
    """
    compiled = _compiled(pattern)
    found: list[Chunk] = []
    for chunk in passages.chunks:
        if compiled.search(chunk.searched):
            found.append(chunk)
            if len(found) == most:
                break
    return found


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> Any:
    if not 0 < len(pattern) <= MAX_PATTERN:
        raise BadPattern(f"a pattern has 1 to {MAX_PATTERN} characters, not {len(pattern)}")
    options = re2.Options()
    options.max_mem = MAX_MEMORY
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0] if isinstance(error, re2.error) else str(error)
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise BadPattern(f"{pattern!r} is not a regular expression of RE2: {text}") from None
