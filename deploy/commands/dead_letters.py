"""``headrace dead-letters``: list unreadable records, repair them and send them again."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from headrace.deploy.terminal import CommandGroup, print_json, print_line, print_lines

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
    click.option("--producer", metavar="P", help="Only records that P produced (ce_source); ? for those of nobody."),
)


def _with(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return add


@click.group("dead-letters", cls=CommandGroup)
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
    \b
      headrace dead-letters list --by producer
      headrace dead-letters repair --producer /shop --error invalid --through "jq -c '.arguments |= fromjson'"
      headrace dead-letters repair --producer /shop --error invalid --through "jq -c '.arguments |= fromjson'" --save
      headrace dead-letters redrive --producer /shop --error invalid
    """


@command.command("list")
@_with(*_FILTERS)
@click.option("--open", "only_open", is_flag=True, help="Only those that were not sent again.")
@click.option("--by", type=click.Choice(("producer", "error", "topic")), help="Count them by this key.")
@click.option("--full", is_flag=True, help="Do not shorten ids.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line, original bytes in base64.")
@_with(*_BROKER)
def list_(
    error: str | None,
    topic: str | None,
    trajectory: str | None,
    producer: str | None,
    only_open: bool,
    by: str | None,
    full: bool,
    as_json: bool,
    kafka: str | None,
    data: str | None,
) -> None:
    """List dead letters, one per line.

    A line: name, time, original position, error, producer, trajectory and event, state.
    """

    from headrace.deploy.dead_letters.page import as_json as as_object
    from headrace.deploy.dead_letters.page import counts, row, table_of_counts

    entries = _read(_address(kafka, data), _wanted(error, topic, trajectory, producer))
    shown = [entry for entry in entries if not (only_open and entry.redriven)]
    if by:
        rows = counts(shown, by)
        for count in rows if as_json else ():
            print_json(count)
        print_lines([] if as_json else table_of_counts(rows, by))
        return
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
@click.argument("names", nargs=-1, metavar="[PARTITION:OFFSET]...")
@_with(*_FILTERS)
@click.option("--value", type=click.File("rb"), metavar="FILE", help="Replace the whole value; - is standard input.")
@click.option("--through", metavar="COMMAND", help="Make each value what COMMAND prints for it: \"jq -c '…'\".")
@click.option("--set", "fields", multiple=True, metavar="FIELD=VALUE", help="Set a field of the value; VALUE is JSON.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Set a header: ce_type, ce_sequence …")
@click.option(
    "--save/--dry-run", default=None, help="Save the repairs (default by name), or only print them (default by filter)."
)
@_with(*_BROKER)
def repair(
    names: tuple[str, ...],
    error: str | None,
    topic: str | None,
    trajectory: str | None,
    producer: str | None,
    value: Any,
    through: str | None,
    fields: tuple[str, ...],
    headers: tuple[str, ...],
    save: bool | None,
    kafka: str | None,
    data: str | None,
) -> None:
    """Save repaired versions of dead letters: by name, or of all that match a filter. Nothing is sent: `redrive` does.

    A repair is saved only if the repaired record can be read. Another repair starts from the one before.

    By filter the same change is made to every dead letter that was not sent again and cannot be read as it is. At first
    it is only printed: --save saves it. Those that it does not make readable stay as they are. Repeating it changes
    nothing.

    The exit status is 1 if a dead letter could not be repaired.
    """
    import sys
    import time

    from headrace.deploy.dead_letters.page import repair_outcome
    from headrace.deploy.dead_letters.through import through as running
    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.streams.dead_letters.redriver import append
    from headrace.streams.dead_letters.repair_plan import Edit, NoRepair, plan_repair, repair_messages

    filters = (error, topic, trajectory, producer)
    if bool(names) + any(filters) != 1:
        raise click.UsageError(
            "Specify dead letters by PARTITION:OFFSET …, or by --error, --topic, --trajectory, --producer."
        )
    if value is not None and through:
        raise click.UsageError("--value replaces what --through would change: give one of them.")
    if value is None and not (through or fields or headers):
        raise click.UsageError(
            "Specify what to change: --value FILE, --through COMMAND, --set FIELD=VALUE or --header NAME=VALUE."
        )
    edit = Edit(
        None if value is None else value.read(), running(through) if through else None, _pairs(fields), _pairs(headers)
    )
    if len(names) != 1 and edit.of_one_record:
        raise click.UsageError(f"{edit.of_one_record} is of one record: give it with one PARTITION:OFFSET.")
    bootstrap = _address(kafka, data)
    entries = _named(bootstrap, names) if names else _open(bootstrap, _wanted(*filters))
    plans = [plan_repair(entry, edit, only_unreadable=not names) for entry in entries]
    messages = repair_messages(plans, time.time_ns() // 1_000_000)
    saved = bool(names) if save is None else save
    if saved and messages:
        run_with_kafka(bootstrap, lambda: append(bootstrap, messages))
    for plan in plans:
        print_line(repair_outcome(plan, saved=saved))
    print_line(f"{len(messages)} of {len(entries)} dead letters", err=True)
    if messages:
        after = "`headrace dead-letters redrive` sends them." if saved else "Nothing was saved: --save does that."
        print_line(after, err=True)
    sys.exit(1 if any(isinstance(plan, NoRepair) and not plan.needs_none for plan in plans) else 0)


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
    producer: str | None,
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

    filters = (error, topic, trajectory, producer)
    if bool(names) + any(filters) + everything != 1:
        raise click.UsageError(
            "Specify dead letters by PARTITION:OFFSET …, by --error, --topic, --trajectory, --producer, or --all."
        )
    bootstrap = _address(kafka, data)
    entries = _named(bootstrap, names) if names else _open(bootstrap, _wanted(*filters))
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


def _wanted(
    error: str | None, topic: str | None, trajectory: str | None, producer: str | None
) -> "Callable[[DeadLetter, Reference], bool]":
    from headrace.deploy.dead_letters.page import producer_of
    from headrace.deploy.tail.shortened_ids import is_id
    from headrace.streams.dead_letters.repair import content_of

    def wanted(dead: "DeadLetter", place: "Reference") -> bool:
        return (
            error in (None, dead.error)
            and topic in (None, dead.topic)
            and (trajectory is None or is_id(dead.trajectory_id or "", trajectory))
            and (producer is None or producer == producer_of(content_of(dead)))
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
        raise StackError(f"{error} (--error, --topic, --trajectory, --producer).") from error
    if queue.unreadable:
        print_line(f"{queue.unreadable} records of dead-letters cannot be read.", err=True)
    return queue.entries


def _open(bootstrap: str, wanted: "Callable[[DeadLetter, Reference], bool]") -> "list[DeadLetterEntry]":
    """Returns the dead letters that ``wanted`` accepts and that were not sent again."""
    return [entry for entry in _read(bootstrap, wanted) if not entry.redriven]


def _named(bootstrap: str, names: Sequence[str]) -> "list[DeadLetterEntry]":
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


def _pairs(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    pairs = [text.partition("=") for text in texts]
    for name, sign, _ in pairs:
        if not name or not sign:
            raise click.UsageError(f"{name!r} is not NAME=VALUE.")
    return tuple((name, value) for name, _, value in pairs)
