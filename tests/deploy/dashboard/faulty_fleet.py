"""Rows of a fleet with faults: a sender of broken records, one that drops events, gateways that restart, a clock that
was ahead, a slow engine.
"""

import json
from base64 import b64encode

from clickhouse_connect.driver.client import Client


def encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


def fill_fleet(client: Client) -> None:
    """Write the rows to the tables. The engine is of the run ``rising``."""
    headers = json.dumps([["ce_type", encoded("x")], ["ce_source", encoded("checkout <b>v2</b>")]])
    letters = [
        ("d1", "bad_json", 1, "t-1", headers), ("d2", "bad_json", 2, "t-2", headers), ("d3", "late", 3, "", "[]"),
        ("d4", "bad_json", 4, "t-2", headers),
    ]  # fmt: skip

    def insert(table: str, columns: str, *rows: str) -> None:
        client.command(f"INSERT INTO {table} ({columns}) " + " UNION ALL ".join(f"SELECT {row}" for row in rows))

    for name, error, offset, trajectory, sent in letters:
        client.command(
            "INSERT INTO dead_letters (id_sent, logged_at, time, bad_topic, bad_partition, bad_offset, error, message, "
            "trajectory_id, headers) SELECT {id:String}, now64(3), now64(3), 'events', 0, {offset:UInt64}, "
            "{error:String}, 'what is wrong', {trajectory:String}, {headers:String}",
            parameters={
                "id": name, "offset": offset, "error": error, "trajectory": trajectory, "headers": sent,
            },
        )  # fmt: skip
    insert(
        "dead_letter_actions",
        "id_sent, logged_at, time, action, bad_topic, bad_partition, bad_offset",
        "'a', now64(3), now64(3), 'redriven', 'events', 0, 4",
    )
    insert(
        "sdk_stats",
        "id_sent, logged_at, time, source, emitted, sent, queued, spooled, dropped",
        "'s1', now64(3), now64(3), 'calm', 9, 9, 0, 0, map()",
        "'s2', now64(3), now64(3) - INTERVAL 1 MINUTE, 'losing', 5, 5, 0, 0, map()",
        "'s3', now64(3), now64(3), 'losing', 100, 80, 5, 7, map('queue_full', 6, 'oversize', 2)",
    )
    insert(
        "gateway_stats",
        "id_sent, logged_at, time, source, calls, errors, sessions, engines, unacknowledged, spooled, holes",
        "'g1', now64(3), now64(3) - INTERVAL 60 SECOND, '/gw/a', 100, map('busy', 1), 3, map('e1', 2), 0, 0, 0",
        "'g2', now64(3), now64(3) - INTERVAL 30 SECOND, '/gw/a', 220, map('busy', 4), 5, map('e1', 9), 8, 6, 0",
        "'g3', now64(3), now64(3), '/gw/a', 30, map(), 1, map('e1', 1, 'e2', 0), 2, 0, 0",
        "'g4', now64(3), now64(3), '/gw/b', 7, map(), 1, map('e1', 0), 0, 0, 4",
        "'g5', now64(3), now64(3) - INTERVAL 1 HOUR, '/gw/gone', 7, map(), 1, map('e1', 0), 0, 0, 4",
        "'g6', now64(3), now64(3) + INTERVAL 1 DAY, '/gw/b', 900, map(), 1, map('e1', 0), 0, 0, 99",
    )
    insert(
        "lag",
        "time, consumer_group, topic, partition, records, seconds",
        "now64(3), 'set-back', 'events', 0, 5, 1.0",
        "now64(3) + INTERVAL 1 DAY, 'set-back', 'events', 0, 9000, 900.0",
        "now64(3), 'headrace-trainer-ended', 'training', 0, 31, 955.0",
        "now64(3), 'headrace-trainer-going', 'training', 0, 40, 2.0",
    )
    insert(
        "budget",
        "id_sent, logged_at, time, run, version, groups_per_step, max_steps_ahead, max_groups",
        "'b1', now64(3), now64(3) - INTERVAL 1 MINUTE, 'ended', 7, 8, 1, 16",
        "'b2', now64(3), now64(3), 'ended', 8, 8, 1, 0",
        "'b3', now64(3), now64(3), 'going', 8, 8, 1, 16",
    )
    insert("applied", "id_sent, time, run, engine, version, swap_s", "'x', now64(3), 'rising', 'slow', 4, 1.5")
