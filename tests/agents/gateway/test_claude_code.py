"""Claude Code against the core: its requests as they were seen on the network, shortened."""

import json
from typing import Any

import pytest

from headrace.agents.gateway.canonical import Api
from headrace.agents.gateway.continuation import Outcome
from headrace.agents.gateway.requests.messages import BILLING_PREFIX
from headrace.agents.gateway.session_identity import Source
from headrace.schemas.events import ContextSummarized, Role, ToolReturned, ToolStatus, TrajectoryStarted
from tests.agents.gateway.harness import Gateway, Reply

SUMMARY = (
    "1. Primary request: say hello using Bash.\n2. Done: echo hello printed hello.\n3. Next: nothing is left to do."
)


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


class ClaudeCode:
    """Claude Code: moves ``cache_control`` to the last message, turns an unchanged system prompt from a block into a
    string, changes its billing line with every request, and sends thinking back with its signature."""

    SESSION = "0b1c6a52-3c55-4f0e-9d75-4e8b9a3a7a11"

    def __init__(self, gateway: Gateway, system: str = "You are Claude Code.", **headers: str) -> None:
        self.gateway = gateway
        self.system = system
        self.headers = {
            "user-agent": "claude-cli/2.1.330 (external, sdk-cli)",
            "x-claude-code-session-id": self.SESSION,
            "x-stainless-retry-count": "0",
            **headers,
        }
        self.tools: list[dict[str, Any]] = [{"name": "Bash", "input_schema": {"type": "object"}}, {"name": "Task"}]
        self.messages: list[dict[str, Any]] = []
        self.requests = 0

    def body(self) -> dict[str, Any]:
        self.requests += 1
        messages = json.loads(json.dumps(self.messages))
        last = messages[-1]
        if isinstance(last["content"], str):
            last["content"] = [{"type": "text", "text": last["content"]}]
        last["content"][-1]["cache_control"] = {"type": "ephemeral"}
        system: Any = [
            {"type": "text", "text": f"{BILLING_PREFIX} cc_version=2.1.330; cch={self.requests:05};"},
            {"type": "text", "text": self.system, "cache_control": {"type": "ephemeral"}},
        ]
        if self.requests % 2 == 0:
            system = self.system
        return {
            "model": "policy",
            "max_tokens": 32000 + self.requests,
            "system": system,
            "messages": messages,
            "metadata": {"user_id": json.dumps({"device_id": "d", "session_id": self.SESSION})},
            "stream": True,
            **({"tools": self.tools} if self.tools else {}),
        }

    def ask(self, text: str = "", **answer: Any) -> Reply:
        return self.gateway.ask(Api.MESSAGES, self.body(), text, headers=self.headers, answer=answer)

    def keep(self, reply: Reply, signature: str = "") -> None:
        message = reply.message
        content: list[dict[str, Any]] = []
        if message.reasoning:
            content.append({"type": "thinking", "thinking": message.reasoning, "signature": signature})
        if message.text:
            content.append({"type": "text", "text": message.text})
        content += [
            {"type": "tool_use", "id": call.call_id, "name": call.tool, "input": call.value} for call in message.calls
        ]
        self.messages.append({"role": "assistant", "content": content})

    def results(self, reply: Reply, *texts: str, **fields: Any) -> None:
        content = [
            {"type": "tool_result", "tool_use_id": call.call_id, "content": text, **fields}
            for call, text in zip(reply.message.calls, texts, strict=True)
        ]
        self.messages.append({"role": "user", "content": content})

    def say(self, text: str) -> "ClaudeCode":
        self.messages.append({"role": "user", "content": text})
        return self


def test_claude_code_is_one_segment(gateway: Gateway) -> None:
    client = ClaudeCode(gateway).say("say hello using Bash")
    for number in range(4):
        reply = client.ask("", calls=[("Bash", {"command": f"echo {number}", "timeout": 1000.0})], reasoning="run it")
        client.keep(reply, signature="sig")
        client.results(reply, f"{number}\n")
    last = client.ask("Done.")
    assert last.outcome is Outcome.CONTINUATION
    assert last.plan.identity.source is Source.CLAUDE_CODE
    assert gateway.assert_exact() == 1
    assert gateway.types().count("tool.returned") == gateway.types().count("tool.called") == 4


def test_claude_code_s_parallel_calls_and_failures_are_paired(gateway: Gateway) -> None:
    client = ClaudeCode(gateway).say("say hello")
    reply = client.ask("", calls=[("Bash", {"command": "a"}), ("Bash", {"command": "b"})])
    client.keep(reply)
    client.results(reply, "no such command", "no such command", is_error=True)
    client.ask("Done.")
    returned = [fact for fact in gateway.facts() if isinstance(fact, ToolReturned)]
    assert [(fact.status, fact.latency_s) for fact in returned] == [(ToolStatus.ERROR, 1.0)] * 2
    assert [fact.call_id for fact in returned] == [call.call_id for call in reply.message.calls]


