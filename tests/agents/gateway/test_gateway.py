"""Conversations with a whole gateway over HTTP, in each API; the engine is scripted, its template is a toy."""

import asyncio
from array import array
from pathlib import Path
from typing import Any

import pytest

from headrace.schemas.events import GatewayStatsReported, ModelCalled, TrajectoryStarted
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.topics import SDK_STATS
from headrace.schemas.wire import decode
from tests.agents.gateway.http_clients import ALL, CONVERSATIONS, ChatHttp, HttpClient, RecallingHttp
from tests.agents.gateway.running import assert_exact, calls_in, recorded_in, running_gateway
from tests.agents.gateway.scripted_engine import Reply, ScriptedEngine, answering

STREAMED = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])


def assert_continued(engine: ScriptedEngine) -> None:
    """Each prompt begins with the one before, and what was sampled after it."""
    for number, (before, after) in enumerate(zip(engine.requests, engine.requests[1:], strict=False)):
        known = before["token_ids"] + engine.sampled[number]
        assert after["token_ids"][: len(known)] == known


@STREAMED
@pytest.mark.parametrize("kind", ALL)
async def test_the_text_arrives_in_the_form_of_each_api(tmp_path: Path, kind: type[HttpClient], streams: bool) -> None:
    async with answering("Let me look: naïve 漢字.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = kind(gateway, streams=streams).say("Look at the file.")
        assert (await client.ask()).texts == ("Let me look: naïve 漢字.",)
    (call,) = calls_in(recorded_in(tmp_path))
    assert call.sampled_ids == array("i", engine.sampled[0])
    assert (call.finish_reason, call.prefix_length, call.delivered) == ("stop", 0, None)


@STREAMED
@pytest.mark.parametrize("kind", CONVERSATIONS)
async def test_a_conversation_is_one_exact_segment(tmp_path: Path, kind: type[HttpClient], streams: bool) -> None:
    texts = ["Let me look at it.", "It is empty.", "Goodbye."]
    async with answering(*texts) as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = kind(gateway, streams=streams)
        assert [await client.turn(text) for text in ("Look at the file.", "And then?", "Stop.")] == texts
    assert_continued(engine)
    events = recorded_in(tmp_path)
    assert [type(each.fact) for each in events] == [TrajectoryStarted, ModelCalled, ModelCalled, ModelCalled]
    assert assert_exact(events) == 1


@pytest.mark.parametrize("kind", CONVERSATIONS)
async def test_without_a_session_a_conversation_is_known_by_its_history(tmp_path: Path, kind: type[HttpClient]) -> None:
    async with answering("One.", "Two.", "Three.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = kind(gateway, base="")
        for text in ("a", "b", "c"):
            await client.turn(text)
    assert_continued(engine)
    assert assert_exact(recorded_in(tmp_path)) == 1


@STREAMED
@pytest.mark.parametrize("base", ["/s/s1", ""], ids=["session", "no_session"])
@pytest.mark.parametrize("kind", CONVERSATIONS)
async def test_empty_answers_can_be_continued(tmp_path: Path, kind: type[HttpClient], base: str, streams: bool) -> None:
    replies = "", "Two.", "", "", "Five."
    async with answering(*replies) as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = kind(gateway, base=base, streams=streams)
        assert [await client.turn(text) for text in "abcde"] == list(replies)
    assert_continued(engine)
    assert assert_exact(recorded_in(tmp_path)) == 1


async def test_instructions_that_change_start_a_segment_and_are_not_inherited(tmp_path: Path) -> None:
    async with answering("One.", "Two.", "Three.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = RecallingHttp(gateway, fields={"instructions": "Be brief."})
        await client.turn("a")
        await client.turn("b")
        client.fields["instructions"] = "Be long."
        await client.turn("c")
        assert gateway.headers["x-headrace-outcome"] == "edited"
        prompt = engine.codec.decode(engine.requests[2]["token_ids"])
    assert "Be long." in prompt
    assert "Be brief." not in prompt
    assert [text in prompt for text in ("a<|im_end|>", "One.", "b<|im_end|>", "Two.", "c<|im_end|>")] == [True] * 5
    assert assert_exact(recorded_in(tmp_path)) == 2


async def test_an_answer_of_the_clients_own_after_a_recalled_one_is_in_the_prompt(tmp_path: Path) -> None:
    async with answering("One.", "Two.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = RecallingHttp(gateway)
        await client.turn("a")
        client.transcript.append({"role": "assistant", "content": "I add this."})
        await client.turn("b")
        assert "I add this." in engine.codec.decode(engine.requests[1]["token_ids"])
    assert_exact(recorded_in(tmp_path))


@STREAMED
@pytest.mark.parametrize("chosen", [0, 1])
async def test_each_of_two_choices_can_be_continued(tmp_path: Path, chosen: int, streams: bool) -> None:
    async with answering("Same text.", "Then this.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = ChatHttp(gateway, streams=streams).say("Try twice.")
        found = await client.choices(n=2)
        assert [each.texts for each in found] == [("Same text.",)] * 2
        client.keep(found[chosen])
        assert await client.turn("And then?") == "Then this."
    assert_continued(engine)
    events = recorded_in(tmp_path)
    assert [each.choice for each in calls_in(events)] == [0, 1, 0]
    assert assert_exact(events) == 2


async def test_an_answer_at_its_limit_of_tokens_can_be_continued(tmp_path: Path) -> None:
    reply = Reply("one two three four five six seven eight nine ten", finish_reason="length")
    async with answering(reply, "Then.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = ChatHttp(gateway, fields={"max_tokens": 5}).say("Count.")
        client.keep(await client.ask())
        client.fields.clear()
        await client.turn("Continue.")
    assert_continued(engine)
    assert assert_exact(recorded_in(tmp_path)) == 1


async def test_bytes_of_usage_and_versions_are_recorded(tmp_path: Path) -> None:
    reply = Reply("a b c d", stamps=(("run/3", 0.5), ("run/4", 1.0)))
    async with answering(reply) as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        status, answer = await gateway.post(
            "/s/s1/v1/chat/completions", {"model": "policy", "messages": [{"role": "user", "content": "x"}]}
        )
        assert status == 200
        prompt, sampled = len(engine.requests[0]["token_ids"]), len(engine.sampled[0])
        assert answer["usage"] == {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
        }
    (call,) = calls_in(recorded_in(tmp_path))
    assert [(each.version, each.start) for each in call.version_spans] == [(3, 0), (4, 2)]


async def test_an_edited_history_is_a_new_segment(tmp_path: Path) -> None:
    async with answering("One.", "Two.", "Three.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = ChatHttp(gateway)
        await client.turn("a")
        await client.turn("b")
        edited: dict[str, Any] = client.transcript[1]
        edited["content"] = "Uno."
        await client.turn("c")
        assert gateway.headers["x-headrace-outcome"] == "edited"
        assert "Uno." in engine.codec.decode(engine.requests[2]["token_ids"])
    assert assert_exact(recorded_in(tmp_path)) == 2


@pytest.mark.kafka
async def test_a_gateway_publishes_what_it_counts(tmp_path: Path, kafka: str) -> None:
    async with (
        answering("One.") as engine,
        running_gateway(tmp_path, [engine.url], bootstrap=kafka, stats_interval_s=0.2) as gateway,
    ):
        await gateway.chat([{"role": "user", "content": "Hello."}])
        await gateway.post("/v1/chat/completions", {"model": "no such model", "messages": []})
        found: list[GatewayStatsReported] = []
        async with asyncio.timeout(30):
            while not found or not found[-1].calls or found[-1].unacknowledged:
                records = [decode(each.headers, each.value) async for each in read_to_end(kafka, SDK_STATS)]
                found = [stats for _, stats in records if isinstance(stats, GatewayStatsReported)]
                await asyncio.sleep(0.2)
    newest = found[-1]
    assert (newest.calls, newest.sessions, newest.open_calls, newest.holes) == (1, 1, 0, 0)
    assert newest.engines == {engine.url: 0}
