"""``headrace dead-letters``: what could not be read; repaired, and sent again."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from headrace.deploy.terminal import tell, tell_json, tell_lines

if TYPE_CHECKING:
    from headrace.schemas.records.dead_letter import DeadLetter
    from headrace.schemas.records.reference import Reference
    from headrace.streams.letters.letter_box import Letter

_BROKER = (
    click.option("--kafka", metavar="HOST:PORT", help="Broker; else HEADRACE_KAFKA, else the stack on --data."),
    click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA)."),
)
_FILTERS = (
    click.option("--error", metavar="E", help="With this error: bad_json, unknown_type, late …"),
    click.option("--topic", metavar="T", help="Of this topic."),
    click.option("--trajectory", metavar="ID", help="Of this trajectory; a shortened id will do."),
)


def _with(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return add


@click.group("dead-letters")
def command() -> None:
    """List what could not be read, repair it and send it again.

    A dead letter is named by its place in the topic dead-letters, PARTITION:OFFSET. It never changes: repairs, and that
    it was sent again, are records beside it.

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
@click.option("--full", is_flag=True, help="Ids whole.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, original bytes in base64.")
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
    """One a line: name, time, where it stood, error, trajectory and event, what was done about it."""

    from headrace.deploy.dead_letters.page import as_json as as_object
    from headrace.deploy.dead_letters.page import row

    letters = _read(_address(kafka, data), _wanted(error, topic, trajectory))
    shown = [letter for letter in letters if not (only_open and letter.redriven)]
    for letter in shown:
        tell_json(as_object(letter)) if as_json else tell(row(letter, full=full))
    if not as_json:
        tell(f"{len(shown)} dead letter{'' if len(shown) == 1 else 's'}", err=True)


@command.command("show")
@click.argument("name", metavar="PARTITION:OFFSET")
@click.option("--full", is_flag=True, help="Every byte, not only their beginning.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, original bytes in base64.")
@_with(*_BROKER)
def show(name: str, full: bool, as_json: bool, kafka: str | None, data: str | None) -> None:
    """One letter: headers, value, where the error is, what was done about it, whether today's code can read it."""

    from headrace.deploy.dead_letters.page import as_json as as_object
    from headrace.deploy.dead_letters.page import page

    (letter,) = _named(_address(kafka, data), [name])
    tell_json(as_object(letter), indent=1) if as_json else tell_lines(page(letter, full=full))


