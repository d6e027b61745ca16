"""Where a restart goes on. The state of the assembler is the log; a commit says which part of it.

The committed offset of an ``events`` partition is the first record of the oldest open trajectory. Beside it, in the
commit's metadata:

    {"v": 1, "next": 7104, "log_ms": 1795260264512, "output": 331}

A restart reads ``trajectories`` of the same partition from ``output``: those are the trajectories the fold remembered
as closed. Then it folds ``events`` from the committed offset with log time ``log_ms``. Records of remembered
trajectories fall out as known, so only what was open comes into being again; what is a dead letter before ``next`` was
sent before the crash. The fold forgets no id whose events stand behind the committed offset, so this is exact.
"""

from typing import NamedTuple

import msgspec

from headrace.streams.assembly.fold import Remembered
from headrace.streams.raw import LogRecord


class Checkpoint(msgspec.Struct, frozen=True):
    """What a commit's metadata holds."""

    next: int
    """First input offset whose dead letters were not sent yet."""
    log_ms: int
    """Log time before the record at the committed offset, Unix milliseconds."""
    output: int
    """Offset in the output partition of the oldest remembered trajectory."""
    letters: int = -1
    """Offset behind the last dead letter that was committed; −1 where that is not known."""
    v: int = 1
    """Version of this form."""

    def to_metadata(self) -> str:
        """The text that is committed; some 80 characters, of 4,096 that Kafka takes."""
        return msgspec.json.encode(self).decode()


def checkpoint_of(metadata: str) -> Checkpoint | None:
    """What ``metadata`` says; ``None`` where it is not ours, as after an offset was reset by hand."""
    try:
        checkpoint = msgspec.json.decode(metadata, type=Checkpoint)
    except msgspec.MsgspecError:
        return None
    return checkpoint if checkpoint.v == 1 else None


class _Place(msgspec.Struct):
    partition: int
    offset: int


class _Body(msgspec.Struct):
    """What of a trajectory record is needed; the rest, tokens above all, is skipped unread."""

    trajectory_id: str
    last: _Place
    events: int
    missing: list[int]
    unreadable: list[int] = []


_BODY: msgspec.json.Decoder[_Body] = msgspec.json.Decoder(_Body)


class Emitted(NamedTuple):
    """A trajectory that was written, as the fold remembers it."""

    offset: int
    """Where it stands in the output partition."""
    subject: bytes
    """Its id."""
    remembered: Remembered
    """Which events it had."""


def emitted_of(record: LogRecord) -> Emitted:
    """What the fold remembered of the trajectory in ``record``; raises ``ValueError`` where it holds none."""
    try:
        body = _BODY.decode(record.value or b"")
    except msgspec.MsgspecError as error:
        raise ValueError(f"{record.topic}[{record.partition}]@{record.offset} is no trajectory: {error}") from error
    top = body.events + len(body.missing) + len(body.unreadable) - 1
    remembered = Remembered(top, frozenset(body.missing), body.last.offset)
    return Emitted(record.offset, body.trajectory_id.encode(), remembered)
