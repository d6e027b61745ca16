"""OpenAI Responses → the canonical request.

Consecutive reasoning, message and call items of the model are one answer, as the model sampled them.
"""

from typing import Any

from headrace.agents.gateway.canonical import (
    Api,
    BadRequest,
    Call,
    CanonicalRequest,
    MessageRole,
    Unsupported,
    call_of,
    canonical_json,
)
from headrace.agents.gateway.requests.blocks import (
    Transcript,
    name,
    offered,
    record,
    refusal,
    sequence,
    string,
    texts_of,
    tool_name,
    tools_digest,
)
from headrace.agents.gateway.response_tools import custom_arguments, flat_name

_ROLES = {"system": MessageRole.SYSTEM, "developer": MessageRole.SYSTEM, "user": MessageRole.USER}
_COMPACTIONS = ("compaction", "compaction_summary")


def read_response(body: dict[str, Any], *, is_compaction: bool = False) -> CanonicalRequest:
    """Read a request of ``/v1/responses``, or of ``/v1/responses/compact``; raises :class:`BadRequest`."""
    transcript = Transcript()
    instructions = body.get("instructions")
    if instructions:
        transcript.add(MessageRole.SYSTEM, (string(instructions, "instructions"),), "instructions")
    given = body.get("input")
    if isinstance(given, str):
        transcript.add(MessageRole.USER, (given,), "input")
    else:
        items = _Items(transcript)
        for index, item in enumerate(sequence(given, "input")):
            items.add(record(item, f"input[{index}]"), f"input[{index}]")
        items.finish("input")
    previous = body.get("previous_response_id")
    if body.get("conversation") is not None:
        raise Unsupported("conversation", "is not supported: send previous_response_id or the whole input")
    effort = record(body.get("reasoning") or {}, "reasoning").get("effort")
    return CanonicalRequest(
        api=Api.RESPONSES,
        model=name(body.get("model"), "model"),
        messages=transcript.messages("input"),
        tools=tools_digest(body),
        tools_offered=offered(body),
        template_kwargs=canonical_json({"effort": effort}, "reasoning.effort") if effort else "{}",
        has_instructions=bool(instructions),
        previous_response_id=None if previous is None else name(previous, "previous_response_id"),
        is_compaction=is_compaction,
    )


class _Items:
    """Merges the items of one answer."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._start()

    def _start(self) -> None:
        self._open = False
        self._texts: list[str] = []
        self._calls: list[Call] = []
        self._reasoning: list[str] = []
        self._echoed: list[str] = []

    def finish(self, at: str) -> None:
        """End the current answer, if there is one."""
        if self._open:
            texts = tuple(self._texts) if any(self._texts) else ()
            self._transcript.answer(texts, self._calls, self._reasoning, self._echoed, at)
            self._start()

    def add(self, item: dict[str, Any], at: str) -> None:
        """Add an item."""
        kind = item.get("type", "message")
        role = item.get("role")
        if (kind == "message" and role == "assistant") or kind in ("reasoning", "function_call", "custom_tool_call"):
            self._open = True
            self._add_to_answer(kind, item, at)
            return
        self.finish(at)
        if kind == "message":
            if not isinstance(role, str) or role not in _ROLES:
                raise BadRequest(f"{at}.role", f"is {str(role)[:40]!r}: expected system, developer, user or assistant")
            self._transcript.add(_ROLES[role], texts_of(item.get("content"), f"{at}.content"), at)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            call_id = name(item.get("call_id"), f"{at}.call_id")
            self._transcript.result(call_id, texts_of(item.get("output"), f"{at}.output"), False, at)
        elif kind in _COMPACTIONS:
            sealed = string(item.get("encrypted_content"), f"{at}.encrypted_content")
            self._transcript.add(MessageRole.SUMMARY, (sealed,), at, (sealed,))
        elif kind == "item_reference":
            raise Unsupported(at, "item_reference is not supported: send the item, or previous_response_id")
        else:
            raise refusal(kind, at)

    def _add_to_answer(self, kind: str, item: dict[str, Any], at: str) -> None:
        if kind == "message":
            self._texts += texts_of(item.get("content"), f"{at}.content")
        elif kind == "reasoning":
            shown = texts_of(item.get("content"), f"{at}.content") or texts_of(item.get("summary"), f"{at}.summary")
            self._reasoning += shown
            if sealed := item.get("encrypted_content"):
                self._echoed.append(string(sealed, f"{at}.encrypted_content"))
        else:
            call_id, tool = name(item.get("call_id"), f"{at}.call_id"), tool_name(item.get("name"), f"{at}.name")
            if item.get("namespace"):
                tool = flat_name(tool_name(item["namespace"], f"{at}.namespace"), tool)
            if kind == "custom_tool_call":  # as the model wrote it
                arguments: Any = custom_arguments(string(item.get("input"), f"{at}.input"))
            else:
                arguments = item.get("arguments")
            self._calls.append(call_of(call_id, tool, arguments, f"{at}.arguments"))
