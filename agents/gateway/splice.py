"""The prompt of a continuation: the tokens that the engine already has, then exactly what the template adds.

    known     <|im_start|>user … <|im_end|>⏎<|im_start|>assistant⏎ Let me look. <call> <|im_end|>
    closing                                                                                        ⏎
    suffix    <|im_start|>tool … <|im_end|>⏎<|im_start|>assistant⏎

Rendering the whole conversation again would not do: decoded and encoded again, sampled text may become other tokens,
and templates drop earlier reasoning. So only what follows the answer is rendered, as a difference: the rendered
conversation with the new messages, after the rendered conversation up to the answer. Where the second does not begin
with the first, the same difference is taken after a short dummy conversation (:func:`dummy_turn`).

*Closing* tokens are what the template writes after an answer: those that the model did not sample are supplied.
Where no difference exists, the answer is a :class:`Refusal`, and the call starts a new segment.
"""

from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headrace.agents.gateway.canonical import Api
from headrace.schemas.arrays import IntArray

Encode = Callable[[str], Sequence[int]]
"""Encodes a text without special tokens at its ends."""

DUMMY_TEXT = "."


class Refusal(StrEnum):
    """Why exact tokens cannot be continued; the value is a label."""

    NO_DIFFERENCE = "no_difference"
    """Neither the conversation nor a dummy one renders as a prefix of itself with the new messages."""
    OTHER_STOP_TOKEN = "other_stop_token"
    """The model ended its answer with a stop token that the template never writes there."""
    REWRITTEN = "rewritten"
    """With ``history=template``: the template writes the history with other tokens than were sampled."""
    TOO_LONG = "too_long"
    """The prompt would leave no room for an answer in the model's context."""


class History(StrEnum):
    """Which tokens of earlier answers a prompt contains."""

    EXACT = "exact"
    """Those that were sampled, with all reasoning: one segment per conversation."""
    TEMPLATE = "template"
    """Those that the template writes; a call starts a new segment where they differ."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered conversation."""

    ids: IntArray
    """int32 tokens."""
    text: str | None = None
    """The text behind the tokens, if it is known; needed only for templates without special tokens."""


@dataclass(frozen=True, slots=True)
class Spliced:
    """An exact prompt."""

    token_ids: IntArray
    """int32: the known tokens, then ``closing``, then ``suffix``."""
    known: int
    """Number of known tokens."""
    closing: int
    """Number of tokens supplied after the answer, in front of the suffix."""


def splice(
    known: IntArray,
    closing: IntArray,
    differences: Sequence[tuple[Rendered, Rendered]],
    *,
    stop_ids: Collection[int] = (),
    history: History = History.EXACT,
    max_tokens: int | None = None,
    encode: Encode | None = None,
) -> Spliced | Refusal:
    """Return the exact prompt that continues ``known``.

    ``known``: tokens up to and including the sampled answer. ``closing``: what the template writes after an answer
    (:func:`closing_ids`). ``differences``: pairs of a rendered conversation up to its answer, without a generation
    prompt, and the same conversation with the new messages, with a generation prompt; the real conversation first,
    then a dummy one. ``stop_ids``: tokens that end an answer. ``max_tokens``: longest prompt. ``encode``: as
    :data:`Encode`; used where the texts are prefixes and the tokens are not.
    """
    written = _written(known, closing, stop_ids)
    if written is None:
        return Refusal.OTHER_STOP_TOKEN
    missing = closing[written:]
    if history is History.TEMPLATE and differences and differences[0][0].ids != known + missing:
        return Refusal.REWRITTEN
    for before, after in differences:
        suffix = _difference(before, after, encode)
        if suffix is not None:
            break
    else:
        return Refusal.NO_DIFFERENCE
    token_ids = known + missing + suffix
    if max_tokens is not None and len(token_ids) > max_tokens:
        return Refusal.TOO_LONG
    return Spliced(token_ids, len(known), len(missing))


def closing_ids(first: IntArray, second: IntArray) -> IntArray:
    """Return what a template writes after an answer: the common end of two conversations with different answers.

    ``first``, ``second``: tokens of a conversation that ends with an answer, rendered without a generation prompt; the
    answers must end with different tokens. One pair per template is enough.
    """
    length = 0
    while length < min(len(first), len(second)) and first[-1 - length] == second[-1 - length]:
        length += 1
    return first[len(first) - length :]


def dummy_turn(api: Api, call_ids: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return a short conversation in the format of ``api`` that ends with an answer.

    ``call_ids``: id and tool of each call that the new messages answer: templates refuse results without calls. The
    messages go into ``messages`` or ``input`` of a request to be rendered.
    """
    if api is Api.RESPONSES:
        calls = [
            {"type": "function_call", "call_id": call_id, "name": tool, "arguments": "{}"} for call_id, tool in call_ids
        ]
        answer = [{"type": "message", "role": "assistant", "content": DUMMY_TEXT}]
        return [{"type": "message", "role": "user", "content": DUMMY_TEXT}, *(calls or answer)]
    user = {"role": "user", "content": DUMMY_TEXT}
    if api is Api.MESSAGES:
        uses = [{"type": "tool_use", "id": call_id, "name": tool, "input": {}} for call_id, tool in call_ids]
        return [user, {"role": "assistant", "content": uses or DUMMY_TEXT}]
    answered: dict[str, Any] = {"role": "assistant", "content": DUMMY_TEXT}
    if call_ids:
        answered["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": tool, "arguments": "{}"}}
            for call_id, tool in call_ids
        ]
    return [user, answered]


def _difference(before: Rendered, after: Rendered, encode: Encode | None) -> IntArray | None:
    """Return the tokens of ``after`` that follow ``before``; ``None`` if it does not begin with it."""
    if after.ids[: len(before.ids)] == before.ids:
        return after.ids[len(before.ids) :]
    if encode is None or before.text is None or after.text is None or not after.text.startswith(before.text):
        return None
    return array("i", encode(after.text[len(before.text) :]))


def _written(known: IntArray, closing: IntArray, stop_ids: Collection[int]) -> int | None:
    """Return how many of the first ``closing`` tokens need not follow ``known``; ``None`` if it ends with a stop token
    that is not among them."""
    overlap = next(
        (length for length in range(min(len(known), len(closing)), 0, -1) if known[-length:] == closing[:length]), 0
    )
    if overlap or not known or known[-1] not in stop_ids:
        return overlap
    # The model ended its answer without what the template writes before its stop token, such as a space.
    return closing.index(known[-1]) + 1 if known[-1] in closing else None
