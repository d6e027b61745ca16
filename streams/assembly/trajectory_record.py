"""A trajectory's JSON → its Kafka record: the key, an id that follows from where its first event stands, the trace."""

from headrace.schemas.envelope import Envelope, Headers, to_headers
from headrace.schemas.ids import NAMESPACE, SEPARATOR, derived_id
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.trace import continued
from headrace.schemas.wire import Message

SOURCE = "/streams/assemble"

_TYPE = Trajectory.TYPE
"""A pydantic class is slow to ask for a constant."""

ID_PREFIX = NAMESPACE + f"{_TYPE}{SEPARATOR}".encode()
"""What every trajectory's id is hashed from first."""


def trajectory_record(
    trajectory_id: str, first: Reference, traceparent: str | None, value: bytes, time_ms: int
) -> Message:
    """The record of the trajectory that ``value`` holds, closed at ``time_ms``. It continues the trace of its agent."""
    id = derived_id(_TYPE, trajectory_id, first.partition, first.offset)
    headers = _headers(id, trajectory_id, time_ms, continued(traceparent, id))
    return Message(trajectory_id.encode(), value, headers)


def any_headers() -> Headers:
    """The headers of a trajectory's record; of another, only id, time, subject and trace differ."""
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
