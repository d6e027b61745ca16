"""Several engines: where calls go, when they wait, and what is tried again."""

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from headrace.agents.gateway.engine_choice import EngineLimits
from headrace.agents.gateway.engine_errors import (
    EngineAnswerInvalid,
    EngineBroke,
    EngineFailed,
    EngineRefused,
    EngineUnavailable,
)
from headrace.agents.gateway.engine_pool import EnginePool
from headrace.agents.gateway.engines import Engine
from headrace.agents.gateway.generate_request import RenderedRequest, generate_request
from headrace.agents.gateway.generate_stream import Chunk
from headrace.agents.gateway.rendered_ids import RenderedIds
from tests.agents.gateway.scripted_engine import Fault, Reply, ScriptedEngine, scripted, until

PROMPT = array("i", [0, 1, 2])
REQUEST = generate_request(RenderedRequest(RenderedIds.of(PROMPT), {"max_tokens": 50}, {"model": "policy"}), PROMPT)
LONG = Reply("word " * 40, chunk_tokens=1, chunk_delay_s=0.02)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Engines:
    pool: EnginePool
    servers: dict[str, ScriptedEngine]
    clock: Clock

    async def served_by(self, key: bytes) -> str:
        """The address of the engine that answers a call of ``key``."""
        async with self.pool.generate(key, REQUEST) as (engine, answer):
            async for _ in answer:
                pass
        return engine.url

    def calls(self) -> list[int]:
        return [len(server.requests) for server in self.servers.values()]


@asynccontextmanager
async def engines(*replies: Reply, **limits: float) -> AsyncIterator[Engines]:
    """One engine per reply."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(ScriptedEngine([reply])) for reply in replies]
        clock = Clock()
        pool = EnginePool(
            [Engine(server.url, read_timeout_s=30) for server in servers],
            EngineLimits(**limits),  # type: ignore[arg-type]
            clock=clock,
        )
        await stack.enter_async_context(pool)
        yield Engines(pool, {server.url: server for server in servers}, clock)


async def until_waiting(pool: EnginePool, number: int) -> None:
    await until(lambda: pool.waiting == number)


async def test_calls_of_a_prefix_stay_on_an_engine_and_prefixes_are_spread() -> None:
    async with engines(*[Reply()] * 3) as these:
        served = {key: await these.served_by(key) for key in (bytes([each]) for each in range(60))}
        assert len(set(served.values())) == 3
        assert all([await these.served_by(key) == url for key, url in served.items()])


@pytest.mark.parametrize("fault", [Fault.HANG_UP, Fault.STATUS_503])
async def test_a_call_whose_engine_is_away_goes_to_another_until_the_engine_is_back(fault: Fault) -> None:
    async with engines(Reply(), Reply()) as these:
        home = await these.served_by(b"key")
        these.servers[home].replies = [Reply(fault=fault)]
        other = await these.served_by(b"key")
        assert other != home
        failed_calls = len(these.servers[home].requests)
        assert await these.served_by(b"key") == other
        assert len(these.servers[home].requests) == failed_calls
        these.servers[home].replies = [Reply()]
        these.clock.now += 30
        assert await these.served_by(b"key") == home


@pytest.mark.parametrize(("fault", "error"), [(Fault.REFUSED, EngineRefused), (Fault.STATUS_500, EngineFailed)])
async def test_what_another_engine_would_not_do_better_is_not_tried_again(fault: Fault, error: type[Exception]) -> None:
    async with engines(Reply(fault=fault), Reply(fault=fault)) as these:
        with pytest.raises(error):
            await these.served_by(b"key")
        assert sum(these.calls()) == 1


async def test_after_the_first_chunk_nothing_is_tried_again_and_the_engine_is_left_out() -> None:
    cut = Reply("a b c d", chunk_tokens=1, fault=Fault.CUT)
    async with engines(cut, cut) as these:
        seen: list[Chunk] = []

        async def read() -> None:
            async with these.pool.generate(b"key", REQUEST) as (_, answer):
                async for chunks in answer:
                    seen.extend(chunks)

        with pytest.raises(EngineBroke):
            await read()
        assert (len(seen), sum(these.calls())) == (1, 1)
        with pytest.raises(EngineBroke):
            await these.served_by(b"key")
        assert these.calls() == [1, 1]


async def test_if_no_engine_can_be_reached_the_error_says_when_to_try_again() -> None:
    away = Reply(fault=Fault.HANG_UP)
    async with engines(away, away) as these:
        with pytest.raises(EngineUnavailable, match=r"cannot be reached: .*HEADRACE_VLLM"):
            await these.served_by(b"key")
        assert these.calls() == [1, 1]
        with pytest.raises(EngineUnavailable, match=r"no engine can be reached: http.*HEADRACE_VLLM") as caught:
            await these.served_by(b"key")
        assert caught.value.retry_after_s >= 1
        assert these.calls() == [1, 1]


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the pool logged, without the scripted engine's access log."""
    return [record.getMessage() for record in caplog.records if record.name.endswith(".engine_pool")]


