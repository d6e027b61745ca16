"""Throughput from the log into ClickHouse, compared with its limits, in one run.

    python -m tests.benchmarks.bench_sink [--kafka HOST:PORT] [--clickhouse URL] [--trajectories 20000]
                                          [--before CHECKOUT] [--rounds 1]

20 events of about 600 bytes per trajectory. The limits: inserting the same rows as ready Arrow blocks, and a loop that
fetches the records with the same client and discards them. ``--before`` runs the sink of another checkout, with an
environment in ``.venv``, alternately on the same servers. The sink's figures are those of its own process.

Without addresses both servers are started for the run; with them, use disposable ones. On a machine that does other
work too, compare processor time; compare rows of one run, not figures of different machines.
"""

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psutil
import pyarrow as pa

from headrace.deploy.system.ports import HOST, free_port
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.kafka.topic_creation import create_topics
from headrace.schemas.topics import EVENTS
from headrace.streams.assembly.arrival import arrival_of
from headrace.streams.clickhouse.batches import convert, convert_validated
from headrace.streams.clickhouse.database import insert, open_client
from headrace.streams.clickhouse.schema import ensure_tables
from headrace.streams.clickhouse.sink_config import SinkConfig
from headrace.streams.clickhouse.tables import EVENTS as EVENTS_TABLE
from headrace.streams.clickhouse.tables import TABLES
from tests.benchmarks.cluster import cpu_s
from tests.benchmarks.load import broker, fill

ROOT = Path(__file__).parents[2]
SETTLED_S = 2.0
"""ClickHouse merges in the background; after this time below a twentieth of a core the merges are finished."""
FRONT = """
import pathlib, sys
from headrace.deploy.clickhouse.server import serve_clickhouse
folder = pathlib.Path(sys.argv[1])
serve_clickhouse(folder / "data", secrets=folder / "secrets", host=sys.argv[2], port=int(sys.argv[3]),
                 ready=lambda: print("ready", flush=True))
"""
SINK = """
import asyncio, json, sys
from headrace.streams.clickhouse.sink import run_sink
from headrace.streams.clickhouse.sink_config import SinkConfig
config = SinkConfig(**json.loads(sys.argv[1]))
asyncio.run(run_sink(config, stop=asyncio.Event(), ready=lambda: print("ready", flush=True)))
"""


