"""The engine side against live vLLM, and the scripted engine held to the same interface.

``target`` is a vLLM with a tiny chat model, and then a scripted engine behind vLLM's render server: each test of the
contract makes the same assertions about both.
"""

import asyncio
import json
from array import array
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from headrace.agents.gateway.answer import ChoiceEnd, FinishReason, TextDelta, ToolStart
from headrace.agents.gateway.answer_parsers import AnswerParsers, ParserSettings
from headrace.agents.gateway.canonical import Api
from headrace.agents.gateway.engine_errors import EngineRefused
from headrace.agents.gateway.engines import Answer, Engine
from headrace.agents.gateway.generate_request import (
    DEFAULT_MAX_TOKENS,
    GenerateRequest,
    RenderedRequest,
    generate_request,
)
from headrace.agents.gateway.generate_stream import Chunk
from headrace.schemas.events import LogprobsOf, VersionSpan, tile
from tests.agents.gateway.scripted_engine import FileCodec, Reply, ScriptedEngine
from tests.agents.gateway.tiny_chat_model import MAX_LENGTH

pytestmark = [pytest.mark.vllm]

TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {
            "type": "object",
            "properties": {"go": {"type": "boolean"}},
            "required": ["go"],
            "additionalProperties": False,
        },
    },
}
MESSAGES = [{"role": "user", "content": "let me look at the file"}]
SLOW = Reply("word " * 300, chunk_tokens=1, chunk_delay_s=0.01)


