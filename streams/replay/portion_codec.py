"""Encodes a portion for the pipe between two processes: MessagePack, which cannot carry code.

    [partition, records, begin_ms, end_ms, [[time_ms, topic, key, value, headers], …], counts, is_last]

A trajectory that is left out is an item without a topic.
"""

from collections import Counter
from typing import TypeAlias

import msgspec

from headrace.schemas.topics import TOPICS
from headrace.schemas.wire import Message
from headrace.streams.raw import Outgoing
from headrace.streams.replay.trajectories import Folded, LeftOut, Portion


class _Item(msgspec.Struct, array_like=True, gc=False):
    time_ms: int
    topic: str = ""
    key: bytes = b""
    value: bytes = b""
    headers: list[tuple[str, bytes]] = []


class _Portion(msgspec.Struct, tag="portion", array_like=True, gc=False):
    partition: int
    records: int
    begin_ms: int | None
    end_ms: int
    items: list[_Item]
    counts: dict[str, int]
    is_last: bool


class Failure(msgspec.Struct, tag="failure", array_like=True, gc=False):
    """The error that ended a process."""

    message: str
    """A sentence."""
    refused: bool = False
    """Whether the replay was refused, and the message tells the user what to change."""


_Frame: TypeAlias = _Portion | Failure
_DECODER = msgspec.msgpack.Decoder(_Frame)
_TOPICS = {topic.name: topic for topic in TOPICS}


def to_bytes(frame: Portion | Failure) -> bytes:
    """Encode ``frame``."""
    if isinstance(frame, Failure):
        return msgspec.msgpack.encode(frame)
    return msgspec.msgpack.encode(
        _Portion(
            frame.partition,
            frame.records,
            frame.begin_ms,
            frame.end_ms,
            [_encoded(item) for item in frame.items],
            frame.counts,
            frame.is_last,
        )
    )


def from_bytes(data: bytes) -> Portion | Failure:
    """Decode a frame; raises ``msgspec.DecodeError`` if ``data`` is not one."""
    frame = _DECODER.decode(data)
    if isinstance(frame, Failure):
        return frame
    return Portion(
        frame.partition,
        frame.records,
        frame.begin_ms,
        frame.end_ms,
        [_decoded(item) for item in frame.items],
        Counter(frame.counts),
        frame.is_last,
    )


def _encoded(item: Folded) -> _Item:
    if isinstance(item, LeftOut):
        return _Item(item.closed_ms)
    message = item.message
    return _Item(item.timestamp_ms, item.topic.name, message.key, message.value, message.headers)


def _decoded(item: _Item) -> Folded:
    if not item.topic:
        return LeftOut(item.time_ms)
    return Outgoing(_TOPICS[item.topic], Message(item.key, item.value, item.headers), item.time_ms)
