"""``headrace tail``: print the records of a topic as readable lines."""

from typing import TYPE_CHECKING

import click

from headrace.deploy.terminal import print_json

if TYPE_CHECKING:
    from headrace.deploy.tail.line import Line

_COLOURS = {"time": "bright_black", "position": "bright_black", "type": "cyan", "subject": "blue"}


@click.command("tail")
@click.argument("topic")
@click.option(
    "--from",
    "start",
    metavar="START",
    help="Start: beginning, now, -N, 15m (ago) or a time. Default: -10; with a filter: beginning.",
)
@click.option("--follow", "-f", is_flag=True, help="Keep printing new records until Ctrl-C.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only this type: tool.called. Repeatable.")
@click.option("--trajectory", metavar="ID", help="Only this trajectory; a shortened id as printed will do.")
@click.option("--run", metavar="NAME", help="Only this training run.")
@click.option("--agent", metavar="NAME", help="Only this agent.")
@click.option(
    "--where", multiple=True, metavar="FIELD=VALUE", help="Only records with total>0.5, started.agent=x … Repeatable."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@click.option("--full", is_flag=True, help="Do not shorten ids.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line: position, envelope, payload as data.")
@click.option("--arrays", is_flag=True, help="With --json: decode token arrays to numbers.")
@click.option("--raw", is_flag=True, help="The unchanged bytes of the values, one value per line.")
@click.option("--kafka", metavar="HOST:PORT", help="Broker; else HEADRACE_KAFKA, else the stack on --data.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA).")
def command(
    topic: str,
    start: str | None,
    follow: bool,
    types: tuple[str, ...],
    trajectory: str | None,
    run: str | None,
    agent: str | None,
    where: tuple[str, ...],
    limit: int | None,
    full: bool,
    as_json: bool,
    arrays: bool,
    raw: bool,
    kafka: str | None,
    data: str | None,
) -> None:
    """Print the records of TOPIC as readable lines, with filters.

    A line: time (UTC), partition:offset, type, subject, content. Records that cannot be read are marked. Only
    committed records are read. Of a trajectory's events only the first names run and agent, so --run and --agent show
    events of trajectories whose first event is in the range that is read.

    \b
      headrace tail rewards                                  the last ten
      headrace tail events -f --from now --agent search      new events as they arrive
      headrace tail rejected --where reason=stale --from 2h
      headrace tail trajectories --trajectory 01a1fdd9…111111 --json --arrays | jq .data.segments
    """
    import contextlib
    import time
    from contextlib import aclosing

    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.deploy.stack.state import address_of
    from headrace.deploy.tail.fields import check_filters, models_of
    from headrace.deploy.tail.filters import Condition, Filters
    from headrace.deploy.tail.line import as_json as as_object
    from headrace.deploy.tail.line import line
    from headrace.deploy.tail.reading import read
    from headrace.deploy.tail.record import decode_record
    from headrace.deploy.tail.start import parse_start

    if sum((as_json, raw)) > 1 or (arrays and not as_json):
        raise click.UsageError("Use either --json or --raw; --arrays needs --json.")
    try:
        conditions = tuple(Condition.parse(each) for each in where)
        filters = Filters(types, trajectory, run, agent, conditions)
        check_filters(filters, topic, models_of(topic))
        position = parse_start(start or ("beginning" if filters.are_set else "-10"), time.time_ns() // 1_000_000)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    bootstrap = address_of("kafka", kafka, data)

    async def show() -> None:
        shown = 0
        async with aclosing(read(bootstrap, topic, position, follow=follow)) as batches:
            async for batch in batches:
                for kafka_record in batch:
                    record = decode_record(kafka_record)
                    if not filters.keep(record):
                        continue
                    if raw:
                        click.echo(kafka_record.value or b"")
                    elif as_json:
                        print_json(as_object(record, arrays=arrays))
                    else:
                        click.echo(coloured(line(record, full=full)))
                    shown += 1
                    if shown == limit:
                        return

    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends --follow.
        run_with_kafka(bootstrap, show)


def coloured(line: "Line") -> str:
    """Returns ``line`` in coloured columns; click removes the colours if the output is not a terminal."""
    columns = {
        "time": line.time,
        "position": f"{line.position:<8}",
        "type": f"{line.type:<20}",
        "subject": line.subject,
    }
    styled = [click.style(text, fg=_COLOURS[name]) for name, text in columns.items()]
    return "  ".join([*styled, click.style(line.text, fg="red") if line.unreadable else line.text])
