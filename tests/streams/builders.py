"""Small builders: a session in one line, as records that look like Kafka's.

``session("s1", "ask", "tool", "answer")`` is a trajectory that samples, calls a tool, samples again and ends:
started, model.called, tool.called, tool.returned, model.called, trajectory.ended. Token IDs increase through a
session, so every array is distinct.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from headrace.schemas.envelope import Envelope
from headrace.schemas.events import (
    ClockTicked,
    ContextPruned,
    ContextSummarized,
    ModelCalled,
    Sampling,
    ToolCalled,
    ToolReturned,
    TrajectoryEnded,
    TrajectoryStarted,
    VersionSpan,
)
from headrace.schemas.ids import derived_id
from headrace.schemas.model import Record
from headrace.schemas.tokens import prefix_hash
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import encode
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.raw import StoredRecord

T0 = 1_700_000_000_000
"""Time of the first event of everything built here, Unix milliseconds."""


def started(**fields: Any) -> TrajectoryStarted:
    """A start, in a group of two."""
    return TrajectoryStarted(**({"task_id": "task", "group_id": "g", "group_size": 2, "agent": "test"} | fields))


PLAIN_SAMPLING = Sampling(temperature=1.0)
"""What can be trained as it is."""


def called(
    context: Sequence[int] | None, sampled: Sequence[int] | None, *, after: Sequence[int] = (), **fields: Any
) -> ModelCalled:
    """A model call: ``context`` after the exact prefix ``after``; by default log-probs −0.5, version 1, T = 1."""
    known: dict[str, Any] = {"model": "m", "context_ids": context, "sampled_ids": sampled, "sampling": PLAIN_SAMPLING}
    if after:
        known |= {"prefix_length": len(after), "prefix_sha256": prefix_hash(array("i", after))}
    if sampled:
        known["logprobs"] = [-0.5] * len(sampled)
        known["version_spans"] = [VersionSpan(version=1, start=0, end=len(sampled))]
    return ModelCalled(**(known | fields))


def facts(*steps: str, outcome: float | None = 1.0, start: dict[str, Any] | None = None) -> list[Record]:
    """The facts of a session: ``ask`` and ``answer`` sample, ``tool`` calls, ``prune`` and ``summarize`` rewrite, and
    ``back`` returns to the end of the first call.
    """
    out: list[Record] = [started(**(start or {}))]
    tokens: list[int] = []
    first: list[int] = []
    for number, step in enumerate(steps):
        fresh = [100 * number + 1, 100 * number + 2]
        match step:
            case "ask" | "answer":
                sampled = [100 * number + 50, 100 * number + 51, 100 * number + 52]
                out.append(called(fresh, sampled, after=tokens))
                tokens = tokens + fresh + sampled
                first = first or tokens
            case "back":
                tokens = first
            case "tool":
                call_id = f"c{number}"
                out.append(ToolCalled(call_id=call_id, tool="search", arguments={"query": call_id}))
                out.append(ToolReturned(call_id=call_id, tool="search", result={"text": "found"}, latency_s=0.5))
            case "prune":
                out.append(ContextPruned(pruned_ids=[f"p{number}"], tokens_before=len(tokens), tokens_after=0))
                tokens = []
            case "summarize":
                out.append(ContextSummarized(summary="so far", tokens_before=len(tokens), tokens_after=0))
                tokens = []
            case _:
                raise ValueError(f"no step {step!r}")
    out.append(TrajectoryEnded(outcome=outcome, answer="done"))
    return out


def event(
    trajectory_id: str,
    sequence: int,
    fact: Record,
    *,
    time_ms: int = T0,
    offset: int = 0,
    partition: int = 0,
    value: bytes | None = None,
) -> StoredRecord:
    """One fact as a record of ``events``; ``value`` replaces its payload's bytes."""
    envelope = Envelope(
        id=derived_id("test", trajectory_id, sequence),
        type=fact.TYPE,
        source="/test",
        time_ms=time_ms,
        subject=trajectory_id,
        sequence=sequence,
    )
    message = encode(fact, key=trajectory_id, envelope=envelope)
    payload = message.value if value is None else value
    return StoredRecord(EVENTS.name, partition, offset, time_ms, message.key, payload, message.headers)


def session(
    trajectory_id: str,
    *steps: str,
    time_ms: int = T0,
    outcome: float | None = 1.0,
    start: dict[str, Any] | None = None,
    first: int = 0,
    partition: int = 0,
) -> list[StoredRecord]:
    """The records of a session, 10 ms apart, at offsets from ``first``."""
    built = facts(*steps, outcome=outcome, start=start)
    return [
        event(trajectory_id, number, fact, time_ms=time_ms + 10 * number, offset=first + number, partition=partition)
        for number, fact in enumerate(built)
    ]


def tick(time_ms: int, offset: int = 0) -> StoredRecord:
    """A ``clock.ticked``."""
    return event("clock", 0, ClockTicked(unix_ms=time_ms), time_ms=time_ms, offset=offset)


def without(record: StoredRecord, *names: str) -> StoredRecord:
    """``record`` without some headers."""
    return replace(record, headers=[header for header in record.headers if header[0] not in names])


def ticks(since_ms: int, until_ms: int, limits: FoldLimits | None = None) -> list[StoredRecord]:
    """Silence with the assembler's ticks: everything that is overdue at ``until_ms`` times out."""
    return [tick(time_ms) for time_ms in (limits or FoldLimits()).tick_times(since_ms, until_ms)]


def with_header(record: StoredRecord, name: str, value: bytes | None) -> StoredRecord:
    """``record`` with a header set."""
    kept = [header for header in record.headers if header[0] != name]
    return replace(record, headers=[*kept, (name, value)])


def log(records: Iterable[StoredRecord], first: int = 0) -> list[StoredRecord]:
    """``records`` as stored in a partition: offsets in order from ``first``."""
    return [replace(record, offset=first + number) for number, record in enumerate(records)]
