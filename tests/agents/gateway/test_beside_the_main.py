"""Side conversations, sub-agents, compactions and resumed conversations, from transcripts."""

import copy
from typing import Any

import pytest

from headrace.agents.gateway.canonical import Api
from headrace.agents.gateway.capture import Tenant
from headrace.agents.gateway.continuation import Outcome
from headrace.agents.gateway.record import TaskInfo
from headrace.agents.gateway.session_identity import SessionIdentity, Source
from headrace.agents.gateway.terms import TenantPolicy
from headrace.schemas.events import (
    ContextSummarized,
    EndStatus,
    Role,
    SubagentFinished,
    SubagentStarted,
    TrajectoryEnded,
    TrajectoryStarted,
)
from tests.agents.gateway.harness import SAMPLED, ChatClient, Gateway, tool

SUMMARY = "The user wants boots in size 44. We looked at the shop, found two pairs, and one of them is red."


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def agent(gateway: Gateway, url: str | None = "s1", **fields: Any) -> ChatClient:
    return ChatClient(gateway, url=url, **fields).say("You are an agent.", "system").say("Say hello.")


def test_a_title_call_of_a_known_client_is_a_side_trajectory_even_if_it_comes_first(gateway: Gateway) -> None:
    headers = {"x-session-id": "ses_1", "user-agent": "opencode/1.18.33"}
    title = ChatClient(gateway, headers, tools=[]).say("You write titles.", "system").say("Say hello.")
    main = ChatClient(gateway, headers).say("You are an agent.", "system").say("Say hello.")
    assert [title.ask("Greeting").outcome, main.turn("ok", "1").outcome, main.ask("bye").outcome] == [
        Outcome.SIDE,
        Outcome.NEW_TRAJECTORY,
        Outcome.CONTINUATION,
    ]
    started = [fact for fact in gateway.facts() if isinstance(fact, TrajectoryStarted)]
    assert [each.role for each in started] == [Role.FROZEN, Role.TRAINABLE]
    assert gateway.assert_exact() == 2


def test_an_unmatched_conversation_beside_the_main_one_is_frozen(gateway: Gateway) -> None:
    agent(gateway).ask("hello")
    side = ChatClient(gateway, url="s1").say("You check safety.", "system").say("Is it safe?")
    reply = side.ask("yes")
    assert (reply.outcome, reply.plan.decision.role) == (Outcome.SIDE, Role.FROZEN)
    assert reply.plan.decision.parent is not None


def test_a_tenant_may_train_side_conversations(gateway: Gateway) -> None:
    tenant = Tenant("acme", TenantPolicy(unmatched_root_role=Role.TRAINABLE))
    agent(gateway).ask("hello")
    body = {"model": "policy", "messages": [{"role": "user", "content": "other"}]}
    assert gateway.begin(Api.CHAT, body, url="s1", tenant=tenant).decision.role is Role.TRAINABLE


def test_the_first_conversation_with_tools_is_the_main_one_after_one_without(gateway: Gateway) -> None:
    ChatClient(gateway, url="s1", tools=[]).say("Name this.").ask("Title")
    reply = agent(gateway).ask("hello")
    assert (reply.outcome, reply.plan.decision.role) == (Outcome.NEW_TRAJECTORY, Role.TRAINABLE)


def test_each_conversation_under_a_hint_is_a_trajectory(gateway: Gateway) -> None:
    headers = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}
    clients = [ChatClient(gateway, headers).say(f"question {number}") for number in range(2)]
    assert [client.turn("x", "y").outcome for client in clients] == [Outcome.NEW_TRAJECTORY] * 2
    assert [client.ask("z").outcome for client in clients] == [Outcome.CONTINUATION] * 2


