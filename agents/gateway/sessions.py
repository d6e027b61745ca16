"""What the gateway remembers of each session besides its nodes: trajectories, calls in flight, open tool calls.

Everything is bounded: a session forgets its oldest answers, tools and conversations first. Answers are named by
reference, so that only the store of nodes decides how long they are kept.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from headrace.agents.gateway.canonical import Call, Message, MessageRole
from headrace.agents.gateway.nodes import Node
from headrace.agents.gateway.sealed import Reference
from headrace.agents.gateway.session_identity import Source
from headrace.agents.gateway.terms import Terms
from headrace.schemas.events import Role

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

MAX_TRAJECTORIES = 256
"""Open trajectories of a session; a further one ends the oldest."""

MAX_OPENINGS = 512
MAX_ANSWERED = 256
MAX_SAME_CONTEXT = 127
MAX_OPEN_TOOLS = 512
MAX_SUMMARIES = 8
"""Latest sampled texts of a session that a compaction may contain."""

MAX_LOOKED_AT = 256
"""Oldest sessions among which one without a call in flight is looked for, when there are too many; the next time
others are the oldest."""

MAX_RESTRICTED = 10_000
"""Ended sessions of a tenant that must not be trained on and whose names are kept, the latest ones."""

MAX_QUOTES = 64
"""Open tool calls, the latest ones, in which the prompt of a sub-agent is looked for."""

SHORTEST_SUMMARY = 64
"""Length of the shortest sampled text, in characters, that identifies a compaction."""

SHORTEST_PROMPT = 16
"""Length of the shortest argument, in characters, that identifies a sub-agent whose message equals it."""

SHORTEST_CONTAINED_PROMPT = 100
"""The same for a message that contains it among other text."""


@dataclass(slots=True, eq=False)
class OpenTool:
    """A tool call whose result no request has contained yet."""

    call_id: str
    tool: str
    trajectory_id: str
    called_ms: int
    """When the answer with the call was complete: Unix milliseconds."""
    answer: Reference
    """The answer that contains it, and its position there."""
    announced: bool = True
    """Whether its ``tool.called`` was emitted."""
    spawned: list[tuple["Session", "TrajectoryState"]] = field(default_factory=list)
    """Sub-agents that it started, each with the session that it belongs to."""


@dataclass(slots=True, eq=False)
class TrajectoryState:
    """An open trajectory."""

    trajectory_id: str
    role: Role
    has_tools: bool = False
    """Whether its first request has tools."""
    parent: "TrajectoryState | None" = None
    """Trajectory that started it, for a sub-agent or a side conversation."""
    name: str | None = None
    """For a sub-agent: its name in the parent's events."""
    stage: int = 0
    """For a sub-agent: number of the parent's calls when it started."""
    seq: int = 0
    """Sequence number of its next event."""
    calls: int = 0
    """Model calls so far."""
    latest: Reference | None = None
    """Its latest answer."""
    is_waiting: bool = False
    """Whether it was opened before its first request, which has not come yet."""
    is_ended: bool = False

    def next_seq(self) -> int:
        """Return the next event's sequence number."""
        self.seq += 1
        return self.seq - 1


@dataclass(slots=True, eq=False)
class InFlight:
    """A call that has no answer yet."""

    call_id: str
    context_key: bytes
    base_key: bytes | None
    trajectory_id: str
    choices: int
    """Number of choices that the client asked for."""


