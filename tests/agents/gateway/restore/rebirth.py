"""Kills the harness's gateway: what was on its log is folded into another one."""

from collections.abc import Iterable, Sequence

from headrace.agents.gateway.note import signed
from headrace.agents.gateway.record import TrajectoryEvent
from headrace.agents.gateway.restore.fold import SOURCES, Latest, Restored, RestoreFold
from headrace.agents.gateway.sealed import Sealer
from headrace.schemas.envelope import Envelope
from headrace.schemas.headers import GATEWAY
from headrace.schemas.wire import Message, encode
from tests.agents.gateway.harness import SECRET, Gateway

SOURCE = SOURCES + "one"
SEALER = Sealer([SECRET])


def record_of(event: TrajectoryEvent, time_ms: int, source: str = SOURCE) -> Message:
    """The record of an event, as the journal writes it."""
    assert event.seq is not None
    name = f"{event.trajectory_id}-{event.seq}"
    envelope = Envelope(name, event.fact.TYPE, source, time_ms, event.trajectory_id, event.seq)
    message = encode(event.fact, key=event.trajectory_id, envelope=envelope)
    if event.note is not None:
        note = signed(event.note, SEALER, event.trajectory_id, event.seq, message.value)
        message.headers.append((GATEWAY, note))
    return message


def records_of(log: Sequence[TrajectoryEvent], source: str = SOURCE) -> list[Message]:
    """A second apart."""
    return [record_of(event, 1_790_000_000_000 + 1_000 * number, source) for number, event in enumerate(log)]


def fold_of(records: Iterable[Message], *, source: str = SOURCE, max_bytes: int = 10**9) -> RestoreFold:
    fold = RestoreFold(SEALER, source=source, max_bytes=max_bytes)
    for record in records:
        fold.add(record.headers, record.value)
    return fold


def reborn(
    gateway: Gateway, log: Sequence[TrajectoryEvent] | None = None, *, source: str = SOURCE, ids: str = "next"
) -> tuple[Gateway, Restored]:
    """A gateway that starts after ``gateway`` was killed, with ``log``, or all of its log, on record; its own log
    begins with that."""
    found = list(gateway.log if log is None else log)
    other = Gateway(gateway.history, gateway.max_bytes, gateway.max_sessions, gateway.now_ms, ids, found)
    return other, fold_of(records_of(found), source=source).restore(other.nodes, other.sessions, Latest.OF_ALL)
