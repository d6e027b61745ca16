"""The SDK, which sends an agent's work as events to Kafka. An agent needs a few lines:

    headrace = Headrace("localhost:9092", source="checkout-helper")

    with headrace.trajectory(task_id="order-17", agent="checkout") as t:
        with t.tool("search", {"query": "size 44"}) as call:
            call.result = search("size 44")
        t.end(answer="in stock", outcome=1.0)

Sync and async code use the same calls (``async with`` works too), because no call blocks: it appends the event to a
bounded queue. A background thread sends events to Kafka and, while Kafka is away, writes them to disk
(:mod:`headrace.agents.outbox`). After construction nothing raises into the agent. Lost events are counted by reason in
``headrace.stats`` and in the topic ``sdk-stats``, and appear downstream as gaps in the sequence. Create one
``Headrace`` per process.
"""

import asyncio
import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import time_ns
from types import TracebackType
from typing import Any, Never, ParamSpec, Self, TypeVar

from opentelemetry.context import get_current

from headrace.agents.adapters.clients import Client, wrap
from headrace.agents.adapters.gateway_session import GatewaySession, is_session_name
from headrace.agents.adapters.mcp import has_tools
from headrace.agents.adapters.mcp import record_tools as record_tool_calls_of
from headrace.agents.adapters.recorder import Quietly, Recorder
from headrace.agents.arguments import BadArgument, check_names, further_fields
from headrace.agents.consent import UNRECORDED, Consent, consent_of
from headrace.agents.counters import LOG_THREAD_NAME, Alteration, DropReason, SdkCounters
from headrace.agents.decorators import record_tool_calls, record_trajectories, task_of
from headrace.agents.delivery import check_options
from headrace.agents.encoding import Note
from headrace.agents.gateway.sealed import DEFAULT_TENANT, FeedbackTarget, Sealer
from headrace.agents.identifier import MAX_CHARACTERS, BadIdentifier, identifier
from headrace.agents.left_behind import send_left_behind
from headrace.agents.masking.masker import masked_identifier
from headrace.agents.masking.settings import Masking
from headrace.agents.raised import type_name
from headrace.agents.sender import CLOSE_S, Sender
from headrace.agents.sender_config import SPOOL_BYTES, SenderConfig
from headrace.agents.spool_folder import default_folder
from headrace.agents.streamed import Call
from headrace.agents.trajectory import (
    CURRENT,
    START_NAMES,
    ContinuedTrajectory,
    Trajectory,
    open_trajectory,
    snapshot,
    text_of,
)
from headrace.schemas.events import FeedbackGiven, Purpose, Role, SdkStatsReported
from headrace.schemas.kafka.address import kafka_address
from headrace.schemas.kafka.security import with_security
from headrace.schemas.topics import FEEDBACK

P = ParamSpec("P")
R = TypeVar("R")

KAFKA_VARIABLE = "HEADRACE_KAFKA"
"""Environment variable with the Kafka address, for programs that do not specify one."""

DEFAULT_RUN = "default"
"""The run of trajectories for which none is given."""

_TRAINABLE, _TRAIN = Role.TRAINABLE, Purpose.TRAIN
"""The usual role and purpose; reading a member of an enum takes as long as three checks."""

MAX_TOKEN_S = 10 * 366 * 86_400
"""Longest validity of a feedback token, in seconds: ten years."""

_OPEN: "dict[int, weakref.ref[Headrace]]" = {}
"""Instances that are not closed. A dict, because it can be copied in one step while other threads add to it."""

_SENDERS: "dict[int, weakref.ref[Sender]]" = {}
"""Their senders, which live as long as a trajectory or a thread uses them, also after an instance is collected."""


