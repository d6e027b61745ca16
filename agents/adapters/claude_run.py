"""A run of Claude Code, from the messages of the Claude Agent SDK."""

import asyncio
from collections import deque
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from headrace.agents.adapters.recorder import Recorder
from headrace.agents.adapters.requests import plain, read_answer, read_request
from headrace.agents.adapters.runs import Run, library_of
from headrace.agents.gateway.canonical import Api
from headrace.agents.raised import Raised
from headrace.agents.trajectory import Subagent, ToolCall, Trajectory, is_abort
from headrace.schemas.events import EndStatus, ToolErrorClass

with library_of("claude-agent-sdk"):
    import claude_agent_sdk as sdk

_STATUSES = {"error_max_turns": EndStatus.TURNS_EXHAUSTED, "error_max_budget_usd": EndStatus.BUDGET_EXHAUSTED}
"""Results that are no failures → how the trajectory ended."""

_STOPPED = ("stopped", "killed")
_ENDED = ("completed", "failed", *_STOPPED)
"""Statuses of a task that has ended."""


@dataclass(slots=True)
class _Call:
    """A model call, of which Claude Code sends each block in a message of its own."""

    message_id: str | None
    model: str
    place: int | None
    """In the order of the trajectory's events: tools are called, and may return, before the last block."""
    blocks: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    stop_reason: str | None = None
    error: str | None = None


