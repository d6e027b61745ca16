"""Plans repairs: one edit of one or many dead letters, each of which must be readable after it. Pure.

0:17  a tool call without "arguments"   --set arguments={}   →   repaired
0:18  a tool call that is no JSON       --set arguments={}   →   not repaired, and why
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from headrace.schemas.envelope import ID, SEQUENCE, Envelope
from headrace.schemas.wire import Message, UnreadableRecord
from headrace.streams.dead_letters.queue import DeadLetterEntry
from headrace.streams.dead_letters.repair import CannotRepair, Content, edited, readable, repair_message


@dataclass(frozen=True, slots=True)
class Edit:
    """What a repair changes, as :func:`edited` takes it."""

    value: bytes | None = None
    """The new value; ``None`` keeps the old one."""
    through: Callable[[bytes], bytes] | None = None
    """Makes the new value of the old one; it may raise :class:`CannotRepair`."""
    fields: tuple[tuple[str, str], ...] = ()
    """Fields of the value with their new values."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers with their new values."""

    @property
    def of_one_record(self) -> str | None:
        """What of the edit would make several records the same one; ``None`` if nothing."""
        if self.value is not None:
            return "the whole value"
        return next((f"the header {name}" for name, _ in self.headers if name in (ID, SEQUENCE)), None)


@dataclass(frozen=True, slots=True)
class Repair:
    """A repair that can be saved."""

    entry: DeadLetterEntry
    """The dead letter."""
    content: Content
    """The record after the repair."""
    envelope: Envelope
    """Its envelope."""


@dataclass(frozen=True, slots=True)
class NoRepair:
    """A dead letter that is not repaired, with the reason."""

    entry: DeadLetterEntry
    """The dead letter."""
    why: str
    """The reason."""
    needs_none: bool = False
    """Whether nothing is left to repair."""


RepairPlan: TypeAlias = Repair | NoRepair


def plan_repair(entry: DeadLetterEntry, edit: Edit, *, only_unreadable: bool = False) -> RepairPlan:
    """Returns the repair of ``entry`` by ``edit``, which starts from an earlier repair if there is one.

    ``only_unreadable``: whether a record that can be read already stays as it is. For many records that were chosen by
    a filter: the edit is meant for what is wrong, and what is not wrong keeps its own fields.
    """
    topic = entry.dead_letter.topic
    if only_unreadable and _can_be_read(topic, entry.content):
        return NoRepair(entry, "it can be read already", needs_none=True)
    try:
        value = edit.value if edit.through is None else edit.through(entry.content.value or b"")
        content = edited(entry.content, value=value, fields=edit.fields, headers=edit.headers)
        envelope, _ = readable(topic, content)
    except CannotRepair as error:
        return NoRepair(entry, str(error))
    except KeyError as error:
        return NoRepair(entry, str(error.args[0]))
    except UnreadableRecord as error:
        return NoRepair(entry, f"it would still be unreadable, {error.error}: {error}")
    if content == entry.content:
        return NoRepair(entry, "it would not change", needs_none=True)
    return Repair(entry, content, envelope)


def repair_messages(plans: Iterable[RepairPlan], time_ms: int) -> list[Message]:
    """Returns the records for ``dead-letters`` that save the repairs among ``plans``. Their ids are derived, so saving
    them twice changes nothing."""
    return [repair_message(each.entry.dead_letter, each.content, time_ms) for each in plans if isinstance(each, Repair)]


def _can_be_read(topic: str, content: Content) -> bool:
    try:
        readable(topic, content)
    except (KeyError, UnreadableRecord):
        return False
    return True
