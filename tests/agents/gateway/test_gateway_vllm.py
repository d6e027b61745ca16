"""The whole gateway with vLLM's templates and parsers, and with a live vLLM: nothing is sampled twice, re-tokenised or
lost."""

import json
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.agents.gateway.canonical import Api
from headrace.agents.gateway.splice import History
from headrace.schemas.events import ModelCalled, ToolCalled, ToolReturned, TrajectoryStarted
from tests.agents.gateway.http_clients import (
    CONVERSATIONS,
    ChatHttp,
    HttpClient,
    MessagesHttp,
    RecallingHttp,
    ResponsesHttp,
)
from tests.agents.gateway.running import RunningGateway, assert_exact, calls_in, recorded_in, running_gateway
from tests.agents.gateway.scripted_engine import FileCodec, Reply, ScriptedEngine
from tests.conftest import Engine

pytestmark = pytest.mark.vllm

STREAMED = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
END = 2
"""The tiny model's end token."""

THINKING = "<think>\nthe user wants to look\n</think>\n\n"
CALL = (
    f"{THINKING}Let me look.\n"
    '<tool_call>\n{"name": "bash", "arguments": {"command": "ls -l"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "bash", "arguments": {"command": "naïve 漢字"}}\n</tool_call>'
)


@asynccontextmanager
async def scripted_gateway(
    folder: Path, render: Engine, *texts: str, has_parsers: bool = True, **settings: Any
) -> AsyncIterator[tuple[ScriptedEngine, RunningGateway]]:
    """A gateway whose engine renders and parses as vLLM does, and samples ``texts``."""
    replies = [Reply(text, ends_with=(END,)) for text in texts]
    if has_parsers:
        settings |= {"tool_parser": "hermes", "reasoning_parser": "qwen3", "parser_check_share": 1.0}
    async with (
        ScriptedEngine(replies, codec=FileCodec(render.model_dir), upstream=render.url) as engine,
        running_gateway(folder, [engine.url], model_path=str(render.model_dir), **settings) as gateway,
    ):
        yield engine, gateway


def assert_prompts_exact(engine: ScriptedEngine) -> None:
    for number, (before, after) in enumerate(zip(engine.requests, engine.requests[1:], strict=False)):
        known = before["token_ids"] + engine.sampled[number]
        assert after["token_ids"][: len(known)] == known


async def tool_turns(client: HttpClient, *, with_reasoning: bool) -> None:
    """A turn with two tool calls and their results, one with text, and one more."""
    client.with_tool("bash").say("What is here?")
    answer = await client.ask()
    assert [text.strip() for text in answer.texts] == ["Let me look."]
    assert [text.strip() for text in answer.reasoning] == ["the user wants to look"]
    arguments = {"command": "ls -l"}, {"command": "naïve 漢字"}
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [("bash", each) for each in arguments]
    prefix = "toolu_" if client.api is Api.MESSAGES else "call_"
    assert all(call.call_id.startswith(prefix) for call in answer.calls)
    assert len({call.call_id for call in answer.calls}) == 2
    client.keep(answer, with_reasoning=with_reasoning)
    client.result(answer.calls[0], "one file")
    client.result(answer.calls[1], "two files")
    answer = await client.ask()
    assert [text.strip() for text in answer.texts] == ["Three files."]
    client.keep(answer, with_reasoning=with_reasoning)
    client.say("Thanks.")
    client.keep(await client.ask(), with_reasoning=with_reasoning)


@STREAMED
@pytest.mark.parametrize("kind", CONVERSATIONS)
async def test_without_parsers_calls_of_tools_stay_text(
    tmp_path: Path, parserless_render_server: Engine, kind: type[HttpClient], streams: bool
) -> None:
    call = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls -l"}}\n</tool_call>'
    async with scripted_gateway(tmp_path, parserless_render_server, call, "Bye.", has_parsers=False) as (
        engine,
        gateway,
    ):
        client = kind(gateway, streams=streams)
        client.with_tool("bash").say("What is here?")
        answer = await client.ask()
        assert (answer.texts, answer.calls) == ((call,), ())
        client.keep(answer)
        client.say("Thanks.")
        assert (await client.ask()).texts == ("Bye.",)
        assert gateway.headers["x-headrace-outcome"] == "continuation"
    codec = FileCodec(parserless_render_server.model_dir)
    assert '"name": "bash"' in codec.decode(engine.requests[0]["token_ids"]), "the prompt offers the tool"
    assert_prompts_exact(engine)
    events = recorded_in(tmp_path)
    assert [type(each.fact) for each in events] == [TrajectoryStarted, ModelCalled, ModelCalled]
    assert assert_exact(events) == 1


