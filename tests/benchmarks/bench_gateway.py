"""The capture gateway beside its engine alone, a bare relay and rLLM's gateway, in one run.

    python -m tests.benchmarks.bench_gateway [--seconds 8] [--rounds 3] [--in-flight 16 64] [--rllm ENV/bin/python]
        [--before CHECKOUT] [--chunks 32] [--answer-s 0.04]

Conversations of four turns by chat completions, streamed: 3,000 prompt tokens in the first turn, 512 sampled ones in
each. The engine (``gateway_engine.py``) answers in 40 ms, in 32 chunks, and costs little; ``--chunks 512 --answer-s 2``
is an engine that sends token by token. Ours continues exact tokens and is durable:
each answer's end waits for an fsync, and events go on to Kafka (``--kafka``), or wait in the spool without one. rLLM's
(``rllm-model-gateway``, in an environment of its own) keeps traces in SQLite, its default, without exact prompts. The
bare relay (``bare_relay.py``) passes the engine's own chat stream on and does nothing else: what Python and aiohttp
cost. With ``--before``, the gateway of another checkout takes part.

Rounds alternate. Processor time is user and system time of the gateway's process, its threads included, per call: the
median of the rounds, and the least, which a busy machine disturbs least. "Besides render" is that without what the
renders of a call cost their client: the same renders by the gateway's own client, without a gateway around it, measured
in this process as many at a time. "First" is the time to the first byte of text; "end" is the time from the last text
to ``[DONE]``.
"""

import argparse
import asyncio
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from headrace.deploy.system.ports import free_port
from tests.benchmarks.gateway_engine import ANSWER, CHUNKS
from tests.benchmarks.render_cost import render_cost_s

ANSWER_S = 0.04
TURNS = 4
PROMPT = " ".join(f"p{number % 89}" for number in range(3_000))
TEXT, DONE = re.compile(rb'"content": ?" w'), b"data: [DONE]"

GATEWAY = """
import asyncio, json, sys
from pathlib import Path
from headrace.agents.gateway.config import GatewayConfig
from headrace.agents.gateway.gateway import run_gateway
settings = json.loads(sys.argv[1])
config = GatewayConfig(**settings | {"folder": Path(settings["folder"]), "engines": tuple(settings["engines"])})
asyncio.run(run_gateway(config, stop=asyncio.Event(), ready=lambda: print("ready", flush=True)))
"""


@dataclass(frozen=True)
class Contender:
    """Where the clients send their requests."""

    name: str
    path: Callable[[str], str]
    """Session → URL path of chat completions."""
    port: int
    process: psutil.Process | None = None
    """The gateway; ``None`` for the engine alone."""
    renders: bool = False
    """Whether its calls are rendered."""


@dataclass
class Round:
    """What one round of a contender showed."""

    calls: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    render_s: float = 0.0
    """Processor time of a call's renders, measured by themselves."""
    first_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Calls per second."""
        return self.calls / self.seconds


async def _call(port: int, path: str, messages: list[dict[str, str]], found: Round) -> None:
    """One call on a connection of its own, as most agents' clients keep few."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    body = json.dumps({"model": "policy", "messages": messages, "stream": True}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nContent-Type: application/json\r\n"
    begun = time.perf_counter()
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    first = last = 0.0
    tail = b""
    while True:
        data = await reader.read(1 << 16)
        now = time.perf_counter()
        if not data:
            raise RuntimeError(f"{path} on port {port} ended without [DONE]: {tail[-500:]!r}")
        tail = (tail + data)[-4_000:]
        if TEXT.search(data):
            first, last = first or now, now
        if DONE in tail:
            break
    writer.close()
    found.calls += 1
    found.first_s.append(first - begun)
    found.end_s.append(now - last)


async def _client(number: int, contender: Contender, until: float, found: Round) -> None:
    conversation = 0
    while time.perf_counter() < until:
        session = f"s{number}-{conversation}-{time.time_ns()}"
        conversation += 1
        messages = [{"role": "user", "content": f"{session} {PROMPT}"}]
        for turn in range(TURNS):
            if time.perf_counter() >= until:
                return
            await _call(contender.port, contender.path(session), messages, found)
            messages += [{"role": "assistant", "content": ANSWER}, {"role": "user", "content": f"next {turn}"}]


async def _load(contender: Contender, in_flight: int, seconds: float) -> Round:
    found, begun = Round(), time.perf_counter()
    before = _cpu(contender)
    await asyncio.gather(*(_client(each, contender, begun + seconds, found) for each in range(in_flight)))
    found.seconds, found.cpu_s = time.perf_counter() - begun, _cpu(contender) - before
    return found


def _cpu(contender: Contender) -> float:
    if contender.process is None:
        return 0.0
    times = contender.process.cpu_times()
    return times.user + times.system


@contextmanager
def _program(
    argv: Sequence[str], ready: str | None, port: int, log: Path, checkout: Path | None = None
) -> Iterator[psutil.Process]:
    """A process, ended at the end; it is ready when it prints ``ready``, or listens on ``port``. ``checkout``: whose
    modules it has, instead of this one's."""
    paths = {} if checkout is None else {"PYTHONPATH": f"{checkout / 'src'}:{checkout}"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE if ready else output,
            stderr=output,
            env={**os.environ, **paths},
            cwd=checkout,
        )
    try:
        if ready:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError(f"{argv[2]} did not start: {log.read_text()[-2_000:]}")
        else:
            _until_listening(port, log)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)


def _until_listening(port: int, log: Path) -> None:
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"nothing listens on {port}: {log.read_text()[-2_000:]}")


