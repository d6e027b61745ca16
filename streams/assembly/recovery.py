"""Where a restart goes on. The state of the assembler is the log; a commit says which part of it.

The committed offset of an ``events`` partition is the first record of the oldest open trajectory. Beside it, in the
commit's metadata:

    {"v": 1, "next": 7104, "log_ms": 1795260264512, "output": 331}

A restart reads ``trajectories`` of the same partition from ``output``: those are the trajectories that the fold
remembered as closed at the committed offset, and all that closed since, each with the input offsets between which it
was open. Then it folds ``events`` from the committed offset with log time ``log_ms``. Records that belong to what was
written fall out; what had closed by a record is remembered, and forgotten, as it was then; so only what was open comes
into being again. What is a dead letter before ``next`` was sent before the crash.
"""

from contextlib import suppress

import msgspec

from headrace.streams.assembly.gaps import count, gaps_of
from headrace.streams.assembly.remembered import Emitted, Remembered
from headrace.streams.raw import LogRecord


class Checkpoint(msgspec.Struct, frozen=True):
    """What a commit's metadata holds."""

    next: int
    """First input offset whose dead letters were not sent yet."""
    log_ms: int
    """Log time before the record at the committed offset, Unix milliseconds."""
    output: int
    """Offset in the output partition of the oldest trajectory that a restart must know."""
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


class _Range(msgspec.Struct):
    start: int
    end: int


class _Tail(msgspec.Struct, kw_only=True):
    """What of a trajectory record is needed beside its id."""

    first: _Place
    last: _Place
    events: int
    missing: list[int]
    missing_ranges: list[_Range] = []
    unreadable: list[int] = []
    closed_offset: int | None = None
    start_id: str | None = None


class _Body(_Tail):
    """With its id; the rest, tokens above all, is skipped unread."""

    trajectory_id: str


_TAIL = b',"missing":['
"""Where the part that is needed begins. Tokens and turns stand before it, and no text holds it: in a text each quote
has a backslash before it, and after the field itself only numbers, labels and ids follow."""

_BODY: msgspec.json.Decoder[_Body] = msgspec.json.Decoder(_Body)
_TAIL_OF_BODY: msgspec.json.Decoder[_Tail] = msgspec.json.Decoder(_Tail)


def emitted_of(record: LogRecord) -> Emitted:
    """What the fold remembered of the trajectory in ``record``; raises ``ValueError`` where it holds none."""
    try:
        body = _body_of(record)
        listed = [(gap.start, gap.end) for gap in body.missing_ranges]
        gaps = gaps_of(listed or [(number, number + 1) for number in body.missing])
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"{record.topic}[{record.partition}]@{record.offset} is no trajectory: {error}") from error
    return Emitted(
        offset=record.offset,
        first=body.first.offset,
        # Older releases did not say it: closed with its last record, as nearly all are.
        closed_offset=body.last.offset + 1 if body.closed_offset is None else body.closed_offset,
        remembered=Remembered(
            subject=body.trajectory_id.encode(),
            top=body.events + count(gaps) + len(body.unreadable) - 1,
            gaps=gaps,
            start_id=None if body.start_id is None else body.start_id.encode(),
        ),
    )


def _body_of(record: LogRecord) -> _Body:
    """What is needed of ``record``: from its key and its end, where it is written as we write it; else from all of it.

    A restart reads thousands of records of 100 KB; all but their last few hundred bytes are of no use to it.
    """
    value = record.value or b""
    begin = value.rfind(_TAIL)
    if begin >= 0 and record.key:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            tail = _TAIL_OF_BODY.decode(b"{" + value[begin + 1 :])
            return _Body(record.key.decode(), **{name: getattr(tail, name) for name in tail.__struct_fields__})
    return _BODY.decode(value)
