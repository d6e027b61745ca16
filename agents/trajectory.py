"""Handles that an agent holds: a trajectory, a tool call, a sub-agent. Every method notes an event and returns.

Arguments are noted by reference (lists and dicts one level deep are copied): what is nested inside them must not be
changed for the tenth of a second until the sender has read them. No method raises; what goes wrong is counted.
"""

import asyncio
import itertools
from collections.abc import Sequence
from contextvars import ContextVar, Token
from time import perf_counter, time_ns
from types import TracebackType
from typing import Any, Self

from opentelemetry.context import get_current

from headrace.agents.sender import Sender
from headrace.agents.tally import DropReason
from headrace.schemas.events import (
    ContextPruned,
    ContextSummarized,
    EndStatus,
    ModelCalled,
    Role,
    Sampling,
    SubagentFinished,
    SubagentStarted,
    ToolCalled,
    ToolErrorClass,
    ToolReturned,
    ToolStatus,
    TrajectoryEnded,
    TrajectoryStarted,
    Usage,
    VersionSpan,
)
from headrace.schemas.ids import uuid7
from headrace.schemas.model import Record
from headrace.schemas.topics import EVENTS

_UNSAID = Sampling()
_UNCOUNTED = Usage()

CURRENT: "ContextVar[Trajectory | None]" = ContextVar("headrace_trajectory", default=None)
"""The trajectory of the innermost ``with`` around the running code."""


class Trajectory:
    """One attempt at a task. ``with`` ends it: as completed, or as failed by the exception that passes through.

    Thread-safe. Belongs to the process that opened it: after a fork the child's events are dropped (``forked``).
    """

    __slots__ = ("_calls", "_numbers", "_refusal", "_sender", "_token", "id", "model_calls")

    def __init__(self, sender: Sender, trajectory_id: str, refusal: DropReason | None = None) -> None:
        self.id = trajectory_id
        """Key of all its events."""
        self.model_calls = 0
        """Model calls noted so far."""
        self._sender = sender
        self._refusal = refusal
        self._numbers = itertools.count()
        self._calls = itertools.count(1)
        self._token: Token[Trajectory | None] | None = None

    def _note(self, model: type[Record], fields: dict[str, Any], extra: dict[str, Any]) -> None:
        sender = self._sender
        try:
            refusal = self._refusal or sender.refusal
            if refusal is not None:
                sender.tally.drop(refusal, model.TYPE)
                return
            if extra:
                fields.update(extra)
            # The number is taken before the queue is asked: an event that finds no room leaves a visible hole.
            sender.put((EVENTS, self.id, next(self._numbers), time_ns(), get_current(), model, fields))
        except Exception as error:  # noqa: BLE001 - the host comes first: nothing may raise into it
            sender.tally.drop(DropReason.INTERNAL, repr(error))

    def model_called(
        self,
        model: str = "",
        *,
        prefix_length: int = 0,
        prefix_sha256: str | None = None,
        context_ids: Sequence[int] | None = None,
        sampled_ids: Sequence[int] | None = None,
        logprobs: Sequence[float] | None = None,
        version_spans: Sequence[VersionSpan] = (),
        sampling: Sampling = _UNSAID,
        finish_reason: str | None = None,
        messages: list[dict[str, Any]] | None = None,
        latency_s: float | None = None,
        usage: Usage = _UNCOUNTED,
        **extra: Any,
    ) -> None:
        """The model was asked and answered; fields as in :class:`headrace.schemas.events.ModelCalled`."""
        self.model_calls += 1
        fields = {
            "model": model,
            "prefix_length": prefix_length,
            "prefix_sha256": prefix_sha256,
            "context_ids": _snapshot(context_ids),
            "sampled_ids": _snapshot(sampled_ids),
            "logprobs": _snapshot(logprobs),
            "version_spans": version_spans,
            "sampling": sampling,
            "finish_reason": finish_reason,
            "messages": _snapshot(messages),
            "latency_s": latency_s,
            "usage": usage,
        }
        self._note(ModelCalled, fields, extra)

    def tool(self, name: str, arguments: dict[str, Any] | None = None, *, call_id: str | None = None) -> "ToolCall":
        """A call of tool ``name``, for a ``with`` around the code that does it; set ``.result`` inside."""
        unique = f"c{next(self._calls)}" if call_id is None else call_id
        return ToolCall(self, name, {} if arguments is None else arguments, unique)

    def pruned(self, pruned_ids: Sequence[str], tokens_before: int, tokens_after: int, **extra: Any) -> None:
        """Pieces of the context were removed."""
        fields = {"pruned_ids": _snapshot(pruned_ids), "tokens_before": tokens_before, "tokens_after": tokens_after}
        self._note(ContextPruned, fields, extra)

    def summarized(self, tokens_before: int, tokens_after: int, summary: str | None = None, **extra: Any) -> None:
        """The context was replaced by ``summary``."""
        fields = {"summary": summary, "tokens_before": tokens_before, "tokens_after": tokens_after}
        self._note(ContextSummarized, fields, extra)

    def subagent(
        self, name: str, *, task_id: str, stage: int = 0, role: Role = Role.FROZEN, **start: Any
    ) -> "Subagent":
        """A sub-agent with its own trajectory, for a ``with`` around its work. ``start`` as in ``trajectory()``."""
        return Subagent(self, name, stage, {"task_id": task_id, "role": role, **start})

    def end(
        self, status: EndStatus = EndStatus.COMPLETED, answer: Any = None, outcome: float | None = None, **extra: Any
    ) -> None:
        """The attempt is over; what is noted afterwards is dropped (``after_end``)."""
        self._note(TrajectoryEnded, {"status": status, "answer": _snapshot(answer), "outcome": outcome, **extra}, {})
        self._refusal = self._refusal or DropReason.AFTER_END

    def __enter__(self) -> Self:
        self._token = CURRENT.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            _leave(self._token)
            self._token = None
        if self._refusal is None:
            if error is None:
                self.end()
            else:
                self.end(EndStatus.ABORTED if _is_abort(error) else EndStatus.FAILED, error=_describe(error))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


