"""Handles that an agent holds: a trajectory, a tool call, a sub-agent. Every method notes an event and returns.

Arguments are noted by reference (plain lists and dicts are copied, one level deep): what is nested inside them should
not be changed for the tenth of a second until the sender has read them; the event has what it reads then, which may be
neither the old nor the new. No method raises, whatever it is given; what goes wrong is counted, and told in the log.
"""

import asyncio
import itertools
from collections.abc import Sequence
from contextvars import ContextVar
from time import perf_counter, time_ns
from types import TracebackType
from typing import Any, Self

from opentelemetry.context import get_current

from headrace.agents.counters import Alteration, DropReason
from headrace.agents.encoding import HUGE
from headrace.agents.identifier import BadIdentifier, identifier, is_plain
from headrace.agents.raised import Raised, type_name
from headrace.agents.sender import Sender
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

_UNSAID: Sampling = ModelCalled.model_fields["sampling"].default
_UNCOUNTED: Usage = ModelCalled.model_fields["usage"].default

REQUIRED = ("task_id", "agent")
"""Identifiers that every trajectory has."""

OPTIONAL = ("group_id", "cohort_key", "run", "parent_trajectory_id", "tenant")
"""Identifiers that may be left out."""

_STATUSES = tuple(EndStatus)

CURRENT: "ContextVar[Trajectory | None]" = ContextVar("headrace_trajectory", default=None)
"""The trajectory of the innermost ``with`` around the running code."""


