"""``headrace query``: query ClickHouse."""

import re

import click

from headrace.deploy.terminal import print_table


@click.command("query")
@click.argument("sql")
@click.option("--format", "output_format", default="PrettyCompact", show_default=True, help="A ClickHouse format.")
@click.option("--clickhouse", metavar="URL", help="ClickHouse; else HEADRACE_CLICKHOUSE, else the stack on --data.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA).")
def command(sql: str, output_format: str, clickhouse: str | None, data: str | None) -> None:
    """Query ClickHouse as its read-only user. `headrace tables` lists tables and columns.

    \b
      headrace query 'SELECT reason, count() FROM rejected FINAL GROUP BY reason'
      headrace query 'SELECT * FROM steps' --format JSONEachRow | jq .metrics.loss
    """
    if not sql.strip():
        raise click.UsageError("SQL is empty: give a query, for example 'SELECT count() FROM events'.")
    if named := re.search(r"\bFORMAT\s+(\w+)\s*;?\s*$", sql, re.IGNORECASE):
        raise click.UsageError(f"Leave FORMAT out of the SQL and use --format {named[1]}.")
    from clickhouse_connect.driver.exceptions import ClickHouseError

    from headrace.deploy.configuration.settings import load_settings
    from headrace.deploy.errors import StackError
    from headrace.deploy.stack.state import address_of
    from headrace.streams.clickhouse.database import open_client

    settings = load_settings(data=data)
    address = address_of("clickhouse", clickhouse, data)
    # The embedded ClickHouse's password is never sent to another server: for an address that was specified, the
    # passwords come only from HEADRACE_CLICKHOUSE_SECRETS.
    given = clickhouse or settings.clickhouse
    secrets = settings.clickhouse_secrets if given else settings.secrets_of_embedded
    try:
        client = open_client(address, secrets=secrets)
        try:
            answer = client.raw_query(sql, fmt=output_format)
        finally:
            client.close()
    except (ClickHouseError, OSError, ValueError) as error:
        raise StackError(f"ClickHouse: {error}") from error
    print_table(answer.decode(errors="replace"))
