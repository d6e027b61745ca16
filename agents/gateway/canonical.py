"""The canonical conversation: what a request says, without what clients change between two requests.

    {"role": "assistant", "content": [{"type": "text", "text": "Hi", "cache_control": {…}}]}     Claude Code, turn 2
    {"role": "assistant", "content": "Hi", "provider_specific_fields": {…}}                      LiteLLM, turn 2
    → Message(ASSISTANT, texts=("Hi",)), with the same digest

A message's digest covers its role, its texts, its tool calls (name and arguments as JSON values) and which call a
result answers. It does not cover call ids, which some clients rewrite, nor reasoning, which many do not send back:
both are compared apart from the digest (:mod:`headrace.agents.gateway.nodes`). The order of text and tool calls inside
an answer is not kept: chat completions cannot express it.
"""

import hashlib
import json
import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from pydantic_core import PydanticSerializationError, from_json, to_json

from headrace.schemas.finite import refuse_not_finite

MAX_MESSAGES = 8_192
"""Largest number of messages in a request."""

MAX_CHARACTERS = 32 * 1024 * 1024
"""Largest total length of a request's texts, in characters."""

MAX_DEPTH = 64
"""Deepest nesting of a tool call's arguments."""

MAX_CALLS = 256
"""Largest number of tool calls in a message: an id that the gateway mints has one byte for the position."""

MAX_CHOICES = 128
"""Largest ``n``: an id that the gateway mints has one byte for the choice."""

HALF_PAIR = "is not valid Unicode: it has half of a surrogate pair"

_MAX_INTEGER_FLOAT = 1e21
"""JavaScript writes whole numbers below this as integers, so ``1.0`` may come back as ``1``."""


class BadRequest(ValueError):
    """A request that the gateway cannot read; the message names the field and the problem."""

    def __init__(self, at: str, problem: str) -> None:
        super().__init__(f"{at}: {problem}")
        self.field = at
        """Path of the field: ``messages[3].content[1]``."""


class Unsupported(BadRequest):
    """An input that the gateway does not record: images, audio, files, tools that run on a provider's servers."""


class MessageRole(StrEnum):
    """Who wrote a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    TOKENS = "tokens"
    """A prompt of the Completions API that consists of token ids; the text has them in hexadecimal."""
    SUMMARY = "summary"
    """A compaction item of the Responses API, whose text only the gateway knows (:attr:`Message.echoed`)."""


_ROLE_BYTES = {role: role.encode() for role in MessageRole}


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call in an answer."""

    call_id: str
    """Id that pairs it with its result; not part of the digest."""
    tool: str
    """Name of the tool."""
    arguments: str
    """Arguments as canonical JSON (sorted keys, whole numbers as integers), or as they are if they are not JSON."""
    is_json: bool = True
    """Whether ``arguments`` is JSON."""
    raw: str | None = field(default=None, compare=False)
    """Arguments exactly as they were written; ``None`` if they came as a JSON object."""

    @property
    def value(self) -> dict[str, Any]:
        """The arguments for an event: the parsed object, or ``{"raw": …}`` for anything else, also for numbers that no
        double can hold: an event with such a number cannot be written."""
        try:
            refuse_not_finite(self.arguments.encode())
            parsed = json.loads(self.arguments) if self.is_json else None
        except ValueError:  # of more digits than Python reads
            parsed = None
        return parsed if isinstance(parsed, dict) else {"raw": self.arguments}


