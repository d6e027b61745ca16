"""Processor time of a sampled request in the agent's process: the policy client compared with httpx in the same run.

    python -m tests.benchmarks.bench_policy [--requests 2000] [--in-flight 64] [--rounds 5]

Both send requests to one server, a separate process that answers immediately with vLLM's response for 50 tokens. The
figures are therefore the client's alone: building the request, the connection, parsing the response. Medians of
interleaved rounds, with the smallest and the largest.
"""

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import time
from collections.abc import Awaitable, Callable

import httpx
from aiohttp import web

from headrace.agents.policy import PolicyClient, parse_completion
from headrace.agents.sampled_tokens import GENERATE
from headrace.schemas.events import Sampling

PROMPT = list(range(500))
SAMPLED = list(range(50))
Ask = Callable[[], Awaitable[object]]


def answer() -> bytes:
    """vLLM's response for ``SAMPLED``."""
    content = [{"token_id": token, "logprob": -0.5} for token in SAMPLED]
    choice = {
        "token_ids": SAMPLED,
        "logprobs": {"content": content},
        "weight_versions": [{"version": "3", "start": 0, "end": len(SAMPLED)}],
        "finish_reason": "stop",
    }
    return json.dumps({"choices": [choice]}).encode()


def serve(listener: socket.socket) -> None:
    """Serve on ``listener`` until the process is terminated."""
    body = answer()

    async def generate(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_post(GENERATE, generate)
    web.run_app(app, sock=listener, print=None, access_log=None, handle_signals=False)


async def processor_ms(ask: Ask, requests: int, in_flight: int) -> float:
    """Processor milliseconds of this process per request, for ``requests``, ``in_flight`` at a time."""
    left = iter(range(requests))

    async def work() -> None:
        for _ in left:
            await ask()

    begun = time.process_time()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    return (time.process_time() - begun) / requests * 1e3


async def measure(url: str, requests: int, in_flight: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds per request by client, one figure per round; a first round of each is discarded."""
    sampling = Sampling(max_tokens=len(SAMPLED))
    payload = {"model": "policy", "token_ids": PROMPT, "sampling_params": {"max_tokens": len(SAMPLED)}}
    limits = httpx.Limits(max_connections=256)
    async with PolicyClient(url) as ours, httpx.AsyncClient(limits=limits, timeout=60) as theirs:

        async def policy() -> object:
            return await ours.generate(PROMPT, sampling)

        async def plain() -> object:
            response = await theirs.post(url + GENERATE, json=payload)
            return parse_completion(response.content, 0.0)

        found: dict[str, list[float]] = {"policy client": [], "httpx": []}
        for number in range(rounds + 1):
            for name, ask in (("policy client", policy), ("httpx", plain)):
                took = await processor_ms(ask, requests, in_flight)
                if number:
                    found[name].append(took)
        return found


def run(requests: int, in_flight: int, rounds: int) -> dict[str, list[float]]:
    """:func:`measure` against a server started for it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = multiprocessing.get_context("fork").Process(target=serve, args=(listener,), daemon=True)
        server.start()
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            return asyncio.run(measure(url, requests, in_flight, rounds))
        finally:
            server.kill()
            server.join()


def table(found: dict[str, list[float]]) -> str:
    """One line per client."""
    return "\n".join(
        f"{name:<14} {statistics.median(each):6.2f} ms a request ({min(each):.2f}–{max(each):.2f})"
        for name, each in found.items()
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(table(run(options.requests, options.in_flight, options.rounds)))


if __name__ == "__main__":
    main()
