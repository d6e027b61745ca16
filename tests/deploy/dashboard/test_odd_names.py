"""Names with quotes, line ends, SQL, HTML and formulas: every page shows their rows, and no other name's."""

import csv
import io
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from headrace.streams.clickhouse.columns import arrow_table
from headrace.streams.clickhouse.database import insert, open_client
from headrace.streams.clickhouse.schema import ensure_tables
from headrace.streams.clickhouse.tables import REWARDS, TRAJECTORIES
from tests.deploy.dashboard.served import served
from tests.streams.clickhouse.stored_log import NOW_MS

pytestmark = pytest.mark.clickhouse

NAMES = (
    """it's "said" with back\\slash, \\N and `ticks`""",
    "two\nlines\ta tab\rnul\0 bell\x07\x08\x0b\x0c\x1b",
    "x' OR 1=1; DROP TABLE events; -- {run:String}",
    "<script>alert(1)</script>",
    "=1+1",
    "../../a/b?c=d&e#f%2F%",
    "\u202etfel ot thgir naïve ☃",
)


@pytest.fixture(scope="module")
def dashboard(clickhouse: str, clickhouse_reader: str) -> Iterator[str]:
    """A dashboard whose runs, trajectories, groups, tasks and sources have these names."""
    client = open_client(clickhouse)
    ensure_tables(client)
    rows = []
    for number, name in enumerate(NAMES):
        labels = {"run": name, "group_id": f"g{name}", "task_id": f"t{name}", "agent": name, "tenant": name}
        both = {"time": NOW_MS, "logged_at": NOW_MS, "offset": number, "trajectory_id": f"id{name}", **labels}
        both |= {"purpose": "train", "oldest_version": 3, "ended_at": NOW_MS}
        score = {"id_sent": f"r{number}", "spec": "s@1", "total": 1.0, "maximum": 1.0, "normalised": 1.0}
        rows.append(({**both, "id_sent": f"t{number}", "task_source": name, "tools": [(name, 1)]}, {**both, **score}))
    insert(client, TRAJECTORIES, arrow_table(TRAJECTORIES, [row for row, _ in rows]), "odd:trajectories")
    insert(client, REWARDS, arrow_table(REWARDS, [row for _, row in rows]), "odd:rewards")
    client.close()
    with served(clickhouse_reader) as url:
        yield url


def get(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def panel(dashboard: str, path: str, name: str, **chosen: str) -> dict[str, list[Any]]:
    status, body = get(f"{dashboard}{path}/api/panels/{name}?{urlencode(chosen)}")
    assert status == 200, body
    found: dict[str, list[Any]] = json.loads(body)
    return found


def texts_of(value: Any) -> set[str]:
    """Returns all texts in a JSON value."""
    if isinstance(value, dict | list):
        return {text for each in (value.values() if isinstance(value, dict) else value) for text in texts_of(each)}
    return {value} if isinstance(value, str) else set()


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_run_is_found_by_its_name_and_its_slices_by_theirs(dashboard: str, name: str) -> None:
    found = panel(dashboard, "", "reward", run=name, source=name, agent=name, tenant=name, tool=name)
    assert (found["version"], found["trajectories"]) == ([3], [1])
    listed = panel(dashboard, "/explore", "trajectories", run=name, task=f"t{name}", group=f"g{name}", id=f"id{name}")
    assert (listed["trajectory_id"], listed["source"]) == ([f"id{name}"], [name])
    sides = panel(dashboard, "/compare", "score", a_run=name, b_run=name)
    assert sides["tasks"] == [1]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_trajectory_a_group_and_a_version_are_found_by_their_names(dashboard: str, name: str) -> None:
    status, body = get(f"{dashboard}/api/trajectory?{urlencode({'id': f'id{name}'})}")
    assert (status, json.loads(body)["run"]) == (200, name)
    status, body = get(f"{dashboard}/api/group?{urlencode({'id': f'g{name}'})}")
    assert [each["id"] for each in json.loads(body)["members"]] == [f"id{name}"]
    status, _ = get(f"{dashboard}/trajectory/{quote(name, safe='')}")
    assert status == 200
    status, body = get(f"{dashboard}/api/version?{urlencode({'run': name, 'version': 3})}")
    assert status == 200
    assert f"id{name}" in texts_of(json.loads(body))


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_files_hold_every_name(dashboard: str, file_format: str) -> None:
    query = urlencode({"run": "", "format": file_format})
    status, body = get(f"{dashboard}/explore/api/panels/trajectories?{query}")
    assert status == 200, body
    if file_format == "csv":
        rows = list(csv.DictReader(io.StringIO(body.decode(), newline="")))
        assert {row["run"].removeprefix("'") for row in rows} == set(NAMES)
        assert not any(cell.startswith(("=", "+", "@")) for row in rows for cell in row.values() if cell)
    else:
        from pyarrow import parquet

        assert set(parquet.read_table(io.BytesIO(body))["run"].to_pylist()) == set(NAMES)