@dataclass(frozen=True, slots=True)
class Message:
    """A message; build it with :meth:`of`, which computes the digest."""

    role: MessageRole
    texts: tuple[str, ...] = ()
    """Text blocks; one block equals a plain string, and only empty blocks equal none."""
    calls: tuple[Call, ...] = ()
    """Tool calls of an answer."""
    answers: int | str | None = None
    """For a tool's result: position of the call in the preceding answer, or the call id if that answer has none."""
    failed: bool = False
    """For a tool's result: whether the client reported an error."""
    reasoning: str = ""
    """Reasoning of an answer, as far as the client sent it back; not part of the digest."""
    echoed: tuple[str, ...] = ()
    """Further texts that may be ids that the gateway minted: signatures, encrypted content; not part of the digest."""
    digest: bytes = b""
    """SHA-256 of what identifies the message."""

    @classmethod
    def of(
        cls,
        role: MessageRole,
        texts: tuple[str, ...] = (),
        calls: tuple[Call, ...] = (),
        *,
        answers: int | str | None = None,
        failed: bool = False,
        reasoning: str = "",
        echoed: tuple[str, ...] = (),
    ) -> Self:
        """Build a message with its digest. Raises ``UnicodeEncodeError`` if a text has half of a surrogate pair, which
        neither an event nor a tokenizer can hold."""
        compared = texts
        if role is MessageRole.ASSISTANT:
            # Models write blank lines between reasoning and a call; Claude Code leaves such a block out.
            compared = tuple(text for text in texts if not text.isspace())
        pieces = [b"%s%d,%d" % (_ROLE_BYTES[role], len(compared), len(calls)), *map(str.encode, compared)]
        for call in calls:
            pieces += (call.tool.encode(), b"json" if call.is_json else b"text", call.arguments.encode())
        if answers is not None:
            pieces.append(b"at %d" % answers if isinstance(answers, int) else b"id " + answers.encode())
            pieces.append(b"failed" if failed else b"ok")
        if not reasoning.isascii():
            reasoning.encode()  # raises
        return cls(role, texts, calls, answers, failed, reasoning, echoed, digest_of(*pieces))

    @property
    def text(self) -> str:
        """All text blocks, joined as vLLM joins them."""
        return self.texts[0] if len(self.texts) == 1 else "\n".join(self.texts)

    @property
    def characters(self) -> int:
        """Total length of its texts, arguments and reasoning."""
        total = sum(map(len, self.texts)) + len(self.reasoning)
        for call in self.calls:
            total += len(call.arguments) + len(call.tool)
        return total


