"""The spans of a trajectory as a tree: their order, what each records, and the sub-agent to which it belongs."""

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from headrace.agents.otel import names
from headrace.agents.otel.calls import first_text
from headrace.agents.otel.span import Span, SpanKind

Key = tuple[str, str]
"""Trace and span id."""


@dataclass(frozen=True, slots=True)
class _Place:
    """What a span's ancestors say about it."""

    owner: Key | None
    """The sub-agent to which it belongs; of a sub-agent's span, that sub-agent."""
    agent: str | None
    """Name of the innermost agent, empty if it has none; ``None`` outside agents."""
    model: Key | None
    """The model call in which it is, without an agent or tool between."""
    tool: str | None
    """The tool in which it is, without an agent or model call between."""
    start_ns: int
    """Its start, not before its parent's."""
    depth: int


_TOP: Final = _Place(None, None, None, None, 0, -1)


class SpanTree:
    """The tree; see :func:`tree_of`."""

    def __init__(self, spans: Collection[Span]) -> None:
        self.problems: list[str] = []
        """What is wrong with the tree, as labels."""
        self._places: dict[Key, _Place] = {}
        self._kinds: dict[Key, SpanKind] = {}
        self._subagents: dict[Key, Key | None] = {}
        self._models: dict[Key | None, int] = defaultdict(int)
        for span, parent in _top_down(spans, self.problems):
            self._place(span, _TOP if parent is None else self._places[parent])
        self.ordered: list[Span] = sorted(
            spans,
            key=lambda span: (self.start_of(span), self._places[_key(span)].depth, span.end_ns, *_key(span)),
        )
        """All spans, by start; a parent before its children."""
        self.given: dict[str, Any] = {}
        """Attributes of headrace's own, each with the value of the first span that has it."""
        self._owned: dict[Key | None, list[Span]] = defaultdict(list)
        for span in self.ordered:
            key = _key(span)
            for name, value in span.attributes.items():
                if name.startswith(names.OWN) and value is not None:
                    self.given.setdefault(name, value)
            owner = self._places[key].owner
            self._owned[owner].append(span)
            if key in self._subagents:
                self._owned[self._subagents[key]].append(span)
            if self._kinds.get(key) is SpanKind.MODEL:
                self._models[owner] += 1

    def kind_of(self, span: Span) -> SpanKind | None:
        """Return what a span records; ``None`` also for one that repeats what a span inside or around it records."""
        return self._kinds.get(_key(span))

    def start_of(self, span: Span) -> int:
        """Return when a span started, Unix nanoseconds: by its own clock, but not before its parent."""
        return self._places[_key(span)].start_ns

    def subagent(self, span: Span) -> Key | None:
        """Return the sub-agent that ``span`` stands for; ``None`` if it stands for none."""
        return _key(span) if _key(span) in self._subagents else None

    def owners(self) -> list[Key]:
        """Return the sub-agents, each after the one in which it ran."""
        return list(self._subagents)

    def parent_of(self, owner: Key) -> Key | None:
        """Return the sub-agent in which a sub-agent ran; ``None``: the main trajectory."""
        return self._subagents[owner]

    def owned_by(self, owner: Key | None) -> list[Span]:
        """Return the spans of a trajectory in their order, with those of its own sub-agents' runs."""
        return self._owned[owner]

    def model_calls(self, owner: Key | None) -> int:
        """Return the number of model calls of a trajectory."""
        return self._models[owner]

    def _place(self, span: Span, around: _Place) -> None:
        key, kind = _key(span), span.kind
        owner, agent, model, tool = around.owner, around.agent, around.model, around.tool
        if kind is SpanKind.AGENT:
            name = first_text(span.attributes, names.AGENT_NAME, names.OI_AGENT_NAME) or ""
            # Two instrumentations record one run twice, under the same name.
            if agent is not None and agent != name:
                self._subagents[key] = owner
                owner = key
            agent, model, tool = name, None, None
        elif kind is SpanKind.MODEL:
            if model is not None and self._kinds.pop(model, None) is not None:
                self.problems.append("nested_model_calls")
            model, tool = key, None
        elif kind is SpanKind.TOOL:
            name = first_text(span.attributes, names.TOOL_NAME, names.OI_TOOL_NAME) or span.name
            if name == tool:
                kind = None
                self.problems.append("nested_tool_calls")
            model, tool = None, name
        if kind is not None:
            self._kinds[key] = kind
        self._places[key] = _Place(owner, agent, model, tool, max(span.start_ns, around.start_ns), around.depth + 1)


def tree_of(spans: Collection[Span]) -> SpanTree:
    """Return the tree of ``spans``, each of which occurs once. A span whose parent is missing is a root."""
    return SpanTree(sorted(spans, key=lambda span: (span.start_ns, span.end_ns, *_key(span))))


def _top_down(spans: Collection[Span], problems: list[str]) -> Iterator[tuple[Span, Key | None]]:
    """Yield spans with the key of their parent, if that is among them; parents first. Cycles are cut and reported."""
    known = {_key(span): span for span in spans}
    children: dict[Key, list[Span]] = defaultdict(list)
    roots: list[Span] = []
    for span in known.values():
        parent = None if span.parent_id is None else (span.trace_id, span.parent_id)
        if parent in known and parent is not None:
            children[parent].append(span)
        else:
            roots.append(span)
    done: set[Key] = set()
    for root in (*roots, *known.values()):
        if _key(root) in done:
            continue
        parent = None if root.parent_id is None else (root.trace_id, root.parent_id)
        if parent in known:
            problems.append("cycle")
        waiting: list[tuple[Span, Key | None]] = [(root, None)]
        while waiting:
            span, above = waiting.pop()
            if _key(span) in done:
                continue
            done.add(_key(span))
            yield span, above
            waiting += [(child, _key(span)) for child in reversed(children[_key(span)])]


def _key(span: Span) -> Key:
    return (span.trace_id, span.span_id)
