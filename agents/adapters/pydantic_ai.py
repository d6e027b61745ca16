"""A capability for agents of Pydantic AI.

    Agent("openai:gpt-5", capabilities=[HeadraceRecording(headrace, agent="checkout")])

Each run from outside is a trajectory, which ends with it; a run inside a tool is a sub-agent. ``conversation_id`` is
kept as the trajectory's ``session``. Model calls are recorded by the agent's client if it is wrapped
(``OpenAIProvider(openai_client=headrace.wrap(AsyncOpenAI()))``), with the requests as they were sent, and otherwise
from what Pydantic AI reports. Only a wrapped client sends the session's name to the capture gateway.

Needs the extra ``pydantic-ai``. Nothing is consumed or changed.
"""

from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from time import perf_counter
from typing import Any

from headrace.agents.adapters.recorder import IN_TOOL, MODEL_STEP, UNNAMED, Host, ModelStep
from headrace.agents.adapters.requests import ReadAnswer, read_answer, read_request
from headrace.agents.adapters.runs import Run, begin_run, library_of
from headrace.agents.gateway.canonical import Api
from headrace.agents.raised import Raised
from headrace.agents.trajectory import CURRENT, Subagent, ToolCall, Trajectory
from headrace.schemas.events import ToolErrorClass

with library_of("pydantic-ai"):
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.exceptions import ApprovalRequired, CallDeferred

_TOOLS: ContextVar[dict[ToolCall, None]] = ContextVar("headrace_pydantic_ai_tools")
"""Tool calls in progress of the run around the running code."""


_CUT = ("incomplete", "interrupted")
"""States of an answer that its reader has not read to its end."""


class HeadraceRecording(AbstractCapability[Any]):  # type: ignore[misc]  # the library may be absent where types are checked
    """Records runs. One capability serves any number of agents and runs, also at the same time."""

    def __init__(self, headrace: Host, *, agent: str = "pydantic-ai", task_id: str = UNNAMED) -> None:
        """``agent``, ``task_id``: of trajectories that are opened for runs; ``task_id`` in a run's ``metadata`` takes
        precedence."""
        super().__init__()
        self._headrace = headrace
        self._agent = agent
        self._task_id = task_id
        self._recorder = headrace.recorder(agent=agent, record_tools=False)
        self._quietly = self._recorder.quietly

    async def wrap_run(self, ctx: Any, *, handler: Any) -> Any:
        """Record a run."""
        outer, in_tool = CURRENT.get(), IN_TOOL.get()
        run: Run | Subagent | None = None
        with self._quietly:
            run = self._begin(ctx, outer, in_tool)
        trajectory = CURRENT.get()
        # Of the run, because streams are opened outside of the code that wrap_model_request surrounds.
        step = MODEL_STEP.set(None if trajectory is None else ModelStep(self._recorder, trajectory))
        inside = IN_TOOL.set(False)
        tools: dict[ToolCall, None] = {}
        outer_tools = _TOOLS.set(tools)
        try:
            result = await handler()
        except BaseException as error:
            for call in list(tools):  # they are cancelled, but only once the run has ended
                _return(tools, call, error)
            _end(run, error, None)
            raise
        else:
            _end(run, None, getattr(result, "output", None))
            return result
        finally:
            _TOOLS.reset(outer_tools)
            IN_TOOL.reset(inside)
            MODEL_STEP.reset(step)

    async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> Any:
        """Record a model call, unless a wrapped client does."""
        step = MODEL_STEP.get()
        if step is None:  # the run could not be recorded
            return await handler(request_context)
        step.is_recorded = False
        started = perf_counter()
        try:
            response = await handler(request_context)
        except BaseException as error:
            with self._quietly:
                partial = _received_of(request_context)
                answer = ReadAnswer(finish_reason="error") if partial is None else _read(partial)
                cut = {} if partial is None else {"delivered": False}
                self._record(step, request_context, answer, perf_counter() - started, error=Raised.of(error), **cut)
            raise
        with self._quietly:
            cut = {"delivered": False} if response.state in _CUT else {}
            self._record(step, request_context, _read(response), perf_counter() - started, **cut)
        return response

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        """Record a tool call."""
        trajectory = CURRENT.get()
        if trajectory is None:
            return await handler(args)
        tools = _TOOLS.get()
        recorded = trajectory.tool(call.tool_name, args, call_id=call.tool_call_id).__enter__()
        tools[recorded] = None
        inside = IN_TOOL.set(True)
        try:
            recorded.result = result = await handler(args)
        except BaseException as error:
            _return(tools, recorded, error)
            raise
        else:
            _return(tools, recorded, None)
            return result
        finally:
            IN_TOOL.reset(inside)

    def _begin(self, ctx: Any, outer: Trajectory | None, in_tool: bool) -> Run | Subagent:
        if outer is not None and in_tool:
            name = getattr(ctx.agent, "name", None) or self._agent
            subagent = outer.subagent(name, task_id=name)
            subagent.__enter__()
            return subagent
        known = ctx.metadata or {}
        run = begin_run(
            self._headrace,
            outer,
            task_id=known.get("task_id", self._task_id),
            agent=self._agent,
            session=ctx.conversation_id,
        )
        if run.is_own:
            run.trajectory.__enter__()  # tools and clients find it
        return run

    def _record(self, step: ModelStep, asked: Any, answer: ReadAnswer, latency_s: float, **more: Any) -> None:
        if not step.is_recorded:
            body = {"model": asked.model.model_name, "messages": list(_to_chat(asked.messages))}
            self._recorder.record(step.trajectory, read_request(Api.CHAT, body), answer, latency_s=latency_s, **more)


