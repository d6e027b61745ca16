"""``headrace tables``: what ClickHouse holds."""

import click

from headrace.deploy.terminal import tell_page


@click.command("tables")
@click.argument("name", required=False)
@click.option("--ddl", is_flag=True, help="As the statements that create them.")
def command(name: str | None, ddl: bool) -> None:
    """Print the ClickHouse tables and views, or NAME: columns, types and what they hold, as Markdown."""
    from headrace.deploy.errors import StackError
    from headrace.streams.clickhouse.columns import create_statement, markdown, view_statement
    from headrace.streams.clickhouse.tables import TABLES, VIEWS

    tables = [table for table in TABLES if name in (None, table.name)]
    views = [view for view in VIEWS if name in (None, view.name)]
    if not (tables or views):
        names = ", ".join([*(table.name for table in TABLES), *(view.name for view in VIEWS)])
        raise StackError(f"there is no table {name!r}: the tables are {names}")
    if ddl:
        tell_page(";\n\n".join([*map(create_statement, tables), *map(view_statement, views)]) + ";\n")
    else:
        tell_page(markdown(tables, views))
