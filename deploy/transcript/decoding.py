"""The texts of neighbouring stretches of tokens. Pure.

A token's text depends on the tokens before it: a character of several bytes may be divided among tokens, and some
tokenizers write a space only inside a text. So a stretch's text is the difference between the texts of two beginnings.
"""

from collections.abc import Callable, Sequence

from headrace.deploy.transcript.pieces import Stretch
from headrace.schemas.records.trajectory import Segment

Decode = Callable[[Sequence[int]], str]
"""Makes the text of token ids."""

_NOT_UTF8 = "\ufffd"
_OVERLAP = 32
"""Tokens before a stretch that are decoded with it: no character and no rule of a decoder is longer."""


def ids_as_text(token_ids: Sequence[int]) -> str:
    """Returns the ids themselves."""
    return " ".join(map(str, token_ids))


def decoded(segment: Segment, start: int, end: int, decode: Decode | None) -> str:
    """Returns the text of tokens ``[start, end)`` of ``segment``; their ids without ``decode``."""
    return (decode or ids_as_text)(segment.token_ids[start:end])


def texts_of(segment: Segment, stretches: Sequence[Stretch], decode: Decode | None) -> list[str] | None:
    """Returns the text of each of ``stretches``, which follow one another; ``None`` if the decoder changes what it said
    before, so that only the text of all of them together is right. A stretch that ends inside a character leaves it to
    the next one.

    Both beginnings start a few dozen tokens before the stretch, not at the first one, which would take time quadratic
    in the length.
    """
    if not stretches:
        return []
    texts: list[str] = []
    start, before = stretches[0].start, ""
    for number, stretch in enumerate(stretches):
        whole = decoded(segment, start, stretch.end, decode)
        text = whole.rstrip(_NOT_UTF8) if number < len(stretches) - 1 else whole
        if not text.startswith(before):
            return None
        texts.append(text[len(before) :])
        before = text
        if text == whole and stretch.end - start > 2 * _OVERLAP:
            start = stretch.end - _OVERLAP
            before = decoded(segment, start, stretch.end, decode)
    return texts
