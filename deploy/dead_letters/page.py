"""Formats dead letters as text: one per line, or a single one in full with the position of the error marked.

0:17  2026-11-21 11:24:24.512  events[2]@7104  bad_json  from /agents/shop  01a1fdd9…222222 #3  repaired
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.deploy.tail.line import utc
from headrace.deploy.tail.shortened_ids import shortened
from headrace.schemas.envelope import SOURCE
from headrace.schemas.safe_text import printable
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.dead_letters.queue import DeadLetterEntry
from headrace.streams.dead_letters.redrive import Plan, Redrive
from headrace.streams.dead_letters.repair import Content, content_of, json_error, readable
from headrace.streams.dead_letters.repair_plan import Repair, RepairPlan

MAX_CHARACTERS = 160
"""Most characters of a value that are shown without --full: a value may contain users' texts."""


def state(entry: DeadLetterEntry) -> str:
    """Returns its state: ``repaired``, ``sent again``, both, or nothing."""
    return ", ".join(word for word, holds in (("repaired", entry.repair), ("sent again", entry.redriven)) if holds)


def producer_of(content: Content) -> str:
    """Returns ``ce_source`` of a record; ``?`` without one."""
    source = content.header(SOURCE)
    return printable(source.decode(errors="replace")) if source else "?"


def row(entry: DeadLetterEntry, *, full: bool = False) -> str:
    """Returns ``entry`` as one line."""
    dead = entry.dead_letter
    subject = entry.content.subject or dead.trajectory_id or "?"
    number = entry.content.sequence
    about = printable((subject if full else shortened(subject)) + ("" if number is None else f" #{number}"))
    place = f"{dead.topic}[{dead.partition}]@{dead.offset}"
    producer = f"from {producer_of(entry.content)}"
    columns = (f"{entry.name:<6}", utc(dead.timestamp_ms), f"{place:<18}", f"{dead.error:<12}", producer, about)
    return "  ".join((*columns, state(entry))).rstrip()


def page(entry: DeadLetterEntry, *, full: bool = False) -> list[str]:
    """Returns ``entry`` in full: original position, error and its position, content (``full``: all bytes), state."""
    dead = entry.dead_letter
    lines = [
        f"dead letter  {entry.name}",
        f"original     {dead.topic}[{dead.partition}]@{dead.offset}, written {utc(dead.timestamp_ms)}",
        f"error        {dead.error}: {printable(dead.message)}",
        f"trajectory   {dead.trajectory_id or 'unknown'}",
        *_content(entry.content, full),
    ]
    if entry.repair is not None:
        lines.insert(4, "as repaired:")
    try:
        envelope, _ = readable(dead.topic, entry.content)
        lines.append(f"now          readable, as {envelope.type}")
    except (UnreadableRecord, KeyError) as error:
        lines.append(f"now          unreadable: {printable(str(error.args[0]))}")
    for done in entry.redriven:
        how = (
            f"with all {done.records} events of {done.redrive_of} as {done.trajectory_id}"
            if done.redrive_of
            else "alone"
        )
        lines.append(f"sent again   {how}")
    return lines


def as_json(entry: DeadLetterEntry) -> dict[str, Any]:
    """Returns ``entry`` as JSON data."""
    return {
        "letter": entry.name,
        **entry.dead_letter.model_dump(mode="json"),
        "repair": entry.repair and entry.repair.model_dump(mode="json"),
        "redriven": [done.model_dump(mode="json") for done in entry.redriven],
    }


def counts(entries: Iterable[DeadLetterEntry], by: str) -> list[dict[str, Any]]:
    """Returns how many dead letters there are, and how many of them were not sent again, for each value of ``by``:
    ``producer``, ``error`` or ``topic``; the commonest first."""
    total, open_ = Counter[str](), Counter[str]()
    for entry in entries:
        dead = entry.dead_letter
        key = producer_of(content_of(dead)) if by == "producer" else str(getattr(dead, by))
        total[key] += 1
        open_[key] += not entry.redriven
    ordered = sorted(total.items(), key=lambda each: (-each[1], each[0]))
    return [{by: key, "dead_letters": count, "open": open_[key]} for key, count in ordered]


def table_of_counts(rows: Sequence[dict[str, Any]], by: str) -> list[str]:
    """Returns :func:`counts` as lines of a table."""
    width = max(len(by), *(len(row[by]) for row in rows)) if rows else len(by)
    lines = [f"{by:<{width}}  {'dead letters':>12}  {'open':>6}"]
    return lines + [f"{row[by]:<{width}}  {row['dead_letters']:>12,}  {row['open']:>6,}" for row in rows]


def repair_outcome(plan: RepairPlan, *, saved: bool) -> str:
    """Returns a line about what a repair does, or why there is none."""
    name = plan.entry.name
    if isinstance(plan, Repair):
        event = "" if plan.envelope.sequence is None else f", event {plan.envelope.sequence}"
        done = "repaired" if saved else "could be repaired"
        return f"{name}  {done}: {plan.envelope.type} of {printable(plan.envelope.subject)}{event}"
    return f"{name}  {'needs no repair' if plan.needs_none else 'not repaired'}: {printable(plan.why)}"


def outcome(plan: Plan, *, dry_run: bool = False) -> str:
    """Returns a line about what a plan does, or why it does nothing."""
    if not isinstance(plan, Redrive):
        return f"{plan.entry.name}  not sent: {printable(plan.why)}"
    names = ", ".join(entry.name for entry in plan.entries)
    verb = "would be sent" if dry_run else "sent"
    (first, *_) = plan.done
    if first.redrive_of is None:
        about = (
            f", event {plan.entries[0].content.sequence} of {first.trajectory_id}" if first.topic == "events" else ""
        )
        return f"{names}  {verb} to {first.topic}{about}"
    missing = f"; missing events: {', '.join(map(str, plan.still_missing))}" if plan.still_missing else ""
    return (
        f"{names}  {verb} with all of {first.redrive_of}, {first.records} events, as {first.trajectory_id}, "
        f"a new trajectory{missing}"
    )


def _content(content: Content, full: bool) -> list[str]:
    key = "null" if content.key is None else printable(content.key.decode("utf-8", "replace"))
    lines = [f"key          {key}"]
    for name, value in content.headers:
        shown = "null" if value is None else _text(value, full)
        lines.append(f"header       {printable(name)}: {shown}")
    value = content.value
    if value is None:
        return [*lines, "value        null, or too large for a dead letter: see the original record"]
    problem = json_error(value)
    if problem is None or full:
        lines.append(f"value        {len(value)} bytes: {_text(value, full)}")
    if problem is not None:
        place, why = problem
        before = printable(value[max(0, place - 60) : place].decode("utf-8", "replace"))
        after = printable(value[place : place + 20].decode("utf-8", "replace"))
        lines += [f"value        {len(value)} bytes, not JSON: {why}, byte {place}:"]
        lines += [f"             {before}{after}", f"             {' ' * len(before)}^"]
    return lines


def _text(value: bytes, full: bool) -> str:
    text = printable(value.decode("utf-8", "replace"))
    return text if full or len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}… (--full shows all)"
