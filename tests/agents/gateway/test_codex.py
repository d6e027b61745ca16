"""Codex against the core: its requests as they were seen on the network, shortened."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from headrace.agents.gateway.canonical import Api
from headrace.agents.gateway.continuation import Outcome
from headrace.agents.gateway.session_identity import Source
from headrace.schemas.events import ContextSummarized
from tests.agents.gateway.harness import Gateway, Reply

SUMMARY = (
    "1. Primary request: say hello using Bash.\n2. Done: echo hello printed hello.\n3. Next: nothing is left to do."
)


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


class Codex:
    """Codex: Responses without stored items; sends every item back, reasoning only as encrypted content."""

    def __init__(
        self, gateway: Gateway, window: int = 0, thread: str = "019a-t1", headers: Mapping[str, str] = {}
    ) -> None:
        self.gateway = gateway
        self.thread = thread
        self.headers = {
            "user-agent": "codex_exec/0.169.0 (Debian 12)",
            "session-id": "019a-t1",
            "thread-id": thread,
            "x-codex-turn-metadata": json.dumps({"session_id": "019a-t1", "thread_id": thread, "turn_id": "t"}),
            "x-codex-window-id": f"{thread}:{window}",
            **headers,
        }
        self.items: list[dict[str, Any]] = [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
        ]

    def say(self, text: str) -> "Codex":
        self.items.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
        return self

    def ask(self, text: str = "", *, compact: bool = False, **answer: Any) -> Reply:
        body = {
            "model": "policy",
            "instructions": "You are Codex.",
            "input": self.items,
            "tools": [{"type": "function", "name": "shell", "parameters": {"type": "object"}}],
            "parallel_tool_calls": False,
            "reasoning": {"effort": "medium"},
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": self.thread,
        }
        return self.gateway.ask(Api.RESPONSES, body, text, headers=self.headers, compact=compact, answer=answer)

    def keep(self, reply: Reply, sealed: str = "") -> None:
        message = reply.message
        if message.reasoning:
            self.items.append({"type": "reasoning", "summary": [], "encrypted_content": sealed or "enc"})
        if message.text:
            content = [{"type": "output_text", "text": message.text}]
            self.items.append({"type": "message", "role": "assistant", "content": content})
        for call in message.calls:
            self.items.append(
                {"type": "function_call", "name": call.tool, "arguments": call.arguments, "call_id": call.call_id}
            )

    def results(self, reply: Reply, text: str) -> None:
        for call in reply.message.calls:
            self.items.append({"type": "function_call_output", "call_id": call.call_id, "output": text})


def test_codex_is_one_segment(gateway: Gateway) -> None:
    client = Codex(gateway).say("say hello")
    for number in range(3):
        reply = client.ask("Running.", calls=[("shell", {"command": ["echo", str(number)]})], reasoning="think")
        client.keep(reply)
        client.results(reply, "ok")
    last = client.ask("hello")
    assert (last.outcome, last.plan.identity.source) == (Outcome.CONTINUATION, Source.CODEX)
    assert gateway.assert_exact() == 1


def test_codex_s_next_window_is_a_compaction(gateway: Gateway) -> None:
    client = Codex(gateway).say("say hello")
    first = client.ask("hello")
    after = Codex(gateway, window=1).say("say hello").say("Another language model worked on this: it said hello.")
    reply = after.ask("ok")
    assert (reply.outcome, reply.trajectory) == (Outcome.COMPACTION, first.trajectory)
    again = after.ask("ok")
    assert again.outcome is Outcome.SIBLING


def test_codex_s_compact_endpoint_is_recorded_and_its_item_resolved(gateway: Gateway) -> None:
    client = Codex(gateway).say("say hello")
    first = client.ask("hello")
    client.keep(first)
    compacted = client.ask(SUMMARY, compact=True)
    after = Codex(gateway, window=1)
    after.items.append({"type": "compaction", "encrypted_content": compacted.ids[0]})
    after.say("go on to the next task")
    reply = after.ask("ok")
    assert (reply.outcome, reply.trajectory) == (Outcome.COMPACTION, first.trajectory)
    fact = next(fact for fact in gateway.facts() if isinstance(fact, ContextSummarized))
    assert fact.summary == SUMMARY


def test_codex_s_sub_agents_are_threads(gateway: Gateway) -> None:
    main = Codex(gateway).say("say hello")
    spawn = main.ask("", calls=[("spawn_agent", {"message": "Look for greetings in the code."})])
    sub = Codex(gateway, thread="019a-t2", headers={"x-codex-parent-thread-id": "019a-t1"})
    sub.say("Look for greetings in the code.")
    reply = sub.ask("none")
    assert (reply.outcome, reply.plan.decision.parent) == (Outcome.SUBAGENT, spawn.plan.state)
