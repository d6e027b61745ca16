"""opencode, mini-swe-agent, smolagents and an unnamed client against the core, as seen on the network, shortened."""

import json
from typing import Any

import pytest

from headrace.agents.gateway.canonical import Api
from headrace.agents.gateway.continuation import Outcome
from headrace.agents.gateway.session_identity import Source
from headrace.schemas.events import ToolCalled
from tests.agents.gateway.harness import Gateway, Reply


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


class ChatAgent:
    """An agent on chat completions; each of those below has habits of its own."""

    def __init__(self, gateway: Gateway, headers: dict[str, str], *, url: str | None = None) -> None:
        self.gateway = gateway
        self.headers = headers
        self.url = url
        self.messages: list[dict[str, Any]] = []
        self.tools: list[dict[str, Any]] = [{"type": "function", "function": {"name": "bash"}}]

    def ask(self, text: str = "", **answer: Any) -> Reply:
        body: dict[str, Any] = {"model": "policy", "messages": self.messages}
        body |= {"tools": self.tools} if self.tools else {}
        return self.gateway.ask(Api.CHAT, body, text, headers=self.headers, url=self.url, answer=answer)


def test_opencode_is_one_segment_beside_its_title(gateway: Gateway) -> None:
    headers = {"user-agent": "opencode/1.18.33 ai-sdk/openai-compatible", "x-session-id": "ses_1"}
    title = ChatAgent(gateway, headers)
    title.tools = []
    title.messages = [
        {"role": "system", "content": "You are a title generator."},
        {"role": "user", "content": "Generate a title for this conversation:\n"},
        {"role": "user", "content": "say hello using bash"},
    ]
    main = ChatAgent(gateway, headers)
    main.messages = [
        {"role": "system", "content": "You are opencode."},
        {"role": "user", "content": "say hello using bash"},
    ]
    outcomes = [title.ask("Greeting").outcome]
    for number in range(3):
        reply = main.ask("", calls=[("bash", {"command": "echo", "description": f"{number}"})], reasoning="run it")
        outcomes.append(reply.outcome)
        (call,) = reply.message.calls
        shuffled = json.dumps({"description": str(number), "command": "echo"})
        main.messages += [
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "run it",
                "tool_calls": [
                    {"id": call.call_id, "type": "function", "function": {"name": "bash", "arguments": shuffled}}
                ],
            },
            {"role": "tool", "tool_call_id": call.call_id, "content": "hello\n"},
        ]
    outcomes.append(main.ask("hello").outcome)
    assert outcomes == [Outcome.SIDE, Outcome.NEW_TRAJECTORY, *[Outcome.CONTINUATION] * 3]
    assert gateway.assert_exact() == 2


def test_opencode_s_sub_agents_have_sessions_of_their_own(gateway: Gateway) -> None:
    agent = {"user-agent": "opencode/1.18.33"}
    main = ChatAgent(gateway, agent | {"x-session-id": "ses_1"})
    main.messages = [{"role": "user", "content": "look around"}]
    spawn = main.ask("", calls=[("task", {"prompt": "Find every greeting."})])
    sub = ChatAgent(gateway, agent | {"x-session-id": "ses_2", "x-parent-session-id": "ses_1"})
    sub.messages = [{"role": "user", "content": "Find every greeting."}]
    assert (sub.ask("none").outcome, gateway.types(spawn.trajectory)[-1]) == (Outcome.SUBAGENT, "subagent.started")


def test_mini_swe_agent_is_one_segment(gateway: Gateway) -> None:
    # LiteLLM's echo of an answer has provider_specific_fields, null content and a function_call of null.
    client = ChatAgent(gateway, {"user-agent": "OpenAI/Python 2.3"}, url="run-7")
    client.messages = [{"role": "system", "content": "You solve tasks."}, {"role": "user", "content": "say hello"}]
    for number in range(3):
        reply = client.ask("", calls=[("bash", {"command": f"echo {number}"})])
        (call,) = reply.message.calls
        client.messages += [
            {
                "content": None,
                "role": "assistant",
                "tool_calls": [
                    {
                        "index": 0,
                        "function": {"arguments": call.arguments, "name": "bash"},
                        "id": call.call_id,
                        "type": "function",
                    }
                ],
                "function_call": None,
                "provider_specific_fields": {"refusal": None, "reasoning": None},
                "extra": {"actions": [{"command": f"echo {number}"}], "cost": 0.0},
            },
            {"role": "tool", "tool_call_id": call.call_id, "content": f"<output>{number}</output>"},
        ]
    assert client.ask("done").outcome is Outcome.CONTINUATION
    assert gateway.assert_exact() == 1


def test_smolagents_starts_a_segment_per_turn_in_one_trajectory(gateway: Gateway) -> None:
    # It sends earlier calls as text, so what the model sampled is not what its next prompt says.
    client = ChatAgent(gateway, {"user-agent": "OpenAI/Python 2.3"}, url="run-8")
    client.messages = [
        {"role": "system", "content": [{"type": "text", "text": "You use tools."}]},
        {"role": "user", "content": [{"type": "text", "text": "New task:\nsay hello"}]},
    ]
    outcomes = []
    for number in range(3):
        reply = client.ask("", calls=[("bash", {"command": "echo"})])
        outcomes.append(reply.outcome)
        text = f"Calling tools:\n[{{'id': '{reply.message.calls[0].call_id}', 'function': 'bash'}}]"
        client.messages += [
            {"role": "assistant", "content": [{"type": "text", "text": text}]},
            {"role": "user", "content": [{"type": "text", "text": f"Observation:\n{number}"}]},
        ]
    assert outcomes == [Outcome.NEW_TRAJECTORY, Outcome.EDITED, Outcome.EDITED]
    assert gateway.assert_exact() == 3
    assert len({event.trajectory_id for event in gateway.log}) == 1
    assert sum(isinstance(fact, ToolCalled) for fact in gateway.facts()) == 3


def test_a_client_without_any_name_is_one_segment(gateway: Gateway) -> None:
    client = ChatAgent(gateway, {})
    client.messages = [{"role": "user", "content": "hi"}]
    for text in ("one", "two", "three"):
        reply = client.ask(text)
        client.messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "more"}]
    assert reply.plan.identity.source is Source.HISTORY
    assert gateway.assert_exact() == 1
