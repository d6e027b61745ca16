"""``headrace tail``: print the records of a topic as readable lines."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.terminal import print_json

if TYPE_CHECKING:
    from headrace.deploy.tail.line import Line
    from headrace.deploy.tail.record import DecodedRecord
    from headrace.deploy.transcript.page import Line as TextLine
    from headrace.deploy.transcript.record_text import RecordText

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
@click.option(
    "--text",
    is_flag=True,
    help="Print the text of tokens below each line, at most 40 lines of each call or trajectory.",
)
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="For --text: folder of the model, or its tokenizer.json; default: what each run's trainer published.",
)
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
    text: bool,
    tokenizer: Path | None,
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
      headrace tail trajectories --text -f                   what the model reads and says
      headrace tail training --text --from -1                the newest group's attempts beside one another

    --text is for events, trajectories, rewards, training and rejected; `headrace show ID` prints a trajectory whole.
    """
    import contextlib
    import time
    from contextlib import aclosing

    from headrace.deploy.configuration.settings import load_settings
    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.deploy.stack.state import address_of
    from headrace.deploy.tail.fields import check_filters, models_of
    from headrace.deploy.tail.filters import Condition, Filters
    from headrace.deploy.tail.line import as_json as as_object
    from headrace.deploy.tail.line import line
    from headrace.deploy.tail.reading import read
    from headrace.deploy.tail.record import decode_record
    from headrace.deploy.tail.start import parse_start
    from headrace.deploy.transcript.log_decoders import LogDecoders
    from headrace.deploy.transcript.page import Colouring, plain_texts
    from headrace.deploy.transcript.record_text import RecordText
    from headrace.deploy.transcript.styled import styled
    from headrace.trainer.provenance.log_reader import open_log

    if sum((as_json, raw)) > 1 or (arrays and not as_json):
        raise click.UsageError("Use either --json or --raw; --arrays needs --json.")
    if (text and raw) or (tokenizer is not None and not text):
        raise click.UsageError("Use either --text or --raw; --tokenizer needs --text.")
    if text:
        _check_text(topic)
    try:
        conditions = tuple(Condition.parse(each) for each in where)
        filters = Filters(types, trajectory, run, agent, conditions)
        check_filters(filters, topic, models_of(topic))
        position = parse_start(start or ("beginning" if filters.are_set else "-10"), time.time_ns() // 1_000_000)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    bootstrap = address_of("kafka", kafka, data)

    async def show(texts: "RecordText | None") -> None:
        shown = 0
        async with aclosing(read(bootstrap, topic, position, follow=follow)) as batches:
            async for batch in batches:
                for kafka_record in batch:
                    record = decode_record(kafka_record)
                    if not filters.keep(record):
                        continue
                    said = await _said(texts, record)
                    if raw:
                        click.echo(kafka_record.value or b"")
                    elif as_json:
                        print_json(as_object(record, arrays=arrays) | ({"text": plain_texts(said)} if text else {}))
                    else:
                        click.echo(coloured(line(record, full=full)))
                        for each in said:
                            click.echo(styled(each, Colouring.VERSION))
                    shown += 1
                    if shown == limit:
                        return

    async def show_with_texts() -> None:
        objects = load_settings(data=data).objects
        async with open_log(bootstrap) as log:
            await show(RecordText(log, LogDecoders(log, objects, tokenizer), run))

    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends --follow.
        run_with_kafka(bootstrap, show_with_texts if text else lambda: show(None))


def _check_text(topic: str) -> None:
    """Raise ``UsageError`` for a topic of which no record has a text; a topic of another system is not checked."""
    from headrace.deploy.tail.fields import models_of
    from headrace.deploy.transcript.record_text import WITH_TEXT
    from headrace.schemas.topics import TOPICS

    models = models_of(topic)
    if models and not {*models} & {*WITH_TEXT}:
        names = ", ".join(each.name for each in TOPICS if {*each.models} & {*WITH_TEXT})
        raise click.UsageError(f"Records of {topic} have no tokens and name no trajectory: --text is for {names}.")


async def _said(texts: "RecordText | None", record: "DecodedRecord") -> "list[TextLine]":
    """Returns the lines of text of a record; none without ``texts``, or for a record that cannot be read."""
    if texts is None or record.payload is None:
        return []
    return await texts.of(record.payload)


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
