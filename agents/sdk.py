"""The SDK, which sends an agent's work as events to Kafka. An agent needs a few lines:

    headrace = Headrace("localhost:9092", source="checkout-helper")

    with headrace.trajectory(task_id="order-17", agent="checkout") as t:
        with t.tool("search", {"query": "size 44"}) as call:
            call.result = search("size 44")
        t.end(answer="in stock", outcome=1.0)

Sync and async code use the same calls (``async with`` works too), because no call blocks: it appends the event to a
bounded queue, and a background thread does the rest. After construction nothing raises into the agent. Lost events are
counted by reason in ``headrace.stats`` and in the topic ``sdk-stats``, and appear downstream as gaps in the sequence.
Create one ``Headrace`` per process.
"""

import asyncio
import atexit
import functools
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from time import time_ns
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, cast

from opentelemetry.context import get_current

from headrace.agents.counters import LOG_THREAD_NAME, DropReason, SdkCounters
from headrace.agents.identifier import BadIdentifier
from headrace.agents.raised import type_name
from headrace.agents.sender import CLOSE_S, Sender, SenderConfig
from headrace.agents.trajectory import CURRENT, Trajectory, open_trajectory, snapshot, text_of
from headrace.schemas.events import FeedbackGiven, Purpose, Role, SdkStatsReported
from headrace.schemas.topics import FEEDBACK

P = ParamSpec("P")
R = TypeVar("R")

KAFKA_VARIABLE = "HEADRACE_KAFKA"
"""Environment variable with the Kafka address, for programs that do not specify one."""

_OPEN: "dict[int, weakref.ref[Headrace]]" = {}
"""Instances that are not closed. A dict, because it can be copied in one step while other threads add to it."""


