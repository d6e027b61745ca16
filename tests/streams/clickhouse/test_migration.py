"""Tables of an older release are refused with the command that migrates them, which loses no row."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from click.testing import CliRunner
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError

from headrace.deploy.cli import cli
from headrace.deploy.processes.worker import operator_message
from headrace.streams.clickhouse import schema
from headrace.streams.clickhouse.columns import Table
from headrace.streams.clickhouse.database import open_client
from headrace.streams.clickhouse.ddl import PresentTable
from headrace.streams.clickhouse.migration import OutdatedTablesError, before_name, migration_of, new_name, outdated
from headrace.streams.clickhouse.schema import MigrationError, ensure_tables, migrate_tables
from headrace.streams.clickhouse.tables import EVENTS, FEEDBACK, LAG, TABLES, TRAJECTORIES

UUID = "0192f0c1-7c1b-7e0a-9d55-0f4be0d1a2b3"
OLD_TYPES = {"id": "String", "run": "LowCardinality(String)"}
OLD_COLUMNS = {"group_id": "String", "agent": "LowCardinality(String)", "task_id": "String"}
NEW = {
    "logged_at",
    "id_sent",
    "id_text",
    "model",
    "prompt_tokens",
    "completion_tokens",
    "started_purpose",
    "task_source",
    "channel",
}


def old_statement(table: Table) -> str:
    """The table as release 0.1 made it: text ids, the names of that time, and no partitions."""
    columns = ", ".join(
        f"`{column.was or column.name}` {OLD_TYPES.get(column.was or column.name, column.type.clickhouse)}"
        for column in table.columns
        if column.name not in NEW | {"difficulty"}
        and not column.name.startswith(("turn_", "call_t", "call_s", "call_e"))
        and column.name != "call_ids"
    )
    key = ", ".join(f"`{name}`" for name in table.key)
    return f"CREATE TABLE {table.name} ({columns}) ENGINE = ReplacingMergeTree ORDER BY ({key})"


@pytest.fixture
def client(clickhouse: str) -> Iterator[Client]:
    client = open_client(clickhouse)
    for table in TABLES:
        for name in (table.name, new_name(table), before_name(table)):
            client.command(f"DROP TABLE IF EXISTS {name}")
    yield client
    client.close()


EVENT = (
    "INSERT INTO events (id, time, trajectory_id, seq, offset, type, run, agent, payload) VALUES "
    f"('{UUID}', 1000, 't1', 0, 1, 'headrace.trajectory.started.v1', 'r', 'shop', '{{\"task_id\":\"a\"}}'), "
    "('order-1', 2000, 't1', 1, 2, 'headrace.model.called.v1', '', '', "
    '\'{"model":"m","usage":{"prompt_tokens":7,"completion_tokens":5}}\'), '
    "('order-2', 3000, 't1', 2, 3, 'headrace.tool.called.v1', '', '', '{}')"
)


@pytest.mark.clickhouse
def test_tables_of_an_older_release_are_refused_with_the_command_and_nothing_is_changed(client: Client) -> None:
    client.command(old_statement(EVENTS))
    with pytest.raises(
        OutdatedTablesError, match=r"table events: its column id is String.*`headrace tables --migrate`"
    ):
        ensure_tables(client)
    names = client.query("SELECT name FROM system.tables WHERE database = currentDatabase()").result_rows
    assert [name for (name,) in names if name in {table.name for table in TABLES}] == ["events"]


@pytest.mark.clickhouse
def test_a_migration_keeps_every_row_and_computes_what_can_be_computed(client: Client) -> None:
    for table in (EVENTS, TRAJECTORIES, LAG):
        client.command(old_statement(table))
    client.command(EVENT)
    client.command(
        "INSERT INTO trajectories (id, time, trajectory_id, task) VALUES "
        """('a', 1, 't1', '{"source": "wiki", "hops": 3, "channel": "web"}'), """
        """('b', 1, 't2', '{"level": "hard", "size": 1}'), """
        "('c', 1, 't3', '{}')"
    )
    client.command("INSERT INTO lag (time, consumer_group, records) SELECT now64(3), 'sink', 5")
    assert migrate_tables(client) == ["events: 3 rows", "trajectories: 3 rows", "lag: 1 rows"]
    events = client.query(
        "SELECT if(id_text = '', toString(id), id_text), toUnixTimestamp64Milli(time), started_run, started_agent, "
        "started_purpose, model, prompt_tokens, completion_tokens FROM events ORDER BY seq"
    ).result_rows
    assert events == [
        (UUID, 1_000_000, "r", "shop", "train", "", None, None),
        ("order-1", 2_000_000, "", "", "", "m", 7, 5),
        ("order-2", 3_000_000, "", "", "", "", None, None),
    ]
    tasks = client.query("SELECT task_source, difficulty, channel FROM trajectories ORDER BY trajectory_id").result_rows
    assert tasks == [("wiki", "3", "web"), ("", "hard", ""), ("", "", "")]
    # They expire one retention after the copy, whatever their time.
    assert client.query("SELECT count() FROM events WHERE logged_at > now() - 60").result_rows == [(3,)]
    ensure_tables(client)
    assert migrate_tables(client) == []


@pytest.mark.clickhouse
def test_a_migration_keeps_rows_whose_ids_write_one_uuid_in_different_forms(client: Client) -> None:
    client.command(old_statement(FEEDBACK))
    client.command(
        f"INSERT INTO feedback (id, trajectory_id, signal) VALUES ('{UUID}', 't1', 'a'), ('{UUID.upper()}', 't1', 'b')"
    )
    assert migrate_tables(client) == ["feedback: 2 rows"]
    kept = client.query("SELECT signal, if(id_text = '', toString(id), id_text) FROM feedback FINAL ORDER BY signal")
    assert kept.result_rows == [("a", UUID), ("b", UUID.upper())]


@pytest.mark.clickhouse
def test_an_interrupted_migration_is_repeated(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.command(old_statement(EVENTS))
    client.command(EVENT)
    real = migration_of

    def without_a_row(table: Table, present: PresentTable, cluster: str = "") -> object:
        made = real(table, present, cluster)
        return replace(made, copy=(*made.copy[:-1], made.copy[-1].replace(" SETTINGS", " WHERE seq > 0 SETTINGS")))

    monkeypatch.setattr(schema, "migration_of", without_a_row)
    with pytest.raises(MigrationError, match="has 2 rows instead of 3"):
        migrate_tables(client)
    assert client.query("SELECT count() FROM events").result_rows == [(3,)]
    monkeypatch.undo()
    assert migrate_tables(client) == ["events: 3 rows"]


FINISHED = "events: finished an interrupted migration"


def killed_in_the_swap(client: Client, monkeypatch: pytest.MonkeyPatch, statement: str, rename: str) -> None:
    """A migration of three events that ends before the swap's ``statement``; ``rename``: what ran instead."""
    client.command(old_statement(EVENTS))
    client.command(EVENT)

    def killed(table: Table, present: PresentTable, cluster: str = "") -> object:
        made = migration_of(table, present, cluster)
        assert made.swap[-1].startswith(statement)
        return replace(made, swap=(rename or made.swap[0], "SELECT throwIf(1, 'killed')"))

    monkeypatch.setattr(schema, "migration_of", killed)
    with pytest.raises(DatabaseError, match="killed"):
        migrate_tables(client)
    monkeypatch.undo()


