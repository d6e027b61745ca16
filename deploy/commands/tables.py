"""``headrace tables``: the tables and views in ClickHouse."""

import click

from headrace.deploy.terminal import print_text


@click.command("tables")
@click.argument("name", required=False)
@click.option("--ddl", is_flag=True, help="Print the statements that create them.")
def command(name: str | None, ddl: bool) -> None:
    """Print all ClickHouse tables and views, or NAME, as Markdown: columns, types and meanings."""
    from headrace.deploy.errors import StackError
    from headrace.streams.clickhouse.columns import create_statement, markdown, view_statement
    from headrace.streams.clickhouse.tables import TABLES, VIEWS

    tables = [table for table in TABLES if name in (None, table.name)]
    views = [view for view in VIEWS if name in (None, view.name)]
    if not (tables or views):
        names = ", ".join([*(table.name for table in TABLES), *(view.name for view in VIEWS)])
        raise StackError(f"There is no table {name!r}; the tables and views are {names}.")
    if ddl:
        print_text(";\n\n".join([*map(create_statement, tables), *map(view_statement, views)]) + ";\n")
    else:
        print_text(markdown(tables, views))
