"""The SDK: three lines in an agent, and its work becomes events in Kafka.

    headrace = Headrace("localhost:9092", source="checkout-helper")

    with headrace.trajectory(task_id="order-17", agent="checkout") as t:
        with t.tool("search", {"query": "size 44"}) as call:
            call.result = search("size 44")
        t.end(answer="in stock", outcome=1.0)

Sync and async code use the same calls (``async with`` works too), because none of them waits: they note the event in a
bounded queue, and a background thread does the rest. After construction nothing raises into the agent; what is lost is
counted by reason in ``headrace.stats`` and in the topic ``sdk-stats``, and shows downstream as a hole in the sequence.
Keep one ``Headrace`` a process.
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
"""Environment variable with the Kafka address, for programs that do not name one."""

_OPEN: "dict[int, weakref.ref[Headrace]]" = {}
"""Those that are not closed. A dict, because a copy of it is made in one step, whatever other threads add."""


class Headrace:
    """The agent's end of the channel."""

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
        """Nothing is connected yet: the first event starts the background thread.

        ``bootstrap``: Kafka address, ``host:port`` with commas between several; default the environment variable
        ``HEADRACE_KAFKA``. ``source``: name of this program in every event. ``queue_size``, ``queue_bytes``: what may
        wait while the broker is away. ``flush_deadline_s``: longest delay of the program's exit. ``kafka_options``:
        further settings of the aiokafka producer, such as ``security_protocol``. Raises ``ValueError`` on settings
        that cannot work.
        """
        address = bootstrap or os.environ.get(KAFKA_VARIABLE, "")
        if not address:
            raise ValueError(
                f'no address of Kafka: give Headrace("host:port", …), or set {KAFKA_VARIABLE} '
                "(`headrace status` prints the address of a local stack)"
            )
        for server in address.split(","):
            host, _, port = server.strip().rpartition(":")
            if not host or not port.isdigit():
                where = "bootstrap" if bootstrap else KAFKA_VARIABLE
                raise ValueError(f"{where} is {address!r}: expected host:port, with commas between several")
        if not source:
            raise ValueError("source is empty: name the program, as it should stand in every event")
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
        """An attempt at ``task_id`` begins; fields as in :class:`headrace.schemas.events.TrajectoryStarted`.

        Use it in a ``with`` (or ``async with``), which ends it, or call ``.end()`` yourself. ``trajectory_id`` is made
        up (UUIDv7) unless given. Identifiers are text of 1 to 512 characters; numbers and UUIDs become text. With any
        other the trajectory is not recorded: the log says which argument it is, and its events are counted as dropped
        (``bad_identifier``).
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

        Where there is none, a stand-in whose events are dropped (``no_trajectory``).
        """
        found = CURRENT.get()
        return Trajectory(self._sender, "", DropReason.NO_TRAJECTORY) if found is None else found

    def traced(
        self, *, agent: str, task_id: Callable[..., str] | str | None = None, **start: Any
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorator: every call of the function, sync or async, is a trajectory. ``current()`` gives it inside.

        ``task_id``: the task, or a function of the call's arguments that names it; by default the function's name.
        ``start`` as in :meth:`trajectory`. Raises ``TypeError`` on a generator function: its body runs after the call.
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

        ``name`` defaults to the function's. Raises ``TypeError`` on a generator function.
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
        """Somebody, or something, judged a trajectory: now, or long after it ended, from any process.

        Without a trajectory's id and a signal, or with a ``value`` that is no finite number, nothing is sent; that is
        counted (``bad_identifier``, ``invalid``) and told in the log.
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
        except Exception as error:  # noqa: BLE001 - the host comes first: nothing may raise into it
            sender.counters.drop(DropReason.INTERNAL, type_name(type(error)))

    @property
    def stats(self) -> SdkStatsReported:
        """What this process emitted, sent, has queued and dropped, by reason."""
        return self._sender.stats()

    def flush(self, deadline_s: float | None = None) -> bool:
        """Wait until all events so far are acknowledged (or dropped): ``False`` where the deadline passed first."""
        return self._sender.flush(self._config.flush_deadline_s if deadline_s is None else deadline_s)

    async def aflush(self, deadline_s: float | None = None) -> bool:
        """:meth:`flush` without blocking the event loop."""
        return await asyncio.to_thread(self.flush, deadline_s)

    def close(self, deadline_s: float | None = None) -> bool:
        """Flush and end the background thread; further events are dropped (``closed``).

        Done by itself at exit, but not where a signal ends the process at once: handle SIGTERM (``sys.exit``) for that.
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

    def _start_afresh(self) -> None:
        """In a forked child: the parent has the thread, the queue and the open trajectories; begin anew."""
        old, self._sender = self._sender, Sender(self._config, SdkCounters())
        # Handles that the parent opened must not number events here too. The old sender is kept: collecting it would
        # run the destructors of connections that the parent still uses.
        old.refusal, old.counters = DropReason.FORKED, self._sender.counters
        self._inherited.append(old)


def _refuse_generators(function: Callable[..., Any], instead: str) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function!r} is a generator: its body runs after the call. Use `with {instead}` inside it")


def _name(function: Callable[..., Any]) -> str:
    try:
        return str(getattr(function, "__name__", type_name(type(function))))
    except Exception:  # noqa: BLE001 - a callable of the host's may fail at any question
        return type_name(type(function))


def _positional(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the arguments that may be given by position; none where the function does not tell, as many of C do."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(function).parameters
    except Exception:  # noqa: BLE001 - ValueError where there is none, anything where the host's code makes it
        return ()
    return tuple(name for name, each in parameters.items() if each.kind in kinds)


def _named(parameters: tuple[str, ...], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """A call's arguments by name; the object of a method is none of them."""
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
    except Exception as error:  # noqa: BLE001 - naming the task must not fail the host's call
        return f"unnamed ({type_name(type(error))})"


def _open() -> list[Headrace]:
    return [headrace for each in list(_OPEN.values()) if (headrace := each()) is not None]


def _close_all() -> None:
    for headrace in _open():
        headrace.close()
    for thread in threading.enumerate():
        if thread.name == LOG_THREAD_NAME:  # a daemon that holds the log's lock at the end would stop the interpreter
            thread.join(CLOSE_S)


def _after_fork() -> None:
    for headrace in _open():
        headrace._start_afresh()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
