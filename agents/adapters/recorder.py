"""Records the model calls of a client library: what is new in the request, the answer, tool calls and their results.

A call belongs to the trajectory around it. Outside of any it belongs to a trajectory that the recorder opens, together
with the calls that continue its conversation. What came through a gateway is on the log already and is not recorded.
"""

import hashlib
import logging
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any, Protocol

from headrace.agents.adapters.conversations import Memory, chain_of
from headrace.agents.adapters.gateway_session import is_from_gateway, session_headers
from headrace.agents.adapters.requests import ReadAnswer, ReadRequest, read_request
from headrace.agents.counters import DropReason, SdkCounters
from headrace.agents.gateway.canonical import Api, to_chat
from headrace.agents.raised import Raised, type_name
from headrace.agents.trajectory import CURRENT, OpenStream, ToolCall, Trajectory, outside
from headrace.schemas.events import ToolErrorClass, Usage

UNNAMED = "unnamed"
"""Task of a trajectory that a recorder opens."""

_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "completed": "stop",
    "tool_use": "tool_calls",
    "tool_call": "tool_calls",
    "max_tokens": "length",
    "max_output_tokens": "length",
}
"""Other APIs' words for why sampling stopped → those of chat completions."""


class Host(Protocol):
    """What adapters need of :class:`headrace.agents.sdk.Headrace`, which imports them."""

    def trajectory(self, *, task_id: str, agent: str, **start: Any) -> Trajectory:
        """Open a trajectory."""

    def recorder(self, *, agent: str, record_tools: bool) -> "Recorder":
        """Return what records model calls."""


class Quietly:
    """A ``with`` block whose errors are counted (``internal``) and do not reach the host."""

    def __init__(self, counters: Callable[[], SdkCounters]) -> None:
        self._counters = counters

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if kind is None or not issubclass(kind, Exception):
            return False
        self._counters().drop(DropReason.INTERNAL, type_name(kind))
        return True