@dataclass
class Target:
    """An engine with the interface of vLLM."""

    url: str
    codec: FileCodec
    engine: Engine
    scripted: ScriptedEngine | None
    """``None`` for vLLM itself."""

    def script(self, reply: Reply) -> None:
        """What a scripted engine answers; vLLM samples what it likes."""
        if self.scripted is not None:
            self.scripted.replies = [reply]

    async def metric(self, name: str) -> int:
        """A metric of vLLM's, summed over its labels."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        return int(sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{")))

    async def completed(self) -> int:
        """Number of requests that were answered to their end, once none is running."""
        async with asyncio.timeout(60):
            while await self.metric("vllm:num_requests_running"):  # noqa: ASYNC110 - a metric has no event to wait for
                await asyncio.sleep(0.05)
        return await self.metric("vllm:request_success_total")


@pytest.fixture(params=["chat_vllm", "render_server"])
def server(request: pytest.FixtureRequest) -> Any:
    """vLLM, and the server behind which an engine is scripted."""
    return request.param, request.getfixturevalue(request.param)


@pytest.fixture
async def target(server: Any) -> AsyncIterator[Target]:
    name, vllm = server
    codec = FileCodec(vllm.model_dir)
    if name == "chat_vllm":
        async with Engine(vllm.url) as engine:
            yield Target(vllm.url, codec, engine, None)
        return
    async with ScriptedEngine(codec=codec, upstream=vllm.url) as scripted, Engine(scripted.url) as engine:
        scripted.replies = [Reply("let me look", names_ids=True)]
        yield Target(scripted.url, codec, engine, scripted)


@pytest.fixture
async def live(chat_vllm: Any) -> AsyncIterator[Target]:
    async with Engine(chat_vllm.url) as engine:
        yield Target(chat_vllm.url, FileCodec(chat_vllm.model_dir), engine, None)


async def rendered(engine: Engine, **fields: Any) -> RenderedRequest:
    body = {"model": "policy", "messages": MESSAGES, "max_tokens": 12, **fields}
    (found,) = await engine.render("/v1/chat/completions", json.dumps(body).encode())
    return found


async def chunks_of(answer: Answer) -> list[Chunk]:
    return [chunk async for chunks in answer for chunk in chunks]


async def generated(engine: Engine, request: GenerateRequest) -> list[Chunk]:
    async with engine.generate(request) as answer:
        chunks = await chunks_of(answer)
    assert answer.usage is not None
    assert answer.usage.completion == sum(len(chunk.token_ids) for chunk in chunks)
    return chunks


async def test_the_model_is_listed_with_its_length(target: Target) -> None:
    (model,) = await target.engine.models()
    assert (model.id, model.max_model_len) == ("policy", MAX_LENGTH)


async def test_text_is_encoded_as_by_the_tokenizer(target: Target) -> None:
    assert await target.engine.tokenize("let me look <tool_call>", "policy") == target.codec.encode(
        "let me look <tool_call>"
    )


async def test_a_chat_is_rendered_with_the_parameters_in_effect(target: Target) -> None:
    found = await rendered(target.engine, temperature=0.7, n=2, stop=["###"], seed=5, logit_bias={"9": 1}, tools=[TOOL])
    prompt = target.codec.decode(found.token_ids)
    assert prompt.endswith("<|im_start|>user\nlet me look at the file<|im_end|>\n<|im_start|>assistant\n")
    assert '"name": "bash"' in prompt
    assert (found.choices, found.max_tokens, found.stop, found.reasoning_ended) == (2, 12, ("###",), False)
    assert (found.sampling.temperature, found.sampling.seed, found.sampling.altered_by) == (0.7, 5, ["logit_bias"])
    assert not found.sampling.unknown_fields


async def test_the_default_limit_is_the_room_that_the_prompt_leaves(target: Target) -> None:
    found = await rendered(target.engine, max_tokens=None)
    assert found.max_tokens == MAX_LENGTH - len(found.token_ids)


async def test_every_api_renders_the_same_conversation(target: Target) -> None:
    chat = await rendered(target.engine)
    for path, body in (
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 12}),
        ("/v1/responses", {"input": MESSAGES, "max_output_tokens": 12}),
    ):
        (found,) = await target.engine.render(path, json.dumps({"model": "policy", **body}).encode())
        assert (found.token_ids, found.max_tokens) == (chat.token_ids, 12)
        assert found.sampling == chat.sampling
        assert generate_request(found, found.token_ids).choices == 1


async def test_completions_render_each_prompt(target: Target) -> None:
    body = json.dumps({"model": "policy", "prompt": ["let me", "look"], "max_tokens": 3}).encode()
    found = await target.engine.render("/v1/completions", body)
    assert [target.codec.decode(each.token_ids) for each in found] == ["let me", "look"]
    for limit in ({}, {"max_tokens": None}, {"max_tokens": DEFAULT_MAX_TOKENS}):
        body = json.dumps({"model": "policy", "prompt": "look", **limit}).encode()
        (unlimited,) = await target.engine.render("/v1/completions", body)
        assert unlimited.max_tokens == DEFAULT_MAX_TOKENS


async def test_a_stream_is_read(target: Target) -> None:
    found = await rendered(target.engine)
    chunks = await generated(target.engine, generate_request(found, found.token_ids))
    assert chunks[0].prompt_ids == found.token_ids
    assert all(chunk.prompt_ids is None for chunk in chunks[1:])
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason in ("stop", "length")
    assert tile(chunks[-1].spans, sum(len(chunk.token_ids) for chunk in chunks))


async def test_the_prompt_is_the_given_one_and_not_the_rendered_one(target: Target) -> None:
    found = await rendered(target.engine)
    exact = array("i", [*found.token_ids, 7, 8, 9])
    chunks = await generated(target.engine, generate_request(found, exact))
    assert chunks[0].prompt_ids == exact


async def test_choices_arrive_side_by_side(target: Target) -> None:
    found = await rendered(target.engine, n=2)
    chunks = await generated(target.engine, generate_request(found, found.token_ids))
    assert {chunk.choice for chunk in chunks} == {0, 1}
    for choice in (0, 1):
        of_choice = [chunk for chunk in chunks if chunk.choice == choice]
        assert [chunk.finish_reason is not None for chunk in of_choice].count(True) == 1
        assert tile(of_choice[-1].spans, sum(len(chunk.token_ids) for chunk in of_choice))


async def test_alternatives_are_given_if_asked_for(target: Target) -> None:
    found = await rendered(target.engine, logprobs=True, top_logprobs=1)
    chunks = await generated(target.engine, generate_request(found, found.token_ids))
    for chunk in chunks:
        assert [entry.token for entry in chunk.entries] == [f"token_id:{each}" for each in chunk.token_ids]
        assert all(entry.top_logprobs for entry in chunk.entries)


async def test_every_field_of_the_stream_is_as_vllm_writes_it(target: Target) -> None:
    """Byte for byte what :class:`ScriptedEngine` must write: names of all fields, and the types of their values."""
    found = await rendered(target.engine, max_tokens=3)
    target.script(Reply("let me look", chunk_tokens=2, names_ids=True))
    request = generate_request(found, found.token_ids)
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{target.url}/inference/v1/generate", data=request.body, headers=JSON) as response,
    ):
        assert response.content_type == "text/event-stream"
        *lines, done, rest = (await response.text()).split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    first, *middle, usage = [json.loads(line.removeprefix("data: ")) for line in lines]
    fields = {"request_id", "output_mode", "choices", "usage"}
    assert set(first) == fields | {"prompt_token_ids"}
    assert all(set(each) == fields for each in middle)
    assert set(usage) == fields
    assert (usage["choices"], usage["output_mode"]) == ([], "text")
    assert {"prompt_tokens", "completion_tokens", "total_tokens"} <= set(usage["usage"])
    for event in (first, *middle):
        (choice,) = event["choices"]
        assert set(choice) == CHOICE
        (entry, *_) = choice["logprobs"]["content"]
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert set(entry["top_logprobs"][0]) == {"token", "logprob", "bytes"}
    assert [set(span) for span in choice["weight_versions"]] == [{"version", "start", "end"}]


JSON = {"Content-Type": "application/json"}
CHOICE = {
    "index",
    "logprobs",
    "finish_reason",
    "stop_reason",
    "token_ids",
    "routed_experts",
    "sampling_mask",
    "weight_versions",
    "text",
}


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model": "other"}, 404, "other"),
        ({"messages": [{"role": "user", "content": "word " * 2_000}]}, 400, "1024"),
        ({"temperature": -1}, 400, "temperature"),
        ({"messages": "hi"}, 400, "messages"),
    ],
)
async def test_a_refusal_has_the_engines_words(
    target: Target, fields: dict[str, Any], status: int, message: str
) -> None:
    with pytest.raises(EngineRefused, match=message) as caught:
        await rendered(target.engine, **fields)
    assert caught.value.status == status


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["after_the_first_chunk", "cancelled"])
async def test_a_client_that_leaves_frees_the_engine(target: Target, is_cancelled: bool) -> None:
    """The engine stops at once. On a busy machine it may reach the answer's end first: then the client asks again."""
    short = await rendered(target.engine)
    long = await rendered(target.engine, max_tokens=MAX_LENGTH - 100, ignore_eos=True)

    async def leave() -> None:
        has_begun = asyncio.Event()

        async def read() -> None:
            async with target.engine.generate(generate_request(long, long.token_ids)) as answer:
                async for _ in answer:
                    has_begun.set()
                    if not is_cancelled:
                        return

        reading = asyncio.create_task(read())
        await has_begun.wait()
        if is_cancelled and reading.cancel():  # unless it has read everything
            with pytest.raises(asyncio.CancelledError):
                await reading
        else:
            await reading

    for _ in range(20):
        before = await target.completed()
        target.script(SLOW)
        await leave()
        target.script(Reply("fine", names_ids=True))
        await generated(target.engine, generate_request(short, short.token_ids))
        if await target.completed() == before + 1:
            return
    pytest.fail("the engine completed each answer whose client had left")


