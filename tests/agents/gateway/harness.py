"""A gateway's core with a toy template, a toy tokenizer and a scripted engine; and clients that keep transcripts.

The template frames every message; the engine's own tokens for a text differ from the template's, as sampled tokens do
in practice. So a prompt that contains sampled tokens was spliced, and one that was rendered as a whole shows it.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from headrace.agents.gateway.canonical import Api, Message, MessageRole, assistant, call_of
from headrace.agents.gateway.capture import Capture, Plan, Tenant
from headrace.agents.gateway.continuation import Outcome
from headrace.agents.gateway.nodes import Answer, NodeStore
from headrace.agents.gateway.record import TaskInfo, TrajectoryEvent
from headrace.agents.gateway.requests.read import read
from headrace.agents.gateway.sealed import Kind, Sealer
from headrace.agents.gateway.session_identity import Arrival
from headrace.agents.gateway.sessions import SessionStore
from headrace.agents.gateway.splice import History, Rendered, splice
from headrace.schemas.arrays import IntArray
from headrace.schemas.events import Fact, LogprobsOf, ModelCalled, Sampling, VersionSpan
from headrace.schemas.tokens import prefix_hash

START, END, NEWLINE = 1, 2, 3
STOP = END
ROLES = {role: 10 + number for number, role in enumerate(MessageRole)}
RENDERED, SAMPLED = 1_000, 2_000_000
"""Offsets of a character's token, as the template encodes it and as the engine samples it."""
CLOSING = array("i", [END, NEWLINE])
SECRET = b"0123456789abcdef"
SAMPLING = Sampling(temperature=1.0, logprobs=LogprobsOf.PROCESSED)
TENANT = Tenant("acme")


def content(message: Message) -> str:
    calls = "".join(f"<call {call.tool} {call.arguments}>" for call in message.calls)
    return "|".join(message.texts) + calls


def render(messages: Sequence[Message], *, prompt: bool = True, thinking: bool = False) -> IntArray:
    """Tokens of a conversation. ``thinking``: whether the template keeps reasoning."""
    ids = array("i")
    for message in messages:
        text = (f"<think>{message.reasoning}</think>" if thinking and message.reasoning else "") + content(message)
        ids.extend([START, ROLES[message.role], *(RENDERED + ord(each) for each in text), END, NEWLINE])
    if prompt:
        ids.extend([START, ROLES[MessageRole.ASSISTANT]])
    return ids


def sampled_ids(message: Message) -> IntArray:
    """Tokens that the engine samples for an answer, with its stop token."""
    text = f"<think>{message.reasoning}</think>" * bool(message.reasoning) + content(message)
    return array("i", [*(SAMPLED + ord(each) for each in text), STOP])


@dataclass
class Reply:
    """What the client sees of a call."""

    plan: Plan
    prompt: IntArray
    messages: list[Message]
    ids: list[str]
    """Minted response id of each choice."""
    events: list[TrajectoryEvent]

    @property
    def outcome(self) -> Outcome:
        return self.plan.decision.outcome

    @property
    def message(self) -> Message:
        return self.messages[0]

    @property
    def trajectory(self) -> str:
        assert self.plan.state is not None
        return self.plan.state.trajectory_id


