"""What a request is that grows, edits, rewinds or repeats its conversation, from transcripts."""

from array import array
from itertools import pairwise
from typing import Any

import pytest

from headrace.agents.gateway.canonical import Api, assistant
from headrace.agents.gateway.capture import Tenant
from headrace.agents.gateway.continuation import Outcome
from headrace.agents.gateway.nodes import Answer
from headrace.agents.gateway.splice import History
from headrace.schemas.events import (
    ModelCalled,
    Role,
    ToolReturned,
    TrajectoryStarted,
)
from tests.agents.gateway.harness import SAMPLED, SAMPLING, ChatClient, Gateway, render


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def agent(gateway: Gateway, url: str | None = "s1", **fields: Any) -> ChatClient:
    return ChatClient(gateway, url=url, **fields).say("You are an agent.", "system").say("Say hello.")


def test_the_first_request_opens_a_trajectory(gateway: Gateway) -> None:
    reply = agent(gateway).ask("hello")
    assert reply.outcome is Outcome.NEW_TRAJECTORY
    started = gateway.facts()[0]
    assert isinstance(started, TrajectoryStarted)
    assert (started.task_id, started.agent, started.role, started.tenant) == ("s1", "gateway", Role.TRAINABLE, "acme")
    assert gateway.types() == ["trajectory.started", "model.called"]


def test_a_transcript_that_grows_is_one_segment(gateway: Gateway) -> None:
    client = agent(gateway)
    replies = [client.turn(f"step {number}", f"out {number}") for number in range(5)]
    assert [reply.outcome for reply in replies] == [Outcome.NEW_TRAJECTORY, *[Outcome.CONTINUATION] * 4]
    assert gateway.assert_exact() == 1
    assert all(before.prompt == after.prompt[: len(before.prompt)] for before, after in pairwise(replies))


def test_the_prompt_of_a_continuation_has_the_sampled_tokens_and_not_the_template_s(gateway: Gateway) -> None:
    client = agent(gateway)
    client.turn("abc", "out")
    prompt = client.ask("done").prompt
    assert SAMPLED + ord("a") in prompt


def test_an_edited_answer_forks_after_the_last_unchanged_one(gateway: Gateway) -> None:
    client = agent(gateway)
    first = client.turn("one", "1")
    client.turn("two", "2")
    client.messages[-2]["content"] = "TWO"
    reply = client.ask("three")
    assert (reply.outcome, reply.plan.decision.base) == (
        Outcome.EDITED,
        gateway.nodes.match("acme", first.plan.root, reply.plan.request.messages[:3]).node,
    )
    assert gateway.assert_exact() == 2
    assert len({event.trajectory_id for event in gateway.log}) == 1


def test_a_replaced_tool_result_forks_before_the_answers_that_follow_it(gateway: Gateway) -> None:
    client = agent(gateway)
    for number in range(3):
        client.turn(f"step {number}", f"out {number}")
    client.messages[5]["content"] = "[old result cleared]"
    reply = client.ask("done")
    assert (reply.outcome, reply.plan.match.matched) == (Outcome.EDITED, 5)
    assert gateway.assert_exact() == 2


def test_a_client_that_rewrites_every_answer_starts_a_segment_per_turn(gateway: Gateway) -> None:
    # smolagents sends earlier turns as plain text, without their tool calls.
    client = agent(gateway)
    outcomes = []
    for number in range(3):
        reply = client.ask(f"think {number}", calls=[("bash", {"n": number})])
        outcomes.append(reply.outcome)
        client.messages.append({"role": "assistant", "content": f"think {number}\nCalling tools: bash"})
        client.say(f"Observation: {number}")
    assert outcomes == [Outcome.NEW_TRAJECTORY, Outcome.EDITED, Outcome.EDITED]
    assert gateway.assert_exact() == 3
    assert gateway.types().count("trajectory.started") == 1


def test_another_question_after_an_earlier_answer_is_a_fork(gateway: Gateway) -> None:
    client = agent(gateway)
    client.keep(client.ask("hello"))
    client.say("And in French?")
    client.ask("bonjour")
    client.messages[-1]["content"] = "And in German?"
    assert client.ask("hallo").outcome is Outcome.REWOUND
    assert gateway.assert_exact() == 2


def test_the_same_request_again_is_a_sibling(gateway: Gateway) -> None:
    client = agent(gateway)
    assert [client.ask(text).outcome for text in ("hello", "hi", "hey")] == [
        Outcome.NEW_TRAJECTORY,
        Outcome.SIBLING,
        Outcome.SIBLING,
    ]
    client.keep(client.ask("salut"))
    client.say("again")
    assert [client.ask("x").outcome, client.ask("y").outcome] == [Outcome.CONTINUATION, Outcome.SIBLING]


def test_overlapping_requests_are_siblings(gateway: Gateway) -> None:
    client = agent(gateway)
    client.keep(client.ask("hello"))
    plans = []
    for language in ("French", "German"):
        client.say(f"And in {language}?")
        plans.append(gateway.begin(Api.CHAT, client.body(), url="s1"))
        client.messages.pop()
    replies = [gateway.finish(plan, "x") for plan in reversed(plans)]
    assert [reply.outcome for reply in reversed(replies)] == [Outcome.CONTINUATION, Outcome.SIBLING]
    assert gateway.assert_exact() == 2


def test_overlapping_first_requests_are_siblings(gateway: Gateway) -> None:
    client = agent(gateway)
    plans = [gateway.begin(Api.CHAT, client.body(), url="s1") for _ in range(2)]
    assert [plan.decision.outcome for plan in plans] == [Outcome.NEW_TRAJECTORY, Outcome.SIBLING]
    assert plans[0].state is plans[1].state


