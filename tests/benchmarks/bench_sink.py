"""How fast the log flows into ClickHouse, beside raw Arrow inserts of the same rows in the same run.

    python -m tests.benchmarks.bench_sink [--kafka HOST:PORT] [--clickhouse URL] [--trajectories 5000]

20 events of about 600 bytes a trajectory. Without addresses both servers are started for the run; with them, use ones
that are thrown away. Compare rows of one run with each other, not figures of different machines.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.deploy.ports import HOST, free_port
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.topic_creation import create_topics
from headrace.schemas.topics import EVENTS
from headrace.streams.clickhouse.batches import convert
from headrace.streams.clickhouse.database import ensure_tables, insert, open_client
from headrace.streams.clickhouse.sink import SinkConfig, run_sink
from tests.benchmarks.load import broker, fill

BATCH = 8192
FRONT = """
import pathlib, sys
from headrace.deploy.clickhouse import serve_clickhouse
folder = pathlib.Path(sys.argv[1])
serve_clickhouse(folder / "data", secrets=folder / "secrets", host=sys.argv[2], port=int(sys.argv[3]),
                 ready=lambda: print("ready", flush=True))
"""


@contextmanager
def clickhouse(address: str | None) -> Iterator[str]:
    """The ClickHouse at ``address``, or the embedded one, started and thrown away."""
    if address:
        yield address
        return
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        front = subprocess.Popen(
            [sys.executable, "-c", FRONT, folder, HOST, str(port)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert front.stdout is not None
            front.stdout.readline()
            yield f"http://writer:{(Path(folder) / 'secrets' / 'writer').read_text()}@{HOST}:{port}"
        finally:
            front.kill()
            front.wait()


def report(name: str, rows: int, seconds: float, note: str = "") -> None:
    print(f"{name:<34}{rows / seconds / 1000:8.1f} k rows/s   {note}")


async def run(options: argparse.Namespace) -> None:
    async with broker(options.kafka) as bootstrap:
        with clickhouse(options.clickhouse) as url:
            await create_topics(bootstrap)
            count, size = await fill(bootstrap, options.trajectories)
            print(f"{count} events of {size / count:.0f} bytes")
            records = [record async for record in read_to_end(bootstrap, EVENTS)]
            begun = time.perf_counter()
            batches = [convert(records[at : at + BATCH]) for at in range(0, len(records), BATCH)]
            report("decode and convert only", count, time.perf_counter() - begun)

            client = open_client(url)
            ensure_tables(client)
            begun = time.perf_counter()
            for number, batch in enumerate(batches):
                for table, rows in batch.tables:
                    insert(client, table, rows, f"raw-{number}")
            report("raw Arrow inserts, converted before", count, time.perf_counter() - begun)
            client.command("TRUNCATE TABLE events")

            stop = asyncio.Event()
            begun, cpu = time.perf_counter(), time.process_time()
            sink = asyncio.create_task(run_sink(SinkConfig(bootstrap, url), stop=stop, ready=lambda: None))
            visible = 0
            while visible < count:
                await asyncio.sleep(0.05)
                visible = client.query("SELECT count() FROM events").result_rows[0][0]
            wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
            report("the sink, from Kafka to visible", count, wall, f"{count / cpu / 1000:.1f} k rows a core-second")
            stop.set()
            await sink


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", help="bootstrap address; default: start one")
    parser.add_argument("--clickhouse", help="HTTP address; default: start one")
    parser.add_argument("--trajectories", type=int, default=5000)
    asyncio.run(run(parser.parse_args()))
