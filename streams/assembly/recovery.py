"""Where a restart resumes. The assembler's state is rebuilt from Kafka; a commit specifies the range to read.

The committed offset of an ``events`` partition is the first record of the oldest open trajectory. The commit's metadata
holds:

    {"next": 7104, "log_ms": 1795260264512, "output": 331, "letters": 12, "topic": "Zk0dPQ2wT8mAlBZc8sJ6jg", "v": 1}

A restart reads ``trajectories`` of the same partition from ``output``: the trajectories that the fold remembered as
closed at the committed offset, and all that closed since, each with the input offsets between which it was open. Then
it folds ``events`` from the committed offset with stream time ``log_ms``. Records of written trajectories are dropped
as duplicates. At each record the fold remembers the same closed trajectories as before the restart, so only open
trajectories are rebuilt. Dead letters of records before ``next`` were sent before the crash and are not sent again.
"""

from contextlib import suppress

import msgspec

from headrace.streams.assembly.gaps import count, gaps_of
from headrace.streams.assembly.remembered import Emitted, Remembered
from headrace.streams.raw import LogRecord


class CommitMetadata(msgspec.Struct, frozen=True):
    """Metadata of a committed offset."""

    next: int
    """First input offset whose dead letters were not sent yet."""
    stream_ms: int = msgspec.field(name="log_ms")
    """Stream time before the record at the committed offset, Unix milliseconds."""
    output: int
    """Offset in the output partition of the oldest trajectory that a restart must know."""
    letters: int = -1
    """Offset after the last committed dead letter; −1 if that is unknown."""
    topic: str = ""
    """Id of the topic that was read; empty if it is unknown."""
    v: int = 1
    """Version of this format."""

    def to_metadata(self) -> str:
        """Returns the text to commit; about 120 characters of the 4,096 that Kafka allows."""
        return msgspec.json.encode(self).decode()


def parse_commit_metadata(metadata: str) -> CommitMetadata | None:
    """Parse ``metadata``; ``None`` if the assembler did not write it, as after a manual offset reset."""
    try:
        checkpoint = msgspec.json.decode(metadata, type=CommitMetadata)
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
    """The fields of a trajectory record that recovery needs, except its id."""

    first: _Place
    last: _Place
    events: int
    missing: list[int]
    missing_ranges: list[_Range] = []
    unreadable: list[int] = []
    closed_offset: int | None = None
    start_id: str | None = None


class _Body(_Tail):
    """As :class:`_Tail`, with its id; other fields, above all the tokens, are skipped without decoding."""

    trajectory_id: str


_TAIL = b',"missing":['
"""Start of the needed part of a trajectory's JSON; tokens and turns precede it. It cannot occur inside a JSON string,
where every quote is escaped, nor after the field itself, where only numbers, labels and ids follow."""

_BODY: msgspec.json.Decoder[_Body] = msgspec.json.Decoder(_Body)
_TAIL_OF_BODY: msgspec.json.Decoder[_Tail] = msgspec.json.Decoder(_Tail)


def emitted_of(record: LogRecord) -> Emitted:
    """Returns what the fold remembered of the trajectory in ``record``. Raises ``ValueError`` if it holds none."""
    try:
        body = _body_of(record)
        listed = [(gap.start, gap.end) for gap in body.missing_ranges]
        gaps = gaps_of(listed or [(number, number + 1) for number in body.missing])
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"{record.topic}[{record.partition}]@{record.offset} is not a trajectory: {error}") from error
    return Emitted(
        offset=record.offset,
        first=body.first.offset,
        # Older releases did not write it. Assume that it closed with its last record, as nearly all do.
        closed_offset=body.last.offset + 1 if body.closed_offset is None else body.closed_offset,
        remembered=Remembered(
            subject=body.trajectory_id.encode(),
            top=body.events + count(gaps) + len(body.unreadable) - 1,
            gaps=gaps,
            start_id=None if body.start_id is None else body.start_id.encode(),
        ),
    )


def _body_of(record: LogRecord) -> _Body:
    """Returns the needed fields of ``record``: from its key and its tail if headrace wrote it, else from all of it.

    A restart reads thousands of records of 100 KB, and needs only their last few hundred bytes.
    """
    value = record.value or b""
    begin = value.rfind(_TAIL)
    if begin >= 0 and record.key:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            tail = _TAIL_OF_BODY.decode(b"{" + value[begin + 1 :])
            return _Body(record.key.decode(), **{name: getattr(tail, name) for name in tail.__struct_fields__})
    return _BODY.decode(value)
