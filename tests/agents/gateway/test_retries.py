"""Retries that a client's SDK marked: which answer they receive."""

from dataclasses import replace
from typing import Any

import pytest

from headrace.agents.gateway.canonical import Api
from headrace.agents.gateway.continuation import Outcome
from tests.agents.gateway.harness import ChatClient, Gateway


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def agent(gateway: Gateway, url: str | None = "s1", **fields: Any) -> ChatClient:
    return ChatClient(gateway, url=url, **fields).say("You are an agent.", "system").say("Say hello.")


RETRY = {"x-stainless-retry-count": "1"}


def test_a_marked_retry_receives_the_answer_that_did_not_arrive(gateway: Gateway) -> None:
    client = agent(gateway)
    reply = client.ask("hello", delivered=False)
    before = len(gateway.log)
    plan = gateway.begin(Api.CHAT, client.body(), RETRY, url="s1")
    assert plan.decision.outcome is Outcome.REPLAY
    assert [node.answer.message for node in gateway.core.replayed(plan)] == reply.messages
    assert len(gateway.log) == before
    with pytest.raises(ValueError, match="replay"):
        gateway.finish(plan, "again")


def test_a_marked_retry_of_a_call_in_flight_waits_for_it(gateway: Gateway) -> None:
    client = agent(gateway)
    first = gateway.begin(Api.CHAT, client.body(), url="s1")
    plan = gateway.begin(Api.CHAT, client.body(), RETRY, url="s1")
    assert (plan.decision.outcome, plan.decision.replay) == (Outcome.REPLAY, first.call_id)
    assert gateway.core.replayed(plan) == []
    reply = gateway.finish(first, "hello")
    assert [node.answer.message for node in gateway.core.replayed(plan)] == reply.messages


def test_of_several_choices_one_that_was_aborted_is_replayed_with_the_others(gateway: Gateway) -> None:
    client = agent(gateway)
    client.ask("one", "two", n=2)
    for number, node in enumerate(gateway.nodes):
        node.answer = replace(node.answer, finish_reason="stop" if number else "abort")
    plan = gateway.begin(Api.CHAT, client.body() | {"n": 2}, RETRY, url="s1")
    assert plan.decision.outcome is Outcome.REPLAY
    assert sorted(node.answer.message.text for node in gateway.core.replayed(plan)) == ["one", "two"]


def test_a_lost_answer_comes_before_a_call_in_flight(gateway: Gateway) -> None:
    client = agent(gateway)
    lost = client.ask("hello", delivered=False)
    running = gateway.begin(Api.CHAT, client.body(), url="s1")
    plan = gateway.begin(Api.CHAT, client.body(), RETRY, url="s1")
    assert plan.decision.replay == lost.plan.call_id
    gateway.core.delivered(lost.plan, whole=True)
    plan = gateway.begin(Api.CHAT, client.body(), RETRY, url="s1")
    assert plan.decision.replay == running.call_id


def test_a_marked_retry_of_a_failed_call_is_sampled(gateway: Gateway) -> None:
    client = agent(gateway)
    gateway.core.abandon(gateway.begin(Api.CHAT, client.body(), url="s1"))
    plan = gateway.begin(Api.CHAT, client.body(), RETRY, url="s1")
    assert plan.decision.outcome is Outcome.NEW_TRAJECTORY
    gateway.finish(plan, "hello")
    assert gateway.types() == ["trajectory.started", "model.called"]


def test_a_marked_retry_of_an_aborted_answer_is_sampled_again(gateway: Gateway) -> None:
    client = agent(gateway)
    client.ask("hel", finish_reason="abort", delivered=False)
    plan = gateway.begin(Api.CHAT, client.body(), RETRY, url="s1")
    assert plan.decision.outcome is Outcome.SIBLING


def test_a_retry_with_other_messages_is_not_replayed(gateway: Gateway) -> None:
    client = agent(gateway)
    client.keep(client.ask("hello"))
    client.say("more")
    assert gateway.begin(Api.CHAT, client.body(), RETRY, url="s1").decision.outcome is Outcome.CONTINUATION


def test_of_parallel_equal_requests_a_retry_receives_the_undelivered_answer(gateway: Gateway) -> None:
    client = agent(gateway)
    replies = [client.ask(text, delivered=text != "two") for text in ("one", "two", "three")]
    plan = gateway.begin(Api.CHAT, client.body(), RETRY, url="s1")
    assert plan.decision.replay == replies[1].plan.call_id
    gateway.core.delivered(replies[1].plan, whole=True)
    plan = gateway.begin(Api.CHAT, client.body(), RETRY, url="s1")
    assert plan.decision.replay == replies[2].plan.call_id
