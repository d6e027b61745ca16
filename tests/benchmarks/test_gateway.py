"""The benchmark of the gateway's core runs, and measures requests that continue a conversation."""

import json

from tests.benchmarks.bench_gateway_core import PROMPT, Conversation, measure, table


def test_the_benchmark_measures_every_part() -> None:
    found = measure(turns=2, rounds=1, times=2)
    assert list(found) == ["core", "json, request", "json, answer"]
    assert table(found).count("ms a request") == 3


def test_the_measured_request_continues_a_conversation_of_the_stated_length() -> None:
    conversation = Conversation(turns=3)
    assert abs(conversation.work(json.loads(conversation.turn.request)) - PROMPT) < 4
