"""``headrace diff``: what a replay would have changed."""

from pathlib import Path

import click

from headrace.deploy.picture_file import check_picture
from headrace.deploy.terminal import print_json, print_line, print_lines


@click.command("diff")
@click.argument("name")
@click.option(
    "--against", metavar="OTHER", default="live", show_default=True, help="What to compare with: a replay, or live."
)
@click.option("--run", metavar="NAME", help="Only trajectories of this training run.")
@click.option("--by", type=click.Choice(("task", "agent", "version")), help="Add a breakdown by this key.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw it to FILE.svg, .png or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--kafka", metavar="HOST:PORT", help="Broker; else HEADRACE_KAFKA, else the stack on --data.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA).")
def command(
    name: str,
    against: str,
    run: str | None,
    by: str | None,
    picture: Path | None,
    as_json: bool,
    kafka: str | None,
    data: str | None,
) -> None:
    """Show what the replay NAME would have changed.

    Compared are rewards, signs of advantages, and which groups pass the filter, for the trajectories that are on both
    sides. Fates are those that grouping decided: trained, or rejected for a reason; later rejections by the trainer
    (for staleness, for example) are ignored. Uses about 800 bytes of memory per trajectory.
    """
    from dataclasses import asdict

    from headrace.deploy.diff.table import breakdown, table
    from headrace.deploy.errors import StackError
    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.deploy.stack.state import address_of
    from headrace.streams.diff.diff import as_json as json_of
    from headrace.streams.diff.diff import diff, only_run, rows
    from headrace.streams.diff.read import read_sides
    from headrace.streams.diff.side import DiffSide

    if picture is not None:
        check_picture(picture)
    bootstrap = address_of("kafka", kafka, data)

    async def read() -> tuple[DiffSide, DiffSide]:
        return await read_sides(bootstrap, name, against)

    try:
        before, after = run_with_kafka(bootstrap, read)
    except (LookupError, ValueError) as error:
        raise StackError(f"{error}.") from error
    if run is not None:
        before, after = only_run(before, run), only_run(after, run)
    found = diff(before, after)
    parts = rows(before, after, by) if by else []
    if as_json:
        print_json(json_of(found) | {"by": [asdict(row) for row in parts]}, indent=1)
    else:
        print_lines(table(found) + (["", *breakdown(by, parts)] if by else []))
    if picture is not None:
        try:
            from headrace.deploy.diff.picture import draw

            draw(found, picture)
        except ModuleNotFoundError as error:
            raise StackError(f"--picture needs {error.name}: install headrace[local].") from error
        print_line(f"drawn: {picture}", err=True)
