"""The database matches the column specs: names, types and descriptions, and every extreme value."""

from dataclasses import replace
from datetime import UTC, datetime
from time import time
from typing import Any

import clickhouse_connect
import pyarrow as pa
import pytest
from click.testing import CliRunner

from headrace.deploy.cli import cli
from headrace.schemas.topics import EVENTS as EVENTS_TOPIC
from headrace.schemas.topics import FOREVER, TOPICS
from headrace.streams.clickhouse import columns
from headrace.streams.clickhouse.columns import Column, Index, Table, arrow_table
from headrace.streams.clickhouse.database import insert, open_client
from headrace.streams.clickhouse.ddl import (
    COMPACT_UP_TO_BYTES,
    WEEKLY_UP_TO_DAYS,
    PresentTable,
    change_statements,
    compact_up_to_in,
    create_statement,
    expiry_of,
    incompatibilities,
    markdown,
    partition_key,
    view_statement,
)
from headrace.streams.clickhouse.schema import ensure_tables, present_table
from headrace.streams.clickhouse.tables import (
    EVENTS,
    FEEDBACK,
    STARTS,
    STEP_MEMBERS,
    TABLES,
    TABLES_OF_TOPIC,
    TRAJECTORIES,
)
from headrace.streams.clickhouse.views import VIEWS
from tests.benchmarks.bench_tables import wait_until

NOW_MS = int(time() * 1000)
"""Rows of older records of `events` expire."""
LATEST_MS = int(datetime(2299, 12, 31, tzinfo=UTC).timestamp() * 1000)


def test_every_table_but_lag_sinks_and_prices_has_a_topic_or_is_computed() -> None:
    assert set(TABLES_OF_TOPIC) <= {topic.name for topic in TOPICS}
    assert {table.name for tables in TABLES_OF_TOPIC.values() for table in tables} == (
        {table.name for table in TABLES} - {"lag", "sinks", "prices", "starts", "slice_sums"}
    )
    computed = {table.name: table.computed_from for table in TABLES if table.computed_from}
    assert computed == {"starts": ("events",), "slice_sums": ("rewards", "trajectories")}
    # A start is kept as long as the event from which it is.
    assert (STARTS.keep_days, STARTS.clock) == (EVENTS.keep_days, EVENTS.clock)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_column_is_named_once_and_explained(table: Table) -> None:
    names = [column.name for column in table.columns]
    assert len(names) == len(set(names))
    assert all(column.about.endswith((".", "…")) for column in table.columns)


def test_the_documentation_names_every_column() -> None:
    text = markdown(TABLES, VIEWS)
    for table in TABLES:
        assert f"### `{table.name}`" in text
        for column in table.stored:
            assert f"| `{column.name}` | `{column.type.clickhouse}` |" in text


def test_the_statement_of_a_small_table() -> None:
    table = Table(
        "t", "A row's row.", (Column("a", columns.COUNT, "An a."), Column("b", columns.JSON_TEXT, "B.")), ("a",)
    )
    assert create_statement(table) == (
        "CREATE TABLE IF NOT EXISTS t\n"
        "(\n"
        "    `a` UInt32 COMMENT 'An a.',\n"
        "    `b` String COMMENT 'B.' CODEC(ZSTD(3))\n"
        ")\n"
        "ENGINE = ReplacingMergeTree\n"
        "ORDER BY (`a`)\n"
        "SETTINGS non_replicated_deduplication_window = 10000, min_bytes_for_wide_part = 50331648\n"
        "COMMENT 'A row\\'s row.'"
    )


def test_of_rows_with_equal_keys_the_newest_by_a_column_may_hold() -> None:
    table = Table("t", "", (Column("a", columns.COUNT, ""), Column("b", columns.TIME, "")), ("a",), newest_by="b")
    assert "\nENGINE = ReplacingMergeTree(`b`)\n" in create_statement(table)
    assert "\nENGINE = ReplicatedReplacingMergeTree(`b`)\n" in create_statement(table, "analysis")


def test_a_key_must_name_existing_columns() -> None:
    with pytest.raises(ValueError, match="the columns b of its key do not exist"):
        Table("t", "", (Column("a", columns.COUNT, ""),), ("b",))


