"""A record of ``rewards`` → the reward in it, at a fifth of what envelope and pydantic model cost.

What the struct's reader doubts, or whose headers are not as we write them, the model reads, and its word is final.
Either way the reward has the model's fields.
"""

from typing import NamedTuple

from headrace.schemas.envelope import ID, SEQUENCE, SOURCE, SUBJECT, TIME, TRACEPARENT, TYPE, plain_time
from headrace.schemas.records.reward import Reward
from headrace.streams.raw import LogRecord
from headrace.streams.structs import Doubt, StructReader
from headrace.streams.typed_record import typed

_READER = StructReader(Reward)
_TYPE = Reward.TYPE.encode()


class ReadReward(NamedTuple):
    """A reward as it was read."""

    reward: Reward
    """The reward, or a struct with its fields."""
    traceparent: str | None
    """Trace of its record."""


def read_reward(record: LogRecord) -> ReadReward:
    """The reward in ``record``; raises :class:`UnreadableRecord` saying what is wrong with it."""
    headers = dict(record.headers)
    trace = headers.get(TRACEPARENT)
    plain = (
        headers.get(TYPE) == _TYPE
        and plain_time(headers.get(TIME) or b"") is not None
        and SEQUENCE not in headers
        and all((headers.get(name) or b"\xff").isascii() for name in (ID, SOURCE, SUBJECT))
        and (TRACEPARENT not in headers or (trace or b"\xff").isascii())
    )
    if plain and record.value is not None:
        try:
            return ReadReward(_READER.read(record.value), trace.decode() if trace else None)
        except Doubt:
            pass
    envelope, reward = typed(record, Reward)
    return ReadReward(reward, envelope.traceparent)
