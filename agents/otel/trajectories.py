"""Spans → the events of trajectories: a function of the set of spans, whatever their order and however often they came.

    invoke_agent weather ─┬─ chat                       trajectory.started
                          ├─ execute_tool weather   →   model.called, tool.called, tool.returned
                          └─ chat                       model.called, trajectory.ended

Events are in the order of the starts of spans, a parent before its children; a tool's return comes before the first
span that started after it. An agent inside another agent is a sub-agent with a trajectory of its own. All ids are
derived from ids of spans.
"""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from headrace.agents.consent import Consent, consent_of
from headrace.agents.otel import names
from headrace.agents.otel.calls import (
    ModelSpan,
    ToolSpan,
    first_text,
    fitting,
    read_model,
    read_tool,
)
from headrace.agents.otel.messages import Messages, arguments_of, parsed
from headrace.agents.otel.span import Span, SpanKind
from headrace.agents.otel.tree import SpanTree, tree_of
from headrace.schemas.bounds import MAX_COUNT, MAX_NAME, MAX_SECONDS, MAX_STEPS
from headrace.schemas.events import (
    EndStatus,
    ModelCalled,
    Role,
    SubagentFinished,
    SubagentStarted,
    ToolCalled,
    ToolErrorClass,
    ToolReturned,
    ToolStatus,
    TrajectoryEnded,
    TrajectoryStarted,
)
from headrace.schemas.ids import derived_id
from headrace.schemas.model import Record
from headrace.schemas.trace import SpanContext

SCHEME: Final = "otel"
"""First part of derived ids."""

LATE: Final = "late"
"""Label of spans that came after their trajectory had been sent; they are a trajectory of their own."""

_REMEMBERED: Final = 8
"""Earlier conversations of a trajectory that a call's messages are compared with."""


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """An event of a trajectory, not yet encoded; its index among the trajectory's events is its sequence number."""

    event_id: str
    model: type[Record]
    fields: dict[str, Any]
    time_ns: int
    """When it happened, Unix nanoseconds."""
    context: SpanContext
    """The span that it is of."""


@dataclass(frozen=True, slots=True)
class SpanTrajectory:
    """A trajectory, complete."""

    trajectory_id: str
    parent_id: str | None
    tenant: str | None
    """As ``headrace.tenant`` says; ``None`` if it does not."""
    events: tuple[SpanEvent, ...]


@dataclass(frozen=True, slots=True)
class Grouped:
    """Spans that are one trajectory, with its sub-agents' trajectories."""

    spans: Collection[Span]
    conversation: str | None = None
    """Id of the conversation to which they belong; ``None``: they are one trace."""
    labels: Mapping[str, int] = field(default_factory=dict)
    """What happened to them on arrival, with how often."""
    timed_out: bool = False
    """Whether spans are missing without which the end is not known."""
    consent: Consent | None = None
    """The least that any ``headrace.consent`` of the spans, or of earlier ones of their trace, allows; ``None`` if
    they say nothing."""


def consent_given(spans: Iterable[Span]) -> Consent | None:
    """Return the least that any ``headrace.consent`` of ``spans`` allows; ``None`` if they say nothing. What is no
    consent allows nothing."""
    values = (span.attributes.get(f"{names.OWN}consent") for span in spans)
    return least_consent(consent_of(value) or Consent.UNRECORDED for value in values if value is not None)


def least_consent(given: Iterable[Consent | None]) -> Consent | None:
    """Return the consent that allows the least; ``None`` if there is none."""
    found = set(given)
    return next((each for each in (Consent.UNRECORDED, Consent.ANALYSE, Consent.TRAIN) if each in found), None)


