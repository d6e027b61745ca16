"""Bodies for vLLM's render endpoints, made of a client's request.

    whole      the client's request, with everything that it only refers to
    until      the same conversation up to one of its answers
    dummy      a short conversation instead of the history, before what follows that answer

What a client wrote is passed on as it wrote it; only a history that it refers to by ``previous_response_id``, and
summaries that only the gateway can read, are filled in.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.agents.gateway.canonical import Api, Call, CanonicalRequest, Message, MessageRole, call_id_of
from headrace.agents.gateway.response_tools import without_grammars
from headrace.agents.gateway.splice import dummy_turn

PATHS = {
    Api.CHAT: "/v1/chat/completions",
    Api.COMPLETIONS: "/v1/completions",
    Api.RESPONSES: "/v1/responses",
    Api.MESSAGES: "/v1/messages",
}
"""Endpoint of each API, of clients and engines alike."""

_HANDLED_HERE = ("stream", "stream_options", "previous_response_id", "include", "store", "background", "n")
"""Fields that concern the answer's form, or that the gateway does itself. ``n`` stays where it is a parameter."""

_ANSWER_ITEMS = ("reasoning", "function_call", "custom_tool_call")
_COMPACTIONS = ("compaction", "compaction_summary")


class Conversation:
    """A client's request in the form of its API."""

    def __init__(
        self,
        api: Api,
        body: Mapping[str, Any],
        request: CanonicalRequest,
        model: str,
        *,
        parses_tools: bool = True,
    ) -> None:
        """
        Args:
            api: The client's API.
            body: The request, decoded JSON that could be read as a canonical request.
            request: The canonical request with its whole history.
            model: Name of the model for the engine.
            parses_tools: Whether calls of tools in the answer will be parsed. If they stay text, vLLM without a parser
                of its own must not refuse the request either: it renders the same prompt for the choice "none".
        """
        self.api = api
        kept = ("n",) if api in (Api.CHAT, Api.COMPLETIONS) else ()
        self._rest = {key: value for key, value in body.items() if key not in _HANDLED_HERE or key in kept}
        self._rest["model"] = model
        if api is Api.RESPONSES and "tools" in body:
            self._rest["tools"] = without_grammars(body["tools"])
        if not parses_tools and body.get("tools") and _leaves_the_choice(body.get("tool_choice")):
            self._rest["tool_choice"] = {"type": "none"} if api is Api.MESSAGES else "none"
        self._field = "input" if api is Api.RESPONSES else "messages"
        self._entries: list[Any] = []
        self._ends: list[int] = []
        """Number of entries up to the end of each answer."""
        if api is Api.RESPONSES:
            start = 1 if request.has_instructions else 0
            sent = start + request.recalled
            self._recall(request.messages[start:sent])
            self._add_items(body.get("input"), request.messages[sent:])
        elif api is not Api.COMPLETIONS:
            self._entries = list(body.get("messages") or ())
            self._ends = [end for end, entry in enumerate(self._entries, 1) if entry.get("role") == "assistant"]

    @property
    def path(self) -> str:
        """The endpoint."""
        return PATHS[self.api]

    def whole(self) -> dict[str, Any]:
        """Return the whole request."""
        return self._rest if self.api is Api.COMPLETIONS else self._with(self._entries)

    def until(self, answers: int) -> dict[str, Any]:
        """Return the conversation up to and including its answer number ``answers``, counted from 1."""
        return self._with(_closed(self._entries[: self._ends[answers - 1]]))

    def dummy(self, answers: int, calls: Sequence[tuple[str, str]]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a short conversation that ends with an answer, and the same with what follows answer ``answers``.

        ``calls``: id and tool of each call of that answer.
        """
        turn = dummy_turn(self.api, calls)
        return self._with(turn), self._with([*turn, *self._entries[self._ends[answers - 1] :]])

    def instead(self, entries: Sequence[Any]) -> dict[str, Any]:
        """Return the request with ``entries`` as its conversation."""
        return self._with(entries)

    def _with(self, entries: Sequence[Any]) -> dict[str, Any]:
        return {**self._rest, self._field: list(entries)}

    def _recall(self, messages: Sequence[Message]) -> None:
        """Add a history that only the gateway has."""
        calls: tuple[Call, ...] = ()
        for number, message in enumerate(messages):
            if message.role is MessageRole.ASSISTANT:
                calls = message.calls
            self._entries += _items_of(message, number, calls)
            if message.role is MessageRole.ASSISTANT:
                self._ends.append(len(self._entries))

    def _add_items(self, given: Any, messages: Sequence[Message]) -> None:
        """Add the client's own input, of which consecutive items of the model are one answer."""
        summaries = (each.text for each in messages if each.role is MessageRole.SUMMARY)
        in_answer = False
        for item in [{"role": "user", "content": given}] if isinstance(given, str) else given or ():
            if in_answer and not _is_of_answer(item):
                self._ends.append(len(self._entries))
            in_answer = _is_of_answer(item)
            self._entries += _readable(item, summaries)
        if in_answer:
            self._ends.append(len(self._entries))


def _leaves_the_choice(tool_choice: Any) -> bool:
    kind = tool_choice.get("type") if isinstance(tool_choice, Mapping) else tool_choice
    return kind in (None, "auto")


def _is_of_answer(item: Mapping[str, Any]) -> bool:
    kind = item.get("type", "message")
    return kind in _ANSWER_ITEMS or (kind == "message" and item.get("role") == "assistant")


def _closed(entries: Sequence[Any]) -> list[Any]:
    """Return items whose last one is complete: vLLM would continue one that is not."""
    *others, last = entries
    if isinstance(last, Mapping) and last.get("status") in ("in_progress", "incomplete"):
        last = {**last, "status": "completed"}
    return [*others, last]


def _readable(item: Mapping[str, Any], summaries: Iterator[str]) -> Iterator[Mapping[str, Any]]:
    """Yield ``item`` without what only the gateway can read."""
    kind = item.get("type", "message")
    if kind in _COMPACTIONS:
        yield {"role": "user", "content": next(summaries)}
    elif kind == "reasoning":
        if item.get("content") or item.get("summary"):
            yield {key: value for key, value in item.items() if key != "encrypted_content"}
    else:
        yield item


def _items_of(message: Message, number: int, calls: tuple[Call, ...]) -> Iterator[dict[str, Any]]:
    """Yield the input items of a message. ``number``: its position; ``calls``: of the latest answer."""
    match message.role:
        case MessageRole.ASSISTANT:
            if message.reasoning:
                content = [{"type": "reasoning_text", "text": message.reasoning}]
                yield {"type": "reasoning", "id": f"rs_{number}", "summary": [], "content": content}
            if message.text or not calls:
                yield {"role": "assistant", "content": message.text}
            for call in calls:
                arguments = call.arguments if call.raw is None else call.raw
                yield {"type": "function_call", "call_id": call.call_id, "name": call.tool, "arguments": arguments}
        case MessageRole.TOOL:
            yield {"type": "function_call_output", "call_id": call_id_of(message, calls), "output": message.text}
        case MessageRole.SYSTEM:
            yield {"role": "system", "content": message.text}
        case _:
            yield {"role": "user", "content": message.text}
