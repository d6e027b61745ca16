"""A tracing processor for the OpenAI Agents SDK.

    add_trace_processor(HeadraceTracing(headrace, agent="checkout"))

Each trace from outside, which is a run unless the program opens one itself, is a trajectory, which ends with it. Tool
calls are those of the answers, and return with what the SDK reports. A handoff continues the trajectory, as a call of
its tool; a run inside a tool, such as an agent as a tool, is a sub-agent. ``task_id`` in the trace's metadata names the
task; its ``group_id`` is kept as ``session``.

Model calls are recorded by the client that the SDK uses if it is wrapped (``set_default_openai_client(
headrace.wrap(AsyncOpenAI()))``), with the requests as they were sent, and otherwise from their spans, in which requests
of the Responses API have no instructions. Only a wrapped client sends the session's name to the capture gateway.

Needs the extra ``openai-agents``. Nothing is consumed or changed.
"""

import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from headrace.agents.adapters.recorder import IN_TOOL, MODEL_STEP, UNNAMED, Host, ModelStep
from headrace.agents.adapters.requests import ReadAnswer, ReadRequest, plain, read_answer, read_request
from headrace.agents.adapters.runs import MAX_OPEN, Run, begin_run, library_of
from headrace.agents.gateway.canonical import Api, BadRequest, call_of
from headrace.agents.trajectory import CURRENT, Subagent, Trajectory
from headrace.schemas.events import EndStatus

with library_of("openai-agents"):
    from agents.tracing import Span, Trace, TracingProcessor

_EXHAUSTED = "Max turns exceeded"
"""The SDK's word in the span of an agent that has used up its turns."""


@dataclass(slots=True)
class _Span:
    """A span in progress, or a trace."""

    trajectory: Trajectory
    kind: str
    inside: str = ""
    """Which is nearest, itself included: an ``agent`` or a ``function``."""
    step: ModelStep | None = None
    """Of a model call."""
    subagent: Subagent | None = None
    """That began with this span, and ends with it."""
    started: float = field(default_factory=perf_counter)
    handled: BaseException | None = field(default_factory=sys.exception)
    """Exception that the program was handling when the span began: it is not one of the span."""

    @property
    def error(self) -> BaseException | None:
        """What ends the span: the SDK ends it while its exception leaves it."""
        error = sys.exception()
        return None if error is self.handled else error


@dataclass(slots=True)
class _Trace(_Span):
    """A trace in progress."""

    run: Run | None = None
    is_exhausted: bool = False
    """Whether its agent has used up its turns. The SDK raises that only once a stream's trace has ended."""