def trajectories_of(group: Grouped) -> list[SpanTrajectory]:
    """Return the trajectories of ``group``, each after its parent; none if no span records an agent's work."""
    tree = tree_of(group.spans)
    if not any(tree.kind_of(span) for span in tree.ordered):
        return []
    labels = Counter(group.labels) + Counter(tree.problems)
    for span in tree.ordered:
        labels.update(span.problems)
    first = tree.ordered[0]
    parts: tuple[str, ...] = (first.trace_id,)
    if group.conversation is not None:
        parts = ("conversation", group.conversation, first.trace_id)
    if LATE in labels:
        parts = (LATE, *parts, first.span_id)
    main_id = derived_id(SCHEME, *parts)
    ids = {None: main_id} | {span_id: derived_id(SCHEME, "subagent", *span_id) for span_id in tree.owners()}
    builders = {owner: _Builder(group, tree, owner, ids, labels) for owner in ids}
    # The labels of all are in the main trajectory's first event, so it comes last.
    built = {owner: builders[owner].built() for owner in reversed(list(ids))}
    return [built[owner] for owner in ids]


Owner = tuple[str, str] | None
"""Trace and span id of a sub-agent's span; ``None``: the main trajectory."""


class _Builder:
    """Builds one trajectory."""

    def __init__(
        self, group: Grouped, tree: SpanTree, owner: Owner, ids: Mapping[Owner, str], labels: Counter[str]
    ) -> None:
        self._group = group
        self._tree = tree
        self._owner = owner
        self._ids = ids
        self._labels = labels
        self._id = ids[owner]
        self._spans = tree.owned_by(owner)
        self._events: list[SpanEvent] = []
        self._models = 0
        self._past: list[Messages] = []
        self._call_ids: Counter[str] = Counter()
        self._answer: Any = None
        tools = [read_tool(span, _ignored) for span in self._spans if tree.kind_of(span) is SpanKind.TOOL]
        self._recorded_calls = {tool.call_id for tool in tools if tool.call_id is not None}
        self._recorded_tools = {tool.tool for tool in tools if tool.call_id is None}
        self._called: dict[tuple[str, str], tuple[str, ToolSpan]] = {}
        self._open: dict[str, tuple[str, str, int]] = {}

    def built(self) -> SpanTrajectory:
        top = self._top()
        self._sweep()
        first_ns = self._tree.start_of(self._spans[0])
        last_ns = max(first_ns, *(span.end_ns for span in self._spans))
        ended = self._event(TrajectoryEnded, self._ended(top), last_ns, top)
        started = self._event(TrajectoryStarted, self._started(top), first_ns, top)  # with all labels
        return SpanTrajectory(self._id, self._parent(), self._given("tenant"), (started, *self._events, ended))

    def _top(self) -> Span:
        """Return the span that stands for the whole: the first agent's, or the first."""
        agents = (span for span in self._spans if self._tree.kind_of(span) is SpanKind.AGENT)
        return next(agents, self._spans[0])

    def _parent(self) -> str | None:
        return None if self._owner is None else self._ids[self._tree.parent_of(self._owner)]

    def _sweep(self) -> None:
        """Emit what spans begin in the order of their starts, and what they end before the next start."""
        ends: list[tuple[int, int]] = []
        for number, span in enumerate(self._spans):
            start = self._tree.start_of(span)
            while ends and ends[0][0] <= start:
                self._close(self._spans[heapq.heappop(ends)[1]])
            if self._begin(span):
                heapq.heappush(ends, (max(start, span.end_ns), number))
        while ends:
            self._close(self._spans[heapq.heappop(ends)[1]])

    def _begin(self, span: Span) -> bool:
        """Emit the event with which ``span`` begins; return whether it has another one at its end."""
        if (sub := self._tree.subagent(span)) is not None and sub != self._owner:
            self._emit(SubagentStarted, self._subagent(span), self._tree.start_of(span), span)
            return True
        match self._tree.kind_of(span):
            case SpanKind.MODEL:
                self._model(span, read_model(span, self._report))
            case SpanKind.TOOL:
                tool = read_tool(span, self._report)
                call_id = self._unique(tool.call_id or span.span_id)
                self._called[span.trace_id, span.span_id] = (call_id, tool)
                fields = {"call_id": call_id, "tool": tool.tool, "arguments": tool.arguments}
                self._emit(ToolCalled, fields, self._tree.start_of(span), span)
                return True
        return False

    def _close(self, span: Span) -> None:
        """Emit the event with which ``span`` ends."""
        if self._tree.subagent(span) is not None:
            status = EndStatus.COMPLETED if span.error is None else EndStatus.FAILED
            steps = self._tree.model_calls(self._tree.subagent(span))
            fields = self._subagent(span) | {"status": status, "steps": min(steps, MAX_STEPS)}
            self._emit(SubagentFinished, fields, span.end_ns, span)
            return
        call_id, tool = self._called.pop((span.trace_id, span.span_id))
        failed = span.error is not None
        self._emit(
            ToolReturned,
            {
                "call_id": call_id,
                "tool": tool.tool,
                "status": ToolStatus.ERROR if failed else ToolStatus.OK,
                "error_class": ToolErrorClass.ENVIRONMENT if failed else None,
                "result": span.error if failed and tool.result is None else tool.result,
                "latency_s": _seconds(span.start_ns, span.end_ns),
            },
            span.end_ns,
            span,
        )

    def _subagent(self, span: Span) -> dict[str, Any]:
        return {
            "name": _agent_name(span) or span.name or "subagent",
            "sub_trajectory_id": self._ids[self._tree.subagent(span)],
            "stage": min(self._models, MAX_COUNT),
        }

    def _model(self, span: Span, call: ModelSpan) -> None:
        self._results(span, call.context)
        self._models += 1
        new = self._new_messages(call.context)
        for choice, answer in enumerate(call.answers or [None]):
            messages = new if answer is None else [*new, answer]
            fields: dict[str, Any] = {
                "model": call.model,
                "sampling": call.sampling,
                "finish_reason": _at(call.finish_reasons, choice),
                "messages": fitting(messages, self._report) if messages else None,
                "latency_s": _seconds(span.start_ns, span.end_ns),
                "call_id": span.span_id,
            }
            if choice == 0:
                fields |= {"usage": call.usage, **call.tokens}
            if len(call.answers) > 1:
                fields["choice"] = choice
            if fields["messages"] is None and messages:
                fields["hidden"] = ["messages"]
            self._emit(ModelCalled, fields, span.end_ns, span)
            self._announced(span, answer or {})
        if call.answers:
            self._past = [[*call.context, call.answers[0]], *self._past[: _REMEMBERED - 1]]
            self._answer = call.answers[0].get("content")

    def _new_messages(self, context: Messages) -> Messages:
        """Return the messages that no earlier call of the trajectory had."""
        known = max((len(past) for past in self._past if context[: len(past)] == past), default=0)
        return context[known:]

    def _announced(self, span: Span, answer: Mapping[str, Any]) -> None:
        """Emit the tool calls of an answer that no span records."""
        for call in answer.get("tool_calls", ()):
            call_id, tool = call["id"][:MAX_NAME], call["function"]["name"][:MAX_NAME]
            if not call_id or call_id in self._recorded_calls or tool in self._recorded_tools:
                continue
            self._report("tools_from_messages")
            unique = self._unique(call_id)
            self._open[call_id] = (unique, tool, span.end_ns)
            arguments = fitting(arguments_of(call["function"]["arguments"]), self._report) or {}
            self._emit(ToolCalled, {"call_id": unique, "tool": tool, "arguments": arguments}, span.end_ns, span)

    def _results(self, span: Span, context: Messages) -> None:
        """Emit the results of such calls that a request has."""
        for message in context if self._open else ():
            found = self._open.pop(message.get("tool_call_id", "")[:MAX_NAME], None)
            if found is not None:
                call_id, tool, called_ns = found
                start_ns = self._tree.start_of(span)
                self._emit(
                    ToolReturned,
                    {
                        "call_id": call_id,
                        "tool": tool,
                        "result": fitting(message.get("content"), self._report),
                        "latency_s": _seconds(called_ns, start_ns),
                    },
                    start_ns,
                    span,
                )

    def _started(self, top: Span) -> dict[str, Any]:
        given = {name: value for name in names.START_FIELDS if (value := self._given(name)) is not None}
        agent = next((name for span in (top, *self._spans) if (name := _agent_name(span))), None)
        size = self._value("group_size")
        about: dict[str, Any] = {"trace_id": top.trace_id, "span_id": top.span_id}
        if self._group.conversation is not None:
            about["conversation_id"] = self._group.conversation
        if self._owner is None and self._labels:
            about["labels"] = dict(sorted(self._labels.items()))
        if self._owner is not None:
            # Only an attempt at the task is a member of its group.
            for name in ("group_id", "cohort_key", "agent"):
                given.pop(name, None)
            size = None
        return {
            "task_id": self._group.conversation or top.trace_id,
            "agent": agent or top.service or "otel",
            "parent_trajectory_id": self._parent(),
            "group_size": size if type(size) is int and 0 < size <= MAX_COUNT else None,
            "role": Role.TRAINABLE if self._owner is None else Role.FROZEN,
            "task": {SCHEME: about},
            **given,
        }

    def _ended(self, top: Span) -> dict[str, Any]:
        fields: dict[str, Any] = {"status": EndStatus.COMPLETED, "answer": self._answer_of(top)}
        if top.error is not None and self._tree.kind_of(top) is not SpanKind.TOOL:
            fields |= {"status": EndStatus.FAILED, "error": top.error or "the span failed without a description"}
        elif self._group.timed_out:
            fields |= {"status": EndStatus.ABORTED, "error": "spans are missing: the end of the trace did not arrive"}
        outcome = self._value("outcome")
        if outcome is not None and self._owner is None:
            try:
                TrajectoryEnded.model_validate({"outcome": outcome}, strict=True)
                fields["outcome"] = outcome
            except ValidationError:
                self._report("malformed_outcome")
        return fields

    def _answer_of(self, top: Span) -> Any:
        own = None
        if self._tree.kind_of(top) is SpanKind.AGENT:
            own = parsed(top.attributes.get(names.OI_OUTPUT))
        return fitting(self._answer if own is None else own, self._report)

    def _given(self, name: str) -> str | None:
        """Return the text that an attribute ``headrace.*`` gives, of the first span that has it."""
        value = self._value(name)
        return value[:MAX_NAME] if isinstance(value, str) and value else None

    def _value(self, name: str) -> Any:
        return self._tree.given.get(names.OWN + name)

    def _unique(self, call_id: str) -> str:
        """Return an id that no call of the trajectory has: agents use ids again in later turns."""
        self._call_ids[call_id] += 1
        uses = self._call_ids[call_id]
        return call_id if uses == 1 else f"{call_id[: MAX_NAME - 8]}#{uses}"

    def _report(self, label: str) -> None:
        self._labels[label] += 1

    def _emit(self, model: type[Record], fields: dict[str, Any], time_ns: int, span: Span) -> None:
        self._events.append(self._event(model, fields, time_ns, span))

    def _event(self, model: type[Record], fields: dict[str, Any], time_ns: int, span: Span) -> SpanEvent:
        which = fields.get("call_id", "") if model is not ModelCalled else fields.get("choice", "")
        event_id = derived_id(SCHEME, self._id, span.trace_id, span.span_id, model.TYPE, which)
        return SpanEvent(event_id, model, fields, time_ns, span.context)


def _agent_name(span: Span) -> str | None:
    return first_text(span.attributes, names.AGENT_NAME, names.OI_AGENT_NAME)


def _seconds(start_ns: int, end_ns: int) -> float | None:
    """Return the time between; ``None`` if it is longer than an event can say, because a clock was wrong."""
    seconds = max(0, end_ns - start_ns) / 1e9
    return seconds if seconds <= MAX_SECONDS else None


def _at(items: Sequence[str], index: int) -> str | None:
    return items[index] if index < len(items) else None


def _ignored(label: str) -> None:
    """What is wrong with a tool's span is reported when its events are made."""