def test_a_sub_agent_that_quotes_the_prompt_of_an_open_call(gateway: Gateway) -> None:
    main = agent(gateway)
    reply = main.ask("delegate", calls=[("task", {"description": "look", "prompt": "Find all boots in size 44."})])
    main.keep(reply)
    sub = ChatClient(gateway, url="s1", tools=[tool("grep")]).say("You search.", "system")
    sub.say("Find all boots in size 44.")
    first = sub.turn("searching", "2 pairs")
    assert (first.outcome, sub.ask("two pairs").outcome) == (Outcome.SUBAGENT, Outcome.CONTINUATION)
    main.result(reply, "two pairs")
    main.ask("done")
    facts = gateway.facts(reply.trajectory)
    started = next(fact for fact in facts if isinstance(fact, SubagentStarted))
    finished = next(fact for fact in facts if isinstance(fact, SubagentFinished))
    assert (started.name, started.sub_trajectory_id, started.stage) == ("task", first.trajectory, 1)
    assert (finished.sub_trajectory_id, finished.steps, finished.status) == (first.trajectory, 2, EndStatus.COMPLETED)
    ended = gateway.facts(first.trajectory)[-1]
    assert isinstance(ended, TrajectoryEnded)
    assert ended.answer == "two pairs"
    assert gateway.assert_exact() == 2


def test_a_sub_agent_that_still_works_when_its_call_returns_is_not_ended(gateway: Gateway) -> None:
    main = agent(gateway)
    reply = main.ask("delegate", calls=[("task", {"prompt": "Watch the build until it ends."})])
    main.keep(reply)
    sub = ChatClient(gateway, url="s1").say("Watch the build until it ends.")
    sub.turn("watching", "running")
    busy = gateway.begin(Api.CHAT, sub.body(), url="s1")
    main.result(reply, "started in the background")
    main.ask("meanwhile")
    assert "subagent.finished" not in gateway.types()
    assert gateway.finish(busy, "it ended").outcome is Outcome.CONTINUATION
    ends = gateway.core.end("acme", "s1")
    assert [event.fact.TYPE for event in ends] == [TrajectoryEnded.TYPE, SubagentFinished.TYPE, TrajectoryEnded.TYPE]


def test_a_sub_agent_is_named_after_a_tool_of_any_name(gateway: Gateway) -> None:
    main = ChatClient(gateway, url="s1").say("Do it.")
    main.ask("", calls=[("t" * 600, {"prompt": "Find the failing test."})])
    reply = ChatClient(gateway, url="s1").say("Find the failing test.").ask("found")
    assert reply.outcome is Outcome.SUBAGENT
    (started,) = [fact for fact in gateway.facts() if isinstance(fact, SubagentStarted)]
    assert started.name == "t" * 512
    gateway.assert_exact()


@pytest.mark.parametrize(("length", "outcome"), [(99, Outcome.SIDE), (100, Outcome.SUBAGENT)])
def test_only_a_long_prompt_may_stand_inside_a_message(gateway: Gateway, length: int, outcome: Outcome) -> None:
    prompt = "Find all boots. ".ljust(length, "x")
    main = agent(gateway)
    main.keep(main.ask("", calls=[("task", {"prompt": prompt})]))
    assert ChatClient(gateway, url="s1").say(f"Your task: {prompt} Begin.").ask("x").outcome is outcome


def test_a_short_argument_is_no_quote(gateway: Gateway) -> None:
    main = agent(gateway)
    main.keep(main.ask("", calls=[("bash", {"command": "ls"})]))
    assert ChatClient(gateway, url="s1").say("ls").ask("x").outcome is Outcome.SIDE


def test_a_sub_agent_with_headers_has_a_parent(gateway: Gateway) -> None:
    main = agent(gateway, None, headers={"x-claude-code-session-id": "c1"})
    reply = main.ask("delegate", calls=[("Task", {"prompt": "Find all boots in size 44."})])
    sub = ChatClient(gateway, {"x-claude-code-session-id": "c1", "x-claude-code-agent-id": "a7"})
    sub.say("<reminder>").say("Find all boots in size 44.")
    first = sub.ask("two pairs")
    assert (first.outcome, first.plan.decision.role) == (Outcome.SUBAGENT, Role.FROZEN)
    assert first.plan.decision.parent is reply.plan.state
    main.keep(reply)
    main.result(reply, "two pairs")
    main.ask("done")
    assert gateway.types(reply.trajectory)[-4:] == [
        "subagent.started",
        "tool.returned",
        "subagent.finished",
        "model.called",
    ]