def test_an_index_must_name_an_existing_column() -> None:
    with pytest.raises(ValueError, match="the columns nope of its indexes do not exist"):
        Table("t", "", (Column("a", columns.COUNT, "A."),), ("a",), indexes=(Index("by_nope", "nope", "minmax"),))


def test_records_are_found_by_their_time_unless_they_are_partitioned_by_it() -> None:
    by_time = {table.name for table in TABLES if "by_time" in {index.name for index in table.all_indexes}}
    assert by_time == {table.name for table in TABLES} - {"starts", "slice_sums", "lag", "prices"}
    assert "    INDEX by_time `time` TYPE minmax GRANULARITY 1\n" in create_statement(EVENTS)


def test_a_row_with_an_unknown_column_is_refused() -> None:
    with pytest.raises(KeyError, match="has no column nope"):
        arrow_table(EVENTS, [{"nope": 1}])


def test_a_table_with_a_column_of_another_type_cannot_be_changed_in_place() -> None:
    types = {column.name: column.type.clickhouse for column in EVENTS.columns}
    computed = {column.name: column.computed for column in EVENTS.columns if column.computed}
    present = PresentTable(types, "toMonday(logged_at)", "toDateTime(logged_at) + toIntervalDay(30)", computed, 1)
    present = replace(present, indexes=frozenset({"by_time"}))
    assert incompatibilities(EVENTS, present) == []
    assert change_statements(EVENTS, present) == []
    assert incompatibilities(EVENTS, replace(present, types=types | {"seq": "String"})) == [
        "its column seq is String, and headrace needs UInt32"
    ]


def test_a_table_gets_the_size_of_compact_parts_unless_somebody_has_set_one() -> None:
    wanted = "ALTER TABLE events MODIFY SETTING min_bytes_for_wide_part = 50331648"
    assert wanted in change_statements(EVENTS, PresentTable({}))
    own = compact_up_to_in("CREATE TABLE … SETTINGS index_granularity = 8192, min_bytes_for_wide_part = 1048576")
    assert own == 1048576
    assert wanted not in change_statements(EVENTS, PresentTable({}, compact_up_to_bytes=own))
    assert compact_up_to_in(create_statement(EVENTS)) == 50331648


def test_rows_expire_and_are_partitioned_by_the_retention_of_their_topic() -> None:
    for table in TABLES:
        if table.topic is None:
            assert table.name in ("lag", "sinks", "prices", "slice_sums")
            continue
        statement = create_statement(table)
        if table.topic.retention_ms == FOREVER or table.topic.compacted:
            assert "TTL" not in statement
            assert "PARTITION BY toYYYYMM(logged_at)" in statement
        else:
            days = table.topic.retention_ms // (24 * 3600 * 1000)
            assert f"\nTTL toDateTime(logged_at) + toIntervalDay({days})\n" in statement
            assert f"PARTITION BY {'toMonday' if days <= WEEKLY_UP_TO_DAYS else 'toYYYYMM'}(logged_at)" in statement
    yearly = replace(EVENTS, topic=replace(EVENTS_TOPIC, retention_ms=365 * 24 * 3600 * 1000))
    assert (yearly.keep_days, partition_key(yearly)) == (365, "toYYYYMM(logged_at)")


def test_on_a_cluster_tables_are_replicated_and_remember_tokens_as_long() -> None:
    statement = create_statement(EVENTS, "analysis")
    assert statement.startswith("CREATE TABLE IF NOT EXISTS events ON CLUSTER `analysis`\n")
    assert "\nENGINE = ReplicatedReplacingMergeTree\nPARTITION BY" in statement
    assert (
        "SETTINGS replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800"
        in statement
    )
    assert all("ON CLUSTER `analysis`" in view_statement(view, "analysis") for view in VIEWS)
    changes = change_statements(EVENTS, PresentTable({}), "analysis")
    assert all(change.startswith("ALTER TABLE events ON CLUSTER `analysis` ") for change in changes)