class HeadraceTracing(TracingProcessor):  # type: ignore[misc]  # the library may be absent where types are checked
    """Records runs. One processor serves any number of runs, also at the same time."""

    def __init__(self, headrace: Host, *, agent: str = "openai-agents", task_id: str = UNNAMED) -> None:
        """``agent``, ``task_id``: of trajectories that the processor opens; ``task_id`` in a trace's metadata takes
        precedence."""
        self._headrace = headrace
        self._agent = agent
        self._task_id = task_id
        self._recorder = headrace.recorder(agent=agent, record_tools=True)
        self._quietly = self._recorder.quietly
        self._open: OrderedDict[str, _Span] = OrderedDict()
        """Spans and traces by id."""

    def on_trace_start(self, trace: Trace) -> None:
        """Open a trajectory for a trace from outside."""
        with self._quietly:
            known = getattr(trace, "metadata", None) or {}
            run = begin_run(
                self._headrace,
                CURRENT.get(),
                task_id=known.get("task_id", self._task_id),
                agent=self._agent,
                session=getattr(trace, "group_id", None),
            )
            if run.is_own:
                run.trajectory.__enter__()  # tools find it with headrace.current()
            self._add(trace.trace_id, _Trace(run.trajectory, "trace", run=run))

    def on_trace_end(self, trace: Trace) -> None:
        """End the trace's own trajectory, with its last answer."""
        with self._quietly:
            found = self._open.pop(trace.trace_id, None)
            if not isinstance(found, _Trace) or found.run is None or not found.run.is_own:
                return
            error = found.error
            if error is not None:
                self._recorder.stopped(found.trajectory, error)
            if found.is_exhausted:
                found.trajectory.end(EndStatus.TURNS_EXHAUSTED)
            else:
                found.run.end(error, self._recorder.last_answer(found.trajectory))
            found.trajectory.__exit__(None, None, None)

    def on_span_start(self, span: Span[Any]) -> None:
        """Note what begins: an agent, a model call, a tool call."""
        with self._quietly:
            parent = self._open.get(span.parent_id or span.trace_id)
            if parent is None:
                return
            kind = span.span_data.type
            found = _Span(parent.trajectory, kind, kind if kind in ("agent", "function") else parent.inside)
            self._add(span.span_id, found)
            if kind == "agent" and parent.inside == "function":
                self._begin_subagent(parent if parent.kind == "task" else found, span.span_data.name)
                found.trajectory = parent.trajectory if parent.kind == "task" else found.trajectory
            elif kind == "function":
                IN_TOOL.set(True)
            elif kind in ("generation", "response"):
                found.step = ModelStep(self._recorder, parent.trajectory)
                MODEL_STEP.set(found.step)

    def on_span_end(self, span: Span[Any]) -> None:
        """Record what has ended."""
        with self._quietly:
            found = self._open.pop(span.span_id, None)
            if found is None:
                return
            if found.step is not None:
                MODEL_STEP.set(None)
                if not found.step.is_recorded:
                    self._record_call(found, span)
            elif found.kind == "function":
                IN_TOOL.set(False)
                self._record_tool(found, span)
            elif found.kind == "agent" and (span.error or {}).get("message") == _EXHAUSTED:
                self._exhausted(found, span)
            if found.subagent is not None:
                error = found.error
                if error is not None:
                    self._recorder.stopped(found.trajectory, error)
                elif found.trajectory.is_open:
                    found.trajectory.end(answer=self._recorder.last_answer(found.trajectory))
                found.subagent.__exit__(None if error is None else type(error), error, None)

    def shutdown(self) -> None:
        """Nothing to do: :meth:`headrace.agents.sdk.Headrace.close` sends what waits."""

    def force_flush(self) -> None:
        """Nothing to do: :meth:`headrace.agents.sdk.Headrace.flush` waits for what was recorded."""

    def _add(self, unique: str, found: _Span) -> None:
        self._open[unique] = found
        if len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)

    def _begin_subagent(self, owner: _Span, name: str) -> None:
        """Begin a sub-agent with the run ``owner`` inside a tool, unless a handoff continues it."""
        if owner.subagent is None:
            owner.subagent = owner.trajectory.subagent(name, task_id=name)
            owner.trajectory = owner.subagent.__enter__()

    def _exhausted(self, found: _Span, span: Span[Any]) -> None:
        """Note that an agent has used up its turns."""
        trace = self._open.get(span.trace_id)
        if isinstance(trace, _Trace) and trace.trajectory is found.trajectory:
            trace.is_exhausted = True
        else:
            found.trajectory.end(EndStatus.TURNS_EXHAUSTED)

    def _record_call(self, found: _Span, span: Span[Any]) -> None:
        """Record a model call from its span, because no wrapped client has."""
        data = span.span_data
        latency_s = perf_counter() - found.started
        request, answer = _read_response(data) if data.type == "response" else _read_generation(data)
        if span.error is None:
            self._recorder.record(found.trajectory, request, answer, latency_s=latency_s)
        else:
            failure = ReadAnswer(finish_reason="error")
            self._recorder.record(found.trajectory, request, failure, latency_s=latency_s, error=_error_of(span))

    def _record_tool(self, found: _Span, span: Span[Any]) -> None:
        data = span.span_data
        try:
            arguments = call_of("", data.name, data.input, "").value
        except BadRequest:
            return  # the next request has the result
        result = _error_of(span) if data.output is None and span.error is not None else data.output
        self._recorder.returned(
            found.trajectory, data.name, arguments, result, failed=span.error is not None, error=found.error
        )


def _error_of(span: Span[Any]) -> str:
    """Return the SDK's own words for what went wrong."""
    detail = (span.error.get("data") or {}).get("error")
    return f"{span.error['message']}: {detail}" if detail else str(span.error["message"])


def _read_response(data: Any) -> tuple[ReadRequest, ReadAnswer]:
    """Read a call of the Responses API."""
    response = plain(data.response) or {}
    body = {"model": response.get("model"), "input": data.input, "instructions": response.get("instructions")}
    if previous := response.get("previous_response_id"):
        body["previous_response_id"] = previous
    return read_request(Api.RESPONSES, body), read_answer(Api.RESPONSES, response)


def _read_generation(data: Any) -> tuple[ReadRequest, ReadAnswer]:
    """Read a call of chat completions. Of a stream the SDK reports an answer in the form of the Responses API."""
    request = read_request(Api.CHAT, {"model": data.model, "messages": data.input})
    said = plain(data.output[0]) if data.output else {}
    if "output" in said:
        return request, read_answer(Api.RESPONSES, said)
    usage = data.usage or {}
    counts = {"prompt_tokens": usage.get("input_tokens"), "completion_tokens": usage.get("output_tokens")}
    return request, read_answer(Api.CHAT, {"model": data.model, "choices": [{"message": said}], "usage": counts})
