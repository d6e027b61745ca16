"""What a request is, relative to what its session sampled before. Nothing is repaired by guessing.

    [system, user]                            new_trajectory
    [system, user, answer, tool]              continuation: the answer is a node, its exact tokens are kept
    [system, user, answer', tool]             edited: a new segment after the last answer that is unchanged
    [system, user, answer] while one runs     sibling
    [title prompt, user], no tools            side: a frozen trajectory of its own

A decision is a value; :mod:`headrace.agents.gateway.capture` carries it out.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from headrace.agents.gateway.canonical import CanonicalRequest, MessageRole
from headrace.agents.gateway.nodes import Match, Node
from headrace.agents.gateway.record import ABORTED
from headrace.agents.gateway.sealed import Reference
from headrace.agents.gateway.session_identity import SessionIdentity
from headrace.agents.gateway.sessions import OpenTool, Session, TrajectoryState
from headrace.agents.gateway.terms import TenantPolicy
from headrace.schemas.events import Role


class Outcome(StrEnum):
    """What a request is; the value is its label in logs and metrics."""

    NEW_TRAJECTORY = "new_trajectory"
    """The first request of a conversation."""
    CONTINUATION = "continuation"
    """It continues the latest answer: one segment."""
    EDITED = "edited"
    """Its history was changed: it continues the last unchanged answer, or starts a segment without one."""
    REWOUND = "rewound"
    """It continues an earlier answer that was continued otherwise before: a fork, both branches stay."""
    SIBLING = "sibling"
    """It runs beside, or repeats, another request at the same place: parallel calls, a resample."""
    REPLAY = "replay"
    """A retry that the client's SDK marked, of a request that has an answer or is in flight: nothing is sampled."""
    SIDE = "side"
    """A conversation beside the session's main one, such as a title: a trajectory of its own, frozen by default."""
    SUBAGENT = "subagent"
    """The first request of a sub-agent: a trajectory of its own with a parent."""
    COMPACTION = "compaction"
    """The context was replaced by a summary: a new segment of the same trajectory."""
    RESUMED = "resumed"
    """It continues a conversation of another session, or one that ended: a new trajectory with known tokens."""
    STRIPPED_THINKING = "stripped_thinking"
    """With ``history=template``: the template drops earlier reasoning, so the request starts a new segment."""
    REWRITTEN = "rewritten"
    """With ``history=template``: the template writes the history with other tokens than were sampled."""
    UNSPLICED = "unspliced"
    """The exact tokens cannot be continued (:mod:`headrace.agents.gateway.splice` has the reason): a new segment."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a decision depends on."""

    request: CanonicalRequest
    """The request with its whole history."""
    identity: SessionIdentity
    match: Match
    references: Sequence[Node]
    """Nodes that the ids in the request name, the latest first."""
    client: str | None
    """Known client that sent it."""
    retry: int
    """Earlier attempts, as the client's SDK counts them."""
    session: Session | None
    """State of the request's scope; ``None`` if it is new."""
    parent: Session | None
    """State of the scope that started this one, if the client names it and it is known."""
    policy: TenantPolicy
    find: Callable[[Reference], Node | None]
    """Returns a node of the tenant that is still known."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with a request."""

    outcome: Outcome
    state: TrajectoryState | None = None
    """Open trajectory to which the call belongs; ``None`` if one must be opened."""
    base: Node | None = None
    """Answer whose exact tokens begin the prompt."""
    role: Role = Role.TRAINABLE
    """Role of a trajectory to be opened."""
    parent: TrajectoryState | None = None
    """Parent of a trajectory to be opened."""
    tool: OpenTool | None = None
    """For a sub-agent: the tool call that started it."""
    replay: str | None = None
    """Call id of the answer, or of the call in flight, that a retry receives."""
    summarized: Node | None = None
    """For a compaction: the answer that ends the context which was replaced, or that is the summary."""
    summary: str | None = None
    """For a compaction: the summary, if the gateway sampled it."""

    @property
    def opens(self) -> bool:
        """Whether a trajectory must be opened."""
        return self.state is None and self.outcome is not Outcome.REPLAY

    def without_base(self, outcome: Outcome) -> "Decision":
        """Return the decision for a call whose prompt cannot continue ``base`` exactly: a new segment."""
        return replace(self, base=None, outcome=self.outcome if self.opens else outcome)


def classify(question: Question) -> Decision:
    """Return what a request is."""
    if question.retry and (replay := _replayed(question)) is not None:
        return replay
    if question.match.node is not None:
        return _with_history(question, question.match.node)
    session = question.session
    if session is None or not session.trajectories:
        return _first(question)
    if session.main is not None and session.main.is_waiting:
        first = _first(question)
        return replace(first, state=session.main) if first.outcome is Outcome.NEW_TRAJECTORY else first
    known = session.opening(question.match.opening_key)
    if known is not None:
        return Decision(_at_opening(question, session, known), known)
    return (
        _compaction(question, session) or _spawned(question, session) or _cut(question, session) or _unmatched(question)
    )