class ToolCall:
    """A tool call. ``with`` notes the call, then its return; an exception is noted and goes on to the host."""

    __slots__ = ("_error_class", "_started", "_trajectory", "arguments", "call_id", "result", "tool")

    def __init__(self, trajectory: Trajectory, tool: str, arguments: dict[str, Any], call_id: str) -> None:
        self.tool = tool
        self.arguments = arguments
        self.call_id = call_id
        self.result: Any = None
        """What the tool gave back: set it inside the ``with``."""
        self._trajectory = trajectory
        self._error_class: ToolErrorClass | None = None
        self._started = 0.0

    def error(self, error_class: ToolErrorClass, result: Any = None) -> None:
        """The tool failed, in a way that the agent handles itself."""
        self._error_class = error_class
        self.result = result

    def __enter__(self) -> Self:
        fields = {"call_id": self.call_id, "tool": self.tool, "arguments": _snapshot(self.arguments)}
        self._trajectory._note(ToolCalled, fields, {})
        self._started = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        latency_s = perf_counter() - self._started
        if error is not None:
            self.error(_error_class(error), {"error": type(error).__name__, "message": _describe(error)})
        fields = {
            "call_id": self.call_id,
            "tool": self.tool,
            "status": ToolStatus.OK if self._error_class is None else ToolStatus.ERROR,
            "error_class": self._error_class,
            "result": _snapshot(self.result),
            "latency_s": latency_s,
        }
        self._trajectory._note(ToolReturned, fields, {})

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


class Subagent:
    """A sub-agent's work. ``with`` gives the sub-agent's own trajectory; the parent's gets its start and finish."""

    __slots__ = ("_name", "_parent", "_stage", "_sub")

    def __init__(self, parent: Trajectory, name: str, stage: int, start: dict[str, Any]) -> None:
        self._parent = parent
        self._name = name
        self._stage = stage
        fields = {"agent": name, "parent_trajectory_id": parent.id, **start}
        self._sub = open_trajectory(parent._sender, fields)

    def __enter__(self) -> Trajectory:
        fields = {"name": self._name, "sub_trajectory_id": self._sub.id, "stage": self._stage}
        self._parent._note(SubagentStarted, fields, {})
        return self._sub.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sub.__exit__(kind, error, trace)
        status = EndStatus.COMPLETED
        if error is not None:
            status = EndStatus.ABORTED if _is_abort(error) else EndStatus.FAILED
        fields = {
            "name": self._name,
            "sub_trajectory_id": self._sub.id,
            "stage": self._stage,
            "status": status,
            "steps": self._sub.model_calls,
        }
        self._parent._note(SubagentFinished, fields, {})

    async def __aenter__(self) -> Trajectory:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def open_trajectory(sender: Sender, start: dict[str, Any], trajectory_id: str | None = None) -> Trajectory:
    """A new trajectory with its first event, ``trajectory.started``, noted. Never raises."""
    usable = isinstance(trajectory_id, str) and trajectory_id.isprintable() and 0 < len(trajectory_id) <= 200
    trajectory = Trajectory(sender, trajectory_id if usable and trajectory_id else uuid7())
    trajectory._note(TrajectoryStarted, start, {})
    return trajectory


def _snapshot(value: Any) -> Any:
    """``value``, copied one level deep where hosts are wont to go on changing it: plain lists and dicts."""
    kind = type(value)
    return value.copy() if kind is list or kind is dict else value


def _leave(token: "Token[Trajectory | None]") -> None:
    try:
        CURRENT.reset(token)
    except (ValueError, RuntimeError):
        # Left in another context than entered, as asynchronous generators do: that context ends by itself.
        CURRENT.set(None)


def _is_abort(error: BaseException) -> bool:
    return isinstance(error, asyncio.CancelledError) or not isinstance(error, Exception)


def _error_class(error: BaseException) -> ToolErrorClass:
    if _is_abort(error):
        return ToolErrorClass.ABORTED
    return ToolErrorClass.TIMEOUT if isinstance(error, TimeoutError) else ToolErrorClass.ENVIRONMENT


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:1_000]
    except Exception:  # noqa: BLE001 - the host's exception may fail to describe itself
        return type(error).__name__
