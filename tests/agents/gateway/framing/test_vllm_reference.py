"""vLLM's own converters as reference: the same deltas give the same events, but for the differences documented in the
modules. vLLM's Messages converter reads Chat Completions, so it is given what our Chat framer writes."""

import asyncio
import json
from collections.abc import AsyncGenerator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headrace.agents.gateway.answer import (
    AnswerOptions,
    ChoiceEnd,
    Delta,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolStart,
    finish_reason_of,
)
from headrace.agents.gateway.framing.json_bytes import well_formed
from headrace.agents.gateway.framing.responses import ResponsesFramer
from headrace.agents.gateway.response_tools import ResponseTools, without_grammars
from tests.agents.gateway.framing.answers import (
    CHAT,
    MESSAGES,
    META,
    RESPONSES,
    USAGE,
    chaotic,
    ended,
    orderly,
    streamed,
)
from tests.agents.gateway.framing.clients import message_events, response_events
from tests.agents.gateway.test_response_tools import TOOLS

pytestmark = pytest.mark.vllm
slow = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def with_vllm(chat_stream: bytes) -> list[Any]:
    """The events that vLLM's Messages API makes of a stream of Chat Completions."""
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    async def chunks() -> AsyncGenerator[str, None]:
        for chunk in chat_stream.decode().split("\n\n")[:-1]:
            yield chunk + "\n\n"

    async def convert() -> str:
        converter = AnthropicServingMessages.message_stream_converter(None, chunks())
        return "".join([event async for event in converter])

    # vLLM does not escape Unicode line separators, so its events are read with \n as the only one.
    written = asyncio.run(convert()).split("\n\n")[:-1]
    return [json.loads(event.partition("\ndata: ")[2]) for event in written]


def comparable(events: list[Any]) -> list[Any]:
    """``events`` without usage and signatures."""
    for each in events:
        each.pop("usage", None)
        each.get("message", {}).pop("usage", None)
        if each["type"] == "content_block_start":
            each["content_block"].pop("signature", None)
        if each.get("delta", {}).get("type") == "signature_delta":
            del each["delta"]["signature"]
    return events


@slow
@given(st.one_of(orderly(), chaotic(1)), st.sampled_from(["stop", "length"]), st.sampled_from([None, "###"]))
def test_messages_are_those_of_vllm(deltas: list[Delta], reason: str, stop_string: str | None) -> None:
    has_calls = any(isinstance(delta, ToolStart) for delta in deltas)
    ends = [ChoiceEnd(0, finish_reason_of(reason, has_calls=has_calls), stop_string)]
    theirs = with_vllm(streamed(CHAT.make(AnswerOptions(include_usage=True)), deltas, ends))
    ours = message_events(streamed(MESSAGES.make(AnswerOptions()), deltas, ends))
    assert comparable(ours) == comparable(theirs)


@slow
@given(orderly())
def test_vllms_types_read_our_messages_and_chunks(deltas: list[Delta]) -> None:
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesResponse, AnthropicStreamEvent
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse, ChatCompletionStreamResponse

    framer = MESSAGES.make(AnswerOptions())
    for event in message_events(streamed(framer, deltas)):
        AnthropicStreamEvent.model_validate(event)
    AnthropicMessagesResponse.model_validate_json(framer.whole(ended(), USAGE))
    chat = CHAT.make(AnswerOptions())
    for line in streamed(chat, deltas).decode().split("\n\n")[:-2]:
        read = ChatCompletionStreamResponse.model_validate_json(line.removeprefix("data: "))
        assert not read.model_extra
    ChatCompletionResponse.model_validate_json(chat.whole(ended(), USAGE))


def items_of_vllm(deltas: list[Delta], tools: Any = None) -> list[tuple[Any, ...]]:
    """The events that vLLM's Responses API makes of ``deltas``, without those about the whole response."""
    from vllm.entrypoints.generate.base.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall
    from vllm.entrypoints.openai.responses.streaming_events import SimpleStreamingEventProcessor

    processor = SimpleStreamingEventProcessor(tools=tools)
    events = []
    for delta in deltas:
        match delta:
            case TextDelta():
                message = DeltaMessage(content=well_formed(delta.text))
            case ReasoningDelta():
                message = DeltaMessage(reasoning=well_formed(delta.text))
            case ToolStart():
                function = DeltaFunctionCall(name=delta.name)
                message = DeltaMessage(tool_calls=[DeltaToolCall(index=delta.index, id=delta.id, function=function)])
            case ToolArguments():
                function = DeltaFunctionCall(arguments=well_formed(delta.text))
                message = DeltaMessage(tool_calls=[DeltaToolCall(index=delta.index, function=function)])
            case _:
                raise AssertionError(delta)
        target, call = processor.resolve_target_state(message)
        if processor.needs_transition(target, call):
            events += [*processor.close_current(), *processor.open(target, call)]
        events += processor.emit_delta(message, None)
    return [brief(event.model_dump()) for event in (*events, *processor.close_current())]


