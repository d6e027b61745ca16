"""How long a gateway that was killed takes to rebuild its state from Kafka, and the memory of that state.

    python -m tests.benchmarks.bench_gateway_restore [--calls 10000]

A broker of its own holds conversations of ten calls each, which are all open. A call adds 3,000 tokens, 512 of them
sampled, and their texts, of four characters per token. *Restore* is what happens between the start of the process and
its first request: reading, checking signatures and prefixes, nodes and sessions. Memory is that of the process,
resident.
"""

import argparse
import asyncio
import random
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headrace.agents.gateway.canonical import Api, assistant
from headrace.agents.gateway.capture import Capture, Tenant
from headrace.agents.gateway.nodes import Answer, NodeStore
from headrace.agents.gateway.requests.read import read
from headrace.agents.gateway.restore.fold import Restored, RestoreFold
from headrace.agents.gateway.restore.start import Places, restore
from headrace.agents.gateway.sealed import Sealer
from headrace.agents.gateway.session_identity import Arrival
from headrace.agents.gateway.sessions import SessionStore
from headrace.agents.spool_frames import cluster_fingerprint
from headrace.schemas.events import LogprobsOf, Sampling, VersionSpan
from headrace.schemas.ids import uuid7
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import Message
from tests.agents.gateway.restore.rebirth import SEALER, SOURCE, record_of
from tests.conftest import RunningKafka

TURNS = 10
CONTEXT, SAMPLED = 2_488, 512
VOCABULARY = 150_000
SAMPLING = Sampling(temperature=1.0, logprobs=LogprobsOf.PROCESSED)


@dataclass(frozen=True)
class Figures:
    """What one restart took."""

    restored: Restored
    seconds: float
    log_bytes: int
    """Values of the records, before Kafka compresses them."""
    resident_bytes: int
    """Growth of the process."""
    node_bytes: int
    """The same, as the store counts it."""


def text_of(tokens: int, draw: random.Random) -> str:
    """A text of ``tokens`` words of four characters."""
    return "".join(f"{draw.randrange(1000):03d} " for _ in range(tokens))


def records(calls: int, seed: int = 1) -> Iterator[Message]:
    """The events of ``calls`` calls, conversation after conversation."""
    draw = random.Random(seed)
    now_ms = time.time_ns() // 1_000_000
    core = Capture(Sealer([b"0123456789abcdef"]), NodeStore(1 << 26), SessionStore(calls), uuid7)
    for number in range(0, calls, TURNS):
        messages: list[dict[str, Any]] = []
        for _ in range(min(TURNS, calls - number)):
            messages.append({"role": "user", "content": text_of(CONTEXT, draw)})
            body = {"model": "policy", "messages": messages}
            arrival = Arrival({}, url_session=f"s{number}")
            plan = core.begin(
                Tenant("acme"), arrival, read(Api.CHAT, body, is_compaction=False), body, template="t", now_ms=now_ms
            )
            new = array("i", (draw.randrange(VOCABULARY) for _ in range(CONTEXT)))
            sampled = array("i", (draw.randrange(VOCABULARY) for _ in range(SAMPLED)))
            logprobs = array("f", (-draw.random() for _ in range(SAMPLED)))
            message = assistant(text_of(SAMPLED, draw))
            answer = Answer(message, sampled, logprobs, (VersionSpan(version=3, start=0, end=SAMPLED),))
            prompt = (plan.known_ids or array("i")) + new
            ended = core.finish(plan, prompt, [answer], sampling=SAMPLING, latency_s=1.0, now_ms=now_ms)
            messages.append({"role": "assistant", "content": message.text})
            for event in (*plan.events, *ended):
                yield record_of(event, now_ms)


async def measure(calls: int, bootstrap: str) -> Figures:
    """Write ``calls`` calls to the broker and restore them."""
    size = 0
    async with open_producer(bootstrap) as producer:
        for record in records(calls):
            size += len(record.value)
            await producer.send(EVENTS.name, record.value, record.key, headers=record.headers)
    nodes, sessions = NodeStore(1 << 30), SessionStore(calls)
    fold = RestoreFold(SEALER, source=SOURCE, max_bytes=1 << 30)
    before, began = resident(), time.perf_counter()
    with TemporaryDirectory() as folder:
        places = Places(Path(folder) / "spool", cluster_fingerprint(bootstrap), bootstrap)
        found = await restore(fold, places, nodes, sessions, idle_s=3600, within_s=600)
    return Figures(found, time.perf_counter() - began, size, resident() - before, nodes.bytes)


def resident() -> int:
    """Resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000)
    calls = parser.parse_args().calls
    with TemporaryDirectory() as folder:
        broker = RunningKafka(Path(folder))
        try:
            broker.start()
            found = asyncio.run(measure(calls, broker.bootstrap))
        finally:
            broker.kill()
    print(
        f"{found.restored.nodes:,} answers, {found.restored.sessions:,} sessions, {found.restored.left_out} left out: "
        f"{found.seconds:.1f} s for {found.log_bytes / 1e6:,.0f} MB of events; "
        f"{found.resident_bytes / 1e6:,.0f} MB resident, {found.node_bytes / 1e6:,.0f} MB counted"
    )


if __name__ == "__main__":
    main()
