"""Opens and ends trajectories of a session, and pairs tool calls with their results: state changes with their events.

A session that is not sampled changes state in the same way and emits nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.agents.gateway.canonical import Call, CanonicalRequest, Message, MessageRole, call_id_of
from headrace.agents.gateway.continuation import Decision, Outcome
from headrace.agents.gateway.nodes import Match, Node, NodeStore
from headrace.agents.gateway.note import StartNote, note_bytes
from headrace.agents.gateway.record import (
    TaskInfo,
    TrajectoryEvent,
    tool_called,
    tool_returned,
    trajectory_started,
)
from headrace.agents.gateway.sealed import Reference, call_hash
from headrace.agents.gateway.session_identity import SessionIdentity
from headrace.agents.gateway.sessions import OpenTool, Session, TrajectoryState, open_call
from headrace.schemas.bounds import MAX_NAME, MAX_STEPS
from headrace.schemas.events import EndStatus, Fact, Role, SubagentFinished, SubagentStarted, TrajectoryEnded


class Trajectories:
    """Changes the trajectories of sessions."""

    def __init__(self, new_id: Callable[[], str], nodes: NodeStore) -> None:
        self._new_id = new_id
        self._nodes = nodes

    def emit(
        self, session: Session, state: TrajectoryState, fact: Fact, note: bytes | None = None
    ) -> list[TrajectoryEvent]:
        """Return ``fact`` with the next number of its trajectory; nothing for a session that is not sampled."""
        if not session.terms.recorded:
            return []
        return [TrajectoryEvent(state.trajectory_id, state.next_seq(), fact, note)]

    def open(
        self,
        session: Session,
        identity: SessionIdentity,
        request: CanonicalRequest,
        decision: Decision,
        task: TaskInfo,
        client: str | None,
        opening_key: bytes,
    ) -> tuple[TrajectoryState, list[TrajectoryEvent]]:
        """Open a trajectory; its parent, if it is a sub-agent's, records that too. ``opening_key``: that of its first
        request."""
        events: list[TrajectoryEvent] = []
        if (surplus := session.surplus()) is not None:
            events += self._end(session, surplus, EndStatus.COMPLETED)
        parent = decision.parent
        state = TrajectoryState(self._new_id(), decision.role, bool(request.tools), parent)
        if decision.outcome is Outcome.SUBAGENT:
            # The name of a tool is what the model wrote.
            state.name = identity.agent or (decision.tool.tool[:MAX_NAME] if decision.tool is not None else "subagent")
        is_main = session.main is None and decision.outcome is not Outcome.SIDE
        session.opened(state, is_main=is_main)
        if decision.tool is not None:
            decision.tool.spawned.append((session, state))
        if not is_main or decision.outcome is not Outcome.NEW_TRAJECTORY:
            # Only an attempt at the task is a member of its group, and is rewarded by its data.
            task = replace(
                task, group_id=None, group_size=None, cohort_key=None, task={}, agent=state.name or task.agent
            )
        terms = session.terms
        if decision.base is not None:  # it may be another session's
            terms = terms.limited(decision.base.consent, decision.base.purpose)
        started = trajectory_started(
            task,
            terms,
            tenant=session.tenant,
            session_id=session.session_id,
            agent=client,
            role=state.role,
            parent_trajectory_id=None if parent is None else parent.trajectory_id,
            tools_offered=request.tools_offered,
        )
        if parent is not None and state.name is not None:
            state.stage = parent.calls
            fact = SubagentStarted(name=state.name, sub_trajectory_id=state.trajectory_id, stage=state.stage)
            events += self.emit(session, parent, fact)
        note = _start_note(session, state, opening_key, decision.tool)
        return state, events + self.emit(session, state, started, note)

    def open_main(self, session: Session, task: TaskInfo) -> tuple[TrajectoryState, list[TrajectoryEvent]]:
        """Open the main trajectory of a session that has no request yet."""
        state = TrajectoryState(self._new_id(), Role.TRAINABLE, is_waiting=True)
        session.opened(state, is_main=True)
        started = trajectory_started(
            task,
            session.terms,
            tenant=session.tenant,
            session_id=session.session_id,
            agent=None,
            role=state.role,
            parent_trajectory_id=None,
        )
        return state, self.emit(session, state, started, _start_note(session, state))

    def tools(
        self, session: Session, state: TrajectoryState, node: Node, now_ms: int, *, announced: bool
    ) -> list[TrajectoryEvent]:
        """Note the tool calls of an answer. ``announced``: whether the client certainly continues this answer; the
        calls of one choice among several are recorded when the first result arrives."""
        events: list[TrajectoryEvent] = []
        for position, call in enumerate(node.answer.message.calls):
            if announced:
                events += self.emit(session, state, tool_called(call, masked=session.terms.masked))
            answer = Reference(call_hash(node.call_id), node.choice, position)
            session.note_tool(OpenTool(call.call_id, call.tool, state.trajectory_id, now_ms, answer, announced))
        return events

    def results(self, session: Session, request: CanonicalRequest, match: Match, now_ms: int) -> list[TrajectoryEvent]:
        """Return the events of the results that a request contains for the first time."""
        if not session.open_tools:
            return []
        events: list[TrajectoryEvent] = []
        # The client may have rewritten the ids in its copy of the answer; the node has those of the events.
        calls: Sequence[Call] = () if match.node is None else match.node.answer.message.calls
        for message in request.messages[match.matched :]:
            if message.role is MessageRole.ASSISTANT:
                calls = message.calls
            elif message.role is MessageRole.TOOL:
                events += self._returned(session, message, tuple(calls), now_ms)
        return events

    def _returned(
        self, session: Session, message: Message, calls: tuple[Call, ...], now_ms: int
    ) -> list[TrajectoryEvent]:
        tool = session.open_tools.pop(call_id_of(message, calls), None)
        state = None if tool is None else session.trajectories.get(tool.trajectory_id)
        if tool is None or state is None:
            return []
        events: list[TrajectoryEvent] = []
        masked = session.terms.masked
        call = None if tool.announced else open_call(tool, partial(self._nodes.find, session.tenant))
        if call is not None:
            events += self.emit(session, state, tool_called(call, masked=masked))
        latency_s = (now_ms - tool.called_ms) / 1000
        fact = tool_returned(tool.call_id, tool.tool, message, latency_s, masked=masked)
        events += self.emit(session, state, fact)
        for owner, spawned in tool.spawned:
            if spawned.trajectory_id in owner.trajectories and not _is_busy(owner, spawned):
                events += self._end(owner, spawned, EndStatus.COMPLETED)
        return events

    def end_session(
        self, session: Session, status: EndStatus, outcome: float | None = None, answer: Any = None
    ) -> list[TrajectoryEvent]:
        """End all trajectories of a session, the main one last. ``answer``: of the main one; ``None``: the text of its
        last answer."""
        main = session.main
        events: list[TrajectoryEvent] = []
        for state in list(session.trajectories.values()):
            if state is not main:
                events += self._end(session, state, status)
        return events if main is None else events + self._end(session, main, status, outcome, answer)

    def _end(
        self,
        session: Session,
        state: TrajectoryState,
        status: EndStatus,
        outcome: float | None = None,
        answer: Any = None,
    ) -> list[TrajectoryEvent]:
        session.ended(state.trajectory_id)
        latest = None if state.latest is None else self._nodes.find(session.tenant, state.latest)
        if answer is None and latest is not None:
            answer = latest.answer.message.text or None
        if session.terms.masked:
            answer = None
        events = self.emit(session, state, TrajectoryEnded(status=status, answer=answer, outcome=outcome))
        if state.parent is None or state.name is None or state.parent.is_ended:
            return events
        finished = SubagentFinished(
            name=state.name,
            sub_trajectory_id=state.trajectory_id,
            stage=state.stage,
            status=status,
            steps=min(state.calls, MAX_STEPS),
        )
        return events + self.emit(session, state.parent, finished)


def _start_note(
    session: Session, state: TrajectoryState, opening_key: bytes = b"", tool: OpenTool | None = None
) -> bytes:
    note = StartNote(
        scope=session.scope,
        source=session.source,
        opening=opening_key,
        is_main=state is session.main,
        has_tools=state.has_tools,
        masked=session.terms.masked,
        name=state.name,
        stage=state.stage,
        tool=None if tool is None else tool.call_id,
    )
    return note_bytes(note)


def _is_busy(session: Session, state: TrajectoryState) -> bool:
    """Return whether a sub-agent is still at work: a call in flight, or tool calls without results."""
    return session.is_busy(state) or any(
        tool.trajectory_id == state.trajectory_id for tool in session.open_tools.values()
    )