def brief(event: dict[str, Any]) -> tuple[Any, ...]:
    """What an event says, without ids and sequence numbers."""
    names = ("type", "status", "arguments", "call_id", "name", "namespace", "input")
    item = {name: (event.get("item") or {}).get(name) for name in names}
    said = [event.get(name) for name in ("output_index", "content_index", "delta", "text", "arguments", "input")]
    part = event.get("part") or {}
    return (event["type"], *said, part.get("type"), part.get("text"), *item.values())


@slow
@given(orderly())
@example([])
def test_responses_are_those_of_vllm(deltas: list[Delta]) -> None:
    filled = [delta for delta in deltas if isinstance(delta, ToolStart) or getattr(delta, "text", "")]
    ours = [brief(event) for event in response_events(streamed(RESPONSES.make(AnswerOptions()), filled))[2:-1]]
    theirs = joined(items_of_vllm(filled))
    if filled:
        assert joined(ours) == theirs
    else:  # the difference that test_responses.py::test_an_empty_answer_is_an_empty_message describes
        assert theirs == []
        assert len(ours) == 5


@slow
@given(st.text(), st.lists(st.integers(0, 60)), st.booleans())
def test_custom_tools_and_namespaces_are_answered_as_by_vllm(text: str, cuts: list[int], ascii_only: bool) -> None:
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.openai.responses.utils import encode_custom_tool_input

    written = json.dumps({"input": text}, ensure_ascii=ascii_only)
    places = sorted({0, len(written), *(min(cut, len(written)) for cut in cuts)})
    deltas: list[Delta] = [ToolStart(0, 0, "call_0", "apply_patch")]
    deltas += [ToolArguments(0, 0, written[start:end]) for start, end in pairwise(places)]
    deltas += [ToolStart(0, 1, "call_1", "mcp__search"), ToolArguments(0, 1, "{}")]
    framer = ResponsesFramer(META, AnswerOptions(), {"tools": TOOLS})
    events = response_events(streamed(framer, deltas))
    request = ResponsesRequest.model_validate({"input": "x", "tools": without_grammars(TOOLS)})
    assert joined([brief(event) for event in events[2:-1]]) == joined(items_of_vllm(deltas, request.tools))
    # It is recorded as the template writes it again, with the model's name of the tool.
    custom, named = framer.delivered().calls
    assert (custom.name, custom.arguments) == ("apply_patch", encode_custom_tool_input(text))
    assert (named.name, named.arguments) == ("mcp__search", "{}")
    whole = ResponsesFramer(META, AnswerOptions(), {"tools": TOOLS})
    for delta in deltas:
        whole.answer.add(delta)
    assert json.loads(whole.whole(ended(), USAGE))["output"] == events[-1]["response"]["output"]
    assert whole.delivered() == framer.delivered()


def test_tools_have_the_names_that_vllm_gives_them() -> None:
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.openai.responses.utils import custom_tool_names
    from vllm.tool_parsers.utils import build_responses_tool_call_name_map, iter_response_function_tool_dicts

    request = ResponsesRequest.model_validate({"input": "x", "tools": without_grammars(TOOLS)})
    tools, spaces = ResponseTools({"tools": TOOLS}), build_responses_tool_call_name_map(request.tools)
    shown = [tool["name"] for tool in iter_response_function_tool_dicts(request.tools)]
    assert shown == ["exec", "apply_patch", "mcp__search"]
    for name in shown:
        found, theirs = tools.named(name), spaces.get(name)
        assert found.is_custom == (name in custom_tool_names(request.tools))
        assert (found.name, found.namespace) == ((theirs.name, theirs.namespace) if theirs else (name, None))


def joined(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """``events`` with consecutive deltas of an item as one: text that follows a call comes at once from us."""
    found: list[tuple[Any, ...]] = []
    for each in events:
        if each[0].endswith(".delta") and found and found[-1][:3] == each[:3]:
            each = (*each[:3], found.pop()[3] + each[3], *each[4:])
        found.append(each)
    return found
