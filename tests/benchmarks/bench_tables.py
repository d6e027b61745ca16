"""Times of the dashboard's panels, of its pages about single records and of the questions of QUESTIONS.md on many
events, what each query reads, and the size of the tables.

    python -m tests.benchmarks.bench_tables [--events 1000000] [--repeats 20] [--idle 30] [--clickhouse URL]
                                            [--copies 0] [--keep DIR] [--only TEXT]

20 events per trajectory, groups of eight, versions 0 to 39 over three weeks, all of one run. Trajectories, rewards,
training groups and rejections are made by the fold (:mod:`tests.benchmarks.folded_rows`). With ``--copies N``
ClickHouse then stores each row N more times under other ids, without payloads: as many rows at a hundredth of the cost.
With ``--keep`` the database stays in a folder, and a second run measures it again without filling it.

Each query is sent through the HTTP front by the read-only account's way; wall time is the client's, processor time
that of the ClickHouse process. On a machine that does other work, processor time counts. Prints Markdown tables:
queries; all trajectories as files, with the memory that this takes; the pages about single records, another one at
every request, with the processor time of dashboard and ClickHouse; and then, for each page that is open while nothing
is written, the processor time of both as a share of a core over --idle seconds.
"""

import argparse
import os
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import psutil

from headrace.deploy.dashboard.changes import read_versions
from headrace.deploy.dashboard.pages import PAGES
from headrace.deploy.dashboard.selection import selection
from headrace.deploy.system.ports import HOST, free_port
from headrace.streams.clickhouse.database import open_client
from headrace.streams.clickhouse.schema import ensure_tables, set_prices
from tests.benchmarks.bench_sink import clickhouse
from tests.benchmarks.cluster import cpu_s
from tests.benchmarks.folded_rows import RUN, VERSIONS, copy, fill

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

QUESTIONS = Path(__file__).parents[2] / "deploy" / "clickhouse" / "QUESTIONS.md"


