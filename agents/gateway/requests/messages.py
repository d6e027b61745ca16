"""Anthropic Messages → the canonical request."""

from typing import Any

from headrace.agents.gateway.canonical import (
    Api,
    BadRequest,
    CanonicalRequest,
    MessageRole,
    Unsupported,
    call_of,
    canonical_json,
)
from headrace.agents.gateway.requests.blocks import (
    TEXT_BLOCKS,
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

BILLING_PREFIX = "x-anthropic-billing-header:"
"""Start of a line that Claude Code writes into the system prompt and changes with every request."""


def read_messages(body: dict[str, Any]) -> CanonicalRequest:
    """Read a request of ``/v1/messages``; raises :class:`BadRequest`."""
    transcript = Transcript()
    system = without_billing(texts_of(body.get("system"), "system"))
    if system:
        transcript.add(MessageRole.SYSTEM, system, "system")
    for index, message in enumerate(sequence(body.get("messages"), "messages")):
        at = f"messages[{index}]"
        role = record(message, at).get("role")
        content = message.get("content")
        if role == "assistant":
            _add_answer(transcript, content, at)
        elif role == "user":
            _add_user(transcript, content, at)
        elif role == "system":  # Claude Code adds reminders in the middle of a conversation
            transcript.add(MessageRole.SYSTEM, texts_of(content, f"{at}.content"), at)
        else:
            raise BadRequest(f"{at}.role", f"is {str(role)[:40]!r}: expected user, assistant or system")
    thinking = record(body.get("thinking") or {}, "thinking").get("type")
    for index, tool in enumerate(sequence(body.get("tools"), "tools")):
        _check_tool(tool, f"tools[{index}]")
    return CanonicalRequest(
        api=Api.MESSAGES,
        model=name(body.get("model"), "model"),
        messages=transcript.messages("messages"),
        tools=tools_digest(body),
        tools_offered=offered(body),
        # The budget changes from call to call and no template reads it.
        template_kwargs=canonical_json({"thinking": thinking}, "thinking") if thinking else "{}",
    )


def _check_tool(tool: Any, at: str) -> None:
    kind = record(tool, at).get("type")
    if kind not in (None, "custom") and tool.get("input_schema") is None:
        raise Unsupported(
            at,
            f"type {str(kind)[:40]!r} is not supported: only Anthropic's models know this tool, and the gateway runs "
            "none. Send tools of your own, with an input_schema",
        )


def without_billing(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``texts`` without Claude Code's billing line."""
    if not any(text.startswith(BILLING_PREFIX) for text in texts):
        return texts
    kept = [text.partition("\n")[2].lstrip("\n") if text.startswith(BILLING_PREFIX) else text for text in texts]
    return tuple(text for text in kept if text)


def _add_answer(transcript: Transcript, content: Any, at: str) -> None:
    if isinstance(content, str):
        transcript.answer((content,) if content else (), [], [], [], at)
        return
    texts: list[str] = []
    calls, reasoning, echoed = [], [], []
    for index, block in enumerate(sequence(content, f"{at}.content")):
        where = f"{at}.content[{index}]"
        kind = record(block, where).get("type")
        if kind == "text":
            texts.append(string(block.get("text"), f"{where}.text"))
        elif kind == "tool_use":
            call_id, tool = name(block.get("id"), f"{where}.id"), tool_name(block.get("name"), f"{where}.name")
            calls.append(call_of(call_id, tool, block.get("input"), f"{where}.input"))
        elif kind == "thinking":
            reasoning.append(string(block.get("thinking"), f"{where}.thinking"))
            echoed.append(string(block.get("signature") or "", f"{where}.signature"))
        elif kind == "redacted_thinking":
            echoed.append(string(block.get("data") or "", f"{where}.data"))
        else:
            raise refusal(kind, where)
    transcript.answer(tuple(texts) if any(texts) else (), calls, reasoning, echoed, at)


def _add_user(transcript: Transcript, content: Any, at: str) -> None:
    """Add a message of the user: each tool result becomes a message, and so does each run of text blocks."""
    if isinstance(content, str):
        transcript.add(MessageRole.USER, (content,) if content else (), at)
        return
    texts: list[str] = []
    for index, block in enumerate(sequence(content, f"{at}.content")):
        where = f"{at}.content[{index}]"
        kind = record(block, where).get("type")
        if kind in TEXT_BLOCKS:
            texts.append(string(block.get("text"), f"{where}.text"))
        elif kind == "tool_result":
            if texts:
                transcript.add(MessageRole.USER, tuple(texts), at)
                texts = []
            call_id = name(block.get("tool_use_id"), f"{where}.tool_use_id")
            result = texts_of(block.get("content"), f"{where}.content")
            transcript.result(call_id, result, block.get("is_error") is True, at)
        else:
            raise refusal(kind, where)
    if texts:
        transcript.add(MessageRole.USER, tuple(texts) if any(texts) else (), at)