@dataclass
class Gateway:
    """A gateway's core that answers at once."""

    history: History = History.EXACT
    max_bytes: int = 10**9
    max_sessions: int = 1000
    now_ms: int = 1_790_000_000_000
    ids: str = "id"
    """How its ids begin."""
    log: list[TrajectoryEvent] = field(default_factory=list)
    core: Capture = field(init=False)
    nodes: NodeStore = field(init=False)
    sessions: SessionStore = field(init=False)

    def __post_init__(self) -> None:
        ids = count(1)
        self.nodes = NodeStore(self.max_bytes)
        self.sessions = SessionStore(self.max_sessions)
        self.core = Capture(Sealer([SECRET]), self.nodes, self.sessions, lambda: f"{self.ids}-{next(ids)}")

    def begin(
        self,
        api: Api,
        body: dict[str, Any],
        headers: Mapping[str, str] | None = None,
        *,
        url: str | None = None,
        tenant: Tenant = TENANT,
        compact: bool = False,
        **options: Any,
    ) -> Plan:
        self.now_ms += 1000
        request = read(api, body, is_compaction=compact)
        arrival = Arrival(headers or {}, url_session=url)
        plan = self.core.begin(tenant, arrival, request, body, template="toy", now_ms=self.now_ms, **options)
        self.log += plan.events
        return plan

    def finish(
        self,
        plan: Plan,
        *texts: str,
        calls: Sequence[tuple[str, Any]] = (),
        reasoning: str = "",
        finish_reason: str = "stop",
        delivered: bool | None = None,
    ) -> Reply:
        """Answer a call with one choice per text."""
        self.now_ms += 500
        whole = render(plan.request.messages)
        prompt = self._spliced(plan) if plan.known_ids is not None else None
        prompt = whole if prompt is None else prompt
        messages, answers, ids = [], [], []
        for choice, text in enumerate(texts or ("",)):
            message = assistant(
                text,
                tuple(
                    call_of(
                        self.core.mint(plan, Kind.CALL, self.now_ms, choice=choice, position=position),
                        tool,
                        arguments,
                        "test",
                    )
                    for position, (tool, arguments) in enumerate(calls)
                ),
                reasoning,
            )
            tokens = sampled_ids(message)
            messages.append(message)
            spans = (VersionSpan(version=3, start=0, end=len(tokens)),)
            logprobs = array("f", [-0.5] * len(tokens))
            answers.append(Answer(message, tokens, logprobs, spans, finish_reason, delivered=delivered))
            ids.append(self.core.mint(plan, Kind.RESPONSE, self.now_ms, choice=choice))
        events = self.core.finish(plan, prompt, answers, sampling=SAMPLING, latency_s=0.5, now_ms=self.now_ms)
        self.log += events
        return Reply(plan, prompt, messages, ids, [*plan.events, *events])

    def ask(self, api: Api, body: dict[str, Any], *texts: str, answer: Mapping[str, Any] = {}, **how: Any) -> Reply:
        """Begin and finish. ``answer``: options of :meth:`finish`."""
        return self.finish(self.begin(api, body, **how), *texts, **answer)

    def _spliced(self, plan: Plan) -> IntArray | None:
        assert plan.known_ids is not None
        messages, at = plan.request.messages, plan.match.matched
        real = (Rendered(render(messages[:at], prompt=False)), Rendered(render(messages)))
        return self.core.composed(plan, splice(plan.known_ids, CLOSING, [real], stop_ids=[STOP], history=self.history))

    def facts(self, trajectory: str | None = None) -> list[Fact]:
        return [event.fact for event in self.log if trajectory in (None, event.trajectory_id)]

    def types(self, trajectory: str | None = None) -> list[str]:
        return [fact.TYPE.removeprefix("headrace.").removesuffix(".v1") for fact in self.facts(trajectory)]

    def calls(self, trajectory: str | None = None) -> list[ModelCalled]:
        return [fact for fact in self.facts(trajectory) if isinstance(fact, ModelCalled)]

    def assert_exact(self) -> int:
        """Every event's prefix is what an earlier event of its trajectory ended with, and numbers have no gaps.

        Returns the number of segments, by the rule that a call continues or forks any earlier one.
        """
        segments = 0
        for trajectory in {event.trajectory_id: None for event in self.log}:
            numbers = [event.seq for event in self.log if event.trajectory_id == trajectory]
            assert numbers == list(range(len(numbers)))
            ends: dict[tuple[int, str], IntArray] = {}
            continued: set[tuple[int, str]] = set()
            for call in self.calls(trajectory):
                assert call.context_ids is not None
                assert call.sampled_ids is not None
                before = array("i")
                if call.prefix_length:
                    assert call.prefix_sha256 is not None
                    place = (call.prefix_length, call.prefix_sha256)
                    before = ends[place]
                    segments += place in continued
                    continued.add(place)
                else:
                    segments += 1
                tokens = before + call.context_ids + call.sampled_ids
                ends[len(tokens), prefix_hash(tokens)] = tokens
        return segments


def tool(name: str = "bash") -> dict[str, Any]:
    """A tool's definition for chat completions."""
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


@dataclass
class ChatClient:
    """A client of chat completions that resends its whole transcript."""

    gateway: Gateway
    headers: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None
    tools: list[dict[str, Any]] = field(default_factory=lambda: [tool()])
    messages: list[dict[str, Any]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def body(self) -> dict[str, Any]:
        return {"model": "policy", "messages": self.messages, **({"tools": self.tools} if self.tools else {})}

    def say(self, text: str, role: str = "user") -> "ChatClient":
        self.messages.append({"role": role, "content": text})
        return self

    def ask(self, *texts: str, n: int = 1, **answer: Any) -> Reply:
        body = self.body() | ({"n": n} if n > 1 else {})
        return self.gateway.ask(Api.CHAT, body, *texts, headers=self.headers, url=self.url, answer=answer)

    def keep(self, reply: Reply, choice: int = 0, **changes: Any) -> None:
        """Add an answer to the transcript, as most clients do: ids and text unchanged, reasoning left out."""
        message = reply.messages[choice]
        entry: dict[str, Any] = {"role": "assistant", "content": message.text or None}
        if message.calls:
            entry["tool_calls"] = [
                {"id": each.call_id, "type": "function", "function": {"name": each.tool, "arguments": each.arguments}}
                for each in message.calls
            ]
        self.messages.append(entry | changes)

    def result(self, reply: Reply, text: str, position: int = 0, choice: int = 0) -> None:
        call = reply.messages[choice].calls[position]
        self.messages.append({"role": "tool", "tool_call_id": call.call_id, "content": text})

    def turn(self, text: str, result: str, arguments: Any = None) -> Reply:
        """One turn with a tool call and its result."""
        reply = self.ask(text, calls=[("bash", arguments or {"command": result})])
        self.keep(reply)
        self.result(reply, result)
        return reply


def task(**fields: Any) -> TaskInfo:
    return TaskInfo(**fields)