def test_a_sub_agent_may_inherit_its_parent_s_tokens(gateway: Gateway) -> None:
    main = agent(gateway, None, headers={"x-claude-code-session-id": "c1"})
    main.turn("one", "1")
    fork = ChatClient(gateway, {"x-claude-code-session-id": "c1", "x-claude-code-agent-id": "a7"})
    fork.messages = [*main.messages, {"role": "user", "content": "Now summarise."}]
    reply = fork.ask("done")
    assert (reply.outcome, SAMPLED + ord("o") in reply.prompt) == (Outcome.SUBAGENT, True)
    assert gateway.calls(reply.trajectory)[0].prefix_length == 0
    assert gateway.calls(reply.trajectory)[0].context_ids == reply.prompt
    assert gateway.assert_exact() == 2


def test_a_summary_that_the_session_sampled_is_a_compaction(gateway: Gateway) -> None:
    client = agent(gateway)
    for number in range(3):
        client.turn(f"step {number}", f"out {number}")
    client.say("Summarise the conversation.")
    summary = client.ask(f"<analysis>hm</analysis>\n<summary>\n{SUMMARY}\n</summary>")
    after = ChatClient(gateway, url="s1").say("You are an agent.", "system")
    after.say(f"This session is being continued. Summary:\n{SUMMARY}\nPlease continue.")
    reply = after.turn("next", "out")
    assert (reply.outcome, reply.trajectory) == (Outcome.COMPACTION, summary.trajectory)
    assert after.ask("last").outcome is Outcome.CONTINUATION
    fact = next(fact for fact in gateway.facts() if isinstance(fact, ContextSummarized))
    assert (fact.summary, fact.tokens_before, fact.tokens_after) == (SUMMARY, len(summary.prompt), len(reply.prompt))
    assert gateway.assert_exact() == 2
    assert len({event.trajectory_id for event in gateway.log}) == 1


def test_a_short_answer_is_no_summary(gateway: Gateway) -> None:
    agent(gateway).ask("yes")
    assert ChatClient(gateway, url="s1").say("Did you say yes?").ask("x").outcome is Outcome.SIDE


def codex(window: int) -> dict[str, str]:
    return {
        "session-id": "t1",
        "thread-id": "t1",
        "x-codex-window-id": f"t1:{window}",
        "user-agent": "codex_exec/0.169",
    }


def test_a_higher_window_number_is_a_compaction(gateway: Gateway) -> None:
    client = agent(gateway, None, headers=codex(0))
    before = client.turn("one", "1")
    last = client.ask("two")
    after = ChatClient(gateway, codex(1)).say("You are an agent.", "system").say("Continue from the notes.")
    reply = after.ask("three")
    assert (reply.outcome, reply.trajectory) == (Outcome.COMPACTION, before.trajectory)
    fact = next(fact for fact in gateway.facts() if isinstance(fact, ContextSummarized))
    assert (fact.summary, fact.tokens_after) == (None, len(reply.prompt))
    assert fact.tokens_before == len(last.prompt) + len(gateway.calls()[1].sampled_ids or ())


def test_of_a_window_with_a_summary_the_summary_says_what_was_replaced(gateway: Gateway) -> None:
    client = agent(gateway, None, headers=codex(0))
    client.turn("one", "1")
    client.say("Summarise the conversation.")
    summary = client.ask(SUMMARY)
    client.keep(summary)
    client.say("Thank you.").ask("two")
    after = ChatClient(gateway, codex(1)).say("You are an agent.", "system").say(f"So far: {SUMMARY}")
    assert after.ask("three").outcome is Outcome.COMPACTION
    fact = next(fact for fact in gateway.facts() if isinstance(fact, ContextSummarized))
    assert (fact.summary, fact.tokens_before) == (SUMMARY, len(summary.prompt))