class Recorder:
    """Records the calls of one client."""

    def __init__(
        self,
        begin: Callable[..., Trajectory],
        counters: Callable[[], SdkCounters],
        *,
        agent: str,
        record_tools: bool,
    ) -> None:
        """``begin``: opens a trajectory. ``agent``: agent of trajectories that the recorder opens. ``record_tools``:
        whether tool calls are recorded from the conversation."""
        self.quietly = Quietly(counters)
        self._counters = counters
        self._begin = begin
        self._agent = agent
        self._record_tools = record_tools
        self._memory = Memory()

    def call(self, api: Api, body: Any, **how: bool) -> "RecordedCall | None":
        """Note that a request is about to be sent; ``None`` if it cannot be recorded. ``how``: of
        :class:`RecordedCall`."""
        with self.quietly:
            return RecordedCall(self, api, body, **how)
        return None

    def record(
        self,
        trajectory: Trajectory | None,
        request: ReadRequest,
        answer: ReadAnswer,
        *,
        latency_s: float | None = None,
        error: Raised | str | None = None,
        **more: Any,
    ) -> None:
        """Record a call. ``trajectory``: the one around it. ``error``: what ended it. ``more``: further arguments of
        ``model_called``."""
        start = b"" if request.previous_response_id is None else _response_point(request.previous_response_id)
        messages = request.messages or ()
        chain = chain_of(messages, start)
        owner = trajectory or self._memory.inferred(chain)
        if owner is None:
            if threading.current_thread() is not threading.main_thread():
                text = outside("a model call is outside of any trajectory, and begins one of its own")
                self._counters().log_once(logging.INFO, text)
            owner = self._begin(task_id=UNNAMED, agent=self._agent, extra={"inferred": True})
        conversations = self._memory.of(owner)
        recorded = conversations.known_length(chain)
        whole = messages if answer.message is None else (*messages, answer.message)
        chat = to_chat(whole)
        if self._record_tools:
            for message, entry in zip(messages[recorded:], chat[recorded:], strict=False):
                if (opened := conversations.open_calls.pop(entry.get("tool_call_id", ""), None)) is not None:
                    _return_tool(opened, message.text, failed=message.failed)
        reason = _FINISH_REASONS.get(answer.finish_reason or "", answer.finish_reason)
        calls = answer.message.calls if answer.message is not None else ()
        owner.model_called(
            answer.model or request.model or "unknown",
            messages=chat[recorded:] or None,
            finish_reason="tool_calls" if calls and reason == "stop" else reason,
            usage=Usage(prompt_tokens=answer.prompt_tokens, completion_tokens=answer.completion_tokens),
            latency_s=latency_s,
            extra=None if error is None else {"error": error},
            **more,
        )
        if answer.message is None:
            return
        conversations.unreported.pop(chain[-1], None)
        points = [chain[-1], chain_of((answer.message,), chain[-1])[-1]]
        if answer.response_id is not None:
            points.append(_response_point(answer.response_id))
        for point in points:
            conversations.add(point)
            if trajectory is None:
                self._memory.infer(point, owner)
        conversations.answer = None if calls else answer.message.text
        if self._record_tools:
            for call in calls:
                if not conversations.is_early(call.call_id):
                    tool = owner.tool(call.tool, call.value, call_id=call.call_id)
                    conversations.opened(call.call_id, tool.__enter__())

    def sending(self, trajectory: Trajectory, request: ReadRequest, *, is_reported_late: bool) -> None:
        """Note a request before it is sent, whose answer, or an earlier one, may be reported after the trajectory's
        end: the results of tools that the request has are recorded now, with their calls if the answer that has these
        is not reported yet."""
        if not self._record_tools:
            return
        conversations = self._memory.of(trajectory)
        messages = request.messages or ()
        chain = chain_of(messages)
        unreported = conversations.answered_length(chain)
        known = conversations.known_length(chain) if unreported is None else unreported
        calls = {} if unreported is None else {call.call_id: call for each in messages[known:] for call in each.calls}
        for message, entry in zip(messages[known:], to_chat(messages)[known:], strict=True):
            call_id = entry.get("tool_call_id", "")
            if (opened := conversations.open_calls.pop(call_id, None)) is not None:
                _return_tool(opened, message.text, failed=message.failed)
            elif (call := calls.get(call_id)) is not None:
                conversations.recorded_early(call_id)
                tool = trajectory.tool(call.tool, call.value, call_id=call_id)
                _note_result(tool, message.text, failed=message.failed)
                tool.already_returned()
        if is_reported_late:
            conversations.sent(chain[-1])

    def awaiting(self, trajectory: Trajectory, request: ReadRequest) -> None:
        """Note that the answer to a request may be reported after the trajectory's end."""
        self._memory.of(trajectory).sent(chain_of(request.messages or ())[-1])

    def returned(
        self,
        trajectory: Trajectory,
        tool: str,
        arguments: dict[str, Any],
        result: Any,
        *,
        failed: bool,
        error: BaseException | None = None,
    ) -> None:
        """Record what a tool returned, as a framework reports it before the next request does: the result of the
        first open call of ``tool`` with these ``arguments``. Without such a call nothing is recorded. ``error``: what
        ended the tool instead of a result."""
        open_calls = self._memory.of(trajectory).open_calls
        for call_id, call in open_calls.items():
            if call.tool == tool and call.arguments == arguments:
                del open_calls[call_id]
                if error is None:
                    _return_tool(call, result, failed=failed)
                else:
                    call.__exit__(type(error), error, None)
                return

    def stopped(self, trajectory: Trajectory, error: BaseException) -> None:
        """Record that ``error`` ended the tool calls of a trajectory that have not returned."""
        open_calls = self._memory.of(trajectory).open_calls
        while open_calls:
            open_calls.popitem(last=False)[1].__exit__(type(error), error, None)

    def last_answer(self, trajectory: Trajectory) -> str | None:
        """Return the text of a trajectory's last answer; ``None`` if there is none, or if it calls tools."""
        return self._memory.of(trajectory).answer


