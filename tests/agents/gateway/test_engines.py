"""The client of an engine, against a scripted one and its faults."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import pytest

from headrace.agents.gateway import engines
from headrace.agents.gateway.engine_errors import (
    EngineAnswerInvalid,
    EngineBroke,
    EngineError,
    EngineFailed,
    EngineRefused,
    EngineUnavailable,
)
from headrace.agents.gateway.engines import Answer, Engine, ServedModel
from headrace.agents.gateway.generate_request import GenerateRequest, generate_request
from headrace.agents.gateway.generate_stream import Chunk
from tests.agents.gateway.scripted_engine import Fault, Reply, ScriptedEngine, scripted, until

CHAT = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 40}).encode()


async def rendered_request(engine: Engine, body: bytes = CHAT) -> GenerateRequest:
    (rendered,) = await engine.render("/v1/chat/completions", body)
    return generate_request(rendered, rendered.token_ids)


async def chunks_of(answer: Answer) -> list[Chunk]:
    return [chunk async for chunks in answer for chunk in chunks]


@asynccontextmanager
async def engine_of(*replies: Reply, read_timeout_s: float = 30.0) -> AsyncIterator[tuple[Engine, ScriptedEngine]]:
    async with scripted(*replies) as server, Engine(server.url, "secret-key", read_timeout_s=read_timeout_s) as engine:
        yield engine, server


async def test_a_request_is_rendered_and_generated() -> None:
    async with engine_of(Reply("it is done", chunk_tokens=1)) as (engine, server):
        assert await engine.models() == (ServedModel("policy", 4096),)
        request = await rendered_request(engine)
        async with engine.generate(request) as answer:
            chunks = await chunks_of(answer)
    assert "".join(chunk.text for chunk in chunks) == "it is done"
    assert chunks[0].prompt_ids == request.prompt_ids
    assert chunks[-1].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt, answer.usage.completion) == (len(request.prompt_ids), 3)
    assert server.requests == [json.loads(request.body)]


async def test_an_answer_that_is_too_large_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine_of() as (engine, _):
        for limit in ("MAX_LISTED_BYTES", "MAX_RENDERED_BYTES"):
            monkeypatch.setattr(engines, limit, 20)
        with pytest.raises(EngineAnswerInvalid, match="/v1/models with more than 20 bytes"):
            await engine.models()
        with pytest.raises(EngineAnswerInvalid, match="/render with more than 20 bytes"):
            await rendered_request(engine)
        with pytest.raises(EngineAnswerInvalid, match="/tokenize with more than 20 bytes"):
            await engine.tokenize("a b c d e f g h i j k l")


async def poured(answer: Answer, *, refuses: bool = False) -> tuple[list[Chunk], int]:
    """The chunks that an answer passes on, and how often it waited for the client."""
    chunks, waits = list[Chunk](), 0

    def take(given: list[Chunk]) -> bool:
        chunks.extend(given)
        return not refuses

    async def drained() -> None:
        nonlocal waits
        waits += 1
        await asyncio.sleep(0.001)

    usage = await answer.pour(take, drained)
    assert usage is answer.usage
    return chunks, waits


@pytest.mark.parametrize("refuses", [False, True])
async def test_an_answer_is_passed_on_as_it_arrives(refuses: bool) -> None:
    text = " ".join(map(str, range(30)))
    async with engine_of(Reply(text, chunk_tokens=1)) as (engine, _):
        request = await rendered_request(engine)
        async with engine.generate(request) as answer:
            chunks, waits = await poured(answer, refuses=refuses)
    assert "".join(chunk.text for chunk in chunks) == text
    assert chunks[0].prompt_ids == request.prompt_ids
    assert answer.usage is not None
    assert answer.usage.completion == sum(len(chunk.token_ids) for chunk in chunks)
    # A client that never takes more at once is waited for after each part.
    assert bool(waits) is refuses


@pytest.mark.parametrize("error", [ConnectionResetError("the client has left"), ValueError("not parsed")])
async def test_an_error_of_whom_an_answer_is_passed_on_to_is_not_the_engines(error: Exception) -> None:
    seen = 0

    def take(chunks: list[Chunk]) -> bool:
        nonlocal seen
        seen += 1
        if seen > 1:
            raise error
        return True

    async def drained() -> None:
        raise AssertionError("nothing was refused")

    async with engine_of(Reply("a b c d", chunk_tokens=1, chunk_delay_s=0.05)) as (engine, _):
        request = await rendered_request(engine)
        async with engine.generate(request) as answer:
            with pytest.raises(type(error), match=str(error)):
                await answer.pour(take, drained)
    assert seen == 2


async def test_an_answer_that_breaks_off_while_it_is_passed_on_is_the_engines_error() -> None:
    async with engine_of(Reply("a b c d", chunk_tokens=1, fault=Fault.CUT)) as (engine, _):
        request = await rendered_request(engine)
        async with engine.generate(request) as answer:
            with pytest.raises(EngineBroke):
                await poured(answer)


async def test_text_is_encoded_without_special_tokens() -> None:
    async with engine_of() as (engine, server):
        assert await engine.tokenize("a b a") == server.codec.encode("a b a")


async def test_an_echo_of_another_prompt_is_visible() -> None:
    async with engine_of(Reply(fault=Fault.WRONG_ECHO)) as (engine, _):
        request = await rendered_request(engine)
        async with engine.generate(request) as answer:
            (first, *_) = await chunks_of(answer)
    assert first.prompt_ids is not None
    assert first.prompt_ids != request.prompt_ids


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (Fault.REFUSED, EngineRefused, "the grammar is invalid"),
        (Fault.STATUS_500, EngineFailed, "CUDA error"),
        (Fault.STATUS_503, EngineUnavailable, "loading"),
        (Fault.HANG_UP, EngineUnavailable, "cannot be reached"),
        (Fault.HANG, EngineUnavailable, "cannot be reached"),
        (Fault.SILENCE, EngineBroke, "broke off"),
        (Fault.CUT, EngineBroke, "broke off"),
        (Fault.NO_FINISH, EngineBroke, "without an end of choice 0"),
        (Fault.ERROR_IN_STREAM, EngineFailed, "the engine died"),
        (Fault.MISSING_LOGPROB, EngineAnswerInvalid, "do not match"),
        (Fault.WRONG_USAGE, EngineAnswerInvalid, "counts"),
        (Fault.LOST_CHUNK, EngineAnswerInvalid, "do not cover|counts"),
    ],
)
async def test_each_fault_is_an_error_of_its_kind(fault: Fault, error: type[EngineError], message: str) -> None:
    reply = Reply("one two three four five six", chunk_tokens=2, chunk_delay_s=0.01, fault=fault)
    async with engine_of(reply, read_timeout_s=0.5) as (engine, server):
        request = await rendered_request(engine)
        with pytest.raises(error, match=message) as caught:
            async with engine.generate(request) as answer:
                await chunks_of(answer)
        assert type(caught.value) is error
        assert server.url in str(caught.value)
        await until(lambda: server.running == 0)


async def test_the_time_that_an_engine_asks_for_is_kept() -> None:
    async with engine_of(Reply(fault=Fault.STATUS_503)) as (engine, _):
        request = await rendered_request(engine)
        with pytest.raises(EngineUnavailable) as caught:
            async with engine.generate(request):
                pytest.fail("no answer begins")
    assert caught.value.retry_after_s == 7


async def test_an_engine_that_is_away_is_unavailable_and_its_password_stays_hidden() -> None:
    async with Engine("http://user:hunter2hunter2@127.0.0.1:9") as engine:
        with pytest.raises(EngineUnavailable, match="cannot be reached") as caught:
            await engine.models()
    assert "hunter2" not in str(caught.value)


async def test_a_refused_render_keeps_status_words_and_parameter() -> None:
    async with engine_of() as (engine, _):
        with pytest.raises(EngineRefused, match="does not exist") as caught:
            await engine.render("/v1/chat/completions", CHAT.replace(b"policy", b"other"))
    assert (caught.value.status, caught.value.kind, caught.value.parameter) == (404, "NotFoundError", "model")


async def test_a_missing_endpoint_is_a_failure_that_says_what_to_do() -> None:
    async with engine_of() as (engine, _):
        with pytest.raises(EngineFailed, match="--enable-scale-out"):
            await engine.render("/v1/other", CHAT)


async def test_an_answer_that_vllm_would_not_give_is_invalid() -> None:
    async with engine_of() as (engine, _):
        with pytest.raises(EngineAnswerInvalid, match="a prompt that cannot be used"):
            await engine.render("/v1/completions", json.dumps({"prompt": ""}).encode())


@pytest.mark.parametrize("leave", ["break", "error", "cancel"])
async def test_leaving_early_aborts_the_request(leave: str) -> None:
    async with engine_of(Reply("word " * 400, chunk_tokens=1, chunk_delay_s=0.01)) as (engine, server):
        request = await rendered_request(engine, CHAT.replace(b"40", b"400"))

        async def read() -> None:
            async with engine.generate(request) as answer:
                async for _ in answer:
                    if leave == "break":
                        break
                    if leave == "error":
                        raise ConnectionResetError("the client went away")

        reading = asyncio.create_task(read())
        if leave == "cancel":
            await until(lambda: server.running == 1)
            await asyncio.sleep(0.05)
            reading.cancel()
        with pytest.raises((ConnectionResetError, asyncio.CancelledError)) if leave != "break" else nullcontext():
            await reading
        await until(lambda: server.running == 0)
        assert server.aborted == 1


async def test_cancelling_while_nothing_has_arrived_aborts_the_request() -> None:
    async with engine_of(Reply(fault=Fault.HANG)) as (engine, server):
        request = await rendered_request(engine)

        async def read() -> None:
            async with engine.generate(request):
                pytest.fail("no answer begins")

        reading = asyncio.create_task(read())
        await until(lambda: server.running == 1)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await until(lambda: server.running == 0)
        assert server.aborted == 1


async def test_connections_are_used_again_after_an_answer() -> None:
    async with engine_of() as (engine, server):
        request = await rendered_request(engine)
        for _ in range(3):
            async with engine.generate(request) as answer:
                await chunks_of(answer)
        assert len(server.requests) == 3
        assert len(server.peers) == 1


@pytest.mark.parametrize(("logprob", "mode"), [(0.0, "processed"), (-0.5, "raw")])
async def test_the_kind_of_log_probabilities_is_asked_once_and_only_if_it_matters(logprob: float, mode: str) -> None:
    async with engine_of(Reply("x", logprob=logprob)) as (engine, server):
        (rendered,) = await engine.render("/v1/chat/completions", CHAT)
        assert await engine.logprobs_mode(rendered.sampling, rendered.token_ids, "policy") == "processed"
        assert server.requests == []
        warm = rendered.sampling.model_copy(update={"temperature": 0.7})
        for _ in range(2):
            assert await engine.logprobs_mode(warm, rendered.token_ids, "policy") == mode
    (probe,) = server.requests
    assert probe["token_ids"] == list(rendered.token_ids)
    assert probe["sampling_params"]["allowed_token_ids"] == [rendered.token_ids[0]]