def main() -> None:
    """Fill, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--idle", type=float, default=30.0)
    parser.add_argument("--clickhouse")
    parser.add_argument("--copies", type=int, default=0, help="how often each row is stored again under other ids")
    parser.add_argument("--keep", type=Path, help="folder of the database, which stays there")
    parser.add_argument("--only", default="", help="measure only queries whose name contains this")
    options = parser.parse_args()
    with clickhouse(options.clickhouse, keep=options.keep) as (url, server):
        client = open_client(url, timeout_s=600)
        ensure_tables(client)
        set_prices(client, {"small": [1.0, 2.0]}, "USD")
        if not client.query("SELECT count() FROM steps").result_rows[0][0]:
            _fill(client, options.events, options.copies, server)
        _report_sizes(client)
        print("\n| query | p50, ms | p95, ms | processor, ms | rows read | MB read |\n|---|---|---|---|---|---|")
        for path, sql, parameters in _queries():
            if options.only in path:
                _report(path, partial(_read, client, sql, parameters), options.repeats, server)
        if options.only in ("", "files"):
            _report_files(url, server)
        if options.only:
            return
        look = "the look for changes, each two seconds of an idle page"
        _report(look, partial(_look, client), 50, server)
        _report_records(client, url, options.repeats, server)
        print("\n| page, open and idle | dashboard, % of a core | ClickHouse, % of a core |\n|---|---|---|")
        before, begun = cpu_s(server), time.monotonic()
        time.sleep(options.idle)
        alone = (cpu_s(server) - before) / (time.monotonic() - begun)
        print(f"| none, no dashboard | – | {100 * alone:.1f} |", flush=True)
        for page in PAGES:
            dashboard, engine = _idle(
                url, f"{page.path}/stream?run={RUN}&a_run={RUN}&b_run={RUN}", options.idle, server
            )
            print(f"| {page.path or '/'} | {100 * dashboard:.1f} | {100 * engine:.1f} |", flush=True)


def _fill(client: "Client", count: int, copies: int, server: list[psutil.Process]) -> None:
    own, before = psutil.Process(), (cpu_s([psutil.Process()]), cpu_s(server))
    begun = time.perf_counter()
    trajectories = fill(client, count)
    (count,) = client.query("SELECT count() FROM events").result_rows[0]
    seconds = time.perf_counter() - begun
    folded, stored = cpu_s([own]) - before[0], cpu_s(server) - before[1]
    print(
        f"{count} events, {trajectories} trajectories, folded and inserted in {seconds:.0f} s; processor time per "
        f"event {1e6 * folded / count:.0f} µs to fold and convert, {1e6 * stored / count:.0f} µs ClickHouse\n",
        flush=True,
    )
    if copies:
        before_s = cpu_s(server)
        copy(client, copies)
        print(
            f"each row {copies} more times under other ids, {cpu_s(server) - before_s:.0f} s of processor time\n",
            flush=True,
        )


def _report_sizes(client: "Client") -> None:
    size = client.query(
        "SELECT table, sum(rows), formatReadableSize(sum(data_compressed_bytes)), uniqExact(partition), count() "
        "FROM system.parts WHERE database = currentDatabase() AND active GROUP BY table "
        "ORDER BY sum(data_compressed_bytes) DESC LIMIT 6"
    ).result_rows
    for table, rows, held, weeks, parts in size:
        print(f"{table}: {rows} rows, {held} in {parts} parts, {weeks} partitions")


def _report_records(client: "Client", url: str, repeats: int, server: list[psutil.Process]) -> None:
    """Times of the pages about single records, through the dashboard, of another record at each request."""
    sampled = client.query(
        "SELECT trajectory_id, group_id FROM trajectories WHERE position(group_id, '-') = 0 "  # no copies
        "ORDER BY cityHash64(trajectory_id) "
        f"LIMIT 1 BY group_id LIMIT {repeats}"
    ).result_rows
    ids, groups = zip(*sampled, strict=True)
    versions = [number % VERSIONS for number in range(repeats)]
    print("\n| record, another one each time | p50, ms | p95, ms | processor, ms |\n|---|---|---|---|")
    with _dashboard(url) as (address, process):
        for name, paths in {
            "/trajectory": [f"/api/trajectory?id={quote(each)}" for each in ids],
            "/group": [f"/api/group?id={quote(each)}" for each in groups],
            "/version": [f"/api/version?run={RUN}&version={each}" for each in versions],
        }.items():
            waiting = iter(paths)
            get = partial(_get, address, waiting)
            _report(name, get, repeats, [*server, psutil.Process(process.pid)])


def _report_files(url: str, server: list[psutil.Process]) -> None:
    """All trajectories as files through the dashboard, and the most memory that it and ClickHouse had meanwhile."""
    print("\n| all trajectories as | MB | seconds | dashboard, MiB before and at most | ClickHouse, the same |")
    print("|---|---|---|---|---|")
    with _dashboard(url) as (address, process):
        _get(address, iter(["/explore/api/panels/trajectories?run=" + RUN]))
        watched = [[psutil.Process(process.pid)], server]
        for file_format in ("csv", "parquet"):
            path = f"{address}/explore/api/panels/trajectories?run={RUN}&format={file_format}"
            before, begun, size = [_mib(each) for each in watched], time.perf_counter(), 0
            most = list(before)
            with ThreadPoolExecutor(1) as reading:
                whole = reading.submit(_size, path)
                while not whole.done():
                    time.sleep(0.05)
                    most = [max(one, _mib(each)) for one, each in zip(most, watched, strict=True)]
                size = whole.result()
            used = " | ".join(f"{one:.0f}, {two:.0f}" for one, two in zip(before, most, strict=True))
            seconds = time.perf_counter() - begun
            print(f"| {file_format} | {size / 1e6:.1f} | {seconds:.1f} | {used} |", flush=True)


def _mib(processes: list[psutil.Process]) -> float:
    return sum(float(process.memory_info().rss) for process in processes) / 1024**2


def _size(url: str) -> int:
    size = 0
    with urllib.request.urlopen(url) as answer:
        while piece := answer.read(65_536):
            size += len(piece)
    return size


def _get(address: str, paths: Iterator[str]) -> None:
    with urllib.request.urlopen(f"{address}{next(paths)}") as answer:
        answer.read()


@contextmanager
def _dashboard(clickhouse_url: str) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """A dashboard in a process of its own."""
    port = free_port()
    env = {**os.environ, "HEADRACE_CLICKHOUSE": clickhouse_url, "HEADRACE_DASHBOARD_PORT": str(port)}
    argv = [sys.executable, "-m", "headrace.deploy.cli", "worker", "dashboard"]
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: is_listening(port), 120)
            yield f"http://{HOST}:{port}", process
        finally:
            process.terminate()


def _idle(clickhouse_url: str, path: str, seconds: float, server: list[psutil.Process]) -> tuple[float, float]:
    """Processor seconds per second of a dashboard with one open page, and of ClickHouse, after the first snapshot."""
    with _dashboard(clickhouse_url) as (address, process), urllib.request.urlopen(f"{address}{path}") as stream:
        for line in stream:
            # The second look finds nothing new, or merges that were still in progress.
            if line == b"event: same\n":
                break
        dashboard, engine = [psutil.Process(process.pid)], server
        before, begun = (cpu_s(dashboard), cpu_s(engine)), time.monotonic()
        while time.monotonic() - begun < seconds:
            stream.readline()
        spent = time.monotonic() - begun
        return (cpu_s(dashboard) - before[0]) / spent, (cpu_s(engine) - before[1]) / spent


def is_listening(port: int) -> bool:
    """Whether something accepts connections at ``port``."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def wait_until(done: Callable[[], bool], seconds: float) -> None:
    """Wait until ``done``; raises ``TimeoutError`` after ``seconds``."""
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            raise TimeoutError(f"not ready after {seconds:g} s")
        time.sleep(0.2)


