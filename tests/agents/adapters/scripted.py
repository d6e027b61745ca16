"""An endpoint that answers with what a test scripts, in the forms of OpenAI's and Anthropic's APIs."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
SEARCH = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": '{"query": "44"}'}}


@dataclass
class Reply:
    """An answer: JSON, or the events of a stream."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    def content(self) -> tuple[str, bytes]:
        if not isinstance(self.body, list):
            return "application/json", json.dumps(self.body).encode()
        lines = [
            (f"event: {event['type']}\n" if "type" in event else "") + f"data: {json.dumps(event)}\n\n"
            for event in self.body
        ]
        end = "" if "type" in self.body[0] else "data: [DONE]\n\n"
        return "text/event-stream", ("".join(lines) + end).encode()


@dataclass
class Endpoint:
    """The endpoint: what it is to answer, and what it was asked."""

    url: str
    replies: list[Reply] = field(default_factory=list)
    requests: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)
    model: Callable[[dict[str, Any]], Reply] | None = None
    """What answers instead of ``replies``."""

    def answers(self, *bodies: Any, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.replies += [Reply(body, headers=named) for body in bodies]


@contextmanager
def scripted_endpoint() -> Iterator[Endpoint]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            endpoint.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
            reply = endpoint.replies.pop(0) if endpoint.model is None else endpoint.model(body)
            kind, content = reply.content()
            self.send_response(reply.status)
            for name, value in {"content-type": kind, "x-request-id": "req_1", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test's output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = Endpoint(f"http://127.0.0.1:{server.server_port}")
        yield endpoint
        server.shutdown()


def chat(content: str | None, *calls: dict[str, Any]) -> dict[str, Any]:
    """A chat completion."""
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if calls:
        message["tool_calls"] = list(calls)
    choice = {"index": 0, "finish_reason": "tool_calls" if calls else "stop", "message": message, "logprobs": None}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o-2024",
        "choices": [choice],
        "usage": USAGE,
    }


def chat_stream(*pieces: str, calls: tuple[dict[str, Any], ...] = ()) -> list[dict[str, Any]]:
    """Chunks of a chat completion; arguments of tool calls come in two pieces."""
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o-2024"}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": piece} for piece in pieces)]
    for index, call in enumerate(calls):
        text = call["function"]["arguments"]
        function = call["function"] | {"arguments": text[:4]}
        deltas.append({"tool_calls": [{"index": index, **call, "function": function}]})
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": text[4:]}}]})
    chunks = [base | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    reason = "tool_calls" if calls else "stop"
    last = base | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    return [*chunks, last, base | {"choices": [], "usage": USAGE}]


def response(*items: dict[str, Any], unique: str = "resp_1") -> dict[str, Any]:
    """An answer of the Responses API."""
    return {
        "id": unique,
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "gpt-5-2026",
        "output": list(items),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 9,
            "output_tokens": 3,
            "total_tokens": 12,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def text_item(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def call_item() -> dict[str, Any]:
    function = SEARCH["function"]
    return {"id": "fc_1", "type": "function_call", "call_id": "call_1", "status": "completed", **function}  # type: ignore[dict-item]


def response_stream(*items: dict[str, Any]) -> list[dict[str, Any]]:
    """Events of an answer of the Responses API, with texts in two pieces."""
    begun = response() | {"status": "in_progress", "usage": None}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(items):
        place = {"output_index": index, "item_id": item["id"]}
        emptied: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
        events.append({"type": "response.output_item.added", "output_index": index, "item": item | emptied})
        if item["type"] == "message":
            part = item["content"][0]
            inside = place | {"content_index": 0}
            events.append({"type": "response.content_part.added", **inside, "part": part | {"text": ""}})
            for piece in (part["text"][:3], part["text"][3:]):
                delta = inside | {"delta": piece, "logprobs": []}
                events.append({"type": "response.output_text.delta", **delta})
            events.append({"type": "response.output_text.done", **inside, "text": part["text"], "logprobs": []})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": response(*items)})
    return [event | {"sequence_number": number} for number, event in enumerate(events)]


def message(*blocks: dict[str, Any]) -> dict[str, Any]:
    """An answer of the Messages API."""
    reason = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-5",
        "content": list(blocks),
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "cache_read_input_tokens": 4, "output_tokens": 3},
    }


def message_stream(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    """Events of an answer of the Messages API, with texts and arguments in two pieces."""
    whole = message(*blocks)
    begun = whole | {"content": [], "stop_reason": None, "usage": whole["usage"] | {"output_tokens": 0}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            start, kind, name, text = block | {"text": ""}, "text_delta", "text", block["text"]
        else:
            start, kind, name = block | {"input": {}}, "input_json_delta", "partial_json"
            text = json.dumps(block["input"])
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [
            {"type": "content_block_delta", "index": index, "delta": {"type": kind, name: piece}}
            for piece in (text[:3], text[3:])
        ]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    return [
        *events,
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]
