"""Clients that hold a conversation with a running gateway, one for each API.

client = ChatHttp(gateway, "/s/s1").say("Look at the file.")
client.keep(await client.ask())          what the official client makes of the answer, kept as it would be sent back
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from headrace.agents.gateway.canonical import Api
from headrace.agents.gateway.framing.delivered import Delivered, DeliveredCall
from headrace.agents.gateway.render_bodies import PATHS
from tests.agents.gateway.framing import clients
from tests.agents.gateway.running import RunningGateway

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}


@dataclass
class HttpClient(ABC):
    """A client that resends its whole transcript."""

    api: ClassVar[Api]
    read: ClassVar[Callable[[bytes], list[Delivered]]]
    read_stream: ClassVar[Callable[[bytes], list[Delivered]]]

    gateway: RunningGateway
    base: str = "/s/s1"
    streams: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    """Of each request."""
    transcript: list[Any] = field(default_factory=list)

    @property
    def path(self) -> str:
        return self.base + PATHS[self.api]

    def body(self) -> dict[str, Any]:
        return {"model": "policy", "messages": self.transcript, **self.fields} | (
            {"stream": True} if self.streams else {}
        )

    def say(self, text: str) -> "HttpClient":
        self.transcript.append({"role": "user", "content": text})
        return self

    async def ask(self, *, headers: dict[str, str] | None = None, **fields: Any) -> Delivered:
        """Send the transcript; the first choice."""
        return (await self.choices(headers=headers, **fields))[0]

    async def choices(self, *, headers: dict[str, str] | None = None, **fields: Any) -> list[Delivered]:
        body = self.body() | fields
        status, data = await self.gateway.send("POST", self.path, body, headers={**self.headers, **(headers or {})})
        assert status == 200, data
        self.received = data
        return type(self).read_stream(data) if self.streams else type(self).read(data)

    @abstractmethod
    def keep(self, answer: Delivered, *, with_reasoning: bool = True) -> None:
        """Add an answer to the transcript."""

    @abstractmethod
    def result(self, call: DeliveredCall, text: str) -> None:
        """Add a tool's result."""

    @abstractmethod
    def with_tool(self, name: str) -> "HttpClient":
        """Offer a tool from now on."""

    async def turn(self, text: str) -> str:
        """Say something and keep the answer, whose text is returned."""
        self.say(text)
        answer = await self.ask()
        self.keep(answer)
        return "\n".join(answer.texts)


class ChatHttp(HttpClient):
    api = Api.CHAT
    read = staticmethod(clients.read_chat)
    read_stream = staticmethod(clients.read_chat_stream)

    def keep(self, answer: Delivered, *, with_reasoning: bool = True) -> None:
        entry: dict[str, Any] = {"role": "assistant", "content": answer.texts[0] if answer.texts else None}
        if answer.calls:
            entry["tool_calls"] = [
                {"id": each.call_id, "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
                for each in answer.calls
            ]
        if answer.reasoning and with_reasoning:
            entry["reasoning"] = answer.reasoning[0]
        self.transcript.append(entry)

    def result(self, call: DeliveredCall, text: str) -> None:
        self.transcript.append({"role": "tool", "tool_call_id": call.call_id, "content": text})

    def with_tool(self, name: str) -> "HttpClient":
        self.fields["tools"] = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}}]
        return self


class CompletionsHttp(HttpClient):
    """Its transcript is the list of texts that make the prompt."""

    api = Api.COMPLETIONS
    read = staticmethod(clients.read_completion)
    read_stream = staticmethod(clients.read_completion_stream)

    def body(self) -> dict[str, Any]:
        whole = super().body()
        return {"prompt": "".join(whole.pop("messages")), **whole}

    def say(self, text: str) -> "HttpClient":
        self.transcript.append(text)
        return self

    def keep(self, answer: Delivered, *, with_reasoning: bool = True) -> None:
        self.transcript += answer.texts

    def result(self, call: DeliveredCall, text: str) -> None:
        raise AssertionError("completions have no tools")

    def with_tool(self, name: str) -> "HttpClient":
        raise AssertionError("completions have no tools")


class MessagesHttp(HttpClient):
    api = Api.MESSAGES
    read = staticmethod(clients.read_message)
    read_stream = staticmethod(clients.read_message_stream)

    def body(self) -> dict[str, Any]:
        return {"max_tokens": 512} | super().body()

    def keep(self, answer: Delivered, *, with_reasoning: bool = True) -> None:
        content: list[dict[str, Any]] = []
        if with_reasoning:
            content += [
                {"type": "thinking", "thinking": text, "signature": signature}
                for text, signature in zip(answer.reasoning, answer.echoed, strict=True)
            ]
        content += [{"type": "text", "text": text} for text in answer.texts]
        content += [
            {"type": "tool_use", "id": each.call_id, "name": each.name, "input": json.loads(each.arguments)}
            for each in answer.calls
        ]
        self.transcript.append({"role": "assistant", "content": content})

    def result(self, call: DeliveredCall, text: str) -> None:
        block = {"type": "tool_result", "tool_use_id": call.call_id, "content": text}
        self.transcript.append({"role": "user", "content": [block]})

    def with_tool(self, name: str) -> "HttpClient":
        self.fields["tools"] = [{"name": name, "input_schema": SCHEMA}]
        return self


class ResponsesHttp(HttpClient):
    """It sends back the items that it received."""

    api = Api.RESPONSES
    read = staticmethod(clients.read_response)
    read_stream = staticmethod(clients.read_response_stream)

    def body(self) -> dict[str, Any]:
        whole = super().body()
        return {"input": whole.pop("messages"), **whole}

    @property
    def response(self) -> dict[str, Any]:
        """The response object that it received last."""
        found = clients.response_events(self.received)[-1]["response"] if self.streams else json.loads(self.received)
        assert isinstance(found, dict)
        return found

    def keep(self, answer: Delivered, *, with_reasoning: bool = True) -> None:
        self.transcript += [item for item in self.response["output"] if with_reasoning or item["type"] != "reasoning"]

    def result(self, call: DeliveredCall, text: str) -> None:
        self.transcript.append({"type": "function_call_output", "call_id": call.call_id, "output": text})

    def with_tool(self, name: str) -> "HttpClient":
        self.fields["tools"] = [{"type": "function", "name": name, "parameters": SCHEMA}]
        return self


class RecallingHttp(ResponsesHttp):
    """It sends only what is new, with ``previous_response_id``."""

    def keep(self, answer: Delivered, *, with_reasoning: bool = True) -> None:
        self.transcript.clear()
        self.fields["previous_response_id"] = self.response["id"]


ALL = (ChatHttp, CompletionsHttp, MessagesHttp, ResponsesHttp)
"""A client of each API."""

CONVERSATIONS = (ChatHttp, MessagesHttp, ResponsesHttp, RecallingHttp)
"""Clients that continue a conversation."""