def _queries() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Name, SQL and parameters of every panel, of the overview's also split by source and cut to a tool, and of every
    question."""
    sides = {"a_run": RUN, "a_from": "0", "a_to": "4", "b_run": RUN, "b_from": str(VERSIONS - 5), "b_to": str(VERSIONS)}
    for page in PAGES:
        for panel in page.panels:
            if panel.source:  # drawn from another panel's result
                continue
            name = f"{page.path or '/overview'}: {panel.name}"[1:]
            yield name, panel.sql, selection(page.parameters, {"run": RUN, **sides})
            if panel.cuts and not page.path:
                cut = selection(page.parameters, {"run": RUN, "by": "source", "tool": "grep"})
                yield f"{name}, by source, tool grep", panel.sql, cut
    for name, sql in re.findall(r"```sql (\S+)\n(.*?)\n```", QUESTIONS.read_text(), re.S):
        yield f"question: {name}", re.sub(r"^--.*\n?", "", sql, flags=re.M), {"run": RUN}


def _read(client: "Client", sql: str, parameters: dict[str, str]) -> tuple[int, int]:
    """Rows and bytes that the query read."""
    told = client.query(sql, parameters=parameters).summary
    return int(told.get("read_rows", 0)), int(told.get("read_bytes", 0))


def _look(client: "Client") -> None:
    read_versions(client)


def _report(name: str, ask: Callable[[], tuple[int, int] | None], repeats: int, server: list[psutil.Process]) -> None:
    times, before, read = list[float](), cpu_s(server), None
    for _ in range(repeats):
        begun = time.perf_counter()
        read = ask()
        times.append((time.perf_counter() - begun) * 1000)
    processor = (cpu_s(server) - before) / repeats * 1000 if server else float("nan")
    p95 = statistics.quantiles(times, n=20)[-1] if len(times) > 1 else times[0]
    amount = f" {read[0]:,} | {read[1] / 1e6:,.1f} |" if read else ""
    print(f"| {name} | {statistics.median(times):.0f} | {p95:.0f} | {processor:.0f} |{amount}", flush=True)


if __name__ == "__main__":
    main()
