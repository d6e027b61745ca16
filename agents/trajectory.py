"""An agent's handles: a trajectory, a tool call, a sub-agent. Every method queues an event and returns immediately.

Arguments are passed by reference (plain lists and dicts are copied, one level deep). Do not change values nested inside
them for the tenth of a second until the sender has read them: the event contains what the sender reads, which may be a
mix of old and new values. No method raises, whatever its arguments; problems are counted and logged.
"""

import asyncio
import itertools
import threading
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from time import perf_counter, time_ns
from types import TracebackType
from typing import Any, Protocol, Self

from opentelemetry.context import get_current

from headrace.agents.arguments import BadArgument, check_object, check_start, further_fields
from headrace.agents.consent import UNRECORDED, Consent, consent_of, is_recorded
from headrace.agents.counters import Alteration, DropReason
from headrace.agents.encoding import HUGE
from headrace.agents.identifier import BadIdentifier, identifier, is_plain
from headrace.agents.raised import Raised, type_name
from headrace.agents.sender import Sender
from headrace.schemas.events import (
    ContextPruned,
    ContextSummarized,
    EndStatus,
    EnvironmentForked,
    EnvironmentRestored,
    EnvironmentSnapshotted,
    ModelCalled,
    Role,
    Sampling,
    SnapshotKind,
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
from headrace.schemas.model import Record
from headrace.schemas.topics import EVENTS

_DEFAULT_SAMPLING: Sampling = ModelCalled.model_fields["sampling"].default
_DEFAULT_USAGE: Usage = ModelCalled.model_fields["usage"].default

REQUIRED = ("task_id", "agent")
"""Identifiers that every trajectory has."""

OPTIONAL = ("group_id", "cohort_key", "run", "parent_trajectory_id", "fork_group_id", "tenant")
"""Identifiers that may be omitted."""

_STATUSES = tuple(EndStatus)

START_NAMES = frozenset({*TrajectoryStarted.model_fields, "trajectory_id", "extra"})
"""What a trajectory can be started with, by name."""

Terms = tuple[bool, str | None, float]
"""Whether a trajectory may be trained on, its tenant, and the share of such trajectories that is recorded."""

CURRENT: "ContextVar[Trajectory | None]" = ContextVar("headrace_trajectory", default=None)
"""The trajectory of the innermost ``with`` around the running code."""


_REMEDIES = {
    DropReason.NO_TRAJECTORY: "open one around it: with headrace.trajectory(...)",
    DropReason.AFTER_END: "its trajectory had ended: end it after all of its work",
    DropReason.CLOSED: "Headrace was closed: close it last",
    DropReason.FORKED: "its trajectory belongs to the parent of this process: open another one here",
}
"""What to do about events that are dropped, by reason."""

_THREAD = (
    "; the thread {!r} has not the context of the code that started it: use asyncio.to_thread(...), or pass "
    "contextvars.copy_context().run to the thread"
)


class OpenStream(Protocol):
    """A stream that is recorded once it ends, at the latest when its trajectory does."""

    def cut(self) -> None:
        """Record what was read so far. Does not raise."""


class Trajectory:
    """One attempt at a task. A ``with`` block ends it: as completed, or as failed if an exception leaves the block.

    Thread-safe. It belongs to the process that opened it: after a fork, the child's events are dropped (``forked``).
    """

    __slots__ = (
        "_calls",
        "_inside",
        "_items",
        "_numbers",
        "_outer",
        "_refusal",
        "_sender",
        "_terms",
        "ended_as",
        "id",
        "model_calls",
        "open_streams",
    )

    def __init__(
        self,
        sender: Sender,
        trajectory_id: str,
        refusal: DropReason | None = None,
        terms: Terms = (False, None, 1.0),
    ) -> None:
        """``terms``: what its sub-agents inherit."""
        self.id = trajectory_id
        """Key of all its events."""
        self.model_calls = 0
        """Number of model calls so far."""
        self.ended_as: EndStatus | None = None
        """Status of its end; ``None`` while it is open."""
        self.open_streams: dict[OpenStream, None] = {}
        """Streams that belong to it and have not ended, in the order of their beginnings."""
        self._sender = sender
        self._refusal = refusal
        self._terms = terms
        self._items = sender.config.max_event_bytes
        self._numbers = itertools.count()
        self._calls = itertools.count(1)
        self._inside = False
        self._outer: Trajectory | None = None

    @property
    def is_open(self) -> bool:
        """Whether its events are accepted: not after its end, nor if it could not be opened."""
        return self._refusal is None

    def place(self) -> int | None:
        """Take a place in the order of events, for a model call that is noted later, even after the end; ``None`` if
        nothing can be noted. Until then the place is a gap."""
        return next(self._numbers) if self._refusal is None else None

    def _note(self, model: type[Record], fields: dict[str, Any], place: int | None = None) -> None:
        sender = self._sender
        try:
            refusal = (self._refusal if place is None else None) or sender.refusal
            if refusal is not None:
                sender.counters.drop(refusal, lambda: _refused(refusal, model, fields, sender))
                return
            # The number is taken before the queue is checked, so that a dropped event leaves a visible gap.
            number = next(self._numbers) if place is None else place
            sender.put((EVENTS, self.id, number, time_ns(), get_current(), model, fields))
        except Exception as error:  # noqa: BLE001 - nothing may raise into the host
            sender.counters.drop(DropReason.INTERNAL, type_name(type(error)))

    def _note_more(
        self,
        model: type[Record],
        fields: dict[str, Any],
        more: Mapping[str, Any],
        extra: Mapping[str, Any] | None,
        place: int | None = None,
    ) -> None:
        """Note an event with further arguments of the host, unless one of them is unknown."""
        try:
            if more or extra is not None:
                fields |= further_fields(model, more, extra)
        except BadArgument as error:
            self._lose(model, error, place)
        else:
            self._note(model, fields, place)

    def _lose(self, model: type[Record], why: BadArgument, place: int | None = None) -> None:
        """Count an event as dropped because of an argument. Its place in the order of events remains a gap."""
        if place is None:
            self.place()
        reason = self._refusal or self._sender.refusal or DropReason.BAD_ARGUMENT
        self._sender.counters.drop(reason, f"{why}. {model.TYPE} is not recorded")

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
        sampling: Sampling = _DEFAULT_SAMPLING,
        finish_reason: str | None = None,
        messages: list[dict[str, Any]] | None = None,
        latency_s: float | None = None,
        usage: Usage = _DEFAULT_USAGE,
        place: int | None = None,
        extra: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Record a model call and its answer; fields as in :class:`headrace.schemas.events.ModelCalled`. ``place``: of
        the call in the order of events, from :meth:`place`; ``None``: the next one. ``extra``: fields of your own."""
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
        self._note_more(ModelCalled, fields, more, extra, place)

    def tool(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        call_id: str | None = None,
        thinking_tokens: int | None = None,
    ) -> "ToolCall":
        """Record a call of the tool ``name``: use it in a ``with`` around the call and set ``.result`` inside.

        ``thinking_tokens``: tokens that the model sampled before the call as thinking about it, if they are known.
        """
        if call_id is None:
            unique = f"c{next(self._calls)}"
        elif is_plain(call_id):
            unique = call_id
        else:
            unique = _identified(self._sender, call_id, "call_id") or f"c{next(self._calls)}"
        return ToolCall(self, name, {} if arguments is None else arguments, unique, thinking_tokens)

    def pruned(
        self,
        pruned_ids: Sequence[str],
        tokens_before: int,
        tokens_after: int,
        *,
        extra: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Record that pieces of the context were removed. ``extra``: fields of your own."""
        ids = snapshot(pruned_ids, self._items)
        fields = {"pruned_ids": ids, "tokens_before": tokens_before, "tokens_after": tokens_after}
        self._note_more(ContextPruned, fields, more, extra)

    def summarized(
        self,
        tokens_before: int,
        tokens_after: int,
        summary: str | None = None,
        *,
        extra: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Record that the context was replaced by ``summary``; further fields as in
        :class:`headrace.schemas.events.ContextSummarized`. ``extra``: fields of your own."""
        fields = {"summary": summary, "tokens_before": tokens_before, "tokens_after": tokens_after}
        self._note_more(ContextSummarized, fields, more, extra)

    def snapshotted(
        self,
        snapshot_id: str,
        *,
        parent_id: str | None = None,
        kind: SnapshotKind | str = SnapshotKind.FILES,
        sha256: str | None = None,
        ms: float = 0.0,
        extra: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Record that the environment's state was frozen; fields as in
        :class:`headrace.schemas.events.EnvironmentSnapshotted`."""
        fields = {"parent_id": parent_id, "kind": kind, "sha256": sha256, "ms": ms}
        self._note_more(EnvironmentSnapshotted, {"snapshot_id": snapshot_id, **fields}, more, extra)

    def forked(
        self,
        snapshot_id: str,
        forks: int,
        *,
        parent_id: str | None = None,
        kind: SnapshotKind | str = SnapshotKind.FILES,
        sha256: str | None = None,
        ms: float = 0.0,
        extra: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Record that ``forks`` further environments were started from a snapshot."""
        fields = {"parent_id": parent_id, "kind": kind, "sha256": sha256, "forks": forks, "ms": ms}
        self._note_more(EnvironmentForked, {"snapshot_id": snapshot_id, **fields}, more, extra)

    def restored(
        self,
        snapshot_id: str,
        *,
        parent_id: str | None = None,
        kind: SnapshotKind | str = SnapshotKind.FILES,
        sha256: str | None = None,
        ms: float = 0.0,
        source_trajectory_id: str | None = None,
        extra: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Record that this trajectory's environment was started from a snapshot, which ``source_trajectory_id`` took
        if it is another trajectory."""
        fields = {"parent_id": parent_id, "kind": kind, "sha256": sha256, "ms": ms}
        fields |= {"snapshot_id": snapshot_id, "source_trajectory_id": source_trajectory_id}
        self._note_more(EnvironmentRestored, fields, more, extra)

    def subagent(
        self, name: str, *, task_id: str, stage: int = 0, role: Role | str = Role.FROZEN, **start: Any
    ) -> "Subagent":
        """Record a sub-agent with its own trajectory: use it in a ``with`` around its work. ``start`` as in
        ``trajectory()``."""
        return Subagent(self, name, stage, {"task_id": task_id, "role": role, **start})

    def end(
        self,
        status: EndStatus | str = EndStatus.COMPLETED,
        answer: Any = None,
        outcome: float | None = None,
        *,
        extra: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """End the attempt; later events are dropped (``after_end``). Of streams that are still open, what was read so
        far is recorded before.

        ``status``: an :class:`~headrace.schemas.events.EndStatus` or its text, ``"completed"``. With any other value,
        and with an argument that is unknown, the trajectory ends as failed, with an explanation in ``error``.
        ``outcome``: a finite number; with any other value the event is dropped (``invalid``), because no number could
        replace it. Further fields as in :class:`headrace.schemas.events.TrajectoryEnded`; ``extra``: fields of your
        own.
        """
        for stream in list(self.open_streams):  # their readers have stopped without closing them
            stream.cut()
        if more or extra is not None:
            try:
                more = further_fields(TrajectoryEnded, more, extra)
            except BadArgument as error:
                self._sender.counters.alter(Alteration.END_STATUS, f"{error}. The trajectory ends as failed")
                status, more = EndStatus.FAILED, {"error": str(error)}
        if type(status) is not EndStatus and not (type(status) is str and status in _STATUSES):
            given = repr(status[:40]) if type(status) is str else f"of type {type_name(type(status))}"
            why = f"status is {given}: expected one of {', '.join(_STATUSES)}"
            self._sender.counters.alter(Alteration.END_STATUS, why)
            status, more = EndStatus.FAILED, {"error": why} | more
        fields = {"status": status, "answer": snapshot(answer, self._items), "outcome": outcome, **more}
        self._note(TrajectoryEnded, fields)
        if self._refusal is None:
            self.ended_as = EndStatus(status)
        self._refusal = self._refusal or DropReason.AFTER_END

    def __enter__(self) -> Self:
        if self._outer is None and not self._inside:
            self._outer = _innermost_open(CURRENT.get())
        self._inside = True
        CURRENT.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside = False
        # A generator may be closed in another task or inside the block of another trajectory, which stays current.
        if CURRENT.get() is self:
            CURRENT.set(_innermost_open(self._outer))
        if self._refusal is None:
            if error is None:
                self.end()
            else:
                self.end(EndStatus.ABORTED if is_abort(error) else EndStatus.FAILED, error=Raised.of(error))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


class UnrecordedTrajectory(Trajectory):
    """A trajectory of which nothing is recorded."""

    __slots__ = ()

    def _note(self, model: type[Record], fields: dict[str, Any], place: int | None = None) -> None:
        """Send nothing."""

    def _lose(self, model: type[Record], why: BadArgument, place: int | None = None) -> None:
        """Nothing is lost of what is not recorded."""


class ContinuedTrajectory(Trajectory):
    """A trajectory that another process began, continued after the events that are in the log."""

    __slots__ = ("_known",)

    def __init__(self, sender: Sender, trajectory_id: str, known: int, *, replays: bool) -> None:
        """``known``: number of its leading events that are in the log. ``replays``: whether these events occur again
        here, and are not sent again; otherwise the next event is the one after them."""
        super().__init__(sender, trajectory_id)
        self._known = known
        self._numbers = itertools.count(1 if replays else known)  # its start is never repeated

    def _note(self, model: type[Record], fields: dict[str, Any], place: int | None = None) -> None:
        number = self.place() if place is None else place
        if number is None:
            super()._note(model, fields)  # counts it as dropped
        elif number >= self._known:
            super()._note(model, fields, number)


class ToolCall:
    """A tool call. A ``with`` block records the call and its return; an exception is recorded and propagates."""

    __slots__ = (
        "_error_class",
        "_problem",
        "_started",
        "_thinking_tokens",
        "arguments",
        "call_id",
        "result",
        "stream",
        "tool",
        "trajectory",
    )

    def __init__(
        self,
        trajectory: Trajectory,
        tool: str,
        arguments: dict[str, Any],
        call_id: str,
        thinking_tokens: int | None = None,
    ) -> None:
        self.tool = tool
        self.arguments = arguments
        self.call_id = call_id
        self.result: Any = None
        """The tool's result: set it inside the ``with``."""
        self.stream: dict[str, Any] | None = None
        """For a result that was produced item by item: fields of :class:`headrace.schemas.events.Streamed`."""
        self.trajectory = trajectory
        self._thinking_tokens = thinking_tokens
        self._error_class: ToolErrorClass | str | None = None
        self._problem: BadArgument | None = None
        self._started = 0.0

    def error(self, error_class: ToolErrorClass | str, result: Any = None) -> None:
        """Record a failure of the tool that the agent handles itself. ``error_class``: a
        :class:`~headrace.schemas.events.ToolErrorClass` or its text, ``"timeout"``."""
        self._error_class = error_class
        self.result = result

    def already_returned(self) -> None:
        """Record a call that is noted once its result is known, with an unknown latency."""
        self.__enter__()
        self._started = 0.0
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        trajectory = self.trajectory
        if type(self.arguments) is not dict:
            try:
                check_object("arguments", self.arguments)
            except BadArgument as error:
                self._problem = error
                trajectory._lose(ToolCalled, error)
                return self
        arguments = snapshot(self.arguments, trajectory._items)
        called = {"call_id": self.call_id, "tool": self.tool, "arguments": arguments}
        if self._thinking_tokens is not None:
            called["thinking_tokens"] = self._thinking_tokens
        trajectory._note(ToolCalled, called)
        self._started = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        latency_s = perf_counter() - self._started if self._started else None
        trajectory = self.trajectory
        if self._problem is not None:
            trajectory._lose(ToolReturned, self._problem)
            return
        if error is None:
            result = snapshot(self.result, trajectory._items)
        else:
            self._error_class, result = _error_class(error), Raised.of(error, is_result=True)
        fields = {
            "call_id": self.call_id,
            "tool": self.tool,
            "status": ToolStatus.OK if self._error_class is None else ToolStatus.ERROR,
            "error_class": self._error_class,
            "result": result,
            "latency_s": latency_s,
        }
        if self.stream is not None:
            fields["stream"] = self.stream
        trajectory._note(ToolReturned, fields)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


class Subagent:
    """A sub-agent's work. Its ``with`` block returns the sub-agent's own trajectory and records start and finish in the
    parent's."""

    __slots__ = ("_name", "_parent", "_stage", "_sub")

    def __init__(self, parent: Trajectory, name: str, stage: int, start: dict[str, Any]) -> None:
        self._parent = parent
        self._name = name
        self._stage = stage
        may_train, tenant, sample_rate = parent._terms
        more = {name: start.pop(name) for name in start.keys() - START_NAMES}
        extra, trajectory_id = start.pop("extra", None), start.pop("trajectory_id", None)
        own = consent_of(start.pop("consent", may_train))
        if own is Consent.TRAIN and not may_train:  # a part of a trajectory cannot be given more than the whole
            own = Consent.ANALYSE
        fields = {
            "agent": name,
            "parent_trajectory_id": parent.id,
            "tenant": tenant,
            "sample_rate": sample_rate,
            "task": {},
            **start,
            "consent": own is Consent.TRAIN,
        }
        if fields["task"] is None:
            fields["task"] = {}
        self._sub = open_trajectory(parent._sender, fields, trajectory_id, consent=own, more=more, extra=extra)

    def __enter__(self) -> Trajectory:
        fields = {"name": self._name, "sub_trajectory_id": self._sub.id, "stage": self._stage}
        self._parent._note(SubagentStarted, fields)
        return self._sub.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sub.__exit__(kind, error, trace)
        # What the sub-agent said itself, for example that it ran out of turns, is more exact than the block's end.
        status = self._sub.ended_as or EndStatus.COMPLETED
        if error is not None:
            status = EndStatus.ABORTED if is_abort(error) else EndStatus.FAILED
        fields = {
            "name": self._name,
            "sub_trajectory_id": self._sub.id,
            "stage": self._stage,
            "status": status,
            "steps": self._sub.model_calls,
        }
        self._parent._note(SubagentFinished, fields)

    async def __aenter__(self) -> Trajectory:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def open_trajectory(
    sender: Sender,
    start: dict[str, Any],
    trajectory_id: str | None = None,
    *,
    consent: Consent | None,
    more: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    is_checked: bool = False,
) -> Trajectory:
    """Open a trajectory and queue its first event, ``trajectory.started``. Never raises. ``consent``: ``None`` if what
    the host gave is none; then nothing is recorded, and each event is counted as dropped (``bad_consent``).
    ``more``, ``extra``: arguments of the host without a parameter, and fields of its own. ``is_checked``: whether the
    identifiers are known to be plain, the trajectory to be recorded, and everything else the usual.

    If an argument is not a valid identifier (``None``, empty, longer than ``MAX_CHARACTERS``, of another type), it is
    logged with what is expected, and every event of the trajectory is counted as dropped (``bad_identifier``): with
    another identifier, the data would be about something else. Numbers and UUIDs are converted to text and logged.
    An argument that is unknown, or has a value that the start cannot have, is treated alike (``bad_argument``).
    """
    if is_checked:
        trajectory = Trajectory(sender, sender.new_id(), None, (start["consent"], None, 1.0))
        trajectory._note(TrajectoryStarted, start)
        return trajectory
    try:
        if more or extra is not None:
            start |= further_fields(TrajectoryStarted, more or {}, extra)
        check_start(start)
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
        return Trajectory(sender, sender.new_id(), DropReason.BAD_IDENTIFIER)
    except BadArgument as error:
        sender.counters.drop(DropReason.BAD_ARGUMENT, f"{error}. The trajectory is not recorded")
        return Trajectory(sender, sender.new_id(), DropReason.BAD_ARGUMENT)
    if consent is None:
        why = f"consent is not one of {', '.join(Consent)}. The trajectory is not recorded"
        sender.counters.drop(DropReason.BAD_CONSENT, why)
        return Trajectory(sender, sender.new_id(), DropReason.BAD_CONSENT)
    terms = (start["consent"], start["tenant"], start["sample_rate"])
    unique, parent_id, rate = trajectory_id or sender.new_id(), start.get("parent_trajectory_id"), terms[2]
    rate = rate if type(rate) in (int, float) else 1.0  # an object of another type, which the encoder checks
    if not is_recorded(consent, unique, parent_id=parent_id, tenant=start["tenant"], sample_rate=rate):
        return UnrecordedTrajectory(sender, UNRECORDED + unique, None, terms)
    trajectory = Trajectory(sender, unique, None, terms)
    trajectory._note(TrajectoryStarted, start)
    return trajectory


def text_of(sender: Sender, value: object, argument: str) -> str:
    """Convert ``value`` to an identifier, and log a change of its type; raises :class:`BadIdentifier`."""
    text = identifier(value, argument)
    if not issubclass(type(value), str):
        shown = repr(text[:40]) if sender.config.masking is None else "of its digits"
        sender.counters.alter(
            Alteration.IDENTIFIER, f"{argument} is of type {type_name(type(value))}; it became the str {shown}"
        )
    return text


def outside(what: str) -> str:
    """Say what is outside of any trajectory, and if it is on a thread, that this may be why."""
    thread = threading.current_thread()
    return what if thread is threading.main_thread() else what + _THREAD.format(thread.name[:80])


def _refused(reason: DropReason, model: type[Record], fields: dict[str, Any], sender: Sender) -> str:
    """Return for the log which event is dropped, and what to do."""
    tool, remedy = fields.get("tool"), _REMEDIES.get(reason)
    named = f" of the tool {tool!r}" if is_plain(tool) and sender.config.masking is None else ""
    what = f"{model.TYPE}{named}" if remedy is None else f"{model.TYPE}{named}, {remedy}"
    return outside(what) if reason is DropReason.NO_TRAJECTORY else what


def _identified(sender: Sender, value: object, argument: str) -> str | None:
    """Return :func:`text_of`, or ``None`` if ``value`` is not a valid identifier, which is counted."""
    try:
        return text_of(sender, value, argument)
    except BadIdentifier as error:
        sender.counters.alter(Alteration.IDENTIFIER, f"{error}. A generated one replaces it")
        return None


def snapshot(value: Any, most: int) -> Any:
    """Return a copy of ``value``, one level deep, if it is a plain list or dict, which hosts tend to change later.

    A list or dict whose text must be longer than ``most`` characters becomes :data:`HUGE` instead.
    """
    kind = type(value)
    if kind is list:
        return value.copy() if 2 * len(value) <= most else HUGE  # 0,
    if kind is dict:
        return value.copy() if 5 * len(value) <= most else HUGE  # "":0,
    return value


def _innermost_open(trajectory: Trajectory | None) -> Trajectory | None:
    """Return ``trajectory`` or the innermost one around it whose ``with`` block is still active."""
    while trajectory is not None and not trajectory._inside:
        trajectory = trajectory._outer
    return trajectory


def is_abort(error: BaseException) -> bool:
    kind = type(error)  # isinstance() could run code of the exception's class
    return issubclass(kind, asyncio.CancelledError) or not issubclass(kind, Exception)


def _error_class(error: BaseException) -> ToolErrorClass:
    if is_abort(error):
        return ToolErrorClass.ABORTED
    return ToolErrorClass.TIMEOUT if issubclass(type(error), TimeoutError) else ToolErrorClass.ENVIRONMENT
