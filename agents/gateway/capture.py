"""The gateway's core: one call from the request to its events, as pure state changes.

    plan = capture.begin(tenant, arrival, request, body, …)      what the request is; its events so far
    capture.composed(plan, splice(plan.known_ids, …))            the exact prompt, or a new segment
    capture.finish(plan, prompt_ids, answers, …)                 the answer's nodes and events

Nothing here waits, reads a clock or draws a random number: times and ids are arguments. The state belongs to one
thread. The events of a trajectory are numbered here, in the order of the calls' ends.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.agents.gateway.canonical import BadRequest, CanonicalRequest, Message, MessageRole
from headrace.agents.gateway.continuation import Decision, Outcome, Question, classify
from headrace.agents.gateway.nodes import Answer, Match, Node, NodeStore, references_of, root_key
from headrace.agents.gateway.record import ABORTED, CallRecord, TaskInfo, TrajectoryEvent, call_note, model_called
from headrace.agents.gateway.sealed import Kind, Reference, Sealer, call_hash
from headrace.agents.gateway.session_grants import restrictions_of
from headrace.agents.gateway.session_identity import Arrival, SessionIdentity, Source, identify
from headrace.agents.gateway.sessions import InFlight, Session, SessionStore, TrajectoryState
from headrace.agents.gateway.splice import Refusal, Spliced
from headrace.agents.gateway.terms import TenantPolicy, Terms, terms_of
from headrace.agents.gateway.trajectories import Trajectories
from headrace.schemas.arrays import IntArray
from headrace.schemas.events import ContextSummarized, EndStatus, Purpose, Sampling, Usage
from headrace.schemas.ids import SEPARATOR

MAX_REFERENCES = 32
"""Texts of a request, the latest ones, that are tried as ids that the gateway minted."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """The owner of a key."""

    name: str
    policy: TenantPolicy = field(default_factory=TenantPolicy)


@dataclass(slots=True, eq=False)
class Plan:
    """A call that began."""

    call_id: str
    tenant: Tenant
    identity: SessionIdentity
    request: CanonicalRequest
    """The request with its whole history."""
    root: bytes
    match: Match
    decision: Decision
    session: Session
    state: TrajectoryState | None
    """The call's trajectory; ``None`` for a replay of an answer whose trajectory ended."""
    known_ids: IntArray | None
    """int32 tokens that the prompt must begin with; ``None`` for a prompt that is rendered as a whole."""
    events: list[TrajectoryEvent] = field(default_factory=list)
    """Events that are due before the answer: starts, tool results, ends of what was replaced."""

    @property
    def answer_id(self) -> str:
        """Id of the call whose answer the client receives: its own, or for a retry that of the call it repeats."""
        return self.decision.replay or self.call_id

    @property
    def new_messages(self) -> tuple[Message, ...]:
        """Messages after the answer that the call continues; all of them if it continues none."""
        return self.request.messages[self.match.matched if self.decision.base is not None else 0 :]