@pytest.mark.clickhouse
def test_the_database_matches_the_specs(clickhouse: str) -> None:
    client = open_client(clickhouse)
    ensure_tables(client)
    ensure_tables(client)
    for table in TABLES:
        found = client.query(
            "SELECT name, type, comment FROM system.columns WHERE database = currentDatabase() AND table = {t:String} "
            "ORDER BY position",
            parameters={"t": table.name},
        ).result_rows
        assert list(found) == [(column.name, column.type.clickhouse, column.about) for column in table.columns]
        engine, key, about = client.query(
            "SELECT engine, sorting_key, comment FROM system.tables "
            "WHERE database = currentDatabase() AND name = {t:String}",
            parameters={"t": table.name},
        ).result_rows[0]
        assert (engine, key.strip("()"), about) == ("ReplacingMergeTree", ", ".join(table.key), table.about)
        present = present_table(client, table.name)
        assert (present.partition_key, present.expiry) == (partition_key(table), expiry_of(table))
        assert present.compact_up_to_bytes == COMPACT_UP_TO_BYTES


EXTREMES: dict[columns.ColumnType, list[Any]] = {
    columns.TEXT: ["", "naïve 🙂 \x00'\"\\\n", "x" * 100_000],
    columns.LABEL: ["", "naïve 🙂"],
    columns.JSON_TEXT: ["", '{"a": [1, 2]}'],
    columns.TIME: [0, LATEST_MS, columns.EARLIEST_MS, columns.LATEST_MS],
    columns.COUNT: [0, 2**32 - 1],
    columns.PLACE: [0, 2**63, 2**64 - 1],
    columns.FLAG: [True, False],
    columns.NUMBER: [0.0, -1e308, float("inf")],
    columns.MAYBE_NUMBER: [None, 0.5],
    columns.MAYBE_COUNT: [None, 2**32 - 1],
    columns.LABELS: [[], ["a", "b"]],
    columns.COUNTS: [[], [0, 2**32 - 1]],
    columns.NAMES: [[], ["call-1", ""]],
    columns.NUMBERS: [[], [0.5, -1e308]],
    columns.MAYBE_NUMBERS: [[], [0.5, None]],
    columns.NUMBERS_BY_NAME: [[], [("loss", -1.5), ("kl", 0.0)]],
    columns.COUNTS_BY_NAME: [[], [("search", 3)]],
}


@pytest.mark.clickhouse
@pytest.mark.parametrize("kind", EXTREMES, ids=lambda kind: kind.clickhouse)
def test_extreme_values_round_trip(clickhouse: str, kind: columns.ColumnType) -> None:
    client = open_client(clickhouse)
    table = Table("extremes", "", (Column("n", columns.COUNT, ""), Column("value", kind, "")), ("n",))
    client.command("DROP TABLE IF EXISTS extremes")
    ensure_tables(client, (table,))
    values = EXTREMES[kind]
    insert(client, table, arrow_table(table, [{"n": n, "value": value} for n, value in enumerate(values)]), "t")
    back = [value for (value,) in client.query("SELECT value FROM extremes ORDER BY n").result_rows]
    if kind is columns.TIME:
        back = [int(moment.timestamp() * 1000) for moment in back]
    if "Map" in kind.clickhouse:
        back = [list(pairs.items()) for pairs in back]
    assert back == values


@pytest.mark.parametrize("ms", [-(2**50), columns.EARLIEST_MS - 1, LATEST_MS + 86_400_000, 2**50, 2**63 - 1])
def test_a_time_that_would_be_stored_as_another_is_refused(ms: int) -> None:
    table = Table("times", "", (Column("time", columns.TIME, ""),), ("time",))
    with pytest.raises(pa.ArrowInvalid, match="a time is from 1900 to 2299"):
        arrow_table(table, [{"time": 0}, {"time": ms}])


@pytest.mark.clickhouse
def test_a_table_of_an_older_release_gets_its_new_columns(clickhouse: str) -> None:
    client = open_client(clickhouse)
    old = Table("grown", "", (Column("a", columns.COUNT, "A."),), ("a",))
    new = Table("grown", "", (*old.columns, Column("b", columns.NUMBERS_BY_NAME, "B.")), ("a",))
    ensure_tables(client, (old,))
    insert(client, old, arrow_table(old, [{"a": 1}]), "1")
    ensure_tables(client, (new,))
    insert(client, new, arrow_table(new, [{"a": 2, "b": [("x", 1.0)]}]), "2")
    assert client.query("SELECT a, b FROM grown ORDER BY a").result_rows == [(1, {}), (2, {"x": 1.0})]


