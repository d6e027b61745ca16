"""The column `channel` is the task's text `channel`, of a bounded length, and empty for anything else."""

import json
from typing import Any

import pytest

from headrace.schemas.bounds import MAX_NAME
from headrace.streams.clickhouse.columns import arrow_table
from headrace.streams.clickhouse.database import insert, open_client
from headrace.streams.clickhouse.schema import ensure_tables
from headrace.streams.clickhouse.tables import TRAJECTORIES
from tests.streams.clickhouse.stored_log import NOW_MS

pytestmark = pytest.mark.clickhouse

TEXTS = ("web", "WEB", " web", "(none)", "__proto__", "nul\0", 'it\'s "said" \\N', "<b>", "\u202e ☃ 😀", "é" * MAX_NAME)
OTHERS: tuple[Any, ...] = (5, 1.5, True, None, "", [], ["web"], {"channel": "web"})
NO_OBJECTS = ("", "null", "[]", '"channel"', "not JSON", '{"source": "web"}')


def test_it_is_the_text_of_the_task_and_empty_for_anything_else(clickhouse: str) -> None:
    named = [(json.dumps({"channel": value}), value) for value in TEXTS]
    named.append((json.dumps({"channel": "☃" * 10_000}), "☃" * MAX_NAME))
    unnamed = [*(json.dumps({"channel": value}) for value in OTHERS), *NO_OBJECTS]
    tasks = [*named, *((task, "") for task in unnamed)]
    rows = [
        {"id_sent": f"t{at:02}", "trajectory_id": f"t{at:02}", "logged_at": NOW_MS, "offset": at, "task": task}
        for at, (task, _) in enumerate(tasks)
    ]
    client = open_client(clickhouse)
    ensure_tables(client)
    insert(client, TRAJECTORIES, arrow_table(TRAJECTORIES, rows), "channels")
    found = client.query("SELECT task, channel FROM trajectories ORDER BY trajectory_id").result_rows
    client.close()
    assert [tuple(row) for row in found] == tasks