async def test_an_engine_that_fails_is_logged_once_a_minute_and_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="headrace.agents.gateway.engine_pool")
    async with engines(Reply(fault=Fault.HANG_UP)) as these:
        (url,) = these.servers
        for _ in range(4):  # 0, 30, 60 and 90 s
            with pytest.raises(EngineUnavailable):
                await these.served_by(b"key")
            these.clock.now += 30
        warnings = logged(caplog)
        assert len(warnings) == 2
        assert warnings[0].startswith(f"the engine at {url} ")
        these.servers[url].replies = [Reply()]
        caplog.clear()
        assert [await these.served_by(b"key") for _ in range(2)] == [url, url]
        assert logged(caplog) == [f"the engine at {url} answers again"]


async def test_an_engine_that_breaks_an_answer_off_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with engines(Reply("a b c d", chunk_tokens=1, fault=Fault.CUT)) as these:
        (url,) = these.servers
        with pytest.raises(EngineBroke):
            await these.served_by(b"key")
        (warning,) = logged(caplog)
        assert warning.startswith(f"the engine at {url} broke off its answer")


@pytest.mark.parametrize("fault", [Fault.STATUS_500, Fault.ERROR_IN_STREAM, Fault.MISSING_LOGPROB])
async def test_an_error_of_the_engine_itself_is_logged_and_the_engine_stays_in_use(
    fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="headrace.agents.gateway.engine_pool")
    async with engines(Reply("a b c d", chunk_tokens=1, fault=fault)) as these:
        (url,) = these.servers
        for _ in range(2):
            with pytest.raises((EngineFailed, EngineAnswerInvalid)):
                await these.served_by(b"key")
        (warning,) = logged(caplog)
        assert warning.startswith(f"the engine at {url} ")
        assert warning.endswith(". The engine's own log may say why")
        these.servers[url].replies = [Reply()]
        caplog.clear()
        assert await these.served_by(b"key") == url
        assert logged(caplog) == []


async def test_render_goes_to_another_engine_too() -> None:
    async with scripted() as server, EnginePool([Engine("http://127.0.0.1:9"), Engine(server.url)]) as pool:
        for key in (bytes([each]) for each in range(8)):
            (rendered,) = await pool.render(key, "/v1/completions", b'{"prompt": "a b"}')
            assert len(rendered.token_ids) == 2
        assert set(pool.in_flight().values()) == {0}


async def hold(pool: EnginePool, key: bytes, order: list[bytes]) -> None:
    """Take a place, note it, and leave."""
    async with pool.generate(key, REQUEST):
        order.append(key)


@asynccontextmanager
async def full(*replies: Reply, **limits: float) -> AsyncIterator[tuple[Engines, AsyncExitStack]]:
    """Engines with one place each, all taken until the stack is closed."""
    async with engines(*replies, in_flight=1, **limits) as these, AsyncExitStack() as places:
        for number in range(len(replies)):
            await places.enter_async_context(these.pool.generate(bytes([number]), REQUEST))
        assert set(these.pool.in_flight().values()) == {1}
        yield these, places


async def test_calls_beyond_the_limit_wait_in_order() -> None:
    keys = [b"key %d" % number for number in range(6)]
    async with full(LONG) as (these, places):
        order: list[bytes] = []
        async with asyncio.TaskGroup() as group:
            for number, key in enumerate(keys):
                group.create_task(hold(these.pool, key, order))
                await until_waiting(these.pool, number + 1)
            assert order == []
            await places.aclose()
        assert order == keys
        assert (set(these.pool.in_flight().values()), these.pool.waiting) == ({0}, 0)


async def test_a_call_that_gives_up_waiting_leaves_its_place_to_the_next() -> None:
    async with full(LONG) as (these, places):
        order: list[bytes] = []
        waiting = [asyncio.create_task(hold(these.pool, key, order)) for key in (b"a", b"b")]
        await until_waiting(these.pool, 2)
        waiting[0].cancel()
        await until_waiting(these.pool, 1)
        await places.aclose()
        await waiting[1]
        assert order == [b"b"]


async def test_a_call_that_is_cancelled_just_as_it_gets_a_place_gives_it_back() -> None:
    async with full(LONG) as (these, places):
        waiting = asyncio.create_task(hold(these.pool, b"a", []))
        await until_waiting(these.pool, 1)
        await places.aclose()  # assigns the place; the task has not run since
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert set(these.pool.in_flight().values()) == {0}
        await these.served_by(b"b")


async def test_waiting_is_bounded_in_time_and_in_number() -> None:
    async with full(LONG, waiting=1, wait_s=0.2) as (these, _):
        first = asyncio.create_task(hold(these.pool, b"a", []))
        await until_waiting(these.pool, 1)
        with pytest.raises(EngineUnavailable, match="1 calls already wait"):
            await hold(these.pool, b"b", [])
        with pytest.raises(EngineUnavailable, match="no engine had room within"):
            await first
        assert these.pool.waiting == 0


async def test_calls_that_wait_for_an_engine_that_fails_are_refused() -> None:
    async with full(Reply("a b", chunk_tokens=1, chunk_delay_s=0.2, fault=Fault.CUT)) as (these, places):
        waiting = asyncio.create_task(hold(these.pool, b"a", []))
        await until_waiting(these.pool, 1)
        with pytest.raises(EngineBroke):
            async with places:
                raise EngineBroke(None, "the stream broke off")
        with pytest.raises(EngineUnavailable, match="no engine can be reached"):
            await waiting
