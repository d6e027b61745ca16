"""``headrace query``: ask ClickHouse."""

import re

import click

from headrace.deploy.terminal import tell_table


@click.command("query")
@click.argument("sql")
@click.option("--format", "output_format", default="PrettyCompact", show_default=True, help="Any of ClickHouse's.")
@click.option("--clickhouse", metavar="URL", help="ClickHouse; else HEADRACE_CLICKHOUSE, else the stack on --data.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA).")
def command(sql: str, output_format: str, clickhouse: str | None, data: str | None) -> None:
    """Ask ClickHouse, as its reader: no statement changes anything. `headrace tables` shows what there is.

    \b
      headrace query 'SELECT reason, count() FROM rejected FINAL GROUP BY reason'
      headrace query 'SELECT * FROM steps' --format JSONEachRow | jq .metrics.loss
    """
    if not sql.strip():
        raise click.UsageError("SQL is empty: ask something, as 'SELECT count() FROM events'.")
    if named := re.search(r"\bFORMAT\s+(\w+)\s*;?\s*$", sql, re.IGNORECASE):
        raise click.UsageError(f"Leave FORMAT out of the SQL and say --format {named[1]}.")
    from clickhouse_connect.driver.exceptions import ClickHouseError

    from headrace.deploy.configuration.settings import load_settings
    from headrace.deploy.errors import StackError
    from headrace.deploy.stack.state import address_of
    from headrace.streams.clickhouse.database import open_client

    settings = load_settings(data=data)
    address = address_of("clickhouse", clickhouse, data)
    # The embedded ClickHouse's password goes to no other: an address that was given is another's unless it is told.
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
    tell_table(answer.decode(errors="replace"))