GRANULE = 8192


@pytest.mark.clickhouse
@pytest.mark.parametrize("is_old", [False, True], ids=["new", "of-an-older-release"])
@pytest.mark.parametrize(
    ("table", "index", "copied"),
    [
        (TRAJECTORIES, "by_group", "group_id"),
        (TRAJECTORIES, "by_parent", "parent_trajectory_id"),
        (STEP_MEMBERS, "by_trajectory", "trajectory_id"),
    ],
    ids=lambda given: getattr(given, "name", given),
)
def test_an_index_finds_rows_by_what_the_key_does_not_begin_with(
    clickhouse: str, table: Table, index: str, copied: str, is_old: bool
) -> None:
    client = open_client(clickhouse)
    client.command(f"DROP TABLE IF EXISTS {table.name}")
    if is_old:
        client.command(create_statement(replace(table, indexes=())))
    else:
        ensure_tables(client, (table,))
    others = ("step", "intDiv(number, 512)") if table is STEP_MEMBERS else ("trajectory_id", "toString(number)")
    client.command(
        f"INSERT INTO {table.name} (id_sent, logged_at, {others[0]}, {copied}) "
        f"SELECT toString(number), now64(3), {others[1]}, concat('x', toString(number)) FROM numbers({12 * GRANULE})"
    )
    ensure_tables(client, (table,))
    assert index in present_table(client, table.name).indexes
    assert change_statements(table, present_table(client, table.name)) == []
    unfinished = (
        "SELECT count() FROM system.data_skipping_indices WHERE database = currentDatabase() AND "
        f"table = '{table.name}' AND name = '{index}' AND data_compressed_bytes = 0"
    )
    wait_until(lambda: client.query(unfinished).result_rows == [(0,)], 60)
    found = client.query(f"SELECT count() FROM {table.name} WHERE {copied} = 'x50000'")
    assert found.result_rows == [(1,)]
    assert int(found.summary["read_rows"]) <= 3 * GRANULE


@pytest.mark.clickhouse
def test_the_same_token_inserts_once_and_rows_of_another_token_collapse(clickhouse: str) -> None:
    client = open_client(clickhouse)
    ensure_tables(client)
    rows = arrow_table(
        EVENTS, [{"trajectory_id": "twice", "seq": n, "id_sent": f"e{n}", "logged_at": NOW_MS} for n in range(3)]
    )
    for token in ("first", "first", "second"):
        insert(client, EVENTS, rows, token)
    count = "SELECT count() FROM events {} WHERE trajectory_id = 'twice'"
    assert client.query(count.format("")).result_rows == [(6,)]
    assert client.query(count.format("FINAL")).result_rows == [(3,)]


@pytest.mark.clickhouse
def test_a_batch_of_many_weeks_is_inserted_once_and_old_rows_expire(clickhouse: str) -> None:
    client = open_client(clickhouse)
    ensure_tables(client)
    week = 7 * 24 * 3600 * 1000
    ages = [0, 1, 2, 3, *range(100, 230)]
    rows = arrow_table(
        EVENTS, [{"trajectory_id": "weeks", "seq": age, "logged_at": NOW_MS - age * week} for age in ages]
    )
    for _ in range(2):
        insert(client, EVENTS, rows, "weeks")
    client.command("OPTIMIZE TABLE events FINAL")
    kept = client.query("SELECT seq FROM events WHERE trajectory_id = 'weeks' ORDER BY seq").result_rows
    assert kept == [(0,), (1,), (2,), (3,)]