class Headrace:
    """The agent's connection to headrace."""

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        source: str,
        queue_size: int = 10_000,
        queue_bytes: int = 64 * 1024 * 1024,
        max_event_bytes: int = 1024 * 1024,
        flush_deadline_s: float = 5.0,
        stats_interval_s: float = 10.0,
        kafka_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Open no connection yet: the first event starts the background thread.

        ``bootstrap``: Kafka address, ``host:port``, several separated by commas; default: the environment variable
        ``HEADRACE_KAFKA``. ``source``: name of this program in every event. ``queue_size``, ``queue_bytes``: limits of
        the events that wait while the broker is unavailable. ``flush_deadline_s``: longest delay of the program's exit.
        ``kafka_options``: further settings of the aiokafka producer, such as ``security_protocol``. Raises
        ``ValueError`` for invalid settings.
        """
        address = bootstrap or os.environ.get(KAFKA_VARIABLE, "")
        if not address:
            raise ValueError(
                f'no Kafka address: pass it as Headrace("host:port", …), or set {KAFKA_VARIABLE} '
                "(`headrace status` prints the address of a local stack)"
            )
        for server in address.split(","):
            host, _, port = server.strip().rpartition(":")
            if not host or not port.isdigit():
                where = "bootstrap" if bootstrap else KAFKA_VARIABLE
                raise ValueError(f"{where} is {address!r}: expected host:port, several separated by commas")
        if not source:
            raise ValueError("source is empty: expected the name of the program, which is part of every event")
        for name, value in (
            ("queue_size", queue_size),
            ("queue_bytes", queue_bytes),
            ("max_event_bytes", max_event_bytes),
        ):
            if value < 1:
                raise ValueError(f"{name} is {value}: expected at least 1")
        if flush_deadline_s < 0 or stats_interval_s <= 0:
            raise ValueError("flush_deadline_s must be 0 or more, stats_interval_s more than 0")
        self._config = SenderConfig(
            bootstrap=address,
            source=source,
            queue_size=queue_size,
            queue_bytes=queue_bytes,
            max_event_bytes=max_event_bytes,
            flush_deadline_s=flush_deadline_s,
            stats_interval_s=stats_interval_s,
            kafka_options=kafka_options or {},
        )
        self._sender = Sender(self._config, SdkCounters())
        self._inherited: list[Sender] = []
        key = id(self)
        _OPEN[key] = weakref.ref(self, lambda _: _OPEN.pop(key, None))

    def trajectory(
        self,
        *,
        task_id: str,
        agent: str,
        group_id: str | None = None,
        group_size: int | None = None,
        cohort_key: str | None = None,
        harness_version: str = "",
        run: str = "default",
        role: Role | str = Role.TRAINABLE,
        purpose: Purpose | str = Purpose.TRAIN,
        parent_trajectory_id: str | None = None,
        consent: bool = True,
        tenant: str | None = None,
        sample_rate: float = 1.0,
        task: dict[str, Any] | None = None,
        trajectory_id: str | None = None,
        **extra: Any,
    ) -> Trajectory:
        """Begin an attempt at ``task_id``; fields as in :class:`headrace.schemas.events.TrajectoryStarted`.

        Use it in a ``with`` (or ``async with``), which ends it, or call ``.end()`` yourself. The default of
        ``trajectory_id`` is a new UUIDv7. Identifiers are texts of 1 to 512 characters; numbers and UUIDs are converted
        to text. With any other identifier the trajectory is not recorded: the argument is logged, and the trajectory's
        events are counted as dropped (``bad_identifier``).
        """
        fields = {
            "task_id": task_id,
            "group_id": group_id,
            "group_size": group_size,
            "cohort_key": cohort_key,
            "agent": agent,
            "harness_version": harness_version,
            "run": run,
            "role": role,
            "purpose": purpose,
            "parent_trajectory_id": parent_trajectory_id,
            "consent": consent,
            "tenant": tenant,
            "sample_rate": sample_rate,
            "task": {} if task is None else snapshot(task, self._config.max_event_bytes),
            **extra,
        }
        return open_trajectory(self._sender, fields, trajectory_id)

    def current(self) -> Trajectory:
        """The trajectory of the innermost ``with`` around the running code, in its task or thread.

        If there is none, returns a placeholder whose events are dropped (``no_trajectory``).
        """
        found = CURRENT.get()
        return Trajectory(self._sender, "", DropReason.NO_TRAJECTORY) if found is None else found

    def traced(
        self, *, agent: str, task_id: Callable[..., str] | str | None = None, **start: Any
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorator: every call of the function, sync or async, is a trajectory, which ``current()`` returns inside.

        ``task_id``: the task, or a function that returns it for the call's arguments; default: the function's name.
        ``start`` as in :meth:`trajectory`. Raises ``TypeError`` for a generator function: its body runs after the call.
        """

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            _refuse_generators(function, "headrace.trajectory(...)")

            def begin(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Trajectory:
                return self.trajectory(task_id=_task(function, task_id, arguments, keywords), agent=agent, **start)

            if inspect.iscoroutinefunction(function):

                @functools.wraps(function)
                async def run_async(*arguments: P.args, **keywords: P.kwargs) -> Any:
                    with begin(arguments, keywords):
                        return await function(*arguments, **keywords)

                return cast(Callable[P, R], run_async)

            @functools.wraps(function)
            def run(*arguments: P.args, **keywords: P.kwargs) -> R:
                with begin(arguments, keywords):
                    return function(*arguments, **keywords)

            return run

        return decorate

    def tool(self, name: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorator: every call of the function, sync or async, is a tool call of the current trajectory.

        ``name`` defaults to the function's name. Raises ``TypeError`` for a generator function.
        """
        if callable(name):
            raise TypeError("write @headrace.tool(), with parentheses")

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            _refuse_generators(function, "t.tool(...)")
            title = name or _name(function)
            parameters = _positional(function)

            if inspect.iscoroutinefunction(function):

                @functools.wraps(function)
                async def call_async(*arguments: P.args, **keywords: P.kwargs) -> Any:
                    with self.current().tool(title, _named(parameters, arguments, keywords)) as call:
                        call.result = await function(*arguments, **keywords)
                    return call.result

                return cast(Callable[P, R], call_async)

            @functools.wraps(function)
            def call_sync(*arguments: P.args, **keywords: P.kwargs) -> R:
                with self.current().tool(title, _named(parameters, arguments, keywords)) as call:
                    result = call.result = function(*arguments, **keywords)
                return result

            return call_sync

        return decorate

    def feedback(
        self,
        trajectory_id: str,
        signal: str,
        value: float,
        *,
        delay_s: float | None = None,
        comment: str | None = None,
        **extra: Any,
    ) -> None:
        """Send feedback on a trajectory, at any time after it began and from any process.

        Without a valid trajectory id and signal, or with a ``value`` that is not a finite number, nothing is sent; the
        loss is counted (``bad_identifier``, ``invalid``) and logged.
        """
        sender = self._sender
        try:
            if sender.refusal is not None:
                sender.counters.drop(sender.refusal, FeedbackGiven.TYPE)
                return
            about, kind = text_of(sender, trajectory_id, "trajectory_id"), text_of(sender, signal, "signal")
            fields = {"signal": kind, "value": value, "delay_s": delay_s, "comment": comment, **extra}
            sender.put((FEEDBACK, about, None, time_ns(), get_current(), FeedbackGiven, fields))
        except BadIdentifier as error:
            sender.counters.drop(DropReason.BAD_IDENTIFIER, f"{error}. The feedback is not sent")
        except Exception as error:  # noqa: BLE001 - nothing may raise into the host
            sender.counters.drop(DropReason.INTERNAL, type_name(type(error)))

    @property
    def stats(self) -> SdkStatsReported:
        """Number of events that this process emitted, sent, queued and dropped (by reason)."""
        return self._sender.stats()

    def flush(self, deadline_s: float | None = None) -> bool:
        """Wait until all events so far are acknowledged or dropped; return ``False`` if the deadline passed first."""
        return self._sender.flush(self._config.flush_deadline_s if deadline_s is None else deadline_s)

    async def aflush(self, deadline_s: float | None = None) -> bool:
        """:meth:`flush` without blocking the event loop."""
        return await asyncio.to_thread(self.flush, deadline_s)

    def close(self, deadline_s: float | None = None) -> bool:
        """Flush and end the background thread; further events are dropped (``closed``).

        Called automatically at exit, but not if a signal ends the process: handle SIGTERM (``sys.exit``) for that.
        """
        _OPEN.pop(id(self), None)
        return self._sender.close(self._config.flush_deadline_s if deadline_s is None else deadline_s)

    async def aclose(self, deadline_s: float | None = None) -> bool:
        """:meth:`close` without blocking the event loop."""
        return await asyncio.to_thread(self.close, deadline_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _reset_after_fork(self) -> None:
        """Replace the sender in a forked child: thread, queue and open trajectories belong to the parent."""
        old, self._sender = self._sender, Sender(self._config, SdkCounters())
        # The parent's handles must not emit events in the child, too. The old sender is kept: collecting it would run
        # the destructors of connections that the parent still uses.
        old.refusal, old.counters = DropReason.FORKED, self._sender.counters
        self._inherited.append(old)


def _refuse_generators(function: Callable[..., Any], instead: str) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function!r} is a generator: its body runs after the call. Use `with {instead}` inside it")


def _name(function: Callable[..., Any]) -> str:
    try:
        return str(getattr(function, "__name__", type_name(type(function))))
    except Exception:  # noqa: BLE001 - a callable of the host may raise on any access
        return type_name(type(function))


def _positional(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of positional arguments; none if the function has no signature, like many functions in C."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(function).parameters
    except Exception:  # noqa: BLE001 - ValueError if there is none, any error if the host's code computes it
        return ()
    return tuple(name for name, each in parameters.items() if each.kind in kinds)


def _named(parameters: tuple[str, ...], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by name, without ``self`` and ``cls``."""
    named = dict(zip(parameters, arguments, strict=False)) | keywords
    if len(arguments) > len(parameters):
        named["*"] = arguments[len(parameters) :]
    if parameters and parameters[0] in ("self", "cls"):
        named.pop(parameters[0], None)
    return named


def _task(
    function: Callable[..., Any],
    task_id: Callable[..., str] | str | None,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
) -> str:
    if not callable(task_id):
        return task_id or _name(function)
    try:
        return task_id(*arguments, **keywords)
    except Exception as error:  # noqa: BLE001 - a failure to name the task must not fail the host's call
        return f"unnamed ({type_name(type(error))})"


def _open() -> list[Headrace]:
    return [headrace for each in list(_OPEN.values()) if (headrace := each()) is not None]


def _close_all() -> None:
    for headrace in _open():
        headrace.close()
    for thread in threading.enumerate():
        if thread.name == LOG_THREAD_NAME:  # a daemon thread that holds the lock of the log would block the exit
            thread.join(CLOSE_S)


def _after_fork() -> None:
    for headrace in _open():
        headrace._reset_after_fork()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
