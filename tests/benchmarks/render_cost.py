"""What the renders of a call cost their client: those of a conversation, by the gateway's client of engines, alone.

await render_cost_s(8000, 16, 2.0, "p0 p1 p2", turns=4)  # 0.0002: seconds of processor time per call
"""

import asyncio
import time

import msgspec

from headrace.agents.gateway.engine_choice import EngineLimits
from headrace.agents.gateway.engine_pool import EnginePool
from headrace.agents.gateway.engines import Engine
from tests.benchmarks.gateway_engine import ANSWER

PATH = "/v1/chat/completions"


async def render_cost_s(engine: int, in_flight: int, seconds: float, prompt: str, turns: int) -> float:
    """Return the processor time of this process for the renders of one call, in seconds.

    The average of a conversation of ``turns`` turns, ``in_flight`` of them at a time for ``seconds`` seconds: a first
    turn has one render, any other two. ``engine``: port of ``gateway_engine.py``.
    """
    calls = 0

    async def conversations(pool: EnginePool, number: int, until: float) -> None:
        nonlocal calls
        while time.perf_counter() < until:
            messages = [{"role": "user", "content": f"s{number}-{time.time_ns()} {prompt}"}]
            for turn in range(turns):
                parts = [messages] if turn == 0 else [messages, messages[:-1]]
                await asyncio.gather(*(pool.render(b"", PATH, _body(part)) for part in parts))
                calls += 1
                messages += [{"role": "assistant", "content": ANSWER}, {"role": "user", "content": f"next {turn}"}]

    limits = EngineLimits(in_flight=2 * in_flight)
    async with EnginePool([Engine(f"http://127.0.0.1:{engine}")], limits) as pool:
        begun, until = time.process_time(), time.perf_counter() + seconds
        await asyncio.gather(*(conversations(pool, each, until) for each in range(in_flight)))
        return (time.process_time() - begun) / calls


def _body(messages: list[dict[str, str]]) -> bytes:
    return msgspec.json.encode({"model": "policy", "messages": messages})
