"""``headrace tables``: the tables and views in ClickHouse."""

import click

from headrace.deploy.terminal import print_text

_STATEMENT_S = 24 * 3600
"""Longest time for a statement, in seconds: copying a large table takes long."""


@click.command("tables")
@click.argument("name", required=False)
@click.option("--ddl", is_flag=True, help="Print the statements that create them.")
@click.option(
    "--cluster", default="", metavar="NAME", help="Tables that are replicated on the ClickHouse cluster NAME."
)
@click.option("--migrate", is_flag=True, help="Copy tables of an older release into tables of this one.")
@click.option("--clickhouse", metavar="URL", help="ClickHouse; else HEADRACE_CLICKHOUSE, else the stack on --data.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA).")
def command(name: str | None, ddl: bool, cluster: str, migrate: bool, clickhouse: str | None, data: str | None) -> None:
    """Print all ClickHouse tables and views, or NAME, as Markdown: columns, types and meanings.

    With --migrate it changes the tables in ClickHouse instead; the sink names this command where it is needed. No row
    is lost: rows are copied, and expire one retention of their topic after that. The copy needs the disk space of the
    largest table once more.
    """
    from headrace.deploy.errors import StackError
    from headrace.streams.clickhouse.ddl import create_statement, markdown, view_statement
    from headrace.streams.clickhouse.tables import TABLES
    from headrace.streams.clickhouse.views import VIEWS

    if migrate:
        if name or ddl:
            raise click.UsageError("--migrate changes all tables: leave NAME and --ddl out.")
        _migrate(cluster, clickhouse, data)
        return
    tables = [table for table in TABLES if name in (None, table.name)]
    views = [view for view in VIEWS if name in (None, view.name)]
    if not (tables or views):
        names = ", ".join([*(table.name for table in TABLES), *(view.name for view in VIEWS)])
        raise StackError(f"There is no table {name!r}; the tables and views are {names}.")
    if ddl:
        statements = [
            *(create_statement(table, cluster) for table in tables),
            *(view_statement(view, cluster) for view in views),
        ]
        print_text(";\n\n".join(statements) + ";\n")
    else:
        print_text(markdown(tables, views))


def _migrate(cluster: str, clickhouse: str | None, data: str | None) -> None:
    from clickhouse_connect.driver.exceptions import ClickHouseError

    from headrace.deploy.configuration.settings import load_settings
    from headrace.deploy.errors import StackError
    from headrace.deploy.stack.state import address_of
    from headrace.streams.clickhouse.database import WRITER, open_client
    from headrace.streams.clickhouse.schema import MigrationError, migrate_tables

    settings = load_settings(data=data)
    address = address_of("clickhouse", clickhouse, data)
    secrets = settings.clickhouse_secrets if clickhouse or settings.clickhouse else settings.secrets_of_embedded
    try:
        client = open_client(address, secrets=secrets, account=WRITER, timeout_s=_STATEMENT_S)
        try:
            done = migrate_tables(client, cluster=cluster)
        finally:
            client.close()
    except (ClickHouseError, OSError, ValueError, MigrationError) as error:
        raise StackError(f"ClickHouse: {error}") from error
    print_text("\n".join(done or ["The tables are those of this release."]) + "\n")
