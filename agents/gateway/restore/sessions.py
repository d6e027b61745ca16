"""The sessions of a gateway that was killed, from the events of its open trajectories."""

from collections.abc import Mapping, Sequence

from headrace.agents.gateway.nodes import Node
from headrace.agents.gateway.restore.events import Call, Event, Start, ToolUse
from headrace.agents.gateway.sealed import Reference, call_hash
from headrace.agents.gateway.session_identity import Source
from headrace.agents.gateway.sessions import OpenTool, Session, SessionStore, TrajectoryState

_NO_ANSWER = Reference(b"")
"""Finds nothing."""

_Nodes = Mapping[tuple[str, int], Node]


class RestoredSessions:
    """Sessions whose trajectories continue."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], Session] = {}
        self._states: dict[str, TrajectoryState] = {}
        self._started: list[tuple[Session, TrajectoryState, Start]] = []

    def add(
        self,
        trajectory_id: str,
        start: Start,
        events: Sequence[Event | None],
        nodes: _Nodes,
        *,
        next_seq: int,
        used_ms: int,
    ) -> None:
        """Add an open trajectory; those used last come last.

        Args:
            trajectory_id: Its id.
            start: Its first event.
            events: All of its events, in order.
            nodes: Its answers that are known, by call and choice.
            next_seq: Number of its next event.
            used_ms: Time of its latest event: Unix milliseconds.
        """
        session = self._session(start, used_ms)
        calls = [event for event in events if isinstance(event, Call)]
        state = TrajectoryState(
            trajectory_id,
            start.fact.role,
            start.note.has_tools or any(call.note.has_tools for call in calls),
            name=start.note.name,
            stage=start.note.stage,
            seq=next_seq,
            calls=len({call.call_id for call in calls}),
            is_waiting=start.note.is_main and not calls,
        )
        session.opened(state, is_main=start.note.is_main)
        self._states[trajectory_id] = state
        self._started.append((session, state, start))
        if start.note.opening:
            session.note_opening(start.note.opening, trajectory_id)
        for event in events:
            if isinstance(event, Call):
                _answered(session, state, event, nodes.get((event.call_id, event.choice)))
            elif isinstance(event, ToolUse):
                _used(session, state, event)

    def into(self, sessions: SessionStore) -> int:
        """Link sub-agents with what started them, and put the sessions into ``sessions``, those used last at the end.
        Returns the number of trajectories."""
        tools = {
            (session.tenant, tool.call_id): tool
            for session in self._sessions.values()
            for tool in session.open_tools.values()
        }
        for session, state, start in self._started:
            state.parent = self._states.get(start.fact.parent_trajectory_id or "")
            if start.note.tool is not None and (tool := tools.get((session.tenant, start.note.tool))) is not None:
                tool.spawned.append((session, state))
        for session in sorted(self._sessions.values(), key=lambda each: each.used_ms):
            sessions.put(session)
        return len(self._states)

    def _session(self, start: Start, used_ms: int) -> Session:
        place = (start.fact.tenant, start.note.scope)
        session = self._sessions.get(place)
        if session is None:
            session = Session(*place, start.session_id, Source(start.note.source), start.terms, used_ms)
            self._sessions[place] = session
        elif session.terms.is_kept_out and not start.terms.is_kept_out:
            session.terms = start.terms  # only the other trajectory, which continues what is kept out, is
        session.used_ms = max(session.used_ms, used_ms)
        return session


def _answered(session: Session, state: TrajectoryState, call: Call, node: Node | None) -> None:
    state.latest = Reference(call_hash(call.call_id), call.choice)
    session.note_opening(call.note.opening, state.trajectory_id)
    session.note_answer(call.note.context, state.latest, "" if node is None else node.answer.message.text)
    if call.note.window is not None:
        session.window = max(call.note.window, session.window or 0)
    for position, tool in enumerate(() if node is None else node.answer.message.calls):
        answer = Reference(state.latest.call, call.choice, position)
        session.note_tool(OpenTool(tool.call_id, tool.tool, state.trajectory_id, call.time_ms, answer, announced=False))


def _used(session: Session, state: TrajectoryState, use: ToolUse) -> None:
    if use.has_returned:
        session.open_tools.pop(use.call_id, None)
    elif (tool := session.open_tools.get(use.call_id)) is not None:
        tool.announced = True
    else:  # its answer is masked, or not known
        session.note_tool(OpenTool(use.call_id, use.tool, state.trajectory_id, use.time_ms, _NO_ANSWER))
