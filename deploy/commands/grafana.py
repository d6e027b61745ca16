"""``headrace grafana``: the dashboard's panels and alert rules as files for Grafana."""

from pathlib import Path

import click

from headrace.deploy.terminal import print_lines


@click.command("grafana")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder; files of that name are replaced.",
)
@click.option(
    "--dashboards-path", metavar="PATH", help="Where Grafana finds OUT/dashboards.  [default: OUT/dashboards]"
)
def command(out: Path, dashboards_path: str | None) -> None:
    """Write dashboards, a data source and alert rules for Grafana and its official ClickHouse plugin (version 4).

    They show what the pages of `headrace up` show, from the same queries. Grafana reads ClickHouse's address from its
    environment: HEADRACE_CLICKHOUSE_HOST, _PORT, _DATABASE, _USER and _PASSWORD. Give it an account that only reads.

    \b
      headrace grafana --out grafana
      GF_PATHS_PROVISIONING=$PWD/grafana/provisioning grafana server …

    Every query runs in the tests, after the plugin's macros; none of the files has been loaded by a running Grafana.
    """
    from headrace.deploy.grafana.files import files

    written = files(dashboards_path or str(out.resolve() / "dashboards"))
    for path, content in written.items():
        file = out / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    print_lines([f"{out / path}" for path in written])