class Trajectory:
    """One attempt at a task. ``with`` ends it: as completed, or as failed by the exception that passes through.

    Thread-safe. Belongs to the process that opened it: after a fork the child's events are dropped (``forked``).
    """

    __slots__ = ("_calls", "_inside", "_items", "_numbers", "_outer", "_refusal", "_sender", "id", "model_calls")

    def __init__(self, sender: Sender, trajectory_id: str, refusal: DropReason | None = None) -> None:
        self.id = trajectory_id
        """Key of all its events."""
        self.model_calls = 0
        """Model calls noted so far."""
        self._sender = sender
        self._refusal = refusal
        self._items = sender.config.max_event_bytes
        self._numbers = itertools.count()
        self._calls = itertools.count(1)
        self._inside = False
        self._outer: Trajectory | None = None

    def _note(self, model: type[Record], fields: dict[str, Any], extra: dict[str, Any]) -> None:
        sender = self._sender
        try:
            refusal = self._refusal or sender.refusal
            if refusal is not None:
                sender.counters.drop(refusal, model.TYPE)
                return
            if extra:
                fields.update(extra)
            # The number is taken before the queue is asked: an event that finds no room leaves a visible hole.
            sender.put((EVENTS, self.id, next(self._numbers), time_ns(), get_current(), model, fields))
        except Exception as error:  # noqa: BLE001 - the host comes first: nothing may raise into it
            sender.counters.drop(DropReason.INTERNAL, type_name(type(error)))

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
        items = self._items
        fields = {
            "model": model,
            "prefix_length": prefix_length,
            "prefix_sha256": prefix_sha256,
            "context_ids": snapshot(context_ids, items),
            "sampled_ids": snapshot(sampled_ids, items),
            "logprobs": snapshot(logprobs, items),
            "version_spans": version_spans,
            "sampling": sampling,
            "finish_reason": finish_reason,
            "messages": snapshot(messages, items),
            "latency_s": latency_s,
            "usage": usage,
        }
        self._note(ModelCalled, fields, extra)

    def tool(self, name: str, arguments: dict[str, Any] | None = None, *, call_id: str | None = None) -> "ToolCall":
        """A call of tool ``name``, for a ``with`` around the code that does it; set ``.result`` inside."""
        if call_id is None:
            unique = f"c{next(self._calls)}"
        elif is_plain(call_id):
            unique = call_id
        else:
            unique = _identified(self._sender, call_id, "call_id") or f"c{next(self._calls)}"
        return ToolCall(self, name, {} if arguments is None else arguments, unique)

    def pruned(self, pruned_ids: Sequence[str], tokens_before: int, tokens_after: int, **extra: Any) -> None:
        """Pieces of the context were removed."""
        ids = snapshot(pruned_ids, self._items)
        fields = {"pruned_ids": ids, "tokens_before": tokens_before, "tokens_after": tokens_after}
        self._note(ContextPruned, fields, extra)

    def summarized(self, tokens_before: int, tokens_after: int, summary: str | None = None, **extra: Any) -> None:
        """The context was replaced by ``summary``."""
        fields = {"summary": summary, "tokens_before": tokens_before, "tokens_after": tokens_after}
        self._note(ContextSummarized, fields, extra)

    def subagent(
        self, name: str, *, task_id: str, stage: int = 0, role: Role | str = Role.FROZEN, **start: Any
    ) -> "Subagent":
        """A sub-agent with its own trajectory, for a ``with`` around its work. ``start`` as in ``trajectory()``."""
        return Subagent(self, name, stage, {"task_id": task_id, "role": role, **start})

    def end(
        self,
        status: EndStatus | str = EndStatus.COMPLETED,
        answer: Any = None,
        outcome: float | None = None,
        **extra: Any,
    ) -> None:
        """The attempt is over; what is noted afterwards is dropped (``after_end``).

        ``status``: an :class:`~headrace.schemas.events.EndStatus` or its text, ``"completed"``. With any other the
        trajectory ends as failed, and its ``error`` says so. ``outcome``: a finite number; with any other the event is
        dropped (``invalid``), because no number could be made up for it.
        """
        if type(status) is not EndStatus and not (type(status) is str and status in _STATUSES):
            said = repr(status[:40]) if type(status) is str else f"of type {type_name(type(status))}"
            why = f"status is {said}: expected one of {', '.join(_STATUSES)}"
            self._sender.counters.alter(Alteration.END_STATUS, why)
            status, extra = EndStatus.FAILED, {"error": why} | extra
        fields = {"status": status, "answer": snapshot(answer, self._items), "outcome": outcome, **extra}
        self._note(TrajectoryEnded, fields, {})
        self._refusal = self._refusal or DropReason.AFTER_END

    def __enter__(self) -> Self:
        if self._outer is None and not self._inside:
            self._outer = _open_one(CURRENT.get())
        self._inside = True
        CURRENT.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside = False
        # A generator may be closed inside the block of another trajectory, or in another task: that one stays current.
        if CURRENT.get() is self:
            CURRENT.set(_open_one(self._outer))
        if self._refusal is None:
            if error is None:
                self.end()
            else:
                self.end(EndStatus.ABORTED if _is_abort(error) else EndStatus.FAILED, error=Raised.of(error))

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
        self._error_class: ToolErrorClass | str | None = None
        self._started = 0.0

    def error(self, error_class: ToolErrorClass | str, result: Any = None) -> None:
        """The tool failed, in a way that the agent handles itself. ``error_class``: a
        :class:`~headrace.schemas.events.ToolErrorClass` or its text, ``"timeout"``."""
        self._error_class = error_class
        self.result = result

    def _copied(self, value: Any) -> Any:
        return snapshot(value, self._trajectory._items)

    def __enter__(self) -> Self:
        fields = {"call_id": self.call_id, "tool": self.tool, "arguments": self._copied(self.arguments)}
        self._trajectory._note(ToolCalled, fields, {})
        self._started = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        latency_s = perf_counter() - self._started
        result = self._copied(self.result)
        if error is not None:
            self._error_class, result = _error_class(error), Raised.of(error, is_result=True)
        fields = {
            "call_id": self.call_id,
            "tool": self.tool,
            "status": ToolStatus.OK if self._error_class is None else ToolStatus.ERROR,
            "error_class": self._error_class,
            "result": result,
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
    """A new trajectory with its first event, ``trajectory.started``, noted. Never raises.

    Where an identifier is none (``None``, empty, longer than ``MAX_CHARACTERS``, of another type), the log says which
    and what is expected, and every event of the trajectory is counted as dropped (``bad_identifier``): under another
    identifier it would be data about something else. Numbers and UUIDs become text, and the log says that too.
    """
    try:
        for name in REQUIRED:
            if not is_plain(start[name]):
                start[name] = text_of(sender, start[name], name)
        for name in OPTIONAL:
            value = start.get(name)
            if value is not None and not is_plain(value):
                start[name] = text_of(sender, value, name)
        if trajectory_id is not None and not is_plain(trajectory_id):
            trajectory_id = text_of(sender, trajectory_id, "trajectory_id")
    except BadIdentifier as error:
        sender.counters.drop(DropReason.BAD_IDENTIFIER, f"{error}. The trajectory is not recorded")
        return Trajectory(sender, uuid7(), DropReason.BAD_IDENTIFIER)
    trajectory = Trajectory(sender, trajectory_id or uuid7())
    trajectory._note(TrajectoryStarted, start, {})
    return trajectory


def text_of(sender: Sender, value: object, argument: str) -> str:
    """``value`` as an identifier, with a line in the log where it is another type's; raises :class:`BadIdentifier`."""
    text = identifier(value, argument)
    if not issubclass(type(value), str):
        sender.counters.alter(
            Alteration.IDENTIFIER, f"{argument} is of type {type_name(type(value))}, and became the str {text[:40]!r}"
        )
    return text


def _identified(sender: Sender, value: object, argument: str) -> str | None:
    """:func:`text_of`, or ``None`` where ``value`` identifies nothing, which is counted."""
    try:
        return text_of(sender, value, argument)
    except BadIdentifier as error:
        sender.counters.alter(Alteration.IDENTIFIER, f"{error}. One was made up")
        return None


def snapshot(value: Any, most: int) -> Any:
    """``value``, copied one level deep where hosts are wont to go on changing it: plain lists and dicts.

    One whose text is longer than ``most`` characters, however short its items are, is not copied either.
    """
    kind = type(value)
    if kind is list:
        return value.copy() if 2 * len(value) <= most else HUGE  # 0,
    if kind is dict:
        return value.copy() if 5 * len(value) <= most else HUGE  # "":0,
    return value


def _open_one(trajectory: Trajectory | None) -> Trajectory | None:
    """``trajectory``, or the nearest around it, whose ``with`` was not left."""
    while trajectory is not None and not trajectory._inside:
        trajectory = trajectory._outer
    return trajectory


def _is_abort(error: BaseException) -> bool:
    kind = type(error)  # isinstance() would ask an exception for its class
    return issubclass(kind, asyncio.CancelledError) or not issubclass(kind, Exception)


def _error_class(error: BaseException) -> ToolErrorClass:
    if _is_abort(error):
        return ToolErrorClass.ABORTED
    return ToolErrorClass.TIMEOUT if issubclass(type(error), TimeoutError) else ToolErrorClass.ENVIRONMENT
