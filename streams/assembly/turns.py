"""Folds facts into turns: what an agent did, model call by model call, with each tool call paired with its return.

    turn 2   17 tokens, stop   search_corpus {"query": "where does ada work"} → ok, 3 chunks   pruned c7, c9

A turn starts at a model call and holds all facts until the next one. Facts before the first model call (an agent that
searches before it calls the model) form a separate turn without sampled tokens.
"""

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, assert_never

import msgspec

from headrace.schemas.events import (
    ClockTicked,
    ContextPruned,
    ContextSummarized,
    EndStatus,
    EnvironmentForked,
    EnvironmentRestored,
    EnvironmentSnapshotted,
    Fact,
    ModelCalled,
    SubagentFinished,
    SubagentStarted,
    ToolCalled,
    ToolReturned,
    ToolStatus,
    TrajectoryEnded,
    TrajectoryStarted,
)
from headrace.schemas.records.trajectory import ToolStatistics, ToolUse, Turn
from headrace.streams.structs import writing

_Turn, _ToolUse, _ToolStatistics = writing(Turn), writing(ToolUse), writing(ToolStatistics)


class _Use(msgspec.Struct):
    """A tool call whose return may be pending."""

    tool: str
    call_id: str
    called: ToolCalled | None
    returned: ToolReturned | None = None

    def finished(self) -> ToolUse:
        returned = self.returned
        return _ToolUse(
            call_id=self.call_id,
            tool=self.tool,
            arguments=self.called.arguments if self.called else {},
            thinking_tokens=self.called.thinking_tokens if self.called else None,
            status=returned.status if returned else None,
            error_class=returned.error_class if returned else None,
            result=returned.result if returned else None,
            latency_s=returned.latency_s if returned else None,
        )


class _TurnDraft(msgspec.Struct):
    """A turn under construction. Segments hold the tokens."""

    sampled_tokens: int = 0
    finish_reason: str | None = None
    messages: list[dict[str, Any]] | None = None
    uses: list[_Use] = []
    pruned_ids: list[str] = []
    summarized: bool = False
    snapshot_id: str | None = None
    is_call: bool = False

    def finished(self, segment: int | None) -> Turn:
        return _Turn(
            sampled_tokens=self.sampled_tokens,
            finish_reason=self.finish_reason,
            messages=self.messages,
            tools=[use.finished() for use in self.uses],
            pruned_ids=self.pruned_ids,
            summarized=self.summarized,
            snapshot_id=self.snapshot_id,
            segment=segment,
        )


class TurnFold:
    """Folds a trajectory's facts, in order, into turns, tool statistics and steps."""

    def __init__(self) -> None:
        self.model_calls = 0
        self.subagents_assigned = 0
        self.subagents_finished = 0
        self._drafts: list[_TurnDraft] = []
        self._waiting: defaultdict[str, deque[_Use]] = defaultdict(deque)
        self._slowest: dict[int, int] = {}
        self._subagent_steps = 0

    def add(self, fact: Fact) -> None:
        """Fold the next fact: a model, or a struct with its fields."""
        match fact.TYPE:
            case ModelCalled.TYPE:
                self._called(fact)
            case ToolCalled.TYPE:
                self._use(_Use(fact.tool, fact.call_id, fact))
            case ToolReturned.TYPE:
                self._returned(fact)
            case ContextPruned.TYPE:
                self._turn().pruned_ids.extend(fact.pruned_ids)
            case ContextSummarized.TYPE:
                self._turn().summarized = True
            case SubagentStarted.TYPE:
                self.subagents_assigned += 1
            case SubagentFinished.TYPE:
                self._finished(fact)
            case EnvironmentSnapshotted.TYPE:
                if self._drafts:  # the state before the first turn is that of the task
                    self._drafts[-1].snapshot_id = fact.snapshot_id
            case EnvironmentForked.TYPE | EnvironmentRestored.TYPE:
                pass  # changes no turn of this trajectory
            case TrajectoryStarted.TYPE | TrajectoryEnded.TYPE | ClockTicked.TYPE:
                pass  # belongs to no turn
            case _:
                assert_never(fact)

    def _called(self, fact: ModelCalled) -> None:
        self.model_calls += 1
        self._drafts.append(_TurnDraft(len(fact.sampled_ids or ()), fact.finish_reason, fact.messages, is_call=True))

    def _returned(self, fact: ToolReturned) -> None:
        """Pair a return with the oldest open call of its id: some agents reuse an id in a later turn."""
        waiting = self._waiting.get(fact.call_id)
        if waiting:
            waiting.popleft().returned = fact
        else:
            # The event of the call is missing, but the tool was used.
            self._use(_Use(fact.tool, fact.call_id, None, fact))

    def _finished(self, fact: SubagentFinished) -> None:
        self.subagents_finished += fact.status is EndStatus.COMPLETED
        self._subagent_steps += fact.steps
        self._slowest[fact.stage] = max(self._slowest.get(fact.stage, 0), fact.steps)

    def turns(self, segments: Sequence[int] = ()) -> list[Turn]:
        """Returns the turns, in order. ``segments``: the segment of each model call; empty if there are none."""
        of_calls = iter(segments)
        return [draft.finished(next(of_calls, None) if draft.is_call else None) for draft in self._drafts]

    def statistics(self) -> dict[str, ToolStatistics]:
        """Returns the statistics of each tool by name, in order of first use."""
        uses_by_tool: defaultdict[str, list[_Use]] = defaultdict(list)
        for draft in self._drafts:
            for use in draft.uses:
                uses_by_tool[use.tool].append(use)
        return {tool: _statistics(uses) for tool, uses in uses_by_tool.items()}

    @property
    def critical_steps(self) -> int:
        """Σ over stages of the main agent's steps plus the slowest sub-agent's (Kimi K2.5)."""
        return self.model_calls + sum(self._slowest.values())

    @property
    def total_steps(self) -> int:
        """Model calls, including those of sub-agents."""
        return self.model_calls + self._subagent_steps

    def _turn(self) -> _TurnDraft:
        if not self._drafts:
            self._drafts.append(_TurnDraft())
        return self._drafts[-1]

    def _use(self, use: _Use) -> None:
        self._turn().uses.append(use)
        if use.returned is None:
            self._waiting[use.call_id].append(use)


def _statistics(uses: list[_Use]) -> ToolStatistics:
    errors: dict[str, int] = {}
    seconds = 0.0
    for use in uses:
        if use.returned is None:
            continue
        if use.returned.status is ToolStatus.ERROR:
            kind = str(use.returned.error_class or "unclassified")
            errors[kind] = errors.get(kind, 0) + 1
        longer = seconds + (use.returned.latency_s or 0.0)
        if math.isfinite(longer):  # JSON has no infinity: one absurd latency must not make the record invalid
            seconds = longer
    return _ToolStatistics(calls=len(uses), errors=errors, seconds=seconds)
