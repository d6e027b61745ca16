"""Behaviour of each long-lived process while Kafka is unavailable: ``python -m tests.chaos.outage --away 120 --report
DIR``.

An agent sends 40 events per second through the SDK, with the SDK's default queue of 10,000: beyond some 250 seconds it
drops and counts events. The broker is frozen, resumed, killed and restarted on its data; a process that ends is
restarted, as by a supervisor. Prints how often each process ended, with its last log line, and whether every trajectory
that the agent began is in the log once.
"""

import argparse
import asyncio
import os
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from headrace.deploy.system.ports import HOST, free_port
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.topics import ALERTS, EVENTS, REWARDS, TRAJECTORIES, Topic
from headrace.schemas.wire import decode
from headrace.trainer.weights.signing import load_or_create_key
from tests.conftest import RunningKafka

WORKERS = ("assemble", "workers", "sink", "trainer", "follower")
AGENT = """
import signal, sys, time
from headrace.agents.sdk import Headrace

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
begun = 0
with Headrace(sys.argv[1], source="agent") as headrace:  # its spool holds hours of this load
    while not asked:
        with headrace.trajectory(task_id=f"t{begun // 4}", agent="a", group_id=f"g{begun // 4}") as t:
            with t.tool("search", {"query": "x"}) as call:
                call.result = ["a"]
            t.end(answer="in stock", outcome=float(begun % 2))
        begun += 1
        time.sleep(0.1)
    headrace.flush(30.0)
print("BEGUN", begun, headrace.stats, flush=True)
"""


START_S = 60.0
"""The slowest processes, which import torch, are ready by then: outages during a start are not tested here."""


@dataclass
class Kept:
    """A process that is restarted whenever it ends."""

    name: str
    argv: list[str]
    env: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    ends: list[str] = field(default_factory=list)
    """Last log line of each unexpected end."""

    def start(self) -> None:
        file: IO[bytes]
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(self.argv, env=os.environ | self.env, stdout=file, stderr=file)

    def tend(self, during: str) -> None:
        """Record an end, and restart the process."""
        if self.process is not None and self.process.poll() is not None:
            words = self.log.read_text(errors="replace").strip().splitlines()[-1:]
            self.ends.append(f"{during}, status {self.process.returncode}: {''.join(words)[:200]}")
            self.start()

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


async def inflict(folder: Path, away_s: float, calm_s: float) -> bool:
    """Both outages; returns whether every trajectory is present exactly once."""
    broker = RunningKafka(folder / "kafka")
    await asyncio.to_thread(broker.start)
    port = free_port()
    env = {
        "HEADRACE_KAFKA": broker.bootstrap, "HEADRACE_DATA": str(folder), "HEADRACE_MEMBER": "m",
        "HEADRACE_CLICKHOUSE": f"http://{HOST}:{port}", "HEADRACE_CLICKHOUSE_PORT": str(port),
        "HEADRACE_CLICKHOUSE_SECRETS": str(folder / "secrets"), "HEADRACE_VLLM": f"http://{HOST}:9",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    load_or_create_key(folder / "keys" / "trainer.pem")  # the trainer's, which the follower on the same folder trusts
    worker = [sys.executable, "-m", "headrace.deploy.cli", "worker"]
    kept = [Kept(name, [*worker, name], env, folder / f"{name}.log") for name in ("clickhouse", *WORKERS)]
    agent = Kept("agent", [sys.executable, "-c", AGENT, broker.bootstrap], env, folder / "agent.log")

    async def during(what: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(0.5)
            for each in kept:
                each.tend(what)
        print(f"{time.strftime('%H:%M:%S')} after {what}", flush=True)

    try:
        for each in kept:
            each.start()
        await during("the start", START_S)
        agent.start()
        await during("calm", calm_s)
        broker.freeze()
        await during("the freeze", away_s)
        broker.freeze(False)
        await during("the thaw", calm_s)
        broker.kill()
        await during("the broker's death", away_s)
        await asyncio.to_thread(broker.start)
        await during("the broker's restart", calm_s)
        agent.stop()
        await during("the end", 20)
        events, rewards, alerts = [await _payloads(broker.bootstrap, topic) for topic in (EVENTS, REWARDS, ALERTS)]
        seen = Counter(each.trajectory_id for each in await _payloads(broker.bootstrap, TRAJECTORIES))
    finally:
        for each in (agent, *kept):
            each.stop()
        broker.kill()
    for each in kept:
        print(f"| {each.name} | {'; '.join(each.ends) or 'continued'} |")
    for alert in alerts:
        print("alert", alert.kind, alert.message)
    begun = int(re.findall(r"BEGUN (\d+)", agent.log.read_text())[-1])
    twice = sum(count > 1 for count in seen.values())
    print(f"begun {begun}, assembled {len(seen)}, twice {twice}; {len(events)} events, {len(rewards)} rewards")
    return begun == len(seen) and not twice


async def _payloads(bootstrap: str, topic: Topic) -> list:  # type: ignore[type-arg]
    return [decode(record.headers, record.value)[1] async for record in read_to_end(bootstrap, topic)]


def main() -> int:
    """Returns 0 if every trajectory is present exactly once."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.outage", description=__doc__)
    parser.add_argument("--away", type=float, default=120.0, help="seconds that each outage lasts")
    parser.add_argument("--calm", type=float, default=45.0, help="seconds between them")
    parser.add_argument("--report", type=Path, required=True, help="folder for logs and data; must not exist")
    args = parser.parse_args()
    (args.report / "kafka").mkdir(parents=True)
    return 0 if asyncio.run(inflict(args.report.resolve(), args.away, args.calm)) else 1


if __name__ == "__main__":
    sys.exit(main())