def run(
    in_flight: Sequence[int],
    rounds: int,
    seconds: float,
    rllm: str | None,
    kafka: str,
    before: Path | None = None,
    *,
    chunks: int = CHUNKS,
    answer_s: float = ANSWER_S,
) -> dict[tuple[str, int], list[Round]]:
    """Measure all contenders; a short first round of each is discarded. ``before``: another checkout."""
    found: dict[tuple[str, int], list[Round]] = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        folder, engine = Path(name), free_port()

        def start(
            argv: Sequence[str], port: int, log: str, ready: str | None = "ready", checkout: Path | None = None
        ) -> psutil.Process:
            return running.enter_context(_program(argv, ready, port, folder / log, checkout))

        def gateway(log: str, checkout: Path | None = None) -> tuple[int, psutil.Process]:
            port = free_port()
            settings = {
                "bootstrap": kafka,
                "engines": [f"http://127.0.0.1:{engine}"],
                "port": port,
                "folder": str(folder / log.removesuffix(".log")),
                "engine_calls": 1_024,
                "flush_s": 0.0,
                "spool_bytes": 8 * 1024**3,
                "parser_check_share": 0.0,
            }
            return port, start([sys.executable, "-c", GATEWAY, json.dumps(settings)], port, log, checkout=checkout)

        answers = [str(engine), str(answer_s), str(chunks)]
        start([sys.executable, "-m", "tests.benchmarks.gateway_engine", *answers], engine, "engine.log")
        contenders = [Contender("engine alone", lambda _: "/v1/chat/completions", engine)]
        relay = free_port()
        process = start(
            [sys.executable, "-m", "tests.benchmarks.bare_relay", str(relay), str(engine)], relay, "relay.log"
        )
        contenders.append(Contender("bare relay", lambda _: "/v1/chat/completions", relay, process))
        if before is not None:
            contenders.append(
                Contender("before", "/s/{}/v1/chat/completions".format, *gateway("before.log", before), renders=True)
            )
        contenders.append(
            Contender("headrace", "/s/{}/v1/chat/completions".format, *gateway("headrace.log"), renders=True)
        )
        if rllm is not None:
            port = free_port()
            argv = [rllm, "-m", "rllm_model_gateway", "--host", "127.0.0.1", "--port", str(port)]
            argv += ["--worker", f"http://127.0.0.1:{engine}/v1", "--db-path", str(folder / "traces.db")]
            process = start([*argv, "--log-level", "warning"], port, "rllm.log", ready=None)
            contenders.append(Contender("rLLM's gateway", "/sessions/{}/v1/chat/completions".format, port, process))
        _measure(contenders, in_flight, rounds, seconds, found)
    return found


def _measure(
    contenders: Sequence[Contender],
    in_flight: Sequence[int],
    rounds: int,
    seconds: float,
    found: dict[tuple[str, int], list[Round]],
) -> None:
    for number in in_flight:
        for contender in contenders:
            asyncio.run(_load(contender, number, min(2.0, seconds)))
        for _ in range(rounds):
            for contender in contenders:
                one = asyncio.run(_load(contender, number, seconds))
                if contender.renders:
                    one.render_s = asyncio.run(
                        render_cost_s(contenders[0].port, number, min(2.0, seconds), PROMPT, TURNS)
                    )
                found.setdefault((contender.name, number), []).append(one)
                print(f"{contender.name:16} {number:3} in flight: {one.rate:7.0f} calls/s", file=sys.stderr, flush=True)


def table(found: dict[tuple[str, int], list[Round]]) -> str:
    """The figures: medians of rounds, times of all calls."""
    lines = [
        f"{'':16} {'in flight':>9} {'calls/s':>8} {'of direct':>9} {'ms CPU/call':>11} {'least':>6} "
        f"{'besides render':>14} {'first p50':>10} "
        f"{'end p50':>9} {'end p99':>9}"
    ]
    for (name, number), rounds in found.items():
        rate = statistics.median(each.rate for each in rounds)
        direct = statistics.median(each.rate for each in found["engine alone", number])
        cpu = [each.cpu_s / each.calls * 1e3 for each in rounds]
        first = sorted(value for each in rounds for value in each.first_s)
        end = sorted(value for each in rounds for value in each.end_s)
        besides = statistics.median(cost - each.render_s * 1e3 for cost, each in zip(cpu, rounds, strict=True))
        shares = f"{rate:8.0f} {rate / direct:9.2f} {statistics.median(cpu):11.2f} {min(cpu):6.2f} {besides:14.2f}"
        times = f"{_at(first, 0.5):7.1f} ms {_at(end, 0.5):6.1f} ms {_at(end, 0.99):6.1f} ms"
        lines.append(f"{name:16} {number:9} {shares} {times}")
    return "\n".join(lines)


def _at(values: Sequence[float], share: float) -> float:
    """Quantile in milliseconds."""
    return values[min(len(values) - 1, int(share * len(values)))] * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--rllm", help="Python of an environment with rllm-model-gateway")
    parser.add_argument("--kafka", default="127.0.0.1:9", help="address of a Kafka; without one, events stay on disk")
    parser.add_argument("--before", type=Path, help="another checkout whose gateway takes part")
    parser.add_argument("--chunks", type=int, default=CHUNKS, help="chunks of an answer, a divisor of 512")
    parser.add_argument("--answer-s", type=float, default=ANSWER_S, help="seconds that an answer takes")
    asked = parser.parse_args()
    found = run(
        asked.in_flight, asked.rounds, asked.seconds, asked.rllm, asked.kafka, asked.before,
        chunks=asked.chunks, answer_s=asked.answer_s,
    )  # fmt: skip
    print(table(found))
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")


if __name__ == "__main__":
    main()
