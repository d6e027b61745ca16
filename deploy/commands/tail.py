"""``headrace tail``: a topic, readable."""

from typing import TYPE_CHECKING

import click

from headrace.deploy.terminal import tell_json

if TYPE_CHECKING:
    from headrace.deploy.tail.line import Line

_COLOURS = {"time": "bright_black", "place": "bright_black", "type": "cyan", "subject": "blue"}


@click.command("tail")
@click.argument("topic")
@click.option(
    "--from",
    "start",
    metavar="PLACE",
    help="beginning, now, -N, 15m (ago) or a time. Default: -10; with a filter: beginning.",
)
@click.option("--follow", "-f", is_flag=True, help="Go on as records come, until Ctrl-C.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Of this type: tool.called. May be repeated.")
@click.option("--trajectory", metavar="ID", help="About this trajectory; the shortened id of a line will do.")
@click.option("--run", metavar="NAME", help="Of this training run.")
@click.option("--agent", metavar="NAME", help="Of this agent.")
@click.option("--where", multiple=True, metavar="FIELD=VALUE", help="As in total>0.5 or started.agent=x. Repeatable.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@click.option("--full", is_flag=True, help="Ids whole.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line: place, envelope, payload as data.")
@click.option("--arrays", is_flag=True, help="With --json: token arrays as numbers.")
@click.option("--raw", is_flag=True, help="The values' bytes as they stand in the topic, one a line.")
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
    """Print the records of TOPIC, readable: one a line, with filters.

    A line: time (UTC), partition:offset, type, subject, what it says. What cannot be read is shown as such. Only
    committed records are read. Of events, only a trajectory's start names run and agent; --run and --agent show the
    events of the starts that were seen.

    \b
      headrace tail rewards                                  the last ten
      headrace tail events -f --from now --agent search      as they come
      headrace tail rejected --where reason=stale --from 2h
      headrace tail trajectories --trajectory 01a1fdd9…111111 --json --arrays | jq .data.segments
    """
    import contextlib
    import time
    from contextlib import aclosing

    from headrace.deploy.kafka.ask import ask_kafka
    from headrace.deploy.stack.state import address_of
    from headrace.deploy.tail.fields import check_filters, models_of
    from headrace.deploy.tail.filters import Condition, Filters
    from headrace.deploy.tail.line import as_json as as_object
    from headrace.deploy.tail.line import line
    from headrace.deploy.tail.reading import read
    from headrace.deploy.tail.record import see
    from headrace.deploy.tail.start import parse_start

    if sum((as_json, raw)) > 1 or (arrays and not as_json):
        raise click.UsageError("--json and --raw exclude one another, and --arrays goes with --json.")
    try:
        conditions = tuple(Condition.parse(each) for each in where)
        filters = Filters(types, trajectory, run, agent, conditions)
        check_filters(filters, topic, models_of(topic))
        begin = parse_start(start or ("beginning" if filters.are_set else "-10"), time.time_ns() // 1_000_000)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    bootstrap = address_of("kafka", kafka, data)

    async def show() -> None:
        shown = 0
        async with aclosing(read(bootstrap, topic, begin, follow=follow)) as batches:
            async for batch in batches:
                for record in batch:
                    seen = see(record)
                    if not filters.keep(seen):
                        continue
                    if raw:
                        click.echo(record.value or b"")
                    elif as_json:
                        tell_json(as_object(seen, arrays=arrays))
                    else:
                        click.echo(coloured(line(seen, full=full)))
                    shown += 1
                    if shown == limit:
                        return

    with contextlib.suppress(KeyboardInterrupt):  # how a person ends --follow
        ask_kafka(bootstrap, show)


def coloured(line: "Line") -> str:
    """``line`` in columns; click takes the colours away where the output is no terminal."""
    columns = {"time": line.time, "place": f"{line.place:<8}", "type": f"{line.type:<20}", "subject": line.subject}
    styled = [click.style(text, fg=_COLOURS[name]) for name, text in columns.items()]
    return "  ".join([*styled, click.style(line.text, fg="red") if line.unreadable else line.text])
