"""Gathers spans until their trajectory is complete. They come children first, late, twice or never; memory is bounded.

A trace is complete a short time after its root and all parents have come. Without them, and for a conversation of
several traces, it is taken as complete once no span has come for a longer time. Time is that of arrivals, which the
caller passes. What comes after that is a trajectory of its own, labelled ``late``; what comes twice is dropped.
"""

import math
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Final

from headrace.agents.consent import Consent
from headrace.agents.otel import names
from headrace.agents.otel.calls import first_text
from headrace.agents.otel.span import Span
from headrace.agents.otel.trajectories import LATE, Grouped, consent_given, least_consent

EVICTED: Final = "evicted"
"""Label of spans that were sent before their time, because the memory was full."""

DROPPED: Final = "spans_dropped"
"""Label of a trace with more spans than are kept."""


@dataclass(frozen=True, slots=True)
class BufferLimits:
    """Times and sizes of the buffer."""

    grace_s: float = 10.0
    """Seconds without a further span after which a trace with its root is complete."""
    idle_s: float = 600.0
    """Seconds without a further span after which a trace without its root, or a conversation, is complete."""
    by_conversation: bool = True
    """Whether all traces of a conversation are one trajectory; otherwise each trace is."""
    max_traces: int = 50_000
    """Most traces that are kept; a further one sends the one that has been idle for longest."""
    max_spans: int = 10_000
    """Most spans of a trace that are kept."""
    max_characters: int = 256 * 1024 * 1024
    """Most characters of all spans that are kept."""
    remembered_spans: int = 500_000
    """Spans that have been sent and are known if they come again."""

    def __post_init__(self) -> None:
        for name in ("grace_s", "idle_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}: expected a finite number of seconds, not negative")
        for name in ("max_traces", "max_spans", "max_characters", "remembered_spans"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: expected at least 1")


@dataclass(slots=True)
class SpanCounts:
    """Number of spans by what became of them."""

    received: int = 0
    repeated: int = 0
    """Came again, and were dropped."""
    unrelated: int = 0
    """Of traces without an agent's work, and were dropped."""
    dropped: int = 0
    """Beyond ``max_spans``."""


_Conversation = tuple[str, str]
"""Service and conversation id: services choose ids independently."""


@dataclass(slots=True)
class _Sent:
    """What is remembered of a trace that was sent."""

    spans: set[str] = field(default_factory=set)
    conversation: _Conversation | None = None
    consent: Consent | None = None
    """What its spans allowed, which holds for what comes later."""


@dataclass(slots=True)
class _Trace:
    arrived_s: float
    late: bool
    spans: dict[str, Span] = field(default_factory=dict)
    size: int = 0
    dropped: int = 0
    has_work: bool = False
    first: tuple[int, str, _Conversation] | None = None
    """Start, id and conversation of the earliest span that names one."""

    @property
    def conversation(self) -> _Conversation | None:
        return None if self.first is None else self.first[2]


class SpanBuffer:
    """The spans of open trajectories."""

    def __init__(self, limits: BufferLimits, *, one_process: bool) -> None:
        """``one_process``: whether all spans come from one process, so that one with a parent elsewhere is a root."""
        self.counts = SpanCounts()
        self.size = 0
        """Characters of all spans that are kept."""
        self._limits = limits
        self._one_process = one_process
        self._traces: OrderedDict[str, _Trace] = OrderedDict()
        self._conversations: dict[_Conversation, set[str]] = {}
        self._sent: OrderedDict[str, _Sent] = OrderedDict()
        self._sent_spans = 0

    def __len__(self) -> int:
        """Return the number of traces that are kept."""
        return len(self._traces)

    def add(self, span: Span, now_s: float) -> list[Grouped]:
        """Keep ``span``; return what is complete because there is no room. ``now_s`` is the time of its arrival."""
        self.counts.received += 1
        sent = self._sent.get(span.trace_id)
        trace = self._traces.get(span.trace_id)
        if (sent is not None and span.span_id in sent.spans) or (trace is not None and span.span_id in trace.spans):
            self.counts.repeated += 1
            return []
        if trace is None:
            trace = self._traces[span.trace_id] = _Trace(now_s, late=sent is not None)
        trace.arrived_s = now_s
        self._traces.move_to_end(span.trace_id)
        if len(trace.spans) >= self._limits.max_spans:
            self.counts.dropped += 1
            trace.dropped += 1
            return []
        trace.spans[span.span_id] = span
        trace.size += span.size
        self.size += span.size
        if span.kind is not None:
            trace.has_work = True
            self._note_conversation(trace, span)
        evicted: list[Grouped] = []
        while self.size > self._limits.max_characters or len(self._traces) > self._limits.max_traces:
            evicted += self._take(next(iter(self._traces)), EVICTED)
        return evicted

    def due(self, now_s: float) -> list[Grouped]:
        """Return what is complete at ``now_s``, in the order of the last arrivals."""
        found: list[Grouped] = []
        earliest = min(self._limits.grace_s, self._limits.idle_s)
        waiting: set[_Conversation | None] = set()  # a conversation may have thousands of traces
        for trace_id, trace in list(self._traces.items()):
            if trace.arrived_s + earliest > now_s:
                break
            if trace_id not in self._traces or trace.conversation in waiting:
                continue
            if all(self._is_due(each, now_s) for each in self._together(trace_id)):
                found += self._take(trace_id)
            elif trace.conversation is not None:
                waiting.add(trace.conversation)
        return found

    def drain(self) -> list[Grouped]:
        """Return everything, complete or not."""
        found: list[Grouped] = []
        while self._traces:
            found += self._take(next(iter(self._traces)))
        return found

    def _note_conversation(self, trace: _Trace, span: Span) -> None:
        if not self._limits.by_conversation or trace.late:
            return
        name = first_text(span.attributes, names.CONVERSATION, names.SESSION)
        if name is None:
            return
        found = (span.start_ns, span.span_id, (span.service, name))
        if trace.first is not None and trace.first <= found:
            return
        self._forget_conversation(trace, span.trace_id)
        trace.first = found
        self._conversations.setdefault(found[2], set()).add(span.trace_id)

    def _forget_conversation(self, trace: _Trace, trace_id: str) -> None:
        if (conversation := trace.conversation) is None:
            return
        self._conversations[conversation].discard(trace_id)
        if not self._conversations[conversation]:
            del self._conversations[conversation]

    def _together(self, trace_id: str) -> list[str]:
        """Return the traces that are one trajectory with ``trace_id``."""
        conversation = self._traces[trace_id].conversation
        return [trace_id] if conversation is None else sorted(self._conversations[conversation])

    def _is_due(self, trace_id: str, now_s: float) -> bool:
        trace = self._traces[trace_id]
        waits = self._limits.idle_s
        if trace.conversation is None and self._has_root(trace_id):
            waits = self._limits.grace_s
        return trace.arrived_s + waits <= now_s

    def _has_root(self, trace_id: str) -> bool:
        """Return whether nothing more is expected of a trace: it has its root, and each span's parent."""
        if self._one_process:
            return self._is_whole(trace_id)
        spans = self._traces[trace_id].spans.values()
        known = self._known(trace_id)
        return all(span.parent_id is None or span.parent_id in known for span in spans)

    def _is_whole(self, trace_id: str) -> bool:
        """Return whether no span that should come from the same process is missing."""
        known = self._known(trace_id)
        return all(span.is_entry or span.parent_id in known for span in self._traces[trace_id].spans.values())

    def _known(self, trace_id: str) -> set[str]:
        return self._traces[trace_id].spans.keys() | (sent.spans if (sent := self._sent.get(trace_id)) else set())

    def _take(self, trace_id: str, label: str | None = None) -> list[Grouped]:
        """Remove a trace, with those of its conversation."""
        ids = self._together(trace_id)
        conversation = self._traces[trace_id].conversation
        is_whole = all(self._is_whole(each) for each in ids)
        labels: Counter[str] = Counter()
        spans: list[Span] = []
        has_work = False
        for each in ids:
            trace = self._traces.pop(each)
            self._forget_conversation(trace, each)
            self.size -= trace.size
            labels[DROPPED] += trace.dropped
            labels[LATE] += trace.late
            spans += trace.spans.values()
            has_work = has_work or trace.has_work
        if not has_work:
            self.counts.unrelated += len(spans)
            return []
        consents = [consent_given(spans)]
        for each in ids:
            if (sent := self._sent.get(each)) is not None:
                consents.append(sent.consent)
                conversation = sent.conversation
        consent = least_consent(consents)
        for span in spans:
            self._remember(span, conversation, consent)
        self._forget_sent()
        if label is not None:
            labels[label] += 1
        if not is_whole:
            labels["missing_parents"] += 1
        name = None if conversation is None else conversation[1]
        return [Grouped(spans, name, +labels, timed_out=not is_whole, consent=consent)]

    def _remember(self, span: Span, conversation: _Conversation | None, consent: Consent | None) -> None:
        sent = self._sent.setdefault(span.trace_id, _Sent())
        self._sent_spans += span.span_id not in sent.spans
        sent.spans.add(span.span_id)
        sent.conversation, sent.consent = conversation, consent
        self._sent.move_to_end(span.trace_id)

    def _forget_sent(self) -> None:
        while self._sent_spans > self._limits.remembered_spans and len(self._sent) > 1:
            _, forgotten = self._sent.popitem(last=False)
            self._sent_spans -= len(forgotten.spans)
