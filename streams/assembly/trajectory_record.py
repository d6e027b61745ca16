"""Builds the Kafka record of a trajectory's JSON: key, trace, and an id derived from its first event's position."""

from headrace.schemas.envelope import Envelope, Headers, to_headers
from headrace.schemas.ids import NAMESPACE, SEPARATOR, derived_id
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.trace import continued
from headrace.schemas.wire import Message

SOURCE = "/streams/assemble"

_TYPE = Trajectory.TYPE
"""Cached: reading a class attribute of a pydantic model is slow."""

ID_PREFIX = NAMESPACE + f"{_TYPE}{SEPARATOR}".encode()
"""Prefix of the hash input of every trajectory's id."""


def trajectory_record(
    trajectory_id: str, first: Reference, traceparent: str | None, value: bytes, time_ms: int
) -> Message:
    """Returns the record of the trajectory in ``value``, closed at ``time_ms``. It continues its agent's trace."""
    id = derived_id(_TYPE, trajectory_id, first.partition, first.offset)
    headers = _headers(id, trajectory_id, time_ms, continued(traceparent, id))
    return Message(trajectory_id.encode(), value, headers)


def any_headers() -> Headers:
    """Returns template headers: those of any trajectory's record differ only in id, time, subject and trace."""
    return _headers("", "", 0, "")


def _headers(id: str, trajectory_id: str, time_ms: int, traceparent: str | None) -> Headers:
    return to_headers(
        Envelope(
            id=id,
            type=_TYPE,
            source=SOURCE,
            time_ms=max(0, time_ms),
            subject=trajectory_id,
            traceparent=traceparent,
        )
    )
