"""What the readers of all APIs share: fields of a known type, text blocks, tool definitions, pairing of results."""

from collections.abc import Sequence
from typing import Any

from headrace.agents.gateway.canonical import (
    HALF_PAIR,
    MAX_CALLS,
    MAX_CHARACTERS,
    MAX_CHOICES,
    MAX_MESSAGES,
    BadRequest,
    Call,
    Message,
    MessageRole,
    Unsupported,
    canonical_json,
    digest_of_json,
)
from headrace.agents.gateway.response_tools import flat_name
from headrace.schemas.bounds import MAX_NAME
from headrace.schemas.tools_offered import tools_offered

TEXT_BLOCKS = ("text", "input_text", "output_text", "reasoning_text", "summary_text")
"""Types of blocks that hold a text under ``text``. Not a set: what a client sends as a type may not be hashable."""


def record(value: Any, at: str) -> dict[str, Any]:
    """Return ``value`` as a JSON object; raises :class:`BadRequest`."""
    if not isinstance(value, dict):
        raise BadRequest(at, "must be an object")
    return value


def sequence(value: Any, at: str, most: int = MAX_MESSAGES) -> list[Any]:
    """Return ``value`` as a list of at most ``most`` items; ``None`` is empty. Raises :class:`BadRequest`."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRequest(at, "must be a list")
    if len(value) > most:
        raise BadRequest(at, f"has {len(value):,} items: at most {most:,} are allowed")
    return value


def string(value: Any, at: str) -> str:
    """Return ``value`` as a text; raises :class:`BadRequest`."""
    if not isinstance(value, str):
        raise BadRequest(at, "must be a string")
    return value


def name(value: Any, at: str) -> str:
    """Return ``value`` as an id or a name of bounded length; raises :class:`BadRequest`."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME or not value.isprintable():
        raise BadRequest(at, f"must be a string of 1 to {MAX_NAME} printable characters")
    return value


def tool_name(value: Any, at: str) -> str:
    """Return ``value`` as the name of a tool that was called: the model wrote it, so it may be any text but none.

    Raises :class:`BadRequest`.
    """
    if not isinstance(value, str) or not value:
        raise BadRequest(at, "must be a string that is not empty")
    return value


def texts_of(content: Any, at: str) -> tuple[str, ...]:
    """Return the texts of ``content``: a string, a list of text blocks or nothing.

    Raises :class:`Unsupported` for other blocks, which names the block.
    """
    if isinstance(content, str):
        return (content,) if content else ()
    texts = []
    for index, block in enumerate(sequence(content, at)):
        kind = record(block, f"{at}[{index}]").get("type")
        if kind in TEXT_BLOCKS:
            texts.append(string(block.get("text"), f"{at}[{index}].text"))
        elif kind == "refusal":
            texts.append(string(block.get("refusal"), f"{at}[{index}].refusal"))
        else:
            raise refusal(kind, f"{at}[{index}]")
    return tuple(texts) if any(texts) else ()


def refusal(kind: Any, at: str) -> Unsupported:
    """Return the error about a block or item of a type that is not recorded."""
    return Unsupported(at, f"type {str(kind)[:40]!r} is not supported: the gateway records text and tool calls only")


def tools_digest(body: dict[str, Any]) -> bytes:
    """Return the digest of the tool definitions, without ``cache_control``; empty if there are none."""
    tools = sequence(body.get("tools"), "tools")
    if not tools:
        return b""
    for index, tool in enumerate(tools):
        record(tool, f"tools[{index}]")
    if any("cache_control" in tool for tool in tools):
        tools = [{key: value for key, value in tool.items() if key != "cache_control"} for tool in tools]
    return digest_of_json(tools, "tools")


def offered(body: dict[str, Any]) -> str:
    """Return the label of the tools in ``body``, which :func:`tools_digest` has checked: their names as the model sees
    them, or their types, for tools of a provider that have no name."""
    names: list[str] = []
    for tool in sequence(body.get("tools"), "tools"):
        function = tool.get("function")
        name = tool.get("name") or (function.get("name") if isinstance(function, dict) else None) or tool.get("type")
        inner = tool.get("tools") if tool.get("type") == "namespace" else None
        if not isinstance(name, str):
            continue
        locals_ = [each.get("name") for each in inner if isinstance(each, dict)] if isinstance(inner, list) else None
        names += [name] if locals_ is None else [flat_name(name, each) for each in locals_ if isinstance(each, str)]
    return tools_offered(names)


def template_kwargs(body: dict[str, Any], names: Sequence[str]) -> str:
    """Return the fields ``names`` of ``body`` that are set, as canonical JSON."""
    chosen = {key: value for key in names if (value := body.get(key)) is not None}
    return canonical_json(chosen, "chat_template_kwargs") if chosen else "{}"


def choices(body: dict[str, Any]) -> int:
    """Return ``n``; raises :class:`BadRequest`."""
    n = body.get("n")
    if n is None:
        return 1
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_CHOICES:
        raise BadRequest("n", f"must be between 1 and {MAX_CHOICES}")
    return n


class Transcript:
    """Collects the messages of a request, pairs results with calls and checks the bounds."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._positions: dict[str, int] = {}
        self._characters = 0

    def add(self, role: MessageRole, texts: tuple[str, ...], at: str, echoed: tuple[str, ...] = ()) -> None:
        """Append a message of the system, the user, or a prompt."""
        self._append(at, role, texts, echoed=echoed)

    def answer(
        self, texts: tuple[str, ...], calls: list[Call], reasoning: list[str], echoed: list[str], at: str
    ) -> None:
        """Append an answer of the model."""
        if len(calls) > MAX_CALLS:
            raise BadRequest(at, f"has {len(calls):,} tool calls: at most {MAX_CALLS} are allowed")
        self._positions = {call.call_id: index for index, call in enumerate(calls)}
        role = MessageRole.ASSISTANT
        self._append(at, role, texts, tuple(calls), reasoning="\n".join(reasoning), echoed=tuple(echoed))

    def result(self, call_id: str, texts: tuple[str, ...], failed: bool, at: str) -> None:
        """Append a tool's result."""
        answers = self._positions.get(call_id, call_id)
        self._append(at, MessageRole.TOOL, texts, answers=answers, failed=failed)

    def messages(self, at: str) -> tuple[Message, ...]:
        """Return the messages; raises :class:`BadRequest` if there are none."""
        if not self._messages:
            raise BadRequest(at, "is empty: at least one message is needed")
        return tuple(self._messages)

    def _append(
        self, at: str, role: MessageRole, texts: tuple[str, ...], calls: tuple[Call, ...] = (), **fields: Any
    ) -> None:
        try:
            message = Message.of(role, texts, calls, **fields)
        except UnicodeEncodeError:
            raise BadRequest(at, HALF_PAIR) from None
        self._characters += message.characters
        if self._characters > MAX_CHARACTERS:
            raise BadRequest(at, f"the conversation is longer than {MAX_CHARACTERS:,} characters")
        if len(self._messages) >= MAX_MESSAGES:
            raise BadRequest(at, f"the conversation has more than {MAX_MESSAGES:,} messages")
        self._messages.append(message)