@STREAMED
@pytest.mark.parametrize("with_reasoning", [True, False], ids=["reasoning kept", "reasoning dropped"])
@pytest.mark.parametrize("kind", CONVERSATIONS)
async def test_tool_calls_and_reasoning_are_one_exact_segment(
    tmp_path: Path, render_server: Engine, kind: type[HttpClient], with_reasoning: bool, streams: bool
) -> None:
    texts = CALL, f"{THINKING}Three files.", f"{THINKING}Bye."
    async with scripted_gateway(tmp_path, render_server, *texts) as (engine, gateway):
        client = kind(gateway, streams=streams)
        await tool_turns(client, with_reasoning=with_reasoning)
        assert gateway.headers["x-headrace-outcome"] == "continuation"
    assert_prompts_exact(engine)
    events = recorded_in(tmp_path)
    assert [type(each.fact) for each in events] == [
        TrajectoryStarted,
        ModelCalled,
        ToolCalled,
        ToolCalled,
        ToolReturned,
        ToolReturned,
        ModelCalled,
        ModelCalled,
    ]
    assert assert_exact(events) == 1
    assert [each.sampled_ids for each in calls_in(events)] == [array("i", each) for each in engine.sampled]
    called = [each.fact for each in events if isinstance(each.fact, ToolCalled)]
    returned = [each.fact for each in events if isinstance(each.fact, ToolReturned)]
    assert [each.arguments for each in called] == [{"command": "ls -l"}, {"command": "naïve 漢字"}]
    assert [each.call_id for each in called] == [each.call_id for each in returned]
    assert [each.result for each in returned] == ["one file", "two files"]


@pytest.mark.parametrize("kind", [ChatHttp, MessagesHttp, ResponsesHttp])
async def test_with_the_templates_history_dropped_reasoning_starts_segments(
    tmp_path: Path, render_server: Engine, kind: type[HttpClient]
) -> None:
    texts = CALL, f"{THINKING}Three files.", f"{THINKING}Bye."
    async with scripted_gateway(tmp_path, render_server, *texts, history=History.TEMPLATE) as (_, gateway):
        client = kind(gateway)
        await tool_turns(client, with_reasoning=False)
        assert gateway.headers["x-headrace-outcome"] == "stripped_thinking"
    assert assert_exact(recorded_in(tmp_path)) == 3


@pytest.mark.parametrize("texts", [("",), (THINKING,), (THINKING + "\n",)], ids=["empty", "reasoning", "newline"])
@pytest.mark.parametrize("kind", CONVERSATIONS)
async def test_answers_without_a_text_can_be_continued(
    tmp_path: Path, render_server: Engine, kind: type[HttpClient], texts: tuple[str, ...]
) -> None:
    async with scripted_gateway(tmp_path, render_server, *texts, "<think>\n</think>\n\nTwo.") as (_, gateway):
        client = kind(gateway)
        await client.turn("a")
        assert "Two." in await client.turn("b")
    assert_exact(recorded_in(tmp_path))


@pytest.mark.parametrize("api", list(Api))
async def test_a_prompt_beyond_the_context_is_refused_in_each_api(
    tmp_path: Path, render_server: Engine, api: Api
) -> None:
    from tests.agents.gateway.test_gateway_errors import PATHS, assert_error, body_of

    async with scripted_gateway(tmp_path, render_server, "fine") as (engine, gateway):
        for length in (20_000, 10 * 1024 * 1024):
            found = await gateway.post(PATHS[api], body_of(api, "look " * (length // 5)))
            assert_error(gateway, api, 400, found, "context length")
        assert (gateway.calls_in_flight, gateway.sessions) == (0, 0)
        assert engine.requests == []
    assert recorded_in(tmp_path) == []


async def test_tokens_of_messages_are_counted(tmp_path: Path, render_server: Engine) -> None:
    async with scripted_gateway(tmp_path, render_server, f"{THINKING}fine") as (engine, gateway):
        client = MessagesHttp(gateway).say("What is here?")
        body = client.body()
        del body["max_tokens"]
        status, answer = await gateway.post("/v1/messages/count_tokens", body)
        await client.ask()
        assert (status, answer) == (200, {"input_tokens": len(engine.requests[0]["token_ids"])})


@STREAMED
@pytest.mark.parametrize("kind", [ChatHttp, MessagesHttp, ResponsesHttp, RecallingHttp])
async def test_three_turns_with_a_live_vllm_are_one_segment(
    tmp_path: Path, chat_vllm: Engine, kind: type[HttpClient], streams: bool
) -> None:
    limit = "max_output_tokens" if kind.api is Api.RESPONSES else "max_tokens"
    settings = {"tool_parser": "hermes", "reasoning_parser": "qwen3", "model_path": str(chat_vllm.model_dir)}
    async with running_gateway(tmp_path, [chat_vllm.url], **settings) as gateway:
        client = kind(gateway, streams=streams, fields={limit: 24, "temperature": 1.0})
        for text in ("Look at the file.", "And then?", "Stop."):
            await client.turn(text)
    events = recorded_in(tmp_path)
    calls = calls_in(events)
    assert len(calls) == 3
    for call in calls:
        assert call.sampled_ids is not None
        assert call.logprobs is not None
        assert 0 < len(call.sampled_ids) == len(call.logprobs) <= 24
        assert [(each.start, each.end) for each in call.version_spans] == [(0, len(call.sampled_ids))]
        assert call.usage is not None
        assert call.usage.completion_tokens == len(call.sampled_ids)
    assert assert_exact(events) == 1