@dataclass(slots=True, eq=False)
class Session:
    """The state of one scope."""

    tenant: str
    scope: str
    session_id: str
    source: Source
    terms: Terms
    used_ms: int
    """Time of its latest request: Unix milliseconds."""
    window: int | None = None
    """Codex: number of the latest context window."""
    main: TrajectoryState | None = None
    trajectories: OrderedDict[str, TrajectoryState] = field(default_factory=OrderedDict)
    """Open trajectories by id, oldest first."""
    in_flight: dict[str, InFlight] = field(default_factory=dict)
    """Calls without an answer, by call id."""
    open_tools: OrderedDict[str, OpenTool] = field(default_factory=OrderedDict)
    _openings: OrderedDict[bytes, str] = field(default_factory=OrderedDict)
    _answered: OrderedDict[bytes, list[Reference]] = field(default_factory=OrderedDict)
    _summaries: deque[Reference] = field(default_factory=lambda: deque(maxlen=MAX_SUMMARIES))

    def opened(self, state: TrajectoryState, *, is_main: bool) -> None:
        """Add a trajectory."""
        self.trajectories[state.trajectory_id] = state
        if is_main:
            self.main = state

    def ended(self, trajectory_id: str) -> TrajectoryState | None:
        """Forget a trajectory and return it."""
        state = self.trajectories.pop(trajectory_id, None)
        if state is not None:
            state.is_ended = True
            if state is self.main:
                self.main = None
        return state

    def is_busy(self, state: TrajectoryState) -> bool:
        """Return whether a call of a trajectory is in flight."""
        return any(call.trajectory_id == state.trajectory_id for call in self.in_flight.values())

    def surplus(self) -> TrajectoryState | None:
        """Return the trajectory to be ended so that another fits; ``None`` if there is room."""
        if len(self.trajectories) < MAX_TRAJECTORIES:
            return None
        busy = {call.trajectory_id for call in self.in_flight.values()}
        idle = (state for key, state in self.trajectories.items() if key not in busy and state is not self.main)
        return next(idle, None)

    def opening(self, opening_key: bytes) -> TrajectoryState | None:
        """Return the open trajectory that began with the messages of ``opening_key``."""
        return self.trajectories.get(self._openings.get(opening_key, ""))

    def note_opening(self, opening_key: bytes, trajectory_id: str) -> None:
        """Remember how a trajectory began."""
        _put(self._openings, opening_key, trajectory_id, MAX_OPENINGS)

    def answered(self, context_key: bytes) -> Sequence[Reference]:
        """Return the answers to earlier requests with the same prompt, oldest first."""
        return self._answered.get(context_key, ())

    def note_answer(self, context_key: bytes, answer: Reference, text: str) -> None:
        """Remember an answer for retries, and for compactions if its ``text`` may be a summary."""
        earlier = self._answered.get(context_key, [])
        _put(self._answered, context_key, [*earlier[-MAX_SAME_CONTEXT:], answer], MAX_ANSWERED)
        if len(text) >= SHORTEST_SUMMARY:
            self._summaries.append(answer)

    def note_tool(self, tool: OpenTool) -> None:
        """Remember a tool call until its result arrives."""
        _put(self.open_tools, tool.call_id, tool, MAX_OPEN_TOOLS)

    def summary_in(
        self, messages: Sequence[Message], find: Callable[[Reference], Node | None]
    ) -> tuple[Node, str] | None:
        """Return the latest answer whose text ``messages`` quote, with the quoted text."""
        texts = [text for message in messages if message.role is not MessageRole.ASSISTANT for text in message.texts]
        for node in filter(None, map(find, reversed(self._summaries))):
            for piece in _summary_texts(node.answer.message.text):
                if any(piece in text for text in texts):
                    return node, piece
        return None

    def spawning_tool(self, messages: Sequence[Message], find: Callable[[Reference], Node | None]) -> OpenTool | None:
        """Return the latest open tool call one of whose arguments is the prompt in ``messages``."""
        texts = [text.strip() for message in messages if message.role is MessageRole.USER for text in message.texts]
        for tool in islice(reversed(self.open_tools.values()), MAX_QUOTES):
            for prompt in _prompts_in(open_call(tool, find)):
                is_long = len(prompt) >= SHORTEST_CONTAINED_PROMPT
                if any(prompt == text or (is_long and prompt in text) for text in texts):
                    return tool
        return None