@contextmanager
def clickhouse(address: str | None, keep: Path | None = None) -> Iterator[tuple[str, list[psutil.Process]]]:
    """The ClickHouse at ``address``, or an embedded one, with its process. Its folder is temporary, or ``keep``."""
    if address:
        yield address, []
        return
    with nullcontext(str(keep.absolute())) if keep else tempfile.TemporaryDirectory() as folder:
        port = free_port()
        front = subprocess.Popen(
            [sys.executable, "-c", FRONT, folder, HOST, str(port)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert front.stdout is not None
            front.stdout.readline()
            url = f"http://writer:{(Path(folder) / 'secrets' / 'writer').read_text()}@{HOST}:{port}"
            yield url, [psutil.Process(front.pid)]
        finally:
            if keep:
                front.terminate()  # it closes the engine
            else:
                front.kill()
            front.wait()


class Row:
    """One line of the table: wall and processor time from its start, ``own`` without child processes."""

    def __init__(self, name: str, own: psutil.Process, server: list[psutil.Process]) -> None:
        self.name, self._own, self._server = name, own, server
        self._begun, self._before, self._server_before = time.perf_counter(), sum(own.cpu_times()[:2]), cpu_s(server)

    def print(self, rows: int, note: str = "") -> None:
        """Returns the line for ``rows``; waits for ClickHouse's merges to count its share."""
        wall, cpu = time.perf_counter() - self._begun, sum(self._own.cpu_times()[:2]) - self._before
        line = f"{self.name:<34}{rows / wall / 1e3:8.1f} k rows/s{cpu / rows * 1e6:8.2f} µs an event"
        if self._server:
            while True:
                before = cpu_s(self._server)
                time.sleep(SETTLED_S)
                if cpu_s(self._server) - before < SETTLED_S / 20:
                    break
            line += f"{(cpu_s(self._server) - self._server_before) / rows * 1e6:8.2f} µs ClickHouse"
        print(f"{line}   {note}", flush=True)


async def fetched(bootstrap: str, count: int, keep: int) -> list[pa.Table]:
    """Fetch ``count`` events and return the rows of the first ``keep``, converted afterwards."""
    kept, seen = [], 0
    async with open_consumer(bootstrap) as consumer:
        consumer.assign(await partitions_of(consumer, EVENTS))
        await consumer.seek_to_beginning()
        row = Row("limit: fetch alone", psutil.Process(), [])
        while seen < count:
            for records in (await consumer.getmany(timeout_ms=1000, max_records=4096)).values():
                seen += len(records)
                if len(kept) < keep:
                    kept += records
        row.print(seen)
    records = sorted(map(arrival_of, kept[:keep]), key=lambda record: (record.partition, record.offset))
    gc.freeze()  # a sink does not hold these records, so its garbage collections do not traverse them
    blocks = []
    for name, function in (("records validated one by one", convert_validated), ("records into columns", convert)):
        row = Row(name, psutil.Process(), [])
        blocks = [function(records[at : at + 2048]) for at in range(0, len(records), 2048)]
        row.print(len(records))
    return [rows for batch in blocks for _, rows in batch.tables]


async def sink_from(
    checkout: Path, name: str, bootstrap: str, url: str, count: int, server: list[psutil.Process]
) -> None:
    """Run the sink of ``checkout`` until all events are visible."""
    client = open_client(url)
    for table in TABLES:  # the tables of another checkout may have other columns
        client.command(f"DROP TABLE IF EXISTS {table.name}")
    config = {"bootstrap": bootstrap, "clickhouse_url": url, "group": f"bench-{time.time_ns()}"}
    python = str(checkout / ".venv/bin/python")
    process = await asyncio.create_subprocess_exec(
        python,
        "-c",
        SINK,
        json.dumps(config),
        cwd=checkout,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(checkout / "src")},
    )
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        own = psutil.Process(process.pid)
        # From here on it has imported everything. It joins its group within the time; when its first rows are visible,
        # it has read and converted several times as many.
        row, visible, most = Row(name, own, server), 0, 0
        while visible < count:
            await asyncio.sleep(0.05)
            most = max(most, own.memory_info().rss)
            visible = client.query("SELECT count() FROM events").result_rows[0][0]
        row.print(count, f"{most / 2**20:.0f} MiB")
    finally:
        process.kill()
        await process.wait()
        client.close()


async def run(options: argparse.Namespace) -> None:
    async with broker(options.kafka) as bootstrap:
        with clickhouse(options.clickhouse) as (url, server):
            await create_topics(bootstrap)
            count, size = await fill(bootstrap, options.trajectories)
            print(f"{count} events of {size / count:.0f} bytes; processor time of the process that is named")
            blocks = await fetched(bootstrap, count, 200_000)
            rows = pa.concat_tables(blocks).combine_chunks()
            client = open_client(url)
            ensure_tables(client)
            for each in (8192, SinkConfig("", "").batch_records):
                row = Row(f"limit: ready blocks of {each}", psutil.Process(), server)
                for at in range(0, rows.num_rows, each):
                    insert(client, EVENTS_TABLE, rows.slice(at, each), f"ready-{each}-{at}")
                row.print(rows.num_rows)
                client.command("TRUNCATE TABLE events")
            for _ in range(options.rounds):
                if options.before:
                    await sink_from(options.before, "the sink before", bootstrap, url, count, server)
                await sink_from(ROOT, "the sink", bootstrap, url, count, server)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", help="bootstrap address; default: start one")
    parser.add_argument("--clickhouse", help="HTTP address; default: start one")
    parser.add_argument("--trajectories", type=int, default=20_000)
    parser.add_argument("--before", type=Path, help="checkout of an older release, with its .venv")
    parser.add_argument("--rounds", type=int, default=1)
    asyncio.run(run(parser.parse_args()))