@dataclass(slots=True)
class _Thread:
    """A line of conversation: that of the main agent, or of a sub-agent."""

    trajectory: Trajectory
    subagent: Subagent | None = None
    status: str = "stopped"
    """Of a sub-agent: Claude Code sends it before its answer."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """What is recorded, in the form of the Messages API."""
    new: list[dict[str, Any]] = field(default_factory=list)
    """Prompts and results that the next call has in its request."""
    call: _Call | None = None
    is_over: bool = False
    """Of a sub-agent: what still comes is counted (``after_end``)."""


class ClaudeRun:
    """A run in progress."""

    def __init__(self, run: Run, recorder: Recorder) -> None:
        self._recorder = recorder
        self._run = run
        self.trajectory = self._run.trajectory
        if self._run.is_own:
            copy_context().run(self.trajectory.__enter__)
        self._main = _Thread(self.trajectory)
        self._subagents: dict[str, _Thread] = {}
        """By the id of the tool call that began them."""
        self._tasks: dict[str, str] = {}
        """Claude Code's tasks → ids of the tool calls that began them."""
        self._background: set[str] = set()
        """Tool calls that return before the sub-agents that they began have ended."""
        self._tools: dict[str, tuple[_Thread, ToolCall]] = {}
        """Tool calls that have not returned, by id."""
        self._prompts: deque[str] = deque()
        """Prompts of turns that have not begun."""
        self._compacted: dict[str, Any] | None = None
        """A compaction whose summary is yet to come."""
        self._result: Any = None
        self._is_over = False

    async def prompted(self, given: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        """Note a prompt: the hook ``UserPromptSubmit``, which changes nothing."""
        with self._recorder.quietly:
            self._prompts.append(given["prompt"])
        return {}

    def saw(self, message: Any) -> None:
        """Record a message."""
        match message:
            case sdk.AssistantMessage():
                self._answered(message)
            case sdk.UserMessage():
                self._returned(message)
            case sdk.StreamEvent() if message.event.get("type") == "message_delta":
                call = self._thread(message.parent_tool_use_id).call
                if call is not None:
                    call.usage |= message.event.get("usage") or {}
                    call.stop_reason = (message.event.get("delta") or {}).get("stop_reason")
            case sdk.TaskStartedMessage() if message.tool_use_id and message.task_type == "local_agent":
                self._tasks[message.task_id] = message.tool_use_id
                if message.data.get("is_backgrounded"):
                    self._background.add(message.tool_use_id)
                self._thread(message.tool_use_id)
            case sdk.TaskNotificationMessage():
                self._finish(self._tasks.get(message.task_id), message.status, message.summary)
            case sdk.TaskUpdatedMessage() if message.status in _ENDED:
                if (ended := self._subagents.get(self._tasks.get(message.task_id, ""))) is not None:
                    ended.status = message.status
            case sdk.ResultMessage():
                if self._main.call is not None:
                    self._main.call.stop_reason = message.stop_reason
                self._flush(self._main)
                self._result = message
            case sdk.SystemMessage(subtype="init") if self._prompts:
                self._main.new.append({"type": "text", "text": self._prompts.popleft()})
            case sdk.SystemMessage(subtype="compact_boundary"):
                self._flush(self._main)
                self._compacted = message.data.get("compact_metadata") or {}

    def end(self, error: BaseException | None) -> None:
        """Record what is left, and end the run's own trajectory; only once."""
        if self._is_over:
            return
        self._is_over = True
        for _, tool in self._tools.values():
            tool.__exit__(asyncio.CancelledError, asyncio.CancelledError(), None)
        for tool_use_id, thread in list(self._subagents.items()):
            self._finish(tool_use_id, thread.status)
            self._flush(thread)
        self._flush(self._main)
        if not self._run.is_own:
            return
        result = self._result
        if isinstance(error, GeneratorExit) and result is not None:
            error = None  # the program stopped reading after a turn
        if error is None and (result is None or not result.is_error):
            self.trajectory.end(answer=self._answer())
        else:
            status = EndStatus.ABORTED if error is not None and is_abort(error) else EndStatus.FAILED
            what = "; ".join(result.errors or [result.result or result.subtype]) if error is None else Raised.of(error)
            status = status if result is None else _STATUSES.get(result.subtype, status)
            self.trajectory.end(status, error=what)
        copy_context().run(self.trajectory.__exit__, None, None, None)

    def _answer(self) -> Any:
        if self._result is None:
            return self._recorder.last_answer(self.trajectory)
        structured = self._result.structured_output
        return self._result.result if structured is None else structured

    def _thread(self, tool_use_id: str | None) -> _Thread:
        """Return the conversation that a tool call began; ``None``: the main one."""
        if tool_use_id is None:
            return self._main
        found = self._subagents.get(tool_use_id)
        if found is None:
            caller, tool = self._tools.get(tool_use_id, (self._main, None))
            arguments: dict[str, Any] = {} if tool is None else tool.arguments
            name = str(arguments.get("subagent_type") or "agent")
            subagent = caller.trajectory.subagent(name, task_id=name)
            found = _Thread(copy_context().run(subagent.__enter__), subagent)
            if isinstance(prompt := arguments.get("prompt"), str):
                found.new.append({"type": "text", "text": prompt})
            self._subagents[tool_use_id] = found
        return found

    def _finish(self, tool_use_id: str | None, status: str, report: Any = None) -> None:
        """End a sub-agent, unless it has ended. ``report``: what its caller receives."""
        thread = self._subagents.get(tool_use_id or "")
        if thread is None or thread.subagent is None or thread.is_over:
            return
        self._flush(thread)
        thread.is_over = True
        error: BaseException | None = None
        if status == "completed":
            said = self._recorder.last_answer(thread.trajectory)  # is shown only if the program asks for it
            thread.trajectory.end(answer=report if said is None else said)
        else:
            error = asyncio.CancelledError() if status in _STOPPED else sdk.ClaudeSDKError(status)
        kind = None if error is None else type(error)
        copy_context().run(thread.subagent.__exit__, kind, error, None)
        thread.messages, thread.new = [], []

    def _answered(self, message: Any) -> None:
        """Record a block of an answer; a tool is called with it."""
        thread = self._thread(message.parent_tool_use_id)
        if thread.call is None or message.message_id is None or thread.call.message_id != message.message_id:
            self._flush(thread)
            if thread.new:
                thread.messages.append({"role": "user", "content": thread.new})
                thread.new = []
            thread.call = _Call(message.message_id, message.model, thread.trajectory.place(), error=message.error)
        call = thread.call
        call.usage |= message.usage or {}
        call.stop_reason = message.stop_reason or call.stop_reason
        for block in message.content:
            call.blocks.append(_block(block))
            if isinstance(block, sdk.ToolUseBlock):
                tool = thread.trajectory.tool(block.name, block.input, call_id=block.id)
                self._tools[block.id] = thread, tool.__enter__()

    def _returned(self, message: Any) -> None:
        """Record results of tools, or the summary after a compaction."""
        thread = self._thread(message.parent_tool_use_id)
        if isinstance(message.content, str):
            if self._compacted is not None and thread is self._main:
                before, after = (self._compacted.get(f"{each}_tokens") or 0 for each in ("pre", "post"))
                thread.trajectory.summarized(before, after, message.content)
                thread.messages, thread.new = [], [{"type": "text", "text": message.content}]
                self._compacted = None
            return
        for block in message.content:
            if not isinstance(block, sdk.ToolResultBlock):
                continue
            thread.new.append(_block(block))
            _, tool = self._tools.pop(block.tool_use_id, (None, None))
            if tool is not None:
                tool.result = _text(block.content)
                if block.is_error:
                    tool.error(ToolErrorClass.ENVIRONMENT, tool.result)
                tool.__exit__(None, None, None)
            if block.tool_use_id not in self._background:
                self._finish(block.tool_use_id, "failed" if block.is_error else "completed", _text(block.content))

    def _flush(self, thread: _Thread) -> None:
        """Record the model call in progress: all of its blocks have come."""
        call, thread.call = thread.call, None
        if call is None:
            return
        reason = call.stop_reason
        extra: dict[str, Any] = {}
        if call.error is not None:
            reason, extra = "error", {"error": f"{call.error}: {_text(call.blocks)}"}
        elif reason is None and any(each["type"] == "tool_use" for each in call.blocks):
            reason = "tool_use"
        said = {"model": call.model, "content": call.blocks, "stop_reason": reason, "usage": call.usage}
        with self._recorder.quietly:
            self._recorder.record(
                thread.trajectory,
                read_request(Api.MESSAGES, {"model": call.model, "messages": thread.messages}),
                read_answer(Api.MESSAGES, said),
                place=call.place,
                **extra,
            )
        thread.messages.append({"role": "assistant", "content": call.blocks})


def _block(block: Any) -> dict[str, Any]:
    """Write a block in the form of the Messages API."""
    found = {name: each for name, each in plain(vars(block)).items() if each is not None}
    match block:
        case sdk.TextBlock():
            kind = "text"
        case sdk.ThinkingBlock():
            kind = "thinking"
        case sdk.ToolUseBlock():
            kind = "tool_use"
        case sdk.ToolResultBlock():
            kind = "tool_result"
        case _:
            kind = "server_tool"
    return {"type": kind, **found}


def _text(content: Any) -> Any:
    """Return the texts of a result, and what is no text by name."""
    if not isinstance(content, list):
        return content
    return "\n".join(each.get("text") or f"[{each.get('type')}]" for each in content)
