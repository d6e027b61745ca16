"""``headrace dead-letters``: list unreadable records, repair them and send them again."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from headrace.deploy.terminal import print_json, print_line, print_lines

if TYPE_CHECKING:
    from headrace.schemas.records.dead_letter import DeadLetter
    from headrace.schemas.records.reference import Reference
    from headrace.streams.dead_letters.queue import DeadLetterEntry

_BROKER = (
    click.option("--kafka", metavar="HOST:PORT", help="Broker; else HEADRACE_KAFKA, else the stack on --data."),
    click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA)."),
)
_FILTERS = (
    click.option("--error", metavar="E", help="Only this error: bad_json, unknown_type, late …"),
    click.option("--topic", metavar="T", help="Only this topic."),
    click.option("--trajectory", metavar="ID", help="Only this trajectory; a shortened id will do."),
)


def _with(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return add


@click.group("dead-letters")
def command() -> None:
    """List records that could not be read (dead letters), repair them and send them again.

    A dead letter is named by its PARTITION:OFFSET in the topic dead-letters. It never changes: its repair, and the note
    that it was sent again, are records of their own in dead-letters.

    \b
      headrace dead-letters list --error bad_json
      headrace dead-letters show 0:17
      headrace dead-letters repair 0:17 --value fixed.json
      headrace dead-letters repair 0:18 --set usage.prompt_tokens=24 --header ce_sequence=3
      headrace dead-letters redrive 0:17 0:18
    """


@command.command("list")
@_with(*_FILTERS)
@click.option("--open", "only_open", is_flag=True, help="Only those that were not sent again.")
@click.option("--full", is_flag=True, help="Do not shorten ids.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line, original bytes in base64.")
@_with(*_BROKER)
def list_(
    error: str | None,
    topic: str | None,
    trajectory: str | None,
    only_open: bool,
    full: bool,
    as_json: bool,
    kafka: str | None,
    data: str | None,
) -> None:
    """List dead letters, one per line.

    A line: name, time, original position, error, producer, trajectory and event, state.
    """

    from headrace.deploy.dead_letters.page import as_json as as_object
    from headrace.deploy.dead_letters.page import row

    entries = _read(_address(kafka, data), _wanted(error, topic, trajectory))
    shown = [entry for entry in entries if not (only_open and entry.redriven)]
    for entry in shown:
        print_json(as_object(entry)) if as_json else print_line(row(entry, full=full))
    if not as_json:
        print_line(f"{len(shown)} dead letter{'' if len(shown) == 1 else 's'}", err=True)


@command.command("show")
@click.argument("name", metavar="PARTITION:OFFSET")
@click.option("--full", is_flag=True, help="Show all bytes, not only the first.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, original bytes in base64.")
@_with(*_BROKER)
def show(name: str, full: bool, as_json: bool, kafka: str | None, data: str | None) -> None:
    """Show one dead letter: headers, value, error, state, and whether it can be read now."""

    from headrace.deploy.dead_letters.page import as_json as as_object
    from headrace.deploy.dead_letters.page import page

    (entry,) = _named(_address(kafka, data), [name])
    print_json(as_object(entry), indent=1) if as_json else print_lines(page(entry, full=full))


@command.command("repair")
@click.argument("name", metavar="PARTITION:OFFSET")
@click.option("--value", type=click.File("rb"), metavar="FILE", help="Replace the whole value; - is standard input.")
@click.option("--set", "fields", multiple=True, metavar="FIELD=VALUE", help="Set a field of the value; VALUE is JSON.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Set a header: ce_type, ce_sequence …")
@click.option("--dry-run", is_flag=True, help="Check the repair without saving it.")
@_with(*_BROKER)
def repair(
    name: str,
    value: Any,
    fields: tuple[str, ...],
    headers: tuple[str, ...],
    dry_run: bool,
    kafka: str | None,
    data: str | None,
) -> None:
    """Save a repaired version of a dead letter. Nothing is sent yet: `redrive` does that.

    The repair is saved only if the repaired record can be read. Another repair starts from the one before.
    """
    import time

    from headrace.deploy.errors import StackError
    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.schemas.wire import UnreadableRecord
    from headrace.streams.dead_letters.redriver import append
    from headrace.streams.dead_letters.repair import CannotRepair, edited, readable, repair_message

    if value is None and not fields and not headers:
        raise click.UsageError("Specify what to change: --value FILE, --set FIELD=VALUE or --header NAME=VALUE.")
    changes = [_pairs(fields), _pairs(headers)]
    bootstrap = _address(kafka, data)
    (entry,) = _named(bootstrap, [name])
    try:
        content = edited(
            entry.content, value=None if value is None else value.read(), fields=changes[0], headers=changes[1]
        )
        envelope, _ = readable(entry.dead_letter.topic, content)
    except CannotRepair as error:
        raise StackError(f"{entry.name}: {error}.") from error
    except UnreadableRecord as error:
        raise StackError(
            f"{entry.name} would still be unreadable, {error.error}: {error}. The repair was not saved."
        ) from error
    if content == entry.content:
        print_line(f"{entry.name} would not change: there is nothing to save.")
        return
    if not dry_run:
        message = repair_message(entry.dead_letter, content, time.time_ns() // 1_000_000)
        run_with_kafka(bootstrap, lambda: append(bootstrap, message))
    kept = "could be repaired" if dry_run else "repaired"
    print_line(f"{entry.name} {kept}: {envelope.type} of {envelope.subject}. `redrive {entry.name}` sends it.")


@command.command("redrive")
@click.argument("names", nargs=-1, metavar="[PARTITION:OFFSET]...")
@_with(*_FILTERS)
@click.option("--all", "everything", is_flag=True, help="All that were not sent again yet.")
@click.option("--dry-run", is_flag=True, help="Print what would be sent; send nothing.")
@_with(*_BROKER)
def redrive(
    names: tuple[str, ...],
    error: str | None,
    topic: str | None,
    trajectory: str | None,
    everything: bool,
    dry_run: bool,
    kafka: str | None,
    data: str | None,
) -> None:
    """Send dead letters again, repaired or unchanged: by name, by filter, or all. Repeating it changes nothing.

    Records that still cannot be read are not sent. A record of a derived topic is sent as it is, and so is an event
    whose trajectory is still open: it takes its place in the sequence.

    The event of a closed trajectory would be late. Therefore its whole trajectory is sent again under a new id: all
    events in order, each with the header headrace_redrive_of. The old trajectory keeps its fate, and the new one counts
    as one more that was started. It is too late for its group, so it is scored but usually not trained.

    The exit status is 1 if a dead letter could not be sent.
    """
    import sys
    import time

    from aiokafka.errors import ProducerFenced

    from headrace.deploy.dead_letters.page import outcome
    from headrace.deploy.errors import StackError
    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.schemas.wire import UnreadableRecord
    from headrace.streams.dead_letters.queue import TooManyDeadLetters
    from headrace.streams.dead_letters.redrive import Redrive
    from headrace.streams.dead_letters.redriver import plan_redrive, send_again

    filtered = any((error, topic, trajectory))
    if bool(names) + filtered + everything != 1:
        raise click.UsageError(
            "Specify dead letters by PARTITION:OFFSET …, by --error, --topic, --trajectory, or --all."
        )
    bootstrap = _address(kafka, data)
    if names:
        entries = _named(bootstrap, list(names))
    else:
        entries = [entry for entry in _read(bootstrap, _wanted(error, topic, trajectory)) if not entry.redriven]
    try:
        plans = run_with_kafka(bootstrap, lambda: plan_redrive(bootstrap, entries))
    except (LookupError, TooManyDeadLetters, UnreadableRecord) as problem:
        raise StackError(
            f"The trajectories of these dead letters cannot be read: {problem}. Nothing was sent."
        ) from problem
    redrives = [plan for plan in plans if isinstance(plan, Redrive)]
    if redrives and not dry_run:
        try:
            now_ms = time.time_ns() // 1_000_000
            run_with_kafka(bootstrap, lambda: send_again(bootstrap, redrives, now_ms), passing=(ProducerFenced,))
        except ProducerFenced as fenced:
            raise StackError(
                "Another redrive started and stopped this one: run it again, nothing is sent twice."
            ) from fenced
    for plan in plans:
        print_line(outcome(plan, dry_run=dry_run))
    print_line(f"{sum(len(each.entries) for each in redrives)} of {len(entries)} dead letters", err=True)
    sys.exit(1 if any(not isinstance(plan, Redrive) and not plan.was_done for plan in plans) else 0)


def _address(kafka: str | None, data: str | None) -> str:
    from headrace.deploy.stack.state import address_of

    return address_of("kafka", kafka, data)


def _wanted(error: str | None, topic: str | None, trajectory: str | None) -> "Callable[[DeadLetter, Reference], bool]":
    from headrace.deploy.tail.line import is_id

    def wanted(dead: "DeadLetter", place: "Reference") -> bool:
        return (
            error in (None, dead.error)
            and topic in (None, dead.topic)
            and (trajectory is None or is_id(dead.trajectory_id or "", trajectory))
        )

    return wanted


def _read(bootstrap: str, wanted: "Callable[[DeadLetter, Reference], bool]") -> "list[DeadLetterEntry]":

    from headrace.deploy.errors import StackError
    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.streams.dead_letters.queue import TooManyDeadLetters
    from headrace.streams.dead_letters.redriver import read_dead_letters

    try:
        queue = run_with_kafka(bootstrap, lambda: read_dead_letters(bootstrap, wanted))
    except (LookupError, TooManyDeadLetters) as error:
        raise StackError(f"{error} (--error, --topic, --trajectory).") from error
    if queue.unreadable:
        print_line(f"{queue.unreadable} records of dead-letters cannot be read.", err=True)
    return queue.entries


def _named(bootstrap: str, names: list[str]) -> "list[DeadLetterEntry]":
    """Returns the dead letters with these names, in this order."""
    from headrace.deploy.errors import StackError

    entries = _read(bootstrap, lambda dead, place: f"{place.partition}:{place.offset}" in names)
    found = {f"{place.partition}:{place.offset}": entry for entry in entries for place in entry.places}
    for name in names:
        if name not in found:
            raise StackError(
                f"There is no dead letter {name!r}: `headrace dead-letters list` prints their names, such as 0:17."
            )
    return list({found[name].name: found[name] for name in names}.values())


def _pairs(texts: tuple[str, ...]) -> list[tuple[str, str]]:
    pairs = [text.partition("=") for text in texts]
    for name, sign, _ in pairs:
        if not name or not sign:
            raise click.UsageError(f"{name!r} is not NAME=VALUE.")
    return [(name, value) for name, _, value in pairs]