def test_a_side_conversation_whose_first_call_failed_begins_again(gateway: Gateway) -> None:
    agent(gateway).ask("hello")
    side = ChatClient(gateway, url="s1").say("You check safety.", "system").say("Is it safe?")
    failed = gateway.begin(Api.CHAT, side.body(), url="s1")
    gateway.core.abandon(failed)
    again = side.ask("yes")
    assert failed.state is not None
    assert (again.outcome, again.trajectory) == (Outcome.NEW_TRAJECTORY, failed.state.trajectory_id)
    assert side.ask("yes").outcome is Outcome.SIBLING


def test_a_compaction_item_is_replaced_by_the_summary(gateway: Gateway) -> None:
    body: dict[str, Any] = {"model": "policy", "instructions": "Be brief.", "input": "Find boots.", "tools": [tool()]}
    first = gateway.ask(Api.RESPONSES, body, SUMMARY, headers=codex(0))
    compact = {"model": "policy", "input": "Find boots."}
    summary = gateway.ask(Api.RESPONSES, compact, SUMMARY, headers=codex(0), compact=True)
    assert (summary.outcome, summary.trajectory) == (Outcome.EDITED, first.trajectory)
    item = {"type": "compaction", "encrypted_content": summary.ids[0]}
    reply = gateway.ask(
        Api.RESPONSES, body | {"input": [item, {"role": "user", "content": "Go."}]}, "x", headers=codex(0)
    )
    assert (reply.outcome, reply.trajectory) == (Outcome.COMPACTION, first.trajectory)
    assert SUMMARY in [message.text for message in reply.plan.request.messages]


def test_ids_in_the_tail_keep_a_cut_conversation_in_its_trajectory(gateway: Gateway) -> None:
    client = agent(gateway)
    first = client.turn("one", "1")
    client.turn("two", "2")
    client.messages[1] = {"role": "user", "content": "[earlier messages were removed]"}
    del client.messages[2:4]
    reply = client.ask("three")
    assert (reply.outcome, reply.trajectory, reply.plan.decision.base) == (Outcome.EDITED, first.trajectory, None)
    assert gateway.assert_exact() == 2


def test_a_conversation_of_an_ended_session_is_resumed_with_its_tokens(gateway: Gateway) -> None:
    client = agent(gateway)
    client.turn("one", "1")
    gateway.log += gateway.core.end("acme", "s1")
    reply = client.ask("two")
    assert (reply.outcome, SAMPLED + ord("o") in reply.prompt) == (Outcome.RESUMED, True)
    assert gateway.types() == [
        *("trajectory.started", "model.called", "tool.called", "trajectory.ended"),
        *("trajectory.started", "model.called"),
    ]
    assert gateway.assert_exact() == 2


def test_another_session_resumes_a_conversation_in_a_trajectory_of_its_own(gateway: Gateway) -> None:
    client = agent(gateway)
    first = client.turn("one", "1")
    client.url = "s2"
    reply = client.ask("two")
    assert (reply.outcome, reply.trajectory != first.trajectory) == (Outcome.RESUMED, True)


def test_a_history_that_equals_another_sessions_stays_in_the_trajectory_of_its_own_session(gateway: Gateway) -> None:
    client, other = agent(gateway), agent(gateway)
    client.turn("one", "1")
    known = copy.deepcopy(client.messages)
    other.url = "s2"
    first = other.turn("another", "2")
    other.messages = known
    reply = other.ask("two")
    assert (reply.outcome, reply.trajectory) == (Outcome.RESUMED, first.trajectory)
    assert SAMPLED + ord("o") in reply.prompt
    assert [each.opens for each in (first.plan.decision, reply.plan.decision)] == [True, False]
    assert gateway.assert_exact() == 3


def test_a_session_that_waits_takes_a_history_of_another_into_its_trajectory(gateway: Gateway) -> None:
    client = agent(gateway)
    client.turn("one", "1")
    identity = SessionIdentity("s2", Source.URL)
    opened = gateway.core.open(Tenant("acme"), identity, TaskInfo(task_id="t-2"), now_ms=0)
    assert opened is not None
    trajectory, events = opened
    gateway.log += events
    client.url = "s2"
    reply = client.ask("two")
    assert (reply.outcome, reply.trajectory) == (Outcome.RESUMED, trajectory)
    assert gateway.assert_exact() == 2
