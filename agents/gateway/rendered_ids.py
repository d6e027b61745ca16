"""A rendered prompt as the engine wrote it: JSON, of which only those numbers are decoded that are needed.

    before  [1,872,2,3,1,77091,3]        up to the answer, with the generation prompt [1,77091,3]
    whole   [1,872,2,3,1,541,2,3,1,77091,3]
    whole.after(before, generation_prompt) → array("i", [1, 541, 2, 3, 1, 77091, 3])

A conversation of thousands of tokens is rendered twice for each of its turns, and of both renders only what follows
the known answer is used. Equal lists of integers have the same JSON text if it has no spaces, and a list begins with
another one if its text does, up to a comma.
"""

from array import array
from functools import cached_property
from typing import Annotated, Self

import msgspec

from headrace.agents.gateway.engine_errors import EngineAnswerInvalid
from headrace.agents.gateway.native.available import decode_ids, encode_ids
from headrace.schemas.arrays import IntArray

TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""A token id in JSON."""

_SPACES = (b" ", b"\t", b"\n", b"\r")
_decode = msgspec.json.Decoder(Annotated[list[TokenId], msgspec.Meta(min_length=1)]).decode
_encode = msgspec.json.Encoder().encode


def _json_of(token_ids: IntArray) -> bytes:
    return _encode(token_ids.tolist()) if encode_ids is None else encode_ids(token_ids)


class RenderedIds:
    """The token ids of a rendered prompt, at least one."""

    def __init__(self, json: bytes) -> None:
        """``json``: a list of token ids. Raises ``ValueError`` if it is no list, or empty; what it lists is looked at
        where it is used."""
        if any(space in json for space in _SPACES):
            json = _encode(_decode(json))
        if json[:1] != b"[" or json[-1:] != b"]" or len(json) == 2:
            raise ValueError("it is not a list of token ids")
        self.json = json
        """Without spaces."""

    @classmethod
    def of(cls, token_ids: IntArray) -> Self:
        """Return ``token_ids`` (int32) as if they had been rendered."""
        return cls(_json_of(token_ids))

    def __len__(self) -> int:
        return self.json.count(b",") + 1

    @cached_property
    def token_ids(self) -> IntArray:
        """int32. Raises :class:`EngineAnswerInvalid` if one of them is none."""
        return _numbers(self.json)

    def json_of(self, token_ids: IntArray) -> bytes:
        """Return ``token_ids`` (int32) as JSON, which is known if they are this prompt's own."""
        is_own = self.__dict__.get("token_ids") is token_ids  # without decoding them for the comparison
        return self.json if is_own else _json_of(token_ids)

    def after(self, before: "RenderedIds", end: IntArray) -> IntArray | None:
        """Return the tokens (int32) that follow ``before`` without its ``end``.

        ``None`` if these do not begin with it, or ``before`` does not end so. Raises :class:`EngineAnswerInvalid`.
        """
        known = before.json[:-1]
        if end:
            if not known.endswith(left_out := b"," + _json_of(end)[1:-1]):
                return None
            known = known[: -len(left_out)]
        if self.json == known + b"]":
            return array("i")
        if not self.json.startswith(known + b","):
            return None
        return _numbers(b"[" + self.json[len(known) + 1 :])


def _numbers(json: bytes) -> IntArray:
    if (plain := decode_ids(json)) is not None:
        return array("i", plain)
    try:
        return array("i", _decode(json))
    except msgspec.MsgspecError as error:
        raise EngineAnswerInvalid(None, f"an engine sent a prompt that cannot be used: {error}") from error
