"""Times of the pages about single records beside many other rows.

    python -m tests.benchmarks.bench_record_pages [--trajectories 1000000] [--repeats 20]

The records that are shown are made by the fold: the run with a planted hack of the dashboard's tests. Around them stand
made-up rows, inserted by ClickHouse from a row of numbers: trajectories, rewards, events, training groups, step members
and rejections, which only have to be skipped. A request goes through the dashboard's HTTP server, folds the
trajectory, and makes its text; wall time is the client's. Prints a Markdown table.
"""

import argparse
import statistics
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx

from headrace.streams.clickhouse.database import open_client
from headrace.streams.clickhouse.schema import ensure_tables
from tests.benchmarks.bench_sink import clickhouse
from tests.deploy.dashboard.hacked_run import RUN, store_run
from tests.deploy.dashboard.served import served

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

CHUNK = 250_000
"""Rows of an insert."""
_NAME = "concat('t-', lower(hex(cityHash64(number))), lower(hex(cityHash64(number + 1000000007))))"
_GROUP = "concat('many-', toString(intDiv(number, 8)))"
_ID = "concat('row-{table}-', toString(number))"

FILLS = {
    "trajectories": (
        "trajectory_id, run, task_id, group_id, agent, role, purpose, task_source, status, outcome, turns, segments, "
        "tokens, sampled_tokens, oldest_version, newest_version, versions, started_at, ended_at",
        f"{_NAME}, '{{run}}', concat('task-', toString(number % 1000)), {_GROUP}, 'coder', 'trainable', 'train', "
        "['tickets', 'shoes'][1 + number % 2], 'completed', number % 2, 6, 1, 900, 200, number % 400, number % 400, "
        "[number % 400], now64(3), now64(3)",
    ),
    "rewards": (
        "trajectory_id, run, task_id, group_id, agent, purpose, role, spec, revision, total, maximum, normalised, "
        "components, weights, oldest_version, newest_version, sampled_tokens, turns, status, ended_at",
        f"{_NAME}, '{{run}}', concat('task-', toString(number % 1000)), {_GROUP}, 'coder', 'train', 'trainable', "
        "'outcome@1', 0, number % 2, 1, number % 2, map('outcome', toFloat64(number % 2)), map('outcome', 1.), "
        "number % 400, number % 400, 200, 6, 'completed', now64(3)",
    ),
    "events": (
        "type, trajectory_id, seq, model, prompt_tokens, completion_tokens, payload",
        f"'headrace.model.called.v1', {_NAME}, 1, 'm', 900, 200, concat('{{{{\"model\": \"m\", \"n\": ', "
        "toString(number), ', \"sampled_ids\": \"', hex(randomString(24)), '\"}}')",
    ),
    "training": (
        "run, task_id, group_id, spec, baseline, baseline_value, scored, reward_std, trajectory_id, reward, advantage, "
        "oldest_version, sampled_tokens",
        f"'{{run}}', 'task', {_GROUP}, 'outcome@1', 'mean', 0.5, 8, 0.5, {_NAME}, number % 2, number % 2 - 0.5, "
        "number % 400, 200",
    ),
    "step_members": (
        "run, step, version, group_id, trajectory_id",
        f"'{{run}}', 10 + number % 400, 10 + number % 400, {_GROUP}, {_NAME}",
    ),
    "rejected": (
        "trajectory_id, stage, reason, run, task_id, group_id, policy_version",
        f"{_NAME}, 'admission', 'stale', '{{run}}', 'task', {_GROUP}, number % 400",
    ),
}
"""Columns and their expressions over `number`, by table; half of the trajectories are rejected."""


def fill(client: "Client", count: int) -> None:
    """Insert ``count`` made-up trajectories with everything that belongs to them, into the run of the planted ones."""
    for table, (columns, expressions) in FILLS.items():
        chosen = " WHERE number % 2 = 0" if table == "rejected" else ""
        for first in range(0, count, CHUNK):
            client.command(
                f"INSERT INTO {table} (id_sent, time, logged_at, partition, offset, {columns}) "
                f"SELECT {_ID.format(table=table)}, now64(3), now64(3), 0, 1000000 + number, "
                f"{expressions.format(run=RUN)} FROM numbers({first}, {min(CHUNK, count - first)}){chosen}"
            )


def main() -> None:
    """Fill, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    with clickhouse(None) as (url, _):
        client = open_client(url, timeout_s=600)
        ensure_tables(client)
        objects = store_run(client)
        begun = time.perf_counter()
        fill(client, options.trajectories)
        (found,) = client.query("SELECT count() FROM trajectories").result_rows[0]
        print(
            f"{found:,} rows of trajectories beside as many of the other tables, in {time.perf_counter() - begun:.0f} s"
        )
        (many,) = client.query("SELECT count() FROM rewards WHERE oldest_version = 1").result_rows[0]
        print(f"version 1 sampled {many:,} of them\n\n| page | p50, ms | p95, ms |\n|---|---|---|")
        with served(url, objects=objects) as dashboard:
            for name, path in {
                "/trajectory/ID": "/api/trajectory?id=v1-tickets-1-0",
                "/trajectory/ID, no such id": "/api/trajectory?id=nope",
                "/group/ID": "/api/group?id=g-1-1",
                "/version/N": f"/api/version?run={quote(RUN)}&version=1",
                "/watch, when its tables have changed": "/watch/api/panels/readings?run=",
            }.items():
                _report(name, dashboard + path, options.repeats)


def _report(name: str, url: str, repeats: int) -> None:
    times = []
    with httpx.Client(timeout=120) as client:
        for _ in range(repeats):
            begun = time.perf_counter()
            client.get(url)
            times.append((time.perf_counter() - begun) * 1000)
    p95 = statistics.quantiles(times, n=20)[-1] if len(times) > 1 else times[0]
    print(f"| {name} | {statistics.median(times):.0f} | {p95:.0f} |", flush=True)


if __name__ == "__main__":
    main()