def _return(tools: dict[ToolCall, None], call: ToolCall, error: BaseException | None) -> None:
    """Record that a tool call of ``tools`` returned, or that ``error`` ended it, unless it has ended. A call that waits
    for a person or another process is aborted: a later run has its result."""
    if call not in tools:
        return
    del tools[call]
    if error is not None and issubclass(type(error), (ApprovalRequired, CallDeferred)):
        call.error(ToolErrorClass.ABORTED, type(error).__name__)
        error = None
    call.__exit__(None if error is None else type(error), error, None)


def _end(run: Run | Subagent | None, error: BaseException | None, answer: Any) -> None:
    """End a run; no method of a trajectory raises."""
    if isinstance(run, Subagent):
        inner = CURRENT.get()
        if error is None and inner is not None:
            inner.end(answer=answer)
        run.__exit__(None if error is None else type(error), error, None)
    elif run is not None and run.is_own:
        run.end(error, answer)
        run.trajectory.__exit__(None, None, None)


def _to_chat(messages: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Write messages in the form of chat completions."""
    requests = [each for each in messages if each.kind == "request"]
    if requests and requests[-1].instructions:
        yield {"role": "system", "content": requests[-1].instructions}
    for message in messages:
        if message.kind == "response":
            yield _said(message)
            continue
        for part in message.parts:
            match part.part_kind:
                case "system-prompt":
                    yield {"role": "system", "content": part.content}
                case "user-prompt":
                    yield {"role": "user", "content": _content(part.content)}
                case "tool-return":
                    text = part.model_response_str()
                    yield {"role": "tool", "tool_call_id": part.tool_call_id, "content": text}
                case "retry-prompt" if part.tool_name is not None:
                    yield {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.model_response()}
                case "retry-prompt":
                    yield {"role": "user", "content": part.model_response()}


def _content(content: Any) -> Any:
    """Return a prompt's texts, and what is no text by name."""
    if isinstance(content, str):
        return content
    return [{"type": "text", "text": each} if isinstance(each, str) else {"type": each.kind} for each in content]


def _said(response: Any) -> dict[str, Any]:
    """Write an answer in the form of chat completions."""
    texts: dict[str, list[str]] = {"text": [], "thinking": []}
    calls = []
    for part in response.parts:
        if part.part_kind in texts:
            texts[part.part_kind].append(part.content)
        elif part.part_kind == "tool-call":
            function = {"name": part.tool_name, "arguments": part.args_as_json_str()}
            calls.append({"id": part.tool_call_id, "type": "function", "function": function})
    said: dict[str, Any] = {"role": "assistant", "content": "".join(texts["text"]) or None}
    if texts["thinking"]:
        said["reasoning_content"] = "".join(texts["thinking"])
    return said | ({"tool_calls": calls} if calls else {})


def _received_of(asked: Any) -> Any:
    """Return what had come of a streamed answer before its reader was stopped; ``None`` if nothing, or if this version
    of the library does not keep it."""
    received = getattr(asked, "_usage_responses", ())
    return received[-1] if received and received[-1].state in _CUT else None


def _read(response: Any) -> ReadAnswer:
    usage = response.usage
    choice = {"message": _said(response), "finish_reason": response.finish_reason}
    counts = {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}
    return read_answer(Api.CHAT, {"model": response.model_name, "choices": [choice], "usage": counts})