class SessionStore:
    """The sessions of all tenants.

    If there are too many, the tenant with the most of them loses its least recently used one: no tenant's sessions end
    because another opens many, unless those all have calls in flight.
    """

    def __init__(self, max_sessions: int) -> None:
        self._max = max_sessions
        self._by_tenant: dict[str, OrderedDict[str, Session]] = {}
        self._count = 0
        self._restricted: dict[str, OrderedDict[str, Terms]] = {}

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Session]:
        """Yield all sessions, each tenant's least recently used first."""
        return iter([session for own in self._by_tenant.values() for session in own.values()])

    def get(self, tenant: str, scope: str | None) -> Session | None:
        """Return a session."""
        own = self._by_tenant.get(tenant)
        return None if own is None or scope is None else own.get(scope)

    def put(self, session: Session) -> Session | None:
        """Add or refresh a session; return the one that must be ended because there are too many: of the tenant with
        the most sessions, the least recently used one without a call in flight, among the oldest. A smaller tenant
        loses one only if all sessions of the larger ones were looked at."""
        own = self._by_tenant.setdefault(session.tenant, OrderedDict())
        self._count += session.scope not in own
        own[session.scope] = session
        own.move_to_end(session.scope)
        if self._count <= self._max:
            return None
        left = MAX_LOOKED_AT
        for sessions in sorted(self._by_tenant.values(), key=len, reverse=True):
            looked_at = list(islice(sessions, left))
            left -= len(looked_at)
            for scope in looked_at:
                oldest = sessions[scope]
                if oldest is not session and not oldest.in_flight:
                    return self.remove(oldest.tenant, scope)
                sessions.move_to_end(scope)  # it is being used
        return None  # rather more sessions, as many as calls in flight, than an answer that nothing records

    def remove(self, tenant: str, scope: str) -> Session | None:
        """Forget a session and return it."""
        own = self._by_tenant.get(tenant, OrderedDict())
        session = own.pop(scope, None)
        if session is not None:
            self._count -= 1
            if not own:
                del self._by_tenant[tenant]
            self.note_terms(tenant, session.session_id, session.terms)
        return session

    def note_terms(self, tenant: str, session_id: str, terms: Terms) -> None:
        """Remember the terms of an ended session if it must not be trained on."""
        if terms.is_kept_out:
            _put(self._restricted.setdefault(tenant, OrderedDict()), session_id, terms, MAX_RESTRICTED)

    def terms_before(self, tenant: str, session_id: str) -> Terms | None:
        """Return the terms of the open session of this name, or of one that has ended and must not be trained on."""
        main = self.get(tenant, session_id)
        if main is not None:
            return main.terms
        ended = self._restricted.get(tenant)
        return None if ended is None else ended.get(session_id)

    def forget_terms(self, tenant: str, session_id: str) -> None:
        """Forget the terms of ended sessions of this name: the next one has its own say."""
        if (ended := self._restricted.get(tenant)) is not None:
            ended.pop(session_id, None)

    def idle(self, before_ms: int) -> Iterator[Session]:
        """Yield the sessions without a request since ``before_ms`` and without a call in flight, each tenant's oldest
        first."""
        for session in self:
            if session.used_ms < before_ms and not session.in_flight:
                yield session


def open_call(tool: OpenTool, find: Callable[[Reference], Node | None]) -> Call | None:
    """Return the call with its arguments; ``None`` if its answer was forgotten."""
    node = find(tool.answer)
    return None if node is None else node.answer.message.calls[tool.answer.position]


def _prompts_in(call: Call | None) -> Iterator[str]:
    """Yield the texts in a tool call's arguments that may be the prompt of a sub-agent."""
    for value in () if call is None else call.value.values():
        if isinstance(value, str) and len(value.strip()) >= SHORTEST_PROMPT:
            yield value.strip()


def _summary_texts(text: str) -> Iterator[str]:
    """Yield the forms in which a client may quote a summary: Claude Code takes what its ``<summary>`` contains."""
    inner = text.partition("<summary>")[2].partition("</summary>")[0]
    for piece in (text.strip(), inner.strip()):
        if len(piece) >= SHORTEST_SUMMARY:
            yield piece


def _put(found: OrderedDict[_Key, _Value], key: _Key, value: _Value, most: int) -> None:
    found[key] = value
    found.move_to_end(key)
    while len(found) > most:
        found.popitem(last=False)
