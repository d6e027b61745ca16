"""Processor time of the capture gateway's core for one request, beside ``json.loads`` of the same request and answer.

    python -m tests.benchmarks.bench_gateway_core [--turns 8] [--rounds 20]

A client resends a conversation that grows by one turn with a tool call, up to about 3,000 prompt tokens; the engine
samples 512 tokens. *Core* is everything between the parsed request and the events: canonical form, session, matching,
the exact prompt, ids, nodes, the validated events, from arrays of the engine's numbers. *JSON* is what any proxy pays:
parsing the request and the engine's answer. Not contained: rendering, HTTP, Kafka. The last turn of a conversation is
measured; medians of interleaved rounds, with the smallest and the largest.
"""

import argparse
import json
import statistics
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from headrace.agents.gateway.canonical import Api, assistant, call_of
from headrace.agents.gateway.capture import Capture, Plan, Tenant
from headrace.agents.gateway.nodes import Answer, NodeStore
from headrace.agents.gateway.requests.read import read
from headrace.agents.gateway.resolved_sampling import resolved_sampling
from headrace.agents.gateway.sealed import Kind, Sealer
from headrace.agents.gateway.session_identity import Arrival
from headrace.agents.gateway.sessions import SessionStore
from headrace.agents.gateway.splice import Rendered, Spliced, splice
from headrace.schemas.events import VersionSpan

PROMPT, SAMPLED = 3_000, 512
CHARACTERS = 4
"""Characters per token, as in English text."""
MAX_BYTES = 4 * 1024 * 1024
"""Memory of nodes: small, so that the store is full, as it is in a process that has run for a while."""
NOW_MS = 1_790_000_000_000
CLOSING = array("i", [2, 3])
PARAMS = {"temperature": 1.0, "max_tokens": SAMPLED, "logprobs": 0}


@dataclass
class Turn:
    """What the shell holds of a turn: the client's request, the renders and the engine's answer."""

    request: bytes
    answer: bytes
    rendered: tuple[Rendered, Rendered]


def text_of(tokens: int, number: int) -> str:
    """A text of about ``tokens`` tokens."""
    line = f"{number} the quick brown fox 'jumps' over\n"
    return line * (tokens * CHARACTERS // len(line) + 1)


SAMPLED_IDS = array("i", range(SAMPLED))
SAMPLED_TEXT = text_of(SAMPLED, 9)
LOGPROBS = array("f", [-0.5] * max(SAMPLED, PROMPT))


def tools() -> list[dict[str, Any]]:
    """Definitions of eight tools."""
    schema = {"type": "object", "properties": {"command": {"type": "string", "description": text_of(20, 0)}}}
    return [
        {"type": "function", "function": {"name": f"tool{number}", "description": text_of(30, 1), "parameters": schema}}
        for number in range(8)
    ]


class Conversation:
    """One client and the core, over all turns."""

    def __init__(self, turns: int) -> None:
        ids = count()
        self.core = Capture(
            Sealer([b"0123456789abcdef"]), NodeStore(MAX_BYTES), SessionStore(1000), lambda: f"id-{next(ids)}"
        )
        self.headers = {"x-claude-code-session-id": "c1", "user-agent": "claude-cli/2.1"}
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": text_of(PROMPT // 3, 2)},
            {"role": "user", "content": text_of(50, 3)},
        ]
        each = (2 * PROMPT // 3 - 50) // max(turns, 1)
        for number in range(turns):
            plan = self._begin(json.dumps(self.body()).encode())
            prompt = array("i", range(PROMPT * (number + 1) // (turns + 1)))
            known = plan.known_ids or array("i")
            answer = self._answer(plan, array("i", range(each // 2)), text_of(each // 2, number))
            events = self.core.finish(
                plan,
                known + prompt[len(known) :],
                [answer],
                sampling=resolved_sampling(PARAMS),
                latency_s=1.0,
                now_ms=NOW_MS,
            )
            assert events
            call = answer.message.calls[0]
            self.messages += [
                {
                    "role": "assistant",
                    "content": answer.message.text,
                    "tool_calls": [
                        {
                            "id": call.call_id,
                            "type": "function",
                            "function": {"name": call.tool, "arguments": call.arguments},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": call.call_id, "content": text_of(each // 2, number)},
            ]
        self.turn = self._last()

    def body(self) -> dict[str, Any]:
        """The client's request now."""
        return {"model": "policy", "messages": self.messages, "tools": tools(), "stream": True, "temperature": 1.0}

    def _begin(self, raw: bytes) -> Plan:
        body = json.loads(raw)
        return self.core.begin(
            Tenant("acme"), Arrival(self.headers), read(Api.CHAT, body), body, template="t", now_ms=NOW_MS
        )

    def _answer(self, plan: Plan, sampled: "array[int]", text: str) -> Answer:
        call = call_of(self.core.mint(plan, Kind.CALL, NOW_MS), "tool0", '{"command": "ls -l"}', "answer")
        message = assistant(text, (call,))
        spans = (VersionSpan(version=3, start=0, end=len(sampled)),)
        return Answer(message, sampled, LOGPROBS[: len(sampled)], spans, "tool_calls")

    def _last(self) -> Turn:
        raw = json.dumps(self.body()).encode()
        plan = self._begin(raw)
        known = plan.known_ids if plan.known_ids is not None else array("i")
        self.core.abandon(plan)
        before = array("i", range(len(known)))
        after = before + array("i", range(PROMPT - len(known)))
        content = [{"token_id": token, "logprob": -0.5, "top_logprobs": []} for token in range(SAMPLED)]
        choice = {"token_ids": list(range(SAMPLED)), "logprobs": {"content": content}, "finish_reason": "stop"}
        return Turn(raw, json.dumps({"choices": [choice]}).encode(), (Rendered(before), Rendered(after)))

    def work(self, body: dict[str, Any]) -> int:
        """What the core does for the last turn; returns the length of the prompt."""
        request = read(Api.CHAT, body)
        plan = self.core.begin(Tenant("acme"), Arrival(self.headers), request, body, template="t", now_ms=NOW_MS)
        assert plan.known_ids is not None
        result = splice(plan.known_ids, CLOSING, [self.turn.rendered])
        assert isinstance(result, Spliced)
        self.core.composed(plan, result)
        answer = self._answer(plan, SAMPLED_IDS, SAMPLED_TEXT)
        self.core.finish(
            plan,
            result.token_ids,
            [answer],
            sampling=resolved_sampling(PARAMS),
            latency_s=1.0,
            now_ms=NOW_MS,
        )
        return len(result.token_ids)


def processor_ms(call: Callable[[], object], times: int) -> float:
    """Processor milliseconds of this process per ``call``."""
    begun = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - begun) / times * 1e3


def measure(turns: int, rounds: int, times: int = 100) -> dict[str, list[float]]:
    """Milliseconds per request of the core and of JSON, one figure per round; a first round is discarded."""
    conversation = Conversation(turns)
    turn = conversation.turn
    body = json.loads(turn.request)
    calls: dict[str, Callable[[], object]] = {
        "core": lambda: conversation.work(body),
        "json, request": lambda: json.loads(turn.request),
        "json, answer": lambda: json.loads(turn.answer),
    }
    found: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            took = processor_ms(call, times)
            if number:
                found[name].append(took)
    return found


def table(found: dict[str, list[float]]) -> str:
    """One line per part."""
    return "\n".join(
        f"{name:<14} {statistics.median(each):6.3f} ms a request ({min(each):.3f}–{max(each):.3f})"
        for name, each in found.items()
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    print(table(measure(options.turns, options.rounds)))


if __name__ == "__main__":
    main()
