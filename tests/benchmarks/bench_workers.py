"""Trajectories a second through score and group on Faust, beside a bare loop that reads and writes the same records.

    python -m tests.benchmarks.bench_workers [--trajectories 20000]

Starts its own broker. One worker process runs both processors; times count from the worker's readiness, with all
trajectories in the log, to the last training group.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from headrace.deploy.children import Child, Command
from headrace.deploy.kafka import Broker, kafka_jars, prepare_broker, wait_until_answers
from headrace.deploy.ports import free_port
from headrace.schemas.log import MAX_REQUEST_BYTES, create_topics, open_producer, read_to_end, send
from headrace.schemas.topics import REWARDS, TRAINING, TRAJECTORIES
from tests.conftest import CACHE
from tests.streams.attempts import attempt, trajectory_message

SIZE = 8
"""Members of a group."""

WORKER = """
import sys
from pathlib import Path
from headrace.streams.workers import WorkersConfig, run_workers
config = WorkersConfig(bootstrap=sys.argv[1], data_dir=Path(sys.argv[2]))
sys.exit(run_workers(config, ready=lambda: print("READY", flush=True)))
"""


async def groups_formed(bootstrap: str) -> int:
    """Records of ``training``."""
    return len([1 async for _ in read_to_end(bootstrap, TRAINING)])


async def fill(bootstrap: str, trajectories: int) -> None:
    """Groups of which half the members succeed, members apart from one another."""
    async with open_producer(bootstrap) as producer:
        groups = trajectories // SIZE
        for member in range(SIZE):
            messages = [
                trajectory_message(attempt(f"{number}-{member}", group=f"g{number}", size=SIZE, outcome=member % 2))
                for number in range(groups)
            ]
            await asyncio.gather(*[await send(producer, TRAJECTORIES, message) for message in messages])


async def bare_loop(bootstrap: str) -> float:
    """Seconds to read every trajectory and write 600 bytes for each: what the client alone takes."""
    begin = time.perf_counter()
    async with open_producer(bootstrap) as producer:
        pending = [
            await producer.send(REWARDS.name, key=record.key, value=b"x" * 600)
            async for record in read_to_end(bootstrap, TRAJECTORIES)
        ]
        await asyncio.gather(*pending)
    return time.perf_counter() - begin


def main() -> None:
    """Print the figures of one run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trajectories", type=int, default=20_000)
    trajectories = parser.parse_args().trajectories
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broker = Broker(folder / "kafka", free_port(), free_port(), MAX_REQUEST_BYTES, heap_mb=512)

        async def prepare() -> Command:
            return await prepare_broker(broker, await kafka_jars(CACHE))

        kafka = Child(asyncio.run(prepare()), folder / "kafka.log")
        try:
            asyncio.run(wait_until_answers(broker.bootstrap, 90))
            asyncio.run(create_topics(broker.bootstrap))
            asyncio.run(fill(broker.bootstrap, trajectories))
            log = folder / "worker.log"
            worker = Child(Command((sys.executable, "-c", WORKER, broker.bootstrap, str(folder))), log)
            try:
                while b"READY" not in log.read_bytes():
                    time.sleep(0.01)
                # The agents start before they say so: what is through by then is not counted.
                before, begin = asyncio.run(groups_formed(broker.bootstrap)), time.perf_counter()
                while (done := asyncio.run(groups_formed(broker.bootstrap))) < trajectories // SIZE:
                    time.sleep(0.1)
                seconds = time.perf_counter() - begin
            finally:
                worker.stop()
            bare = asyncio.run(bare_loop(broker.bootstrap))
        finally:
            kafka.kill()
    rate = (done - before) * SIZE / seconds
    print(f"score and group on Faust, one process  {rate:9,.0f} trajectories/s")
    print(f"bare aiokafka loop, read and write     {trajectories / bare:9,.0f} trajectories/s")


if __name__ == "__main__":
    main()
