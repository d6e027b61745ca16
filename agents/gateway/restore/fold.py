"""Rebuilds the state of a killed gateway from its records: those on the log, and those still on its disk.

    fold = RestoreFold(sealer, source="/agents/gateway/019…", max_bytes=1 << 30)
    fold.add(record.headers, record.value)                       in any order, any number of times
    fold.restore(nodes, sessions, Latest.OF_ALL)

Sampled answers become nodes again, whichever gateway recorded them. An answer whose prefix is not what the answers
before it ended with is left out, so that a record that is missing costs a segment and never a wrong token.

Trajectories continue, with the number after the highest, only if this gateway began them, if their first and their
latest event are known for certain, and if they have not ended. For any other the next request opens a new trajectory.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from headrace.agents.gateway.nodes import Node, NodeStore
from headrace.agents.gateway.restore.events import EVENT_BYTES, Call, Event, Start, read_event
from headrace.agents.gateway.restore.sessions import RestoredSessions
from headrace.agents.gateway.sealed import Sealer
from headrace.agents.gateway.sessions import SessionStore
from headrace.schemas.envelope import SOURCE, EnvelopeError, from_headers
from headrace.schemas.events import TrajectoryEnded
from headrace.schemas.headers import GATEWAY

SOURCES: Final = "/agents/gateway/"
"""How the CloudEvents source of every gateway begins."""


class Latest(Enum):
    """Of which trajectories the latest event is certainly among the records."""

    OF_ALL = auto()
    """Kafka and the disk were read to their ends."""
    OF_SPOOLED = auto()
    """Of those with an event on disk, because a gateway removes events from it in the order in which it wrote them."""
    OF_NONE = auto()
    """What is on disk could not be read."""


@dataclass(slots=True)
class _Records:
    """What is known of a trajectory."""

    is_own: bool
    events: dict[int, Event | None] | None = field(default_factory=dict)
    """By sequence number; ``None`` once they were given up."""
    latest_ms: int = 0
    size: int = 0
    is_ended: bool = False
    is_spooled: bool = False
    """Whether one of them is on disk: so is everything after it."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was rebuilt."""

    nodes: int
    left_out: int
    """Answers whose prefix is not known."""
    sessions: int
    trajectories: int


class RestoreFold:
    """Folds records into what a gateway knew."""

    def __init__(self, sealer: Sealer, *, source: str, max_bytes: int) -> None:
        """``source``: of this gateway's events. ``max_bytes``: memory; the trajectories that have been silent longest
        are given up beyond it."""
        self.events = 0
        """Events of gateways so far, without repeated ones."""
        self.refused = 0
        """Events among them with a note of another secret, or that cannot be read."""
        self._sealer = sealer
        self._source = source
        self._max_bytes = max_bytes
        self._size = 0
        self._trajectories: dict[str, _Records] = {}

    def add(
        self, headers: Iterable[tuple[str, bytes | None]], value: bytes | None, *, is_spooled: bool = False
    ) -> None:
        """Take a record; one that no gateway wrote is skipped. ``is_spooled``: it is on this gateway's disk."""
        found = dict(headers)
        if not (found.get(SOURCE) or b"").startswith(SOURCES.encode()) or value is None:
            return
        try:
            envelope = from_headers(found.items())
        except EnvelopeError:
            self.refused += 1
            return
        seq, is_own = envelope.sequence, envelope.source == self._source
        if seq is None:
            return
        known = self._trajectories.setdefault(envelope.subject, _Records(is_own))
        known.is_spooled |= is_spooled
        if known.is_own is not is_own or known.events is None or seq in known.events:
            return
        event = None
        try:
            event = read_event(envelope, found.get(GATEWAY) or b"", value, self._sealer, is_own=is_own)
        except ValueError:
            self.refused += 1
        self.events += 1
        known.events[seq] = event
        known.latest_ms = max(known.latest_ms, envelope.time_ms)
        known.is_ended |= envelope.type == TrajectoryEnded.TYPE
        size = EVENT_BYTES + (event.bytes if isinstance(event, Call) else 0)
        known.size += size
        self._size += size
        if self._size > self._max_bytes:
            self._shrink()

    def unbegun(self) -> frozenset[str]:
        """Return the trajectories that have not ended and whose first event was not among the records."""
        return frozenset(
            trajectory_id
            for trajectory_id, known in self._trajectories.items()
            if known.events and 0 not in known.events and not known.is_ended
        )

    def restore(self, nodes: NodeStore, sessions: SessionStore, latest: Latest) -> Restored:
        """Fill ``nodes`` and ``sessions``, which are empty; the fold is empty afterwards."""
        continued, left_out = RestoredSessions(), 0
        for trajectory_id in sorted(self._trajectories, key=lambda each: self._trajectories[each].latest_ms):
            known = self._trajectories.pop(trajectory_id)
            if known.events is None:
                continue
            events = [known.events[seq] for seq in sorted(known.events)]
            calls = [event for event in events if isinstance(event, Call) and event.answer is not None]
            found = _nodes(trajectory_id, calls, nodes)
            left_out += len(calls) - len(found)
            start = known.events.get(0)
            if isinstance(start, Start) and start.note.is_main:  # of sessions of one name the latest decides
                sessions.forget_terms(start.fact.tenant, start.session_id)
                sessions.note_terms(start.fact.tenant, start.session_id, start.terms)
            is_latest_known = latest is Latest.OF_ALL or (latest is Latest.OF_SPOOLED and known.is_spooled)
            if known.is_own and not known.is_ended and is_latest_known and isinstance(start, Start):
                continued.add(
                    trajectory_id, start, events, found, next_seq=max(known.events) + 1, used_ms=known.latest_ms
                )
        self._size = 0
        trajectories = continued.into(sessions)
        return Restored(len(nodes), left_out, len(sessions), trajectories)

    def _shrink(self) -> None:
        """Give up whole trajectories, down to three quarters of the limit, and remember that."""
        kept = [each for each in self._trajectories.values() if each.events]
        oldest = [(each.latest_ms, number) for number, each in enumerate(kept)]
        heapq.heapify(oldest)
        while self._size > self._max_bytes * 3 // 4 and oldest:
            given_up = kept[heapq.heappop(oldest)[1]]
            self._size -= given_up.size
            given_up.events, given_up.size = None, 0


def _nodes(trajectory_id: str, calls: Sequence[Call], nodes: NodeStore) -> dict[tuple[str, int], Node]:
    """Store the answers of a trajectory, in order, whose prefix is what one before ended with; by call and choice."""
    ends: dict[tuple[int, str | None], Node] = {}
    found: dict[tuple[str, int], Node] = {}
    for call in calls:
        base = ends.get(call.prefix) if call.prefix[0] else None
        if call.answer is None or (call.prefix[0] and base is None):
            continue
        note = call.note
        node = nodes.put(
            base,
            key=note.key or note.slot,
            slot=note.slot,
            tenant=note.tenant,
            scope=note.scope,
            trajectory_id=trajectory_id,
            call_id=call.call_id,
            choice=call.choice,
            context_ids=call.context_ids,
            context=call.context,
            has_instructions=note.has_instructions,
            answer=call.answer,
            consent=note.consent,
            purpose=note.purpose,
        )
        ends[node.length, node.prefix_sha256] = found[call.call_id, call.choice] = node
    return found
