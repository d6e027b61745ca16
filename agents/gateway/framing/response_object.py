"""The response object of OpenAI's Responses API, and the items of its output.

    {"id":"resp_1","object":"response","created_at":…,"model":…,…,"status":"completed","output":[…],"usage":{…}}

The fields that repeat the request are encoded once: a stream has the object at least three times, with all tools.
"""

from collections.abc import Mapping
from typing import Any

from headrace.agents.gateway.answer import AnswerMeta, AnswerUsage
from headrace.agents.gateway.framing.accumulate import Block, BlockKind
from headrace.agents.gateway.framing.json_bytes import encode
from headrace.agents.gateway.framing.logprobs import token_logprobs
from headrace.agents.gateway.response_tools import ResponseTools, custom_input

ECHOED: dict[str, Any] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
"""Fields of the request that the response repeats, with the value for requests that lack them or have ``null``."""


class ResponseObject:
    """Makes the response objects of one answer."""

    def __init__(self, meta: AnswerMeta, request: Mapping[str, Any]) -> None:
        """``request``: the body of the request, of which the fields :data:`ECHOED` are repeated.

        Raises ``ValueError`` if one of them has a number that is not finite.
        """
        echoed = {name: default if (given := request.get(name)) is None else given for name, default in ECHOED.items()}
        self._constant = encode(
            {"id": meta.id, "object": "response", "created_at": meta.created_s, "model": meta.model, **echoed}
        )[:-1]

    def bytes_of(
        self,
        status: str,
        output: list[dict[str, Any]],
        *,
        usage: AnswerUsage | None = None,
        error: dict[str, Any] | None = None,
        incomplete_reason: str | None = None,
    ) -> bytes:
        """Return the object."""
        variable = {
            "status": status,
            "error": error,
            "incomplete_details": None if incomplete_reason is None else {"reason": incomplete_reason},
            "output": output,
            "usage": None if usage is None else usage_object(usage),
        }
        return b"%b,%b" % (self._constant, encode(variable)[1:])


def item_of(block: Block, meta: AnswerMeta, tools: ResponseTools, status: str) -> dict[str, Any]:
    """Return the output item of ``block``. ``status``: ``in_progress``, ``completed`` or ``incomplete``."""
    item_id = item_id_of(block, meta, tools)
    match block.kind:
        case BlockKind.TEXT:
            content = [] if status == "in_progress" else [part_of(block)]
            return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}
        case BlockKind.REASONING:
            content = [] if status == "in_progress" else [part_of(block)]
            item = {"id": item_id, "type": "reasoning", "status": status, "summary": [], "content": content}
            return item if meta.encrypted_content is None else {**item, "encrypted_content": meta.encrypted_content}
        case BlockKind.TOOL:
            tool = tools.named(block.name)
            call = {"id": item_id, "call_id": block.call_id, "name": tool.name}
            if tool.is_custom:  # OpenAI's have no status
                return {**call, "type": "custom_tool_call", "input": custom_input(block.text)}
            named = call if tool.namespace is None else {**call, "namespace": tool.namespace}
            return {**named, "type": "function_call", "status": status, "arguments": block.text}


def part_of(block: Block) -> dict[str, Any]:
    """Return the content part of a text or reasoning."""
    if block.kind is BlockKind.REASONING:
        return {"type": "reasoning_text", "text": block.text}
    return {
        "type": "output_text",
        "annotations": [],
        "logprobs": token_logprobs(block.logprobs),
        "text": block.text,
    }


_PREFIXES = {BlockKind.TEXT: "msg_", BlockKind.REASONING: "rs_", BlockKind.TOOL: "fc_"}


def item_id_of(block: Block, meta: AnswerMeta, tools: ResponseTools) -> str:
    """Return the id of an item: that of the response with another prefix, and the item's position."""
    is_custom = block.kind is BlockKind.TOOL and tools.named(block.name).is_custom
    return f"{'ctc_' if is_custom else _PREFIXES[block.kind]}{meta.id.removeprefix('resp_')}_{block.position}"


def usage_object(usage: AnswerUsage) -> dict[str, Any]:
    """Return ``usage`` as the Responses API writes it, where an unknown count is 0."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached or 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
        "total_tokens": usage.prompt + usage.completion,
    }