def _replayed(question: Question) -> Decision | None:
    """A marked retry receives the oldest answer that did not arrive, else a call in flight, else the oldest answer of
    which that is not known, else the latest answer: of calls with as many choices as it asks for."""
    session, key, n = question.session, question.match.context_key, question.request.n
    if session is None:
        return None
    known = [*filter(None, map(question.find, session.answered(key)))]
    choices = Counter(node.call_id for node in known)
    answers = [node for node in known if node.answer.finish_reason != ABORTED and choices[node.call_id] == n]
    lost = next((node for node in answers if node.delivered is False), None)
    in_flight = next(
        (call for call in session.in_flight.values() if (call.context_key, call.choices) == (key, n)), None
    )
    if lost is None and in_flight is not None:
        return Decision(Outcome.REPLAY, session.trajectories.get(in_flight.trajectory_id), replay=in_flight.call_id)
    if not answers:
        return None
    chosen = lost or next((node for node in answers if node.delivered is None), answers[-1])
    return Decision(Outcome.REPLAY, session.trajectories.get(chosen.trajectory_id), replay=chosen.call_id)


def _with_history(question: Question, node: Node) -> Decision:
    session, match = question.session, question.match
    state = None if session is None else session.trajectories.get(node.trajectory_id)
    if session is None or state is None:
        if question.identity.parent_scope is not None and (session is None or not session.trajectories):
            return replace(_first(question), base=node)
        return Decision(Outcome.RESUMED, None if session is None else _own(session, match), node)
    if match.edited:
        outcome = Outcome.EDITED
    elif any(call.base_key == node.key for call in session.in_flight.values()) or session.answered(match.context_key):
        outcome = Outcome.SIBLING
    elif node.children:
        outcome = Outcome.REWOUND
    else:
        outcome = Outcome.CONTINUATION
    return Decision(outcome, state, node)


def _own(session: Session, match: Match) -> TrajectoryState | None:
    """Return the trajectory of ``session`` to which a request with another session's history belongs: one that waits
    for its first request, or that began with the same messages."""
    if session.main is not None and session.main.is_waiting:
        return session.main
    node = match.node
    if node is not None and session.terms.limited(node.consent, node.purpose) != session.terms:
        return None  # what the session says of training does not hold for it
    return session.opening(match.opening_key)


def _at_opening(question: Question, session: Session, known: TrajectoryState) -> Outcome:
    if question.match.edited:
        return Outcome.EDITED
    return (
        Outcome.SIBLING if known.calls or session.is_busy(known) else Outcome.NEW_TRAJECTORY
    )  # else its first call failed


def _first(question: Question) -> Decision:
    """The first request of a scope."""
    if question.identity.parent_scope is not None:
        parent = question.parent
        tool = None if parent is None else parent.spawning_tool(question.request.messages, question.find)
        state = None
        if parent is not None:
            state = parent.trajectories.get(tool.trajectory_id) if tool is not None else parent.main
        return Decision(Outcome.SUBAGENT, role=question.policy.subagent_role, parent=state, tool=tool)
    if question.client is not None and not question.request.tools:
        # These clients name conversations and check quotas without tools; their agents always have tools.
        return Decision(Outcome.SIDE, role=question.policy.unmatched_root_role)
    return Decision(Outcome.NEW_TRAJECTORY)


def _compaction(question: Question, session: Session) -> Decision | None:
    messages = question.request.messages
    node: Node | None = None
    summary: str | None = None
    if any(message.role is MessageRole.SUMMARY for message in messages):
        node = next((each for each in question.references if each.trajectory_id in session.trajectories), None)
        summary = None if node is None else node.answer.message.text
    if node is None and (found := session.summary_in(messages, question.find)) is not None:
        node, summary = found
    window = question.identity.window
    if node is None and window is not None and session.window is not None and window > session.window:
        latest = None if session.main is None else session.main.latest
        node = None if latest is None else question.find(latest)
    state = None if node is None else session.trajectories.get(node.trajectory_id)
    if state is not None and state is not session.main and state.name is None and session.main is not None:
        state = session.main  # the summary was sampled in a side conversation
    if node is None or state is None:
        return None
    return Decision(Outcome.COMPACTION, state, summarized=node, summary=summary)


def _spawned(question: Question, session: Session) -> Decision | None:
    tool = session.spawning_tool(question.request.messages, question.find)
    if tool is None:
        return None
    parent = session.trajectories.get(tool.trajectory_id)
    return Decision(Outcome.SUBAGENT, role=question.policy.subagent_role, parent=parent, tool=tool)


def _cut(question: Question, session: Session) -> Decision | None:
    """The beginning changed, but answers of an open trajectory follow: the ids that the gateway minted show it."""
    states = (session.trajectories.get(node.trajectory_id) for node in question.references)
    state = next((each for each in states if each is not None), None)
    if state is None and question.request.is_compaction:
        state = session.main  # the summary is written in another context, and is part of the conversation
    return None if state is None else Decision(Outcome.EDITED, state)


def _unmatched(question: Question) -> Decision:
    session = question.session
    has_tools = bool(question.request.tools)
    if question.identity.source.is_hint or session is None:
        return Decision(Outcome.NEW_TRAJECTORY)
    if has_tools and not any(state.has_tools for state in session.trajectories.values()):
        return Decision(Outcome.NEW_TRAJECTORY)  # a title came first; this is the agent
    return Decision(Outcome.SIDE, role=question.policy.unmatched_root_role, parent=session.main)