@command.command("repair")
@click.argument("name", metavar="PARTITION:OFFSET")
@click.option("--value", type=click.File("rb"), metavar="FILE", help="The whole value; - is standard input.")
@click.option("--set", "fields", multiple=True, metavar="FIELD=VALUE", help="A field of the value; VALUE as JSON.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header: ce_type, ce_sequence …")
@click.option("--dry-run", is_flag=True, help="Check only; keep nothing.")
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
    """Say what should have stood there. Nothing is sent yet: `redrive` does that.

    The repair is kept only where today's code can read it. A later repair starts from an earlier one.
    """
    import time

    from headrace.deploy.errors import StackError
    from headrace.deploy.kafka.ask import ask_kafka
    from headrace.schemas.wire import UnreadableRecord
    from headrace.streams.letters.redriver import append
    from headrace.streams.letters.repair import CannotRepair, edited, readable, repair_message

    if value is None and not fields and not headers:
        raise click.UsageError("Say what changes: --value FILE, --set FIELD=VALUE or --header NAME=VALUE.")
    changes = [_pairs(fields), _pairs(headers)]
    bootstrap = _address(kafka, data)
    (letter,) = _named(bootstrap, [name])
    try:
        content = edited(
            letter.content, value=None if value is None else value.read(), fields=changes[0], headers=changes[1]
        )
        envelope, _ = readable(letter.dead.topic, content)
    except CannotRepair as error:
        raise StackError(f"{letter.name}: {error}.") from error
    except UnreadableRecord as error:
        raise StackError(
            f"{letter.name} would still be unreadable, {error.error}: {error}. Nothing was kept."
        ) from error
    if content == letter.content:
        tell(f"{letter.name} is as it was: nothing to keep.")
        return
    if not dry_run:
        message = repair_message(letter.dead, content, time.time_ns() // 1_000_000)
        ask_kafka(bootstrap, lambda: append(bootstrap, message))
    kept = "could be repaired" if dry_run else "repaired"
    tell(f"{letter.name} {kept}: {envelope.type} of {envelope.subject}. `redrive {letter.name}` sends it.")


@command.command("redrive")
@click.argument("names", nargs=-1, metavar="[PARTITION:OFFSET]...")
@_with(*_FILTERS)
@click.option("--all", "everything", is_flag=True, help="All that were not sent again.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent; send nothing.")
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
    """Send letters again, repaired or as they are: those named, those that match, or all. Twice changes nothing.

    What today's code cannot read is not sent. A record of a derived topic is sent as it is, and so is an event whose
    trajectory is still open: it takes its place.

    The event of a closed trajectory would only be late. Its whole trajectory is sent again under a new id, all events
    in their places, each with the header headrace_redrive_of; the old one keeps its fate. The new one counts as one
    more that was started. It comes late for its group, so it is scored and mostly not trained.

    Exit status 1 where a letter could not be sent.
    """
    import sys
    import time

    from aiokafka.errors import ProducerFenced

    from headrace.deploy.dead_letters.page import outcome
    from headrace.deploy.errors import StackError
    from headrace.deploy.kafka.ask import ask_kafka
    from headrace.schemas.wire import UnreadableRecord
    from headrace.streams.letters.letter_box import TooManyLetters
    from headrace.streams.letters.redrive import Redrive
    from headrace.streams.letters.redriver import plan_redrive, send_again

    filtered = any((error, topic, trajectory))
    if bool(names) + filtered + everything != 1:
        raise click.UsageError("Say which: PARTITION:OFFSET …, or --error, --topic, --trajectory, or --all.")
    bootstrap = _address(kafka, data)
    if names:
        letters = _named(bootstrap, list(names))
    else:
        letters = [letter for letter in _read(bootstrap, _wanted(error, topic, trajectory)) if not letter.redriven]
    try:
        plans = ask_kafka(bootstrap, lambda: plan_redrive(bootstrap, letters))
    except (LookupError, TooManyLetters, UnreadableRecord) as problem:
        raise StackError(f"What these letters belong to cannot be read: {problem}. Nothing was sent.") from problem
    redrives = [plan for plan in plans if isinstance(plan, Redrive)]
    if redrives and not dry_run:
        try:
            now_ms = time.time_ns() // 1_000_000
            ask_kafka(bootstrap, lambda: send_again(bootstrap, redrives, now_ms), passing=(ProducerFenced,))
        except ProducerFenced as fenced:
            raise StackError(
                "Another redrive began and this one gave way: run it again, nothing is sent twice."
            ) from fenced
    for plan in plans:
        tell(outcome(plan, dry_run=dry_run))
    tell(f"{sum(len(each.letters) for each in redrives)} of {len(letters)} dead letters", err=True)
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


def _read(bootstrap: str, wanted: "Callable[[DeadLetter, Reference], bool]") -> "list[Letter]":

    from headrace.deploy.errors import StackError
    from headrace.deploy.kafka.ask import ask_kafka
    from headrace.streams.letters.letter_box import TooManyLetters
    from headrace.streams.letters.redriver import read_letters

    try:
        box = ask_kafka(bootstrap, lambda: read_letters(bootstrap, wanted))
    except (LookupError, TooManyLetters) as error:
        raise StackError(f"{error} (--error, --topic, --trajectory).") from error
    if box.unreadable:
        tell(f"{box.unreadable} records of dead-letters cannot be read themselves", err=True)
    return box.letters


def _named(bootstrap: str, names: list[str]) -> "list[Letter]":
    """The letters called so, in that order."""
    from headrace.deploy.errors import StackError

    letters = _read(bootstrap, lambda dead, place: f"{place.partition}:{place.offset}" in names)
    found = {f"{place.partition}:{place.offset}": letter for letter in letters for place in letter.places}
    for name in names:
        if name not in found:
            raise StackError(f"There is no dead letter {name!r}: `headrace dead-letters list` names them, as in 0:17.")
    return list({found[name].name: found[name] for name in names}.values())


def _pairs(texts: tuple[str, ...]) -> list[tuple[str, str]]:
    pairs = [text.partition("=") for text in texts]
    for name, sign, _ in pairs:
        if not name or not sign:
            raise click.UsageError(f"{name!r} is not NAME=VALUE.")
    return [(name, value) for name, _, value in pairs]
