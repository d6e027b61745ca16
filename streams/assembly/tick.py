"""``clock.ticked`` records, which advance stream time in a silent ``events`` partition."""

from headrace.schemas.envelope import Envelope
from headrace.schemas.events import ClockTicked
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import encode
from headrace.streams.assembly.trajectory_record import SOURCE
from headrace.streams.raw import Outgoing


def tick(time_ms: int, id: str | None = None) -> Outgoing:
    """Returns a ``clock.ticked`` record at ``time_ms``, Unix milliseconds. The default id is derived from it."""
    fact = ClockTicked(unix_ms=time_ms)
    envelope = Envelope(id=id or f"tick-{time_ms}", type=fact.TYPE, source=SOURCE, time_ms=time_ms, subject="clock")
    return Outgoing(EVENTS, encode(fact, key="clock", envelope=envelope), time_ms)
