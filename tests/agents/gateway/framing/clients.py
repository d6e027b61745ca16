"""What the official clients make of our bytes: their decoders of server-sent events, types and accumulation."""

import json
from collections.abc import Iterator
from typing import Any

from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from openai import omit
from openai._streaming import SSEDecoder
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from headrace.agents.gateway.framing.delivered import Delivered, DeliveredCall

RESPONSE_EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
MESSAGE_EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
DONE = "[DONE]"


def events(stream: bytes, size: int = 7) -> list[tuple[str | None, Any]]:
    """Name and JSON of each event; ``size``: the stream arrives in chunks of so many bytes."""
    chunks: Iterator[bytes] = (stream[at : at + size] for at in range(0, len(stream), size))
    found = [(event.event, event.data) for event in SSEDecoder().iter_bytes(chunks)]
    for line in stream.decode().splitlines():  # as clients do that split at every Unicode line separator
        assert not line or line.startswith(("data: ", "event: ")), line
    return [(name, data if data == DONE else json.loads(data)) for name, data in found]


def data(stream: bytes) -> list[Any]:
    return [each for _, each in events(stream)]


def message_events(stream: bytes) -> list[Any]:
    """Events of the Messages API; the name of each must be its type."""
    found = events(stream)
    assert [name for name, _ in found] == [each["type"] for _, each in found]
    return [each for _, each in found]


def response_events(stream: bytes) -> list[Any]:
    """Events of the Responses API, numbered from 0; the name of each must be its type."""
    found = message_events(stream)
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    return found


def _joined(texts: list[str]) -> tuple[str, ...]:
    return tuple(text for text in texts if text)


def _chat_message(message: Any) -> Delivered:
    return Delivered(
        texts=_joined([message.get("content") or ""]),
        reasoning=_joined([message.get("reasoning") or ""]),
        calls=tuple(
            DeliveredCall(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or ()
        ),
    )


def read_chat_stream(stream: bytes) -> list[Delivered]:
    """The messages that OpenAI's client accumulates from a complete stream, by choice."""
    state: Any = ChatCompletionStreamState()
    *chunks, done = data(stream)
    assert done == DONE
    for chunk in chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk, strict=True))
    choices = sorted(state.current_completion_snapshot.choices, key=lambda choice: choice.index)
    assert all(choice.finish_reason for choice in choices)
    return [_chat_message(choice.message.to_dict()) for choice in choices]


def read_chat(body: bytes) -> list[Delivered]:
    completion = ChatCompletion.model_validate_json(body, strict=True)
    return [_chat_message(choice.message.to_dict()) for choice in completion.choices]


def read_completion_stream(stream: bytes) -> list[Delivered]:
    """The texts of a complete stream of the Completions API, by choice; its client does not accumulate."""
    *chunks, done = data(stream)
    assert done == DONE
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
            if choice["finish_reason"]:  # OpenAI's type is the same for a chunk and a whole answer
                Completion.model_validate(chunk, strict=True)
    return [Delivered(_joined([texts[index]])) for index in sorted(texts)]


def read_completion(body: bytes) -> list[Delivered]:
    completion = Completion.model_validate_json(body, strict=True)
    return [Delivered(_joined([choice.text])) for choice in completion.choices]


def _message(message: dict[str, Any]) -> Delivered:
    content = message["content"]
    thinking = [block for block in content if block["type"] == "thinking"]
    return Delivered(
        texts=tuple(block["text"] for block in content if block["type"] == "text"),
        reasoning=tuple(block["thinking"] for block in thinking),
        calls=tuple(
            DeliveredCall(block["id"], block["name"], json.dumps(block["input"]))
            for block in content
            if block["type"] == "tool_use"
        ),
        echoed=_joined([block["signature"] for block in thinking]),
    )


def read_message_stream(stream: bytes) -> list[Delivered]:
    """The message that Anthropic's client accumulates from a complete stream."""
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    found = message_events(stream)
    for each in found:
        event = MESSAGE_EVENTS.validate_python(each)
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    assert found[-1]["type"] == "message_stop"
    assert snapshot.stop_reason
    return [_message(snapshot.to_dict())]


def read_message(body: bytes) -> list[Delivered]:
    return [_message(Message.model_validate_json(body).to_dict())]


def _items(output: list[dict[str, Any]]) -> Delivered:
    reasoning = [item for item in output if item["type"] == "reasoning"]
    texts = tuple(part["text"] for item in output if item["type"] == "message" for part in item["content"])
    return Delivered(
        texts=() if texts == ("",) and len(output) == 1 else texts,  # the message of an empty answer
        reasoning=tuple(part["text"] for item in reasoning for part in item["content"]),
        calls=tuple(
            DeliveredCall(item["call_id"], item["name"], item["arguments"])
            for item in output
            if item["type"] == "function_call"
        ),
        echoed=_joined([item.get("encrypted_content") or "" for item in reasoning]),
    )


def read_response_stream(stream: bytes) -> list[Delivered]:
    """The response at the end of a complete stream; what OpenAI's client accumulates from its deltas must equal it."""
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    found = response_events(stream)
    deltas: dict[int, str] = {}
    for each in found:
        state.handle_event(RESPONSE_EVENTS.validate_python(each, strict=True))
        if each["type"].endswith(".delta"):
            deltas[each["output_index"]] = deltas.get(each["output_index"], "") + each["delta"]
    assert found[-1]["type"] in ("response.completed", "response.incomplete")
    output = found[-1]["response"]["output"]
    done = [each["item"] for each in found if each["type"] == "response.output_item.done"]
    assert output == done
    for index, item in enumerate(output):
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert deltas.get(index, "") == text
    return [_items(output)]


def read_response(body: bytes) -> list[Delivered]:
    return [_items(Response.model_validate_json(body).to_dict()["output"])]  # type: ignore[arg-type]
