"""A callback handler for LangChain and LangGraph.

    graph.invoke(state, config={"callbacks": [HeadraceCallbacks(headrace)], "configurable": {"thread_id": "thread-7"}})

Each run from outside is a trajectory, which ends with it, unless one is around it already. It contains the model calls
and tool calls of all chains and graphs inside. ``thread_id``, LangGraph's name for a conversation, is kept as the
trajectory's ``session``. Runs through the capture gateway belong into ``headrace.gateway_session(thread_id)``: inside
it the handler sends nothing, because the gateway records the calls.

Needs the extra ``langchain``. Works with synchronous and asynchronous runs; nothing is consumed or changed.
"""

import sys
from collections import OrderedDict
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from uuid import UUID

from headrace.agents.adapters.recorder import UNNAMED, Host, Recorder
from headrace.agents.adapters.requests import ReadAnswer, ReadRequest, read_answer, read_request
from headrace.agents.adapters.runs import MAX_OPEN, Run, begin_run, library_of
from headrace.agents.adapters.streamed_answers import Texts
from headrace.agents.gateway.canonical import Api
from headrace.agents.raised import Raised
from headrace.agents.trajectory import CURRENT, OpenStream, ToolCall
from headrace.schemas.events import ToolErrorClass

with library_of("langchain"):
    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.messages import BaseMessage, convert_to_openai_messages


@dataclass(slots=True, eq=False)
class _Run(Run):
    """A run in progress: a chain, a graph, a node, a model call or a tool call."""

    request: ReadRequest | None = None
    """Of a model call."""
    said: Texts | None = None
    """What a model call has said so far, if it is a stream."""
    tool: ToolCall | None = None
    started: float = 0.0
    stream: OpenStream | None = None
    """Records a model call or a tool call at the end of the trajectory, if LangChain has not reported its end."""


@dataclass(slots=True, eq=False)
class _Unfinished:
    """A model call or a tool call of which LangChain may report no end: it reports none if the call is cancelled."""

    handler: "HeadraceCallbacks"
    run_id: UUID

    def cut(self) -> None:
        """Record it as it is at the end of its trajectory."""
        self.handler._cut(self.run_id)