@pytest.mark.clickhouse
def test_every_id_is_kept_and_those_that_are_uuids_take_sixteen_bytes(clickhouse: str) -> None:
    client = open_client(clickhouse)
    ensure_tables(client)
    uuid = "0192f0c1-7c1b-7e0a-9d55-0f4be0d1a2b3"
    texts = [uuid, uuid[:-1] + "4", uuid.upper(), uuid.replace("-", ""), f"{uuid} ", "order-17", "naïve 🙂"]
    sent = [
        {"trajectory_id": f"{n}", "id_sent": text, "signal": f"ids {n}", "logged_at": NOW_MS}
        for n, text in enumerate(texts)
    ]
    insert(client, FEEDBACK, arrow_table(FEEDBACK, sent), "ids")
    found = client.query(
        "SELECT toString(id), id_text, if(id_text = '', toString(id), id_text), byteSize(id) "
        "FROM feedback WHERE startsWith(signal, 'ids') ORDER BY signal"
    ).result_rows
    ids, kept, back, sizes = zip(*found, strict=True)
    assert list(back) == texts
    assert (ids[0], kept[:2]) == (uuid, ("", ""))
    assert set(sizes) == {16}
    assert len(set(ids)) == len(texts)
    (looked_up,) = client.query(f"SELECT signal FROM feedback WHERE id = '{uuid[:-1]}4'").result_rows
    assert looked_up == ("ids 1",)


@pytest.mark.clickhouse
def test_ids_that_are_different_texts_are_different_records_though_they_write_one_uuid(clickhouse: str) -> None:
    client = open_client(clickhouse)
    ensure_tables(client)
    uuid = "0192f0c1-7c1b-7e0a-9d55-0f4be0d1a2b3"
    forms = [uuid, uuid.upper(), uuid.replace("-", "")]
    sent = [{"trajectory_id": "one", "id_sent": text, "signal": "forms", "logged_at": NOW_MS} for text in forms]
    for token in ("forms", "forms again"):
        insert(client, FEEDBACK, arrow_table(FEEDBACK, sent), token)
    assert client.query("SELECT count() FROM feedback FINAL WHERE signal = 'forms'").result_rows == [(3,)]


@pytest.mark.clickhouse
def test_a_table_that_computes_ids_in_another_way_computes_them_as_this_release_does(clickhouse: str) -> None:
    client = open_client(clickhouse)
    sent, id_ = FEEDBACK.columns[:2]
    now = Table("computed", "", (sent, id_), ("id",))
    before = replace(now, columns=(sent, replace(id_, computed="ifNull(toUUIDOrNull(id_sent), generateUUIDv4())")))
    ensure_tables(client, (before,))
    ensure_tables(client, (now,))
    assert change_statements(now, present_table(client, "computed")) == []
    client.command("INSERT INTO computed (id_sent) VALUES ('order-17')")
    (found,) = client.query(
        "SELECT id = reinterpretAsUUID(substring(SHA256('order-17'), 1, 16)) FROM computed"
    ).result_rows
    assert found == (1,)


@pytest.mark.clickhouse
def test_a_renamed_column_keeps_its_values(clickhouse: str) -> None:
    client = open_client(clickhouse)
    old = Table("renamed", "", (Column("a", columns.COUNT, "A."), Column("agent", columns.LABEL, "B.")), ("a",))
    new = Table("renamed", "", (old.columns[0], Column("started_agent", columns.LABEL, "Which.", was="agent")), ("a",))
    ensure_tables(client, (old,))
    insert(client, old, arrow_table(old, [{"a": 1, "agent": "checkout"}]), "1")
    for _ in range(2):
        ensure_tables(client, (new,))
    assert client.query("SELECT a, started_agent FROM renamed").result_rows == [(1, "checkout")]


def test_an_invalid_address_is_refused() -> None:
    with pytest.raises(ValueError, match="set HEADRACE_CLICKHOUSE"):
        open_client("localhost:8123")
    with pytest.raises(clickhouse_connect.driver.exceptions.OperationalError):
        open_client("http://127.0.0.1:9")


def test_the_command_prints_documentation_and_statements() -> None:
    run = CliRunner().invoke
    assert run(cli, ["tables"]).output == markdown(TABLES, VIEWS)
    assert run(cli, ["tables", "events", "--ddl"]).output == create_statement(EVENTS) + ";\n"
    unknown = run(cli, ["tables", "nope"])
    assert unknown.exit_code == 1
    assert "the tables and views are events, starts, trajectories" in unknown.output
