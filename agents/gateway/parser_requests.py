"""A client's request in the form that vLLM's parsers read: tools, tool choice and options, without the conversation.

Needs vLLM, which is imported on first use. vLLM's own conversions are used, so that its parsers see what they would see
behind vLLM's own endpoints.
"""

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from headrace.agents.gateway.canonical import Api
from headrace.agents.gateway.response_tools import without_grammars

READ_BY_PARSERS = frozenset(
    {
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "structured_outputs",
        "text",
        "include_reasoning",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "chat_template_kwargs",
        "reasoning_effort",
        "reasoning",
        "thinking",
        "output_config",
    }
)
"""Fields of a request that vLLM's parsers and its conversions read, over all APIs."""

_TOOL_CHANGES = frozenset({"tool_addition", "tool_removal"})
"""Blocks of Messages that change the tools in the middle of a conversation."""


def read_by_parsers(api: Api, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what parsers read of ``body``, a client's request: equal for most calls of a conversation.

    Args:
        api: The client's API.
        body: The request, decoded JSON.
    """
    fields = {name: body[name] for name in sorted(READ_BY_PARSERS & body.keys())}
    if api is Api.RESPONSES and "tools" in fields:
        fields["tools"] = without_grammars(fields["tools"])
    if api is Api.MESSAGES and (changes := _tool_changes(body.get("messages"))):
        fields["messages"] = [{"role": "user", "content": changes}]
    return fields


def parser_request(api: Api, fields: Mapping[str, Any]) -> Any:
    """Return vLLM's request for ``fields`` of :func:`read_by_parsers`. Raises ``ValueError`` if vLLM finds it invalid.

    A conversation of one message stands for the real one: parsers use it at most to number tool-call ids, and the
    gateway mints these itself.
    """
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    message = {"role": "user", "content": "."}
    match api:
        case Api.CHAT:
            return ChatCompletionRequest.model_validate({"messages": [message], **fields})
        case Api.RESPONSES:
            return ResponsesRequest.model_validate({"input": ".", **fields})
        case Api.MESSAGES:
            request = {"model": "policy", "max_tokens": 1, "messages": [message], **fields}
            return AnthropicServingMessages.to_chat_completion_request(AnthropicMessagesRequest.model_validate(request))
        case Api.COMPLETIONS:
            raise ValueError("answers of the Completions API are not parsed")
    assert_never(api)


def names_a_tool(tool_choice: Any) -> bool:
    """Return whether ``tool_choice``, of any API, names the tool to be called: such an answer ends with ``stop``."""
    return isinstance(tool_choice, Mapping) and tool_choice.get("type") in ("function", "custom", "tool")


def _tool_changes(messages: Any) -> list[Any]:
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return []
    contents = (message.get("content") for message in messages if isinstance(message, Mapping))
    blocks = (block for content in contents if isinstance(content, list) for block in content)
    return [block for block in blocks if isinstance(block, Mapping) and block.get("type") in _TOOL_CHANGES]