class HeadraceCallbacks(BaseCallbackHandler):  # type: ignore[misc]  # langchain_core may be absent where types are checked
    """Records runs. One handler serves any number of runs, also at the same time."""

    run_inline = True
    """Called where the run is: the trajectory around it is a context variable."""

    def __init__(self, headrace: Host, *, agent: str = "langchain", task_id: str = UNNAMED) -> None:
        """``agent``, ``task_id``: of trajectories that the handler opens; ``task_id`` in a run's ``metadata`` takes
        precedence."""
        self._headrace = headrace
        self._agent = agent
        self._task_id = task_id
        self._recorder: Recorder = headrace.recorder(agent=agent, record_tools=False)
        self._quietly = self._recorder.quietly
        self._runs: OrderedDict[UUID, _Run] = OrderedDict()

    # Chains, graphs and their nodes.

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Note a run, and open a trajectory for one from outside."""
        with self._quietly:
            self._begin(run_id, parent_run_id, metadata)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        """End the run's own trajectory with its last message as the answer."""
        with self._quietly:
            self._end(run_id, answer=_answer_of(outputs))

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """End the run's own trajectory as failed."""
        with self._quietly:
            self._end(run_id, error)

    # Model calls.

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Note a model call and its messages."""
        with self._quietly:
            run = self._begin(run_id, parent_run_id, metadata)
            chat = {"model": (metadata or {}).get("ls_model_name"), "messages": _to_openai(messages[0])}
            run.request = read_request(Api.CHAT, chat)
            self._may_not_finish(run, run_id)

    def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Note a call of a model that completes a text."""
        with self._quietly:
            run = self._begin(run_id, parent_run_id, metadata)
            body = {
                "model": (metadata or {}).get("ls_model_name"),
                "messages": [{"role": "user", "content": prompts[0]}],
            }
            run.request = read_request(Api.CHAT, body)
            self._may_not_finish(run, run_id)

    def on_llm_new_token(self, token: Any, *, run_id: UUID, **_: Any) -> None:
        """Keep what a streamed answer has said so far."""
        run = self._runs.get(run_id)
        if run is not None and type(token) is str:
            run.said = run.said or Texts()
            run.said.add("content", token)

    def on_llm_end(self, response: Any, *, run_id: UUID, **_: Any) -> None:
        """Record a model call."""
        with self._quietly:
            if (run := self._take(run_id)) is not None:
                if run.request is not None:
                    latency_s = perf_counter() - run.started
                    self._recorder.record(run.trajectory, run.request, _read(response), latency_s=latency_s)
                run.end()

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Record a model call that failed, or whose stream the program stopped reading."""
        with self._quietly:
            if (run := self._take(run_id)) is not None:
                self._record_cut(run, error)
                run.end(error)

    # Tool calls.

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        tool_call_id: str | None = None,
        **_: Any,
    ) -> None:
        """Record that a tool is called."""
        with self._quietly:
            run = self._begin(run_id, parent_run_id, metadata)
            name = (serialized or {}).get("name") or "tool"
            arguments = {"raw": input_str} if inputs is None else inputs
            run.tool = run.trajectory.tool(name, arguments, call_id=tool_call_id).__enter__()
            self._may_not_finish(run, run_id)

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        """Record what a tool returned."""
        with self._quietly:
            if (run := self._take(run_id)) is not None:
                if run.tool is not None:
                    run.tool.result = output.content if isinstance(output, BaseMessage) else output
                    run.tool.__exit__(None, None, None)
                run.end()

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Record that a tool failed, or that it is called again once its graph is resumed: an aborted call."""
        with self._quietly:
            if (run := self._take(run_id)) is not None:
                if run.tool is not None:
                    if _is_interrupt(error):
                        run.tool.error(ToolErrorClass.ABORTED, str(error))
                        run.tool.__exit__(None, None, None)
                    else:
                        run.tool.__exit__(type(error), error, None)
                run.end(error)

    def _begin(self, run_id: UUID, parent_run_id: UUID | None, metadata: dict[str, Any] | None) -> _Run:
        """Note a run in the trajectory of its parent, the one around it, or one of its own."""
        parent = None if parent_run_id is None else self._runs.get(parent_run_id)
        known = metadata or {}
        begun = begin_run(
            self._headrace,
            CURRENT.get() if parent is None else parent.trajectory,
            task_id=known.get("task_id", self._task_id),
            agent=self._agent,
            session=known.get("thread_id"),
        )
        run = _Run(begun.trajectory, begun.is_own, started=perf_counter())
        self._runs[run_id] = run
        if len(self._runs) > MAX_OPEN:
            self._runs.popitem(last=False)
        return run

    def _may_not_finish(self, run: _Run, run_id: UUID) -> None:
        """Have a call recorded at the end of its trajectory, at the latest."""
        run.stream = _Unfinished(self, run_id)
        run.trajectory.open_streams[run.stream] = None

    def _take(self, run_id: UUID) -> _Run | None:
        """Return a run that ends now; ``None`` if it is not known, or has ended."""
        run = self._runs.pop(run_id, None)
        if run is not None and run.stream is not None:
            run.trajectory.open_streams.pop(run.stream, None)
        return run

    def _end(self, run_id: UUID, error: BaseException | None = None, answer: Any = None) -> None:
        if (run := self._take(run_id)) is not None:
            run.end(error, answer)

    def _cut(self, run_id: UUID) -> None:
        with self._quietly:
            if (run := self._take(run_id)) is None:
                return
            if run.tool is not None:
                run.tool.error(ToolErrorClass.ABORTED, "the run ended before the tool")
                run.tool.__exit__(None, None, None)
            self._record_cut(run, None)

    def _record_cut(self, run: _Run, error: BaseException | None) -> None:
        """Record a model call whose answer is not whole. ``error``: what ended it, if that is known."""
        if run.request is None:
            return
        more: dict[str, Any] = {"latency_s": perf_counter() - run.started}
        if error is not None and not isinstance(error, GeneratorExit):  # with that, a program stops reading
            more["error"] = Raised.of(error)
        text = "" if run.said is None else run.said.get("content")
        if text or "error" not in more:
            choice = {"message": {"role": "assistant", "content": text}}
            answer = read_answer(Api.CHAT, {"choices": [choice]}) if text else ReadAnswer()
            more["delivered"] = False
        else:
            answer = ReadAnswer(finish_reason="error")
        self._recorder.record(run.trajectory, run.request, answer, **more)


def _to_openai(messages: list[BaseMessage]) -> list[dict[str, Any]]:
    return list(convert_to_openai_messages(messages))


def _read(response: Any) -> ReadAnswer:
    """Read an ``LLMResult``: its first generation."""
    generation = response.generations[0][0]
    said = getattr(generation, "message", None)
    if said is None:
        message, about = {"content": generation.text}, generation.generation_info or {}
    else:
        (message,) = _to_openai([said])
        about = said.response_metadata
    usage = getattr(said, "usage_metadata", None) or {}
    return read_answer(
        Api.CHAT,
        {
            "model": about.get("model_name") or about.get("model"),
            "choices": [{"message": message, "finish_reason": about.get("finish_reason") or about.get("stop_reason")}],
            "usage": {
                "prompt_tokens": usage.get("input_tokens"),
                "completion_tokens": usage.get("output_tokens"),
            },
        },
    )


def _is_interrupt(error: BaseException) -> bool:
    """Return whether a graph stops until it is resumed, for example for a person's approval."""
    errors = sys.modules.get("langgraph.errors")
    return errors is not None and issubclass(type(error), errors.GraphBubbleUp)


def _answer_of(outputs: Any) -> Any:
    """Return the content of the last message of a graph's state, or else the whole output."""
    messages = outputs.get("messages") if isinstance(outputs, dict) else None
    last = messages[-1] if isinstance(messages, list) and messages else outputs
    return last.content if isinstance(last, BaseMessage) else last