class Capture:
    """The state of a gateway."""

    def __init__(self, sealer: Sealer, nodes: NodeStore, sessions: SessionStore, new_id: Callable[[], str]) -> None:
        """``new_id``: makes ids of calls, trajectories and inferred sessions, each different from all others."""
        self._sealer = sealer
        self._nodes = nodes
        self._sessions = sessions
        self._new_id = new_id
        self._trajectories = Trajectories(new_id, nodes)

    def begin(
        self,
        tenant: Tenant,
        arrival: Arrival,
        request: CanonicalRequest,
        body: Mapping[str, Any],
        *,
        template: str,
        now_ms: int,
        task: TaskInfo = TaskInfo(),  # noqa: B008 - immutable
        consent: bool | None = None,
    ) -> Plan:
        """Decide what a request is, and open its call.

        ``body``: the parsed request, in which clients name their session. ``template``: identity of the model's chat
        template. ``consent``: what the session says about training. Raises
        :class:`~headrace.agents.gateway.canonical.BadRequest` if it refers to an answer that is not known (any more).
        """
        now_s = now_ms / 1000
        request, previous = self._complete(tenant.name, request, now_s)
        identity = identify(arrival, body)
        root = root_key(self._sealer.salt, tenant.name, template, request)

        def find(reference: Reference) -> Node | None:
            return self._nodes.find(tenant.name, reference)

        def named(message: Message) -> Reference | None:
            return next(self._opened(tenant.name, [message], now_s), None)

        scope = None if identity is None else identity.scope
        match = self._nodes.match(tenant.name, root, request.messages, scope=scope, named=named)
        references: list[Node] = []
        if match.node is None:
            minted = map(find, self._opened(tenant.name, request.messages, now_s))
            references = [*filter(None, (previous, *minted))]
        identity = self._settle(identity, match, references)
        session = self._sessions.get(tenant.name, identity.scope)
        parent = self._sessions.get(tenant.name, identity.parent_scope)
        decision = classify(
            Question(
                request=request,
                identity=identity,
                match=match,
                references=references,
                client=arrival.client,
                retry=arrival.retry,
                session=session,
                parent=parent,
                policy=tenant.policy,
                find=find,
            )
        )
        events: list[TrajectoryEvent] = []
        if session is None:
            history = match.node or next(iter(references), None)
            terms = self._terms(tenant, identity, consent, task.purpose, history)
            if parent is not None:  # a sub-agent is recorded if its parent is, also with a session id of its own
                terms = parent.terms
            session = Session(tenant.name, identity.scope, identity.session_id, identity.source, terms, now_ms)
        session.used_ms = now_ms
        if (displaced := self._sessions.put(session)) is not None:
            events += self._trajectories.end_session(displaced, EndStatus.COMPLETED)
        state = decision.state
        if decision.opens:
            state, opening = self._trajectories.open(
                session, identity, request, decision, task, arrival.client, match.opening_key
            )
            events += opening
        elif state is not None and state.is_waiting:
            state.is_waiting, state.has_tools = False, bool(request.tools)
        if decision.base is not None:
            self._nodes.touch(decision.base)
        plan = Plan(
            call_id=self._new_id(),
            tenant=tenant,
            identity=identity,
            request=request,
            root=root,
            match=match,
            decision=decision,
            session=session,
            state=state,
            known_ids=None if decision.base is None else decision.base.token_ids(),
            events=events,
        )
        if state is not None and decision.outcome is not Outcome.REPLAY:
            events += self._trajectories.results(session, request, match, now_ms)
            base_key = None if decision.base is None else decision.base.key
            session.in_flight[plan.call_id] = InFlight(
                plan.call_id, match.context_key, base_key, state.trajectory_id, request.n
            )
            session.note_opening(match.opening_key, state.trajectory_id)
            if identity.window is not None:
                session.window = max(identity.window, session.window or 0)
        return plan

    def mint(self, plan: Plan, kind: Kind, now_ms: int, *, choice: int = 0, position: int = 0) -> str:
        """Return an id for the client that refers to an answer of the call; it may be used before the answer ends."""
        reference = Reference(call_hash(plan.answer_id), choice, position)
        return self._sealer.seal(kind, plan.tenant.name, reference, now_ms / 1000)

    def composed(self, plan: Plan, result: Spliced | Refusal) -> IntArray | None:
        """Return the exact prompt; after a refusal ``None``: the conversation is rendered as a whole."""
        if isinstance(result, Spliced):
            return result.token_ids
        if result is Refusal.REWRITTEN:
            strips = plan.decision.base is not None and plan.decision.base.has_reasoning
            self._detach(plan, Outcome.STRIPPED_THINKING if strips else Outcome.REWRITTEN)
        else:
            self._detach(plan, Outcome.UNSPLICED)
        return None

    def finish(
        self,
        plan: Plan,
        prompt_ids: IntArray,
        answers: Sequence[Answer],
        *,
        sampling: Sampling,
        latency_s: float | None,
        now_ms: int,
    ) -> list[TrajectoryEvent]:
        """Store the answers of a call, one per choice, and return its events.

        ``prompt_ids``: the prompt as the engine reports it. If it does not begin with the known tokens, the call starts
        a new segment, which records what the engine was really given.
        """
        state, session = plan.state, plan.session
        if state is None or plan.decision.outcome is Outcome.REPLAY:
            raise ValueError("a replay has no answer of its own: deliver that of plan.decision.replay")
        if plan.known_ids is not None and prompt_ids[: len(plan.known_ids)] != plan.known_ids:
            self._detach(plan, Outcome.UNSPLICED)
        session.in_flight.pop(plan.call_id, None)
        session.used_ms = now_ms
        events: list[TrajectoryEvent] = []
        if state.trajectory_id not in session.trajectories:
            return events  # the session ended meanwhile; nothing may follow a trajectory's end
        if plan.decision.summarized is not None:
            events += self._summarized(plan, state, len(prompt_ids))
        terms = session.terms
        if (history := plan.match.node) is not None:  # it may be another session's
            terms = terms.limited(history.consent, history.purpose)
        for choice, answer in enumerate(answers):
            node = self._nodes.add(
                plan.match,
                plan.decision.base,
                tenant=plan.tenant.name,
                scope=session.scope,
                trajectory_id=state.trajectory_id,
                call_id=plan.call_id,
                choice=choice,
                prompt_ids=prompt_ids,
                context=plan.new_messages,
                has_instructions=plan.request.has_instructions and plan.decision.base is None,
                answer=answer,
                consent=terms.consent,
                purpose=terms.purpose,
            )
            record = self._record(plan, state, node, prompt_ids, sampling, latency_s)
            fact = model_called(record, masked=session.terms.masked)
            note = call_note(fact, node, plan.request, record.messages, plan.match, plan.identity.window)
            events += self._trajectories.emit(session, state, fact, note)
            events += self._trajectories.tools(session, state, node, now_ms, announced=len(answers) == 1)
            state.latest = Reference(call_hash(plan.call_id), choice)
            session.note_answer(plan.match.context_key, state.latest, answer.message.text)
        state.calls += 1
        return events

    def abandon(self, plan: Plan) -> None:
        """Close a call that has no answer, because the engine failed. Nothing is recorded; a retry asks again."""
        session, state = plan.session, plan.state
        session.in_flight.pop(plan.call_id, None)
        if state is session.main and state is not None and not state.calls and not session.is_busy(state):
            state.is_waiting = True  # the next request, whatever it says, is its first

    def opening(self, plan: Plan) -> list[TrajectoryEvent] | None:
        """Return the events with which a call has opened its session; ``None`` if it has not, or is not alone in it."""
        session, state = plan.session, plan.state
        is_alone = session.in_flight.keys() <= {plan.call_id} and len(session.trajectories) == 1
        if state is None or not plan.decision.opens or not is_alone or state.calls or state.name is not None:
            return None
        return [event for event in plan.events if event.trajectory_id == state.trajectory_id]

    def retract(self, plan: Plan) -> None:
        """Close a call that has no answer, and the session that it has opened, as if neither had been."""
        plan.session.in_flight.pop(plan.call_id, None)
        self.forget(plan.session.tenant, plan.session.scope)

    def delivered(self, plan: Plan, *, whole: bool) -> None:
        """Note whether the client received the answer, which decides what its retry receives."""
        for node in self._answers(plan, plan.answer_id):
            node.delivered = whole

    def replayed(self, plan: Plan) -> list[Node]:
        """Return the answers that a retry receives, by choice; empty while the call is in flight, and if it failed."""
        nodes = [] if plan.decision.replay is None else self._answers(plan, plan.decision.replay)
        return [] if all(node.answer.finish_reason == ABORTED for node in nodes) else nodes

    def open(
        self,
        tenant: Tenant,
        identity: SessionIdentity,
        task: TaskInfo,
        *,
        now_ms: int,
        consent: bool | None = None,
    ) -> tuple[str, list[TrajectoryEvent]] | None:
        """Open a session before its first request: the id of its main trajectory, and the events.

        ``None`` if the session is open already.
        """
        if self._sessions.get(tenant.name, identity.scope) is not None:
            return None
        self._sessions.forget_terms(tenant.name, identity.session_id)
        terms = self._terms(tenant, identity, consent, task.purpose)
        session = Session(tenant.name, identity.scope, identity.session_id, identity.source, terms, now_ms)
        events: list[TrajectoryEvent] = []
        if (displaced := self._sessions.put(session)) is not None:
            events += self._trajectories.end_session(displaced, EndStatus.COMPLETED)
        state, opening = self._trajectories.open_main(session, task)
        return state.trajectory_id, events + opening

    def forget(self, tenant: str, scope: str) -> None:
        """Forget a session as if it had not been opened."""
        self._sessions.remove(tenant, scope)

    def is_unused(self, tenant: str, scope: str) -> bool:
        """Return whether a session of :meth:`open` has had no request."""
        session = self._sessions.get(tenant, scope)
        return session is not None and session.main is not None and session.main.is_waiting

    def is_open(self, tenant: str, scope: str) -> bool:
        """Return whether a session is open."""
        return self._sessions.get(tenant, scope) is not None

    def end(
        self,
        tenant: str,
        scope: str,
        status: EndStatus = EndStatus.COMPLETED,
        outcome: float | None = None,
        answer: Any = None,
    ) -> list[TrajectoryEvent]:
        """End a session: all its trajectories. ``outcome``: of the main one, if the environment knows it. ``answer``:
        what the program made of it, as JSON; ``None``: the text of its last answer."""
        session = self._sessions.remove(tenant, scope)
        return [] if session is None else self._trajectories.end_session(session, status, outcome, answer)

    def end_idle(self, before_ms: int) -> list[tuple[tuple[str, str], list[TrajectoryEvent]]]:
        """End the sessions without a request since ``before_ms`` (Unix milliseconds); tenant, scope and events of
        each."""
        idle = [(session.tenant, session.scope) for session in self._sessions.idle(before_ms)]
        return [(place, self.end(*place)) for place in idle]

    def _terms(
        self,
        tenant: Tenant,
        identity: SessionIdentity,
        consent: bool | None,
        purpose: Purpose,
        history: Node | None = None,
    ) -> Terms:
        """Return the terms of a new session. What is kept out of training stays out: a request under the name of an
        earlier session, of its sub-agent, or with its ``history`` says nothing of that itself."""
        parent_id = (identity.parent_scope or "").partition(SEPARATOR)[0]
        # A sub-agent is recorded if its parent is, also after the parent's end.
        terms = terms_of(tenant.policy, tenant.name, parent_id or identity.session_id, consent=consent, purpose=purpose)
        for name in filter(None, (identity.session_id, parent_id)):
            is_withdrawn, is_evaluation = restrictions_of(self._sealer, tenant.name, name)
            terms = terms.limited(not is_withdrawn, Purpose.EVALUATE if is_evaluation else Purpose.TRAIN)
            if (earlier := self._sessions.terms_before(tenant.name, name)) is not None:
                terms = terms.limited(earlier.consent, earlier.purpose)
        return terms if history is None else terms.limited(history.consent, history.purpose)

    def _answers(self, plan: Plan, call_id: str) -> list[Node]:
        named = (each for each in plan.session.answered(plan.match.context_key) if each.call == call_hash(call_id))
        return [*filter(None, (self._nodes.find(plan.tenant.name, each) for each in named))]

    def _complete(self, tenant: str, request: CanonicalRequest, now_s: float) -> tuple[CanonicalRequest, Node | None]:
        """Return ``request`` with the history and the summaries that it refers to, and the answer that it names as the
        previous one."""
        node: Node | None = None
        if request.previous_response_id is not None:
            node = self._node_of(tenant, request.previous_response_id, now_s)
            history = None if node is None else node.history()
            if history is None:
                raise BadRequest("previous_response_id", "is not known (any more): send the whole input instead")
            request = request.with_history(history)
        if any(message.role is MessageRole.SUMMARY for message in request.messages):
            request = replace(request, messages=tuple(self._with_summary(tenant, request.messages, now_s)))
        return request, node

    def _with_summary(self, tenant: str, messages: Sequence[Message], now_s: float) -> Iterator[Message]:
        for index, message in enumerate(messages):
            if message.role is MessageRole.SUMMARY:
                node = self._node_of(tenant, message.echoed[0], now_s)
                if node is None:
                    raise BadRequest(
                        f"input[{index}].encrypted_content", "is not known (any more): start a new session"
                    )
                yield replace(message, texts=(node.answer.message.text,))
            else:
                yield message

    def _node_of(self, tenant: str, text: str, now_s: float) -> Node | None:
        reference = self._sealer.open(text, tenant, now_s)
        return None if reference is None else self._nodes.find(tenant, reference)

    def _opened(self, tenant: str, messages: Sequence[Message], now_s: float) -> Iterator[Reference]:
        """Yield what the ids in ``messages`` refer to that the gateway minted, the latest first."""
        for _, text in zip(range(MAX_REFERENCES), references_of(messages), strict=False):
            if (reference := self._sealer.open(text, tenant, now_s)) is not None:
                yield reference

    def _settle(self, identity: SessionIdentity | None, match: Match, references: Sequence[Node]) -> SessionIdentity:
        """Return the session: a hint loses against a conversation that the request itself continues."""
        if identity is not None and not identity.source.is_hint:
            return identity
        node, source = match.node, Source.HISTORY
        if node is None and references:
            node, source = references[0], Source.REFERENCE
        if node is not None:
            session_id, _, agent = node.scope.partition(SEPARATOR)
            return SessionIdentity(session_id, source, agent or None)
        return identity or SessionIdentity(self._new_id(), Source.INFERRED)

    def _detach(self, plan: Plan, outcome: Outcome) -> None:
        plan.decision = plan.decision.without_base(outcome)
        plan.known_ids = None

    def _summarized(self, plan: Plan, state: TrajectoryState, tokens_after: int) -> list[TrajectoryEvent]:
        node = plan.decision.summarized
        assert node is not None
        # The summary was sampled after what it summarises; without one, the whole latest context was replaced.
        is_summary = plan.decision.summary is not None
        fact = ContextSummarized(
            summary=None if plan.session.terms.masked else plan.decision.summary,
            tokens_before=node.length - (len(node.answer.sampled_ids) if is_summary else 0),
            tokens_after=tokens_after,
        )
        return self._trajectories.emit(plan.session, state, fact)

    def _record(
        self,
        plan: Plan,
        state: TrajectoryState,
        node: Node,
        prompt_ids: IntArray,
        sampling: Sampling,
        latency_s: float | None,
    ) -> CallRecord:
        # A prefix refers to earlier events of the same trajectory; tokens known from another one are sent in full.
        base = node.parent if node.parent is not None and node.parent.trajectory_id == state.trajectory_id else None
        return CallRecord(
            call_id=plan.call_id,
            choice=node.choice,
            model=plan.request.model,
            prefix_length=0 if base is None else base.length,
            prefix_sha256=None if base is None else base.prefix_sha256,
            context_ids=prompt_ids if base is None else node.context_ids,
            messages=plan.request.messages if base is None else plan.new_messages,
            previous_calls=() if base is None else base.answer.message.calls,
            answer=node.answer,
            sampling=sampling,
            usage=Usage(prompt_tokens=len(prompt_ids), completion_tokens=len(node.answer.sampled_ids)),
            latency_s=latency_s,
        )
