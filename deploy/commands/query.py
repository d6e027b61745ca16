"""``headrace query``: query ClickHouse."""

import re
import sys

import click

from headrace.deploy.terminal import print_table

_MAX_SQL = 1_000_000
"""Longest SQL from standard input, in characters."""
_BINARY = re.compile(
    r"parquet|arrow|arrowstream|orc|avro|native|rowbinary\w*|msgpack|protobuf\w*|bsoneachrow|capnproto|npy|rawblob|buffers",
    re.IGNORECASE,
)
"""Formats of ClickHouse that are not text."""


@click.command("query")
@click.argument("sql")
@click.option("--format", "output_format", default="PrettyCompact", show_default=True, help="A ClickHouse format.")
@click.option("--clickhouse", metavar="URL", help="ClickHouse; else HEADRACE_CLICKHOUSE, else the stack on --data.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA).")
def command(sql: str, output_format: str, clickhouse: str | None, data: str | None) -> None:
    """Query ClickHouse as its read-only user. `headrace tables` lists tables and columns.

    SQL `-` is read from standard input, so that the shell leaves its quotes alone.

    \b
      headrace query 'SELECT reason, count() FROM rejected FINAL GROUP BY reason'
      headrace query - < question.sql
      headrace query 'SELECT * FROM steps' --format JSONEachRow | jq .metrics.loss
      headrace query 'SELECT * FROM trajectory_facts' --format Parquet > facts.parquet    for pandas, DuckDB …
    """
    if sql == "-":
        sql = sys.stdin.read(_MAX_SQL + 1)
        if len(sql) > _MAX_SQL:
            raise click.UsageError(f"SQL from standard input may have at most {_MAX_SQL:,} characters.")
    if not sql.strip():
        raise click.UsageError("SQL is empty: give a query, for example 'SELECT count() FROM events'.")
    if named := re.search(r"\bFORMAT\s+(\w+)\s*;?\s*$", sql, re.IGNORECASE):
        raise click.UsageError(f"Leave FORMAT out of the SQL and use --format {named[1]}.")
    is_binary = _BINARY.fullmatch(output_format) is not None
    if is_binary and sys.stdout.isatty():
        raise click.UsageError(f"{output_format} is not text: write it to a file (> FILE).")
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
    if is_binary:
        click.echo(answer, nl=False)
    else:
        print_table(answer.decode(errors="replace"))