def test_claude_code_s_checks_without_tools_are_side_trajectories(gateway: Gateway) -> None:
    quota = ClaudeCode(gateway, "").say("quota")
    quota.tools = []
    title = ClaudeCode(gateway, "Summarise this conversation in a title.").say("say hello using Bash")
    title.tools = []
    main = ClaudeCode(gateway).say("say hello using Bash")
    assert [client.ask("x").outcome for client in (quota, title, main)] == [
        *(Outcome.SIDE, Outcome.SIDE, Outcome.NEW_TRAJECTORY),
    ]
    roles = [fact.role for fact in gateway.facts() if isinstance(fact, TrajectoryStarted)]
    assert roles == [Role.FROZEN, Role.FROZEN, Role.TRAINABLE]


def test_claude_code_s_sub_agents_work_beside_it(gateway: Gateway) -> None:
    main = ClaudeCode(gateway).say("look into two things")
    prompts = ("Look into the first thing, please.", "Look into the second thing, please.")
    spawn = main.ask("", calls=[("Task", {"prompt": prompt, "subagent_type": "Explore"}) for prompt in prompts])
    main.keep(spawn)
    subs = [
        ClaudeCode(gateway, "You explore.", **{"x-claude-code-agent-id": f"a{number}"}).say(prompt)
        for number, prompt in enumerate(prompts)
    ]
    firsts = []
    for sub in subs:
        reply = sub.ask("", calls=[("Bash", {"command": "ls"})])
        firsts.append(reply)
        sub.keep(reply)
        sub.results(reply, "files")
    lasts = [sub.ask("found it") for sub in subs]
    main.results(spawn, "found it", "found it")
    main.ask("Both done.")
    assert [reply.outcome for reply in (*firsts, *lasts)] == [*[Outcome.SUBAGENT] * 2, *[Outcome.CONTINUATION] * 2]
    assert [type_ for type_ in gateway.types(spawn.trajectory) if type_.startswith("subagent")] == [
        *("subagent.started", "subagent.started", "subagent.finished", "subagent.finished"),
    ]
    parents = [fact.parent_trajectory_id for fact in gateway.facts() if isinstance(fact, TrajectoryStarted)]
    assert parents == [None, spawn.trajectory, spawn.trajectory]
    assert gateway.assert_exact() == 3


def test_claude_code_s_compaction_stays_in_its_trajectory(gateway: Gateway) -> None:
    client = ClaudeCode(gateway).say("say hello using Bash")
    reply = client.ask("", calls=[("Bash", {"command": "echo hello"})])
    client.keep(reply)
    client.results(reply, "hello")
    client.say("Your task is to create a detailed summary of the conversation so far.")
    asked = client.ask(f"<analysis>short</analysis>\n\n<summary>\n{SUMMARY}\n</summary>")
    after = ClaudeCode(gateway)
    after.say(f"This session is being continued from a previous conversation.\n\nSummary:\n{SUMMARY}\n\nContinue.")
    resumed = after.ask("All done.")
    assert (asked.outcome, resumed.outcome) == (Outcome.CONTINUATION, Outcome.COMPACTION)
    assert resumed.trajectory == reply.trajectory
    fact = next(fact for fact in gateway.facts() if isinstance(fact, ContextSummarized))
    assert (fact.summary, fact.tokens_before) == (SUMMARY, len(asked.prompt))
    assert gateway.assert_exact() == 2


def test_claude_code_s_compaction_by_another_prompt_is_found_by_its_ids(gateway: Gateway) -> None:
    client = ClaudeCode(gateway).say("say hello using Bash")
    reply = client.ask("", calls=[("Bash", {"command": "echo hello"})])
    client.keep(reply)
    client.results(reply, "hello")
    summariser = ClaudeCode(gateway, "You are a helpful AI assistant tasked with summarizing conversations.")
    summariser.tools = []
    summariser.messages = [*client.messages, {"role": "user", "content": "Summarise."}]
    asked = summariser.ask(SUMMARY)
    assert (asked.outcome, asked.trajectory) == (Outcome.EDITED, reply.trajectory)
    after = ClaudeCode(gateway).say(f"Summary: {SUMMARY}")
    assert after.ask("ok").outcome is Outcome.COMPACTION


def test_claude_code_s_cleared_results_start_a_segment(gateway: Gateway) -> None:
    client = ClaudeCode(gateway).say("say hello using Bash")
    for number in range(3):
        reply = client.ask("", calls=[("Bash", {"command": f"echo {number}"})])
        client.keep(reply)
        client.results(reply, f"{number}")
    client.messages[2]["content"][0]["content"] = "[Old tool result content cleared]"
    last = client.ask("Done.")
    assert (last.outcome, last.trajectory) == (Outcome.EDITED, reply.trajectory)
    assert gateway.assert_exact() == 2


def test_claude_code_without_its_headers_is_known_by_the_user_id(gateway: Gateway) -> None:
    client = ClaudeCode(gateway).say("hi")
    client.headers = {}
    assert client.ask("hello").plan.identity.source is Source.USER_ID_SESSION
