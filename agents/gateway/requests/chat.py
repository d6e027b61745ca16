"""Chat Completions and Completions → the canonical request."""

from array import array
from typing import Any

from headrace.agents.gateway.canonical import (
    Api,
    BadRequest,
    Call,
    CanonicalRequest,
    MessageRole,
    Unsupported,
    call_of,
)
from headrace.agents.gateway.requests.blocks import (
    Transcript,
    choices,
    name,
    offered,
    record,
    refusal,
    sequence,
    string,
    template_kwargs,
    texts_of,
    tool_name,
    tools_digest,
)

_TEMPLATE_FIELDS = (
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
)
_ROLES = {
    "system": MessageRole.SYSTEM,
    "developer": MessageRole.SYSTEM,
    "user": MessageRole.USER,
}


def read_chat(body: dict[str, Any]) -> CanonicalRequest:
    """Read a request of ``/v1/chat/completions``; raises :class:`BadRequest`."""
    transcript = Transcript()
    for index, message in enumerate(sequence(body.get("messages"), "messages")):
        _add(transcript, record(message, f"messages[{index}]"), f"messages[{index}]")
    if body.get("functions"):
        raise Unsupported("functions", "is deprecated: send tools")
    return CanonicalRequest(
        api=Api.CHAT,
        model=name(body.get("model"), "model"),
        messages=transcript.messages("messages"),
        tools=tools_digest(body),
        tools_offered=offered(body),
        template_kwargs=template_kwargs(body, _TEMPLATE_FIELDS),
        n=choices(body),
    )


def read_completion(body: dict[str, Any]) -> CanonicalRequest:
    """Read a request of ``/v1/completions``, whose prompt is one text or one list of token ids.

    Raises :class:`BadRequest`, also for several prompts.
    """
    prompt = body.get("prompt")
    transcript = Transcript()
    if isinstance(prompt, str):
        transcript.add(MessageRole.USER, (prompt,), "prompt")
    elif isinstance(prompt, list) and prompt and all(type(each) is int for each in prompt):
        try:
            token_ids = array("i", prompt)
        except OverflowError:
            raise BadRequest("prompt", "has a token id that does not fit 32 bits") from None
        transcript.add(MessageRole.TOKENS, (token_ids.tobytes().hex(),), "prompt")
    else:
        raise Unsupported("prompt", "must be one text or one list of token ids: send several prompts one by one")
    return CanonicalRequest(
        api=Api.COMPLETIONS,
        model=name(body.get("model"), "model"),
        messages=transcript.messages("prompt"),
        template_kwargs='{"template":false}',  # the same text as a chat message has another prompt
        n=choices(body),
    )


def _add(transcript: Transcript, message: dict[str, Any], at: str) -> None:
    role = message.get("role")
    if role == "assistant":
        _add_answer(transcript, message, at)
    elif role == "tool":
        call_id = name(message.get("tool_call_id"), f"{at}.tool_call_id")
        transcript.result(call_id, texts_of(message.get("content"), f"{at}.content"), False, at)
    elif isinstance(role, str) and role in _ROLES:
        transcript.add(_ROLES[role], texts_of(message.get("content"), f"{at}.content"), at)
    else:
        raise BadRequest(f"{at}.role", f"is {str(role)[:40]!r}: expected system, developer, user, assistant or tool")


def _add_answer(transcript: Transcript, message: dict[str, Any], at: str) -> None:
    if message.get("audio") is not None:
        raise refusal("audio", f"{at}.audio")
    if message.get("function_call") is not None:
        raise Unsupported(f"{at}.function_call", "is deprecated: send tool_calls")
    texts = texts_of(message.get("content"), f"{at}.content")
    if not texts and message.get("refusal"):
        texts = (string(message["refusal"], f"{at}.refusal"),)
    # vLLM's name is `reasoning`, DeepSeek's and older vLLM's is `reasoning_content`.
    reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
    calls = [
        _call(record(call, f"{at}.tool_calls[{index}]"), f"{at}.tool_calls[{index}]")
        for index, call in enumerate(sequence(message.get("tool_calls"), f"{at}.tool_calls"))
    ]
    transcript.answer(texts, calls, [reasoning] if isinstance(reasoning, str) and reasoning else [], [], at)


def _call(call: dict[str, Any], at: str) -> Call:
    call_id = name(call.get("id"), f"{at}.id")
    if call.get("type") == "custom":
        custom = record(call.get("custom"), f"{at}.custom")
        text = string(custom.get("input"), f"{at}.custom.input")
        return Call(call_id, tool_name(custom.get("name"), f"{at}.custom.name"), text, is_json=False, raw=text)
    function = record(call.get("function"), f"{at}.function")
    arguments = function.get("arguments")
    return call_of(
        call_id, tool_name(function.get("name"), f"{at}.function.name"), arguments, f"{at}.function.arguments"
    )