@dataclass(slots=True)
class ModelStep:
    """A model call that the adapter of a framework sees from outside. If the framework makes it through a wrapped
    client, which knows what was really sent, the client records it for the framework's adapter."""

    recorder: Recorder
    trajectory: Trajectory
    is_recorded: bool = False
    """Whether the call is on the log: by the client, or by the gateway that it came through."""


MODEL_STEP: ContextVar[ModelStep | None] = ContextVar("headrace_model_step", default=None)
"""The framework's model call around the running code."""

IN_TOOL: ContextVar[bool] = ContextVar("headrace_in_tool", default=False)
"""Whether the running code is a tool call that the adapter of a framework records."""


class RecordedCall:
    """A call from its request to its answer. No method raises."""

    __slots__ = ("_api", "_body", "_place", "_recorder", "_started", "_step", "_trajectory", "headers", "quietly")

    def __init__(self, recorder: Recorder, api: Api, body: Any, *, may_be_late: bool = False) -> None:
        """``may_be_late``: whether streamed answers are reported only some time after the host has them."""
        self._step = MODEL_STEP.get()
        self._recorder = recorder if self._step is None else self._step.recorder
        self._trajectory = CURRENT.get() if self._step is None else self._step.trajectory
        self.quietly = recorder.quietly
        self._api = api
        # The host may extend its list of messages before a stream has ended.
        self._body = {key: list(value) if type(value) is list else value for key, value in dict(body).items()}
        is_stream = bool(self._body.get("stream"))
        self._started = perf_counter()
        self.headers = session_headers(self._trajectory)
        """Headers to be sent with the request."""
        self._place: int | None = None
        if may_be_late and self._trajectory is not None:
            self._recorder.sending(self._trajectory, read_request(api, self._body), is_reported_late=is_stream)
            self._place = self._trajectory.place() if is_stream else None

    @property
    def open_streams(self) -> dict[OpenStream, None]:
        """The open streams of the trajectory around the call; none that are kept outside of any."""
        return {} if self._trajectory is None else self._trajectory.open_streams

    @property
    def has_messages(self) -> bool:
        """Whether the messages of the request are known."""
        return self._body.get("messages") is not None

    def is_reported_later(self) -> None:
        """Note that the host has an answer that is no stream, and that it may be reported after the trajectory's end:
        the call takes its place now."""
        with self.quietly:
            if self._trajectory is not None and self._place is None:
                self._recorder.awaiting(self._trajectory, read_request(self._api, self._body))
                self._place = self._trajectory.place()

    def answered(self, headers: Mapping[str, str], read: Callable[[], ReadAnswer], **extra: Any) -> None:
        """Record the answer, unless it came through a gateway. ``read``: reads it."""
        latency_s = perf_counter() - self._started
        with self._recorder.quietly:
            if is_from_gateway(headers, self._trajectory):
                self._settle()
            else:
                self._record(read(), latency_s=latency_s, **extra)

    def failed(self, error: BaseException) -> None:
        """Record that the call failed, unless at a gateway."""
        latency_s = perf_counter() - self._started
        with self._recorder.quietly:
            headers = getattr(getattr(error, "response", None), "headers", None)
            if is_from_gateway({} if headers is None else headers, self._trajectory):
                self._settle()
            else:
                self._record(ReadAnswer(finish_reason="error"), latency_s=latency_s, error=Raised.of(error))

    def _settle(self) -> None:
        if self._step is not None:
            self._step.is_recorded = True

    def _record(self, answer: ReadAnswer, **fields: Any) -> None:
        self._settle()
        request = read_request(self._api, self._body)
        self._recorder.record(self._trajectory, request, answer, place=self._place, **fields)


def _return_tool(call: ToolCall, result: Any, *, failed: bool) -> None:
    _note_result(call, result, failed=failed)
    call.__exit__(None, None, None)


def _note_result(call: ToolCall, result: Any, *, failed: bool) -> None:
    if failed:
        call.error(ToolErrorClass.ENVIRONMENT, result)
    else:
        call.result = result


def _response_point(response_id: str) -> bytes:
    """Return what stands in a chain for the conversation up to a stored response."""
    return hashlib.sha256(b"response " + response_id.encode("utf-8", "surrogatepass")).digest()