def test_several_choices_are_siblings_and_any_of_them_continues(gateway: Gateway) -> None:
    client = agent(gateway)
    reply = client.ask("left", "right", n=2)
    client.keep(reply, choice=1)
    client.say("go on to the next")
    after = client.ask("done")
    assert after.outcome is Outcome.CONTINUATION
    assert after.plan.decision.base is not None
    assert after.plan.decision.base.answer.message.text == "right"
    assert [call.prefix_length for call in gateway.calls()][:2] == [0, 0]


def test_choices_of_equal_text_are_told_apart_by_the_minted_id(gateway: Gateway) -> None:
    client = agent(gateway)
    reply = client.ask("run", "run", n=2, calls=[("bash", {})])
    client.keep(reply, choice=0)
    client.result(reply, "ok", choice=0)
    base = client.ask("done").plan.decision.base
    assert base is not None
    assert base.choice == 0


def test_a_result_of_a_choice_without_its_answer_is_recorded(gateway: Gateway) -> None:
    client = agent(gateway)
    reply = client.ask("a", "b", n=2, calls=[("bash", {"k": 1})])
    client.result(reply, "ok", choice=1)
    client.ask("done")
    assert gateway.types()[3:5] == ["tool.called", "tool.returned"]


def test_tool_calls_of_a_choice_are_recorded_once_it_continues(gateway: Gateway) -> None:
    client = agent(gateway)
    reply = client.ask("a", "b", n=2, calls=[("bash", {"k": 1})])
    assert "tool.called" not in gateway.types()
    client.keep(reply, choice=1)
    client.result(reply, "ok", choice=1)
    client.ask("done")
    assert gateway.types()[3:5] == ["tool.called", "tool.returned"]


def test_sessions_with_equal_beginnings_stay_apart(gateway: Gateway) -> None:
    clients = [agent(gateway, url) for url in ("s1", "s2", "s3")]
    firsts = [client.turn("same", "out") for client in clients]
    seconds = [client.ask("x") for client in clients]
    assert [reply.outcome for reply in seconds] == [Outcome.CONTINUATION] * 3
    assert [reply.trajectory for reply in seconds] == [reply.trajectory for reply in firsts]


def test_a_template_that_drops_reasoning_starts_a_segment_if_the_tenant_wants_that() -> None:
    for history, outcome, segments in (
        (History.EXACT, Outcome.CONTINUATION, 1),
        (History.TEMPLATE, Outcome.STRIPPED_THINKING, 2),
    ):
        gateway = Gateway(history=history)
        client = agent(gateway)
        client.keep(client.ask("hello", reasoning="they greet"))
        client.say("more")
        assert client.ask("bye").outcome is outcome
        assert gateway.assert_exact() == segments


def test_a_template_that_writes_other_tokens_is_labelled_otherwise() -> None:
    gateway = Gateway(history=History.TEMPLATE)
    client = agent(gateway)
    client.turn("one", "1")
    assert client.ask("two").outcome is Outcome.REWRITTEN


def test_an_engine_that_was_given_other_tokens_starts_a_segment(gateway: Gateway) -> None:
    client = agent(gateway)
    client.turn("one", "1")
    plan = gateway.begin(Api.CHAT, client.body(), url="s1")
    given = render(plan.request.messages)
    answers = [Answer(assistant("two"), array("i", [7]), None)]
    events = gateway.core.finish(plan, given, answers, sampling=SAMPLING, latency_s=None, now_ms=gateway.now_ms)
    assert plan.decision.outcome is Outcome.UNSPLICED
    fact = events[-1].fact
    assert isinstance(fact, ModelCalled)
    assert (fact.prefix_length, fact.context_ids) == (0, given)


def test_reasoning_that_the_client_changed_is_an_edit(gateway: Gateway) -> None:
    client = agent(gateway)
    client.keep(client.ask("hello", reasoning="they greet"), reasoning_content="something else")
    client.say("more")
    assert client.ask("bye").outcome is Outcome.EDITED


def test_reasoning_that_the_client_sends_back_unchanged_continues(gateway: Gateway) -> None:
    client = agent(gateway)
    client.keep(client.ask("hello", reasoning="they greet"), reasoning_content="they greet")
    client.say("more")
    assert client.ask("bye").outcome is Outcome.CONTINUATION


def test_call_ids_that_the_client_rewrote_still_pair(gateway: Gateway) -> None:
    client = agent(gateway)
    reply = client.ask("", calls=[("bash", {"a": 1}), ("bash", {"a": 2})])
    client.keep(reply)
    for number, call in enumerate(client.messages[-1]["tool_calls"]):
        call["id"] = f"call{number:05}"
    for number in (1, 0):
        client.messages.append({"role": "tool", "tool_call_id": f"call{number:05}", "content": f"r{number}"})
    assert client.ask("done").outcome is Outcome.CONTINUATION
    returned = [fact for fact in gateway.facts() if isinstance(fact, ToolReturned)]
    assert [(fact.call_id, fact.result) for fact in returned] == [
        (reply.message.calls[1].call_id, "r1"),
        (reply.message.calls[0].call_id, "r0"),
    ]


def test_another_tenant_s_conversation_is_never_continued(gateway: Gateway) -> None:
    client = agent(gateway)
    client.turn("one", "1")
    plan = gateway.begin(Api.CHAT, client.body(), url="s1", tenant=Tenant("other"))
    assert (plan.decision.outcome, plan.known_ids) == (Outcome.NEW_TRAJECTORY, None)
