"""``headrace tables``: what ClickHouse holds."""

import click

from headrace.deploy.terminal import tell_page


@click.command("tables")
@click.argument("name", required=False)
@click.option("--ddl", is_flag=True, help="As the statements that create them.")
def command(name: str | None, ddl: bool) -> None:
    """Print the ClickHouse tables, or the table NAME: columns, types and what they hold, as Markdown."""
    from headrace.deploy.errors import StackError
    from headrace.streams.clickhouse.columns import create_statement, markdown
    from headrace.streams.clickhouse.tables import TABLES

    chosen = [table for table in TABLES if name in (None, table.name)]
    if not chosen:
        raise StackError(f"there is no table {name!r}: the tables are {', '.join(table.name for table in TABLES)}")
    if ddl:
        tell_page(";\n\n".join(create_statement(table) for table in chosen) + ";\n")
    else:
        tell_page(markdown(chosen))