def left_over(client: Client) -> list[str]:
    found = client.query("SELECT name FROM system.tables WHERE database = currentDatabase() AND name LIKE '%\\_\\_%'")
    return [name for (name,) in found.result_rows]


@pytest.mark.clickhouse
def test_a_migration_that_was_killed_before_it_dropped_the_old_table_drops_it_when_repeated(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_in_the_swap(client, monkeypatch, "DROP", "")
    assert left_over(client) == ["events__before"]
    assert migrate_tables(client) == [FINISHED]
    assert left_over(client) == []
    assert client.query("SELECT count() FROM events").result_rows == [(3,)]


@pytest.mark.clickhouse
@pytest.mark.parametrize("sink_started", [False, True])
def test_a_migration_that_was_killed_between_its_renamings_loses_no_row(
    client: Client, monkeypatch: pytest.MonkeyPatch, sink_started: bool
) -> None:
    killed_in_the_swap(client, monkeypatch, "DROP", "RENAME TABLE events TO events__before")
    if sink_started:
        ensure_tables(client)
        client.command(
            "INSERT INTO events (id_sent, trajectory_id, seq, logged_at) SELECT 'order-3', 't1', 3, now64(3)"
        )
    assert migrate_tables(client) == [FINISHED]
    assert left_over(client) == []
    assert client.query("SELECT count() FROM events FINAL").result_rows == [(3 + sink_started,)]


@pytest.mark.clickhouse
def test_a_longer_retention_is_set_in_place_and_another_partition_key_is_a_migration(client: Client) -> None:
    ensure_tables(client)
    assert EVENTS.topic is not None
    longer = replace(EVENTS, topic=replace(EVENTS.topic, retention_ms=40 * 24 * 3600 * 1000))
    ensure_tables(client, (longer,))
    assert schema.present_table(client, "events").expiry == "toDateTime(logged_at) + toIntervalDay(40)"
    ensure_tables(client, (EVENTS,))
    yearly = replace(EVENTS, topic=replace(EVENTS.topic, retention_ms=-1))
    with pytest.raises(
        OutdatedTablesError, match=r"partitioned by toMonday\(logged_at\) instead of toYYYYMM\(logged_at\)"
    ):
        ensure_tables(client, (yearly,))
    client.command(
        "INSERT INTO events (id_sent, trajectory_id, seq, logged_at) "
        f"SELECT if(number = 0, '{UUID}', 'order-1'), 't1', number, now64(3) - number * 1000000 FROM numbers(2)"
    )
    before = client.query("SELECT id, id_text, seq, logged_at FROM events ORDER BY seq").result_rows
    assert migrate_tables(client, (yearly,)) == ["events: 2 rows"]
    assert client.query("SELECT id, id_text, seq, logged_at FROM events ORDER BY seq").result_rows == before
    assert schema.present_table(client, "events").expiry == ""


@pytest.mark.clickhouse
def test_the_command_migrates_and_says_what_it_copied(client: Client, clickhouse: str) -> None:
    client.command(old_statement(EVENTS))
    client.command(EVENT)
    command = ["tables", "--migrate", "--clickhouse", clickhouse]
    done = CliRunner().invoke(cli, command)
    assert (done.exit_code, done.stdout) == (0, "events: 3 rows\n")
    again = CliRunner().invoke(cli, command)
    assert (again.exit_code, again.stdout) == (0, "The tables are those of this release.\n")
    refused = CliRunner().invoke(cli, [*command, "events"])
    assert refused.exit_code == 2
    assert "--migrate changes all tables" in refused.output


def test_statements_for_a_cluster_can_be_printed() -> None:
    shown = CliRunner().invoke(cli, ["tables", "events", "--ddl", "--cluster", "analysis"]).output
    assert "ON CLUSTER `analysis`" in shown
    assert "ReplicatedReplacingMergeTree" in shown


def test_a_sink_that_needs_a_migration_ends_with_the_command_and_without_a_traceback() -> None:
    message = operator_message(outdated({"events": ["its column id is String"]}), "sink", None)
    assert message is not None
    assert message.startswith("sink: ClickHouse has tables of an older release")
    assert "`headrace tables --migrate`" in message
