"""``clock.ticked``: how stream time goes on in an ``events`` partition that is silent."""

from headrace.schemas.envelope import Envelope
from headrace.schemas.events import ClockTicked
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import encode
from headrace.streams.assembly.trajectory_record import SOURCE
from headrace.streams.raw import Outgoing


def tick(time_ms: int, id: str | None = None) -> Outgoing:
    """``clock.ticked`` at ``time_ms``, Unix milliseconds; ``id``: by default one that follows from the time."""
    fact = ClockTicked(unix_ms=time_ms)
    envelope = Envelope(id=id or f"tick-{time_ms}", type=fact.TYPE, source=SOURCE, time_ms=time_ms, subject="clock")
    return Outgoing(EVENTS, encode(fact, key="clock", envelope=envelope), time_ms)