class Headrace:
    """The agent's connection to headrace."""

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        source: str,
        consent: Consent | str | bool = Consent.TRAIN,
        sample_rate: float = 1.0,
        masking: Masking | None = None,
        feedback_secret: str | bytes | None = None,
        queue_size: int = 10_000,
        queue_bytes: int = 64 * 1024 * 1024,
        max_event_bytes: int = 1024 * 1024,
        spool_folder: str | os.PathLike[str] | None = None,
        spool_bytes: int = SPOOL_BYTES,
        flush_deadline_s: float = 5.0,
        stats_interval_s: float = 10.0,
        kafka_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Open no connection yet: the first event starts the background thread.

        ``bootstrap``: Kafka address, ``host:port``, several separated by commas; default: the environment variable
        ``HEADRACE_KAFKA``. ``source``: name of this program in every event. ``consent``: what may be done with
        trajectories that say nothing else. ``sample_rate``: share of the trajectories that is recorded, above 0 and at
        most 1. ``masking``: what is hidden in all texts before they are sent or written to disk; ``None``: nothing.
        ``feedback_secret``: the gateway's secret, the content of the file ``gateway/secret`` in its data folder, for
        :meth:`create_feedback_token`. ``queue_size``, ``queue_bytes``: limits of the events that wait in memory.
        ``spool_folder``: folder for events that wait on disk while the broker is unavailable, also after the program
        has ended; default: ``headrace/spool`` in ``$XDG_STATE_HOME`` or ``~/.local/state``. ``spool_bytes``: limit of
        that folder; 0 turns it off. ``flush_deadline_s``: how long the program's exit waits for the broker; what it has
        not acknowledged then goes to the folder, which takes up to 15 s more if the broker does not answer at all.
        ``kafka_options``: further settings of the aiokafka producer; those of TLS and SASL (``security_protocol``,
        ``ssl_context``, ``sasl_…``) replace all ``HEADRACE_KAFKA_…`` variables about them. Raises ``ValueError`` for
        invalid settings.
        """
        address = bootstrap or os.environ.get(KAFKA_VARIABLE, "")
        if not address:
            raise ValueError(
                f'no Kafka address: pass it as Headrace("host:port", …), or set {KAFKA_VARIABLE} '
                "(`headrace status` prints the address of a local stack)"
            )
        try:
            kafka_address(address)
        except ValueError:
            where = "bootstrap" if bootstrap else KAFKA_VARIABLE
            raise ValueError(
                f"{where} is {address!r}: expected host:port, several separated by commas, without http:// or the like"
            ) from None
        if not source:
            raise ValueError("source is empty: expected the name of the program, which is part of every event")
        for name, value in (
            ("queue_size", queue_size),
            ("queue_bytes", queue_bytes),
            ("max_event_bytes", max_event_bytes),
        ):
            if value < 1:
                raise ValueError(f"{name} is {value}: expected at least 1")
        default = consent_of(consent)
        if default is None:
            raise ValueError(f"consent is {consent!r}: expected one of {', '.join(Consent)}")
        if not 0 < sample_rate <= 1:
            raise ValueError(
                f"sample_rate is {sample_rate}: expected more than 0 and at most 1; "
                "consent='unrecorded' records nothing"
            )
        if spool_bytes < 0:
            raise ValueError(f"spool_bytes is {spool_bytes}: expected at least 0, which turns the spool off")
        if flush_deadline_s < 0 or stats_interval_s <= 0:
            raise ValueError("flush_deadline_s must be 0 or more, stats_interval_s more than 0")
        if masking is not None and not isinstance(masking, Masking):
            raise ValueError(
                f"masking is of type {type_name(type(masking))}: expected Masking(...), "
                'of headrace.agents.masking.settings, for example Masking(("email",))'
            )
        if kafka_options is not None and not isinstance(kafka_options, Mapping):
            raise ValueError(f"kafka_options is of type {type_name(type(kafka_options))}: expected a dict")
        with_security(kafka_options or {})  # raises for settings that cannot work
        if kafka_options:
            check_options(kafka_options)
        self._config = SenderConfig(
            bootstrap=address,
            source=source,
            queue_size=queue_size,
            queue_bytes=queue_bytes,
            max_event_bytes=max_event_bytes,
            spool_folder=default_folder() if spool_folder is None else Path(spool_folder),
            spool_bytes=spool_bytes,
            flush_deadline_s=flush_deadline_s,
            stats_interval_s=stats_interval_s,
            kafka_options=kafka_options or {},
            masking=masking,
        )
        is_usual = sample_rate == 1 and default is not Consent.UNRECORDED
        self._terms: tuple[Consent, bool, float, bool] = (
            default,
            default is Consent.TRAIN,
            float(sample_rate),
            is_usual,
        )
        """Consent, whether it allows training, share that is recorded, and whether thus every trajectory is recorded.
        """
        self._stream_limit = max_event_bytes // 2
        self._sealer: Sealer | None = None
        if feedback_secret is not None:
            secret = feedback_secret.encode() if isinstance(feedback_secret, str) else feedback_secret
            self._sealer = Sealer([secret])
        self._sender = _new_sender(self._config)
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
        run: str = DEFAULT_RUN,
        role: Role | str = Role.TRAINABLE,
        purpose: Purpose | str = Purpose.TRAIN,
        parent_trajectory_id: str | None = None,
        consent: Consent | str | bool | None = None,
        tenant: str | None = None,
        sample_rate: float | None = None,
        task: dict[str, Any] | None = None,
        trajectory_id: str | None = None,
        extra: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Trajectory:
        """Begin an attempt at ``task_id``; fields as in :class:`headrace.schemas.events.TrajectoryStarted`, in which
        ``extra`` adds your own.

        Use it in a ``with`` (or ``async with``), which ends it, or call ``.end()`` yourself. The default of
        ``trajectory_id`` is a new UUIDv7. Identifiers are texts of 1 to 512 characters; numbers and UUIDs are converted
        to text. With any other identifier the trajectory is not recorded: the argument is logged, and the trajectory's
        events are counted as dropped (``bad_identifier``). So is one with an argument that is unknown, or has a value
        that its field cannot have (``bad_argument``): what ``consents=...`` was to say is not guessed.

        ``tools_offered``: the tools that the model may use, as one text of the function of that name in
        :mod:`headrace.schemas.tools_offered`, so that monitors see when others are offered.

        ``consent``: a :class:`~headrace.agents.consent.Consent` or its text; ``None``: this object's. ``sample_rate``:
        share of such trajectories that is recorded, decided by the hash of the id; ``None``: this object's. With
        ``parent_trajectory_id``, a trajectory is recorded if its parent is. Nothing of an unrecorded trajectory is
        sent, which is no loss and not counted as one.
        """
        allowed: Consent | None
        if consent is None and sample_rate is None:
            allowed, may_train, rate, is_usual = self._terms
        else:
            allowed = self._terms[0] if consent is None else consent_of(consent)
            may_train = allowed is Consent.TRAIN
            rate = self._terms[2] if sample_rate is None else sample_rate
            is_usual = False
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
            "consent": may_train,
            "tenant": tenant,
            "sample_rate": rate,
            "task": {} if task is None else snapshot(task, self._config.max_event_bytes),
        }
        # The usual case, spelled out: calls of is_plain would take a third of the time of this method.
        is_checked = (
            (type(task_id) is str and 0 < len(task_id) <= MAX_CHARACTERS and task_id.isascii())
            and (type(agent) is str and 0 < len(agent) <= MAX_CHARACTERS and agent.isascii())
            and (run is DEFAULT_RUN and group_id is None and cohort_key is None and tenant is None)
            and (parent_trajectory_id is None and trajectory_id is None and not more and extra is None)
            and (role is _TRAINABLE and purpose is _TRAIN and group_size is None and task is None)
            and (type(harness_version) is str and len(harness_version) <= MAX_CHARACTERS)
            and is_usual
        )
        return open_trajectory(
            self._sender, fields, trajectory_id, consent=allowed, more=more, extra=extra, is_checked=is_checked
        )

    def continued(self, trajectory_id: str, known: int, *, replays: bool) -> Trajectory:
        """Continue a trajectory that an ended process began, of which the log has the first ``known`` events, its start
        included. ``replays``: whether the work is repeated from its start, so that these events occur again; they are
        not sent again. The recording terms of its start apply."""
        return ContinuedTrajectory(self._sender, trajectory_id, known, replays=replays)

    async def send_left_behind(self) -> int:
        """Send what ended processes left on disk, and return how many events these were. For a process that continues
        by the log what another began: before it reads the log. What of it is lost is counted as adopted and dropped.
        Raises Kafka's errors."""
        return await send_left_behind(self._config, self._sender.drop_left_behind)

    def current(self) -> Trajectory:
        """The trajectory of the innermost ``with`` around the running code, in its task or thread.

        If there is none, returns a placeholder whose events are dropped (``no_trajectory``).
        """
        found = CURRENT.get()
        return Trajectory(self._sender, "", DropReason.NO_TRAJECTORY) if found is None else found

    def traced(
        self, *function: Never, agent: str = "", task_id: Callable[..., str] | str | None = None, **start: Any
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorator: every call of the function is a trajectory, which ``current()`` returns inside. Its answer is what
        the function returns, unless the function calls ``end`` itself.

        Coroutine functions, generator functions and asynchronous generator functions are recorded, too. A generator's
        stream passes through unchanged; the trajectory begins when the first item is requested and ends with the
        stream, with its leading items as the answer. If the reader stops earlier, it ends as aborted. Of a plain
        function that returns a coroutine or a generator only that return is recorded: decorate what runs or yields.

        ``task_id``: the task, or a function that returns it for the call's arguments; default: the function's name.
        ``start`` as in :meth:`trajectory`. Raises ``TypeError`` for an argument that it does not have.
        """
        if function or not agent:
            raise TypeError('write @headrace.traced(agent="..."), with the name of the agent')
        try:
            check_names(start, START_NAMES)
        except BadArgument as error:
            raise TypeError(f"@headrace.traced(...): {error}") from None

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            def begin(call: Call) -> Trajectory:
                return self.trajectory(task_id=task_of(function, task_id, call), agent=agent, **start)

            return record_trajectories(function, begin, self._stream_limit)

        return decorate

    def tool(self, name: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorator: every call of the function is a tool call of the current trajectory.

        ``name`` defaults to the function's name. Coroutine functions, generator functions and asynchronous generator
        functions are recorded, too. A generator's stream passes through unchanged; the call begins when the first item
        is requested, and its result are the leading items: texts joined, others as a list.
        """
        if callable(name):
            raise TypeError("write @headrace.tool(), with parentheses")

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            return record_tool_calls(function, name, self.current, self._stream_limit)

        return decorate

    def wrap(self, client: Client, *, agent: str = "client", record_tools: bool = True) -> Client:
        """Record the calls of a client of OpenAI or Anthropic, synchronous or not, or the tool calls of a session or
        client of MCP, and return it. Answers and streams reach the caller unchanged.

        A call belongs to the trajectory around it; outside of any, a model call belongs to one of ``agent`` that is
        opened for its conversation, and a tool call is dropped (``no_trajectory``). What goes through the capture
        gateway is not recorded a second time. ``record_tools``: whether tool calls are recorded from the conversation;
        ``False`` if the program records them itself. Raises ``TypeError`` for any other object.
        """
        if has_tools(client):
            record_tool_calls_of(client, self.current, Quietly(lambda: self._sender.counters))
            return client
        return wrap(client, self.recorder(agent=agent, record_tools=record_tools))

    def recorder(self, *, agent: str, record_tools: bool) -> Recorder:
        """Return what records model calls for an adapter; arguments as in :meth:`wrap`."""
        return Recorder(self.trajectory, lambda: self._sender.counters, agent=agent, record_tools=record_tools)

    def gateway_session(self, session_id: str | None = None, *, trajectory_id: str | None = None) -> GatewaySession:
        """Name a session of the capture gateway: calls of wrapped clients inside its ``with`` belong to it.

        The gateway records them; nothing else inside is sent, except feedback. ``session_id``: printable ASCII of
        at most 160 characters, unique to the conversation; default: a new one. ``trajectory_id``: the gateway's, if it
        is known because the session was opened at the gateway (``POST /sessions``); default: that of the first answer.
        """
        named = self._sender.new_id()
        if session_id is not None:
            try:
                given = identifier(session_id, "session_id")
                if not is_session_name(given):
                    raise BadIdentifier("session_id is another text than printable ASCII of at most 160 characters")
                named = given
            except BadIdentifier as error:
                self._sender.counters.alter(Alteration.IDENTIFIER, f"{error}. A generated one replaces it")
        return GatewaySession(self._sender, named, self.feedback, trajectory_id)

    def feedback(
        self,
        trajectory_id: str,
        signal: str,
        value: float,
        *,
        delay_s: float | None = None,
        comment: str | None = None,
        extra: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Send feedback on a trajectory, at any time after it began and from any process. ``extra``: fields of your
        own.

        Feedback on a trajectory that is not recorded is not sent. Without a valid trajectory id and signal, with a
        ``value`` that is not a finite number, or with an unknown argument, nothing is sent; the loss is counted
        (``bad_identifier``, ``invalid``, ``bad_argument``) and logged.
        """
        sender = self._sender
        try:
            if type(trajectory_id) is str and trajectory_id.startswith(UNRECORDED):
                return
            if sender.refusal is not None:
                sender.counters.drop(sender.refusal, FeedbackGiven.TYPE)
                return
            about, kind = text_of(sender, trajectory_id, "trajectory_id"), text_of(sender, signal, "signal")
            fields = {"signal": kind, "value": value, "delay_s": delay_s, "comment": comment}
            if more or extra is not None:
                fields |= further_fields(FeedbackGiven, more, extra)
            sender.put((FEEDBACK, about, None, time_ns(), get_current(), FeedbackGiven, fields))
        except BadIdentifier as error:
            sender.counters.drop(DropReason.BAD_IDENTIFIER, f"{error}. The feedback is not sent")
        except BadArgument as error:
            sender.counters.drop(DropReason.BAD_ARGUMENT, f"{error}. The feedback is not sent")
        except Exception as error:  # noqa: BLE001 - nothing may raise into the host
            sender.counters.drop(DropReason.INTERNAL, type_name(type(error)))

    def create_feedback_token(self, trajectory_id: str, *, expires_in_s: float, tenant: str = DEFAULT_TENANT) -> str:
        """Return a token with which a browser may give feedback on one trajectory, and do nothing else, through the
        gateway's ``POST /feedback/{token}``. It needs no connection.

        ``expires_in_s``: how long the token is valid, in seconds. ``tenant``: tenant of the trajectory, by its name in
        the gateway's file of keys; comments for a tenant that the gateway does not know are not recorded. Raises
        ``ValueError`` without ``feedback_secret``, and for an id, a tenant or a time that is not valid.
        """
        if self._sealer is None:
            raise ValueError("there is no secret for feedback tokens: pass Headrace(..., feedback_secret=...)")
        if not 0 < expires_in_s <= MAX_TOKEN_S:
            raise ValueError(f"expires_in_s is {expires_in_s}: expected more than 0 and at most {MAX_TOKEN_S:,} s")
        about, owner = identifier(trajectory_id, "trajectory_id"), tenant and identifier(tenant, "tenant")
        if self._config.masking is not None:  # a token is as public as an event
            about, owner = (masked_identifier(self._config.masking, each) for each in (about, owner))
        return self._sealer.feedback_token(FeedbackTarget(owner, about), int(time.time() + expires_in_s))

    @property
    def terms(self) -> tuple[Consent, float]:
        """What may be done with trajectories that say nothing else, and the share of them that is recorded."""
        return self._terms[0], self._terms[2]

    def send(self, notes: Iterable[Note]) -> None:
        """Queue complete events, which an adapter has made of what another library recorded. Never raises; the adapter
        decides which trajectories are recorded."""
        sender = self._sender
        for note in notes:
            if sender.refusal is None:
                sender.put(note)
            else:
                sender.counters.drop(sender.refusal, note.model.TYPE)

    def count_drop(self, reason: DropReason, why: object) -> None:
        """Count and log what an adapter could not make an event of."""
        self._sender.counters.drop(reason, why)

    @property
    def stats(self) -> SdkStatsReported:
        """Number of events that this process emitted, sent, queued, has on disk and dropped (by reason)."""
        return self._sender.stats()

    def flush(self, deadline_s: float | None = None) -> bool:
        """Wait until all events so far are acknowledged or dropped; return ``False`` if the deadline passed first."""
        return self._sender.flush(self._config.flush_deadline_s if deadline_s is None else deadline_s)

    async def aflush(self, deadline_s: float | None = None) -> bool:
        """:meth:`flush` without blocking the event loop."""
        return await asyncio.to_thread(self.flush, deadline_s)

    def close(self, deadline_s: float | None = None) -> bool:
        """Flush and end the background thread; further events are dropped (``closed``). What could not be sent goes to
        disk, for the next process; then this returns ``False``, too.

        Called automatically at exit, but not if a signal ends the process: handle SIGTERM (``sys.exit``) for that.
        """
        is_complete = self._sender.close(self._config.flush_deadline_s if deadline_s is None else deadline_s)
        _OPEN.pop(id(self), None)  # not before: if this is interrupted, or a daemon thread's, the exit closes it again
        return is_complete

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
        old, self._sender = self._sender, _new_sender(self._config)
        # The old sender is kept: collecting it would run the destructors of connections that the parent still uses.
        old.leave_to_parent(self._sender.counters)
        self._inherited.append(old)


def _new_sender(config: SenderConfig) -> Sender:
    sender = Sender(config, SdkCounters())
    key = id(sender)
    _SENDERS[key] = weakref.ref(sender, lambda _: _SENDERS.pop(key, None))
    return sender


def _open() -> list[Headrace]:
    return [headrace for each in list(_OPEN.values()) if (headrace := each()) is not None]


def _close_all() -> None:
    for headrace in _open():
        headrace.close()
    for thread in threading.enumerate():
        if thread.name == LOG_THREAD_NAME:  # a daemon thread that holds the lock of the log would block the exit
            thread.join(CLOSE_S)


def _after_fork() -> None:
    inherited = [sender for each in list(_SENDERS.values()) if (sender := each()) is not None]
    for headrace in _open():
        headrace._reset_after_fork()
    for sender in inherited:  # trajectories may still have one whose instance was collected
        sender.leave_to_parent(SdkCounters())


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