class Api(StrEnum):
    """The API that a client uses."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"


@dataclass(frozen=True, slots=True)
class CanonicalRequest:
    """A request, reduced to what decides its prompt."""

    api: Api
    model: str
    """Model that the client asked for."""
    messages: tuple[Message, ...]
    """The conversation; with ``previous_response_id`` only what follows that response."""
    tools: bytes = b""
    """Digest of the tool definitions; empty if there are none."""
    tools_offered: str = ""
    """Label of the tools' names, for the trajectory's start; empty if there are none."""
    template_kwargs: str = "{}"
    """Everything else that changes the rendered prompt, as canonical JSON."""
    has_instructions: bool = False
    """Responses API: whether ``messages[0]`` is ``instructions``, which later requests replace."""
    previous_response_id: str | None = None
    """Responses API: the response that this request continues."""
    n: int = 1
    """Number of choices."""
    is_compaction: bool = False
    """Whether the client asks for a summary by ``/responses/compact``."""
    recalled: int = 0
    """Number of messages, after ``instructions``, that the client did not send but referred to."""

    def with_history(self, history: tuple[Message, ...]) -> "CanonicalRequest":
        """Return the request as if the client had sent ``history``, the messages up to ``previous_response_id``."""
        first = 1 if self.has_instructions else 0
        whole = (*self.messages[:first], *history, *self.messages[first:])
        if len(whole) > MAX_MESSAGES:
            raise BadRequest("input", f"the conversation has {len(whole):,} messages: at most {MAX_MESSAGES:,}")
        return replace(self, messages=whole, previous_response_id=None, recalled=len(history))


def digest_of(*pieces: bytes) -> bytes:
    """Return the SHA-256 of ``pieces``; different lists of pieces never have the same encoding.

    The encoding is the list of their lengths, which ends with a bracket, followed by the pieces.
    """
    return hashlib.sha256(b"".join((repr([*map(len, pieces)]).encode(), *pieces))).digest()


def canonical_json(value: Any, at: str) -> str:
    """Return ``value`` (JSON as Python objects) as canonical text: sorted keys, whole numbers as integers.

    Raises :class:`BadRequest`, which names ``at``, for what is not JSON, is nested too deeply, or is not Unicode.
    """
    try:
        return to_json(_plain(value, at, MAX_DEPTH)).decode()
    except PydanticSerializationError:
        raise BadRequest(at, HALF_PAIR) from None


def digest_of_json(value: Any, at: str) -> bytes:
    """Return a digest of ``value``. The order of keys matters, because templates write tools in the order given.

    Raises :class:`BadRequest`, which names ``at``.
    """
    try:
        return hashlib.sha256(to_json(value, inf_nan_mode="constants")).digest()
    except ValueError as error:
        raise BadRequest(at, f"is not JSON, is not Unicode, or is nested too deeply: {error}") from error


def call_of(call_id: str, tool: str, arguments: Any, at: str) -> Call:
    """Build a call from ``arguments`` in any form that clients send: JSON text, an object or nothing.

    Raises :class:`BadRequest` if an object is nested too deeply or has text that is not Unicode. JSON text that cannot
    be read stays text.
    """
    if arguments is None or arguments == "":
        return Call(call_id, tool, "{}")
    if not isinstance(arguments, str):
        return Call(call_id, tool, canonical_json(arguments, at))
    try:
        return Call(call_id, tool, canonical_json(from_json(arguments, allow_inf_nan=False), at), raw=arguments)
    except (ValueError, TypeError):  # TypeError: half of a surrogate pair
        return Call(call_id, tool, arguments, is_json=False, raw=arguments)


def assistant(
    text: str = "", calls: tuple[Call, ...] = (), reasoning: str = "", echoed: tuple[str, ...] = ()
) -> Message:
    """Build the answer that the gateway delivers to a client."""
    return Message.of(MessageRole.ASSISTANT, (text,) if text else (), calls, reasoning=reasoning, echoed=echoed)


def to_chat(messages: tuple[Message, ...], calls: tuple[Call, ...] = ()) -> list[dict[str, Any]]:
    """Return ``messages`` in the format of chat completions, as events record them.

    A tool's result refers to the id of its call in the preceding answer. ``calls``: those of the answer before
    ``messages``. Summaries must have been replaced by their text.
    """
    found: list[dict[str, Any]] = []
    for message in messages:
        role = "user" if message.role in (MessageRole.TOKENS, MessageRole.SUMMARY) else str(message.role)
        entry: dict[str, Any] = {"role": role, "content": message.text}
        if message.role is MessageRole.ASSISTANT:
            calls = message.calls
            if message.reasoning:
                entry["reasoning"] = message.reasoning
            if calls:
                entry["tool_calls"] = [
                    {
                        "id": call.call_id,
                        "type": "function",
                        "function": {
                            "name": call.tool,
                            "arguments": call.arguments if call.raw is None else call.raw,
                        },
                    }
                    for call in calls
                ]
        elif message.role is MessageRole.TOOL:
            entry["tool_call_id"] = call_id_of(message, calls)
        found.append(entry)
    return found


def call_id_of(result: Message, calls: tuple[Call, ...]) -> str:
    """Return the id of the call that ``result`` answers; ``calls`` are those of the preceding answer."""
    if isinstance(result.answers, int):
        return calls[result.answers].call_id if result.answers < len(calls) else f"#{result.answers}"
    return result.answers or ""


def _plain(value: Any, at: str, depth: int) -> Any:
    """Return ``value`` with whole numbers as integers and sorted keys."""
    if isinstance(value, str | int) or value is None:
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadRequest(at, f"has the number {value}, which is not JSON")
        return int(value) if value.is_integer() and abs(value) < _MAX_INTEGER_FLOAT else value
    if not depth:
        raise BadRequest(at, f"is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        return {name: _plain(value[name], at, depth - 1) for name in sorted(value)}
    if isinstance(value, list):
        return [_plain(each, at, depth - 1) for each in value]
    raise BadRequest(at, f"has a value of type {type(value).__name__}, which is not JSON")