class TestLive:
    """vLLM alone."""

    async def test_a_refusal_of_generate_has_the_engines_words(self, live: Target) -> None:
        found = await rendered(live.engine)
        too_long = generate_request(found, array("i", [7] * 2_000))
        wrong = generate_request(
            RenderedRequest(found.prompt, {"structured_outputs": {"regex": "("}}, {"model": "policy"}),
            found.token_ids,
        )
        for request, message in ((too_long, "1024"), (wrong, "regex|grammar|structured")):
            with pytest.raises(EngineRefused, match=message):
                await generated(live.engine, request)

    async def test_a_stop_string_ends_the_text_and_its_tokens_remain(self, live: Target) -> None:
        free = await rendered(live.engine, temperature=0, max_tokens=40, ignore_eos=True)
        text = "".join(each.text for each in await generated(live.engine, generate_request(free, free.token_ids)))
        stop = text[len(text) // 2 :][:3]
        found = await rendered(live.engine, temperature=0, max_tokens=40, ignore_eos=True, stop=[stop])
        chunks = await generated(live.engine, generate_request(found, found.token_ids))
        shown = "".join(each.text for each in chunks)
        assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == ("stop", stop)
        assert text.startswith(shown)
        assert stop not in shown
        sampled = [token_id for each in chunks for token_id in each.token_ids]
        assert stop in live.codec.decode(sampled)

    async def test_a_forced_tool_call_is_parsed_and_labelled(self, live: Target, chat_vllm: Any) -> None:
        body = {"tools": [TOOL], "tool_choice": "required", "chat_template_kwargs": {"enable_thinking": False}}
        found = await rendered(live.engine, **body, max_tokens=300, seed=1)
        assert found.sampling.altered_by == ["structured_output"]
        parsers = AnswerParsers(ParserSettings(str(chat_vllm.model_dir), "hermes", "qwen3"))
        answer = parsers.start(Api.CHAT, body, found.token_ids, mint=lambda *_: "call_1")
        chunks = await generated(live.engine, generate_request(found, found.token_ids))
        deltas = [delta for chunk in chunks for delta in answer.feed(chunk)]
        starts = [delta for delta in deltas if isinstance(delta, ToolStart)]
        assert starts[0] == ToolStart(0, 0, "call_1", "bash")
        end = deltas[-1]
        assert isinstance(end, ChoiceEnd)
        assert end.finish_reason in (FinishReason.TOOL_CALLS, FinishReason.LENGTH)

    async def test_the_text_of_the_stream_is_that_of_its_tokens(self, live: Target) -> None:
        parsers = AnswerParsers(ParserSettings("/nowhere"))
        found = await rendered(live.engine, max_tokens=30, seed=3, skip_special_tokens=False, ignore_eos=True)
        chunks = await generated(live.engine, generate_request(found, found.token_ids))
        answer = parsers.start(Api.CHAT, {}, found.token_ids, mint=lambda *_: "")
        deltas = [delta for chunk in chunks for delta in answer.feed(chunk)]
        text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
        whole = live.codec.decode([token_id for chunk in chunks for token_id in chunk.token_ids])
        assert len(text) > 10
        assert whole.startswith(text.rstrip("\ufffd"))

    async def test_the_engine_reports_what_it_sampled_from(self, live: Target) -> None:
        found = await rendered(live.engine, temperature=0.6)
        assert await live.engine.logprobs_mode(found.sampling, found.token_ids, "policy") is LogprobsOf.PROCESSED

    async def test_the_prefix_cache_is_reported(self, live: Target) -> None:
        found = await rendered(live.engine, messages=[{"role": "user", "content": "let me look " * 20}], max_tokens=2)
        for _ in range(2):
            async with live.engine.generate(generate_request(found, found.token_ids)) as answer:
                await chunks_of(answer)
        assert answer.usage is not None
        assert answer.usage.cached is not None
        assert 0 < answer.usage.cached < len(found.token_ids)

    async def test_each_token_has_the_version_that_sampled_it(self, live: Target) -> None:
        found = await rendered(live.engine, max_tokens=700, ignore_eos=True)
        spans: tuple[VersionSpan, ...] = ()
        async with (
            aiohttp.ClientSession(live.url) as session,
            live.engine.generate(generate_request(found, found.token_ids)) as answer,
        ):
            response = await session.post("/update_weight_version", json={"new_version": "chat-1/7"})
            assert response.status == 200
            for chunk in await chunks_of(answer):
                spans = chunk.spans or spans
        assert [(span.run, span.version) for span in spans] == [(None, None), ("chat-1", 7)]
