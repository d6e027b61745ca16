"""Claude Code as the Claude Agent SDK sees it, from a script: the JSON that version 2.1.330 wrote, shortened.

cli = ScriptedCli(prompt("go"), answered("msg_1", text("Done.")), result("Done."))
async for message in recording.query(prompt="go", transport=cli): ...
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

SESSION = "0b1c6a52-3c55-4f0e-9d75-4e8b9a3a7a11"
USAGE = {"input_tokens": 5, "cache_read_input_tokens": 4, "output_tokens": 0}

Line = dict[str, Any]


class ScriptedCli:
    """What the SDK connects to. Use :func:`scripted_cli`, which makes it one of the SDK's transports."""

    def __init__(self, *turns: list[Line]) -> None:
        """``turns``: lines for each message of the user. A ``hook`` waits until the SDK has answered."""
        self.prompts: list[str] = []
        """What the SDK sent."""
        self.answers: list[Any] = []
        """What hooks answered."""
        self.failure: Exception | None = None
        """Raised after the last line."""
        self._turns = list(turns)
        self._lines: asyncio.Queue[Line | None] = asyncio.Queue()
        self._hooks: dict[str, list[str]] = {}
        self._answered: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def connect(self) -> None:
        """Nothing to start."""

    async def write(self, data: str) -> None:
        for line in data.splitlines():
            sent = json.loads(line)
            match sent["type"]:
                case "control_request":
                    for event, matchers in (sent["request"].get("hooks") or {}).items():
                        self._hooks[event] = [each for matcher in matchers for each in matcher["hookCallbackIds"]]
                    response = {"subtype": "success", "request_id": sent["request_id"], "response": {}}
                    self._lines.put_nowait({"type": "control_response", "response": response})
                case "control_response":
                    self.answers.append(sent["response"].get("response"))
                    self._answered.pop(sent["response"]["request_id"]).set()
                case "user":
                    self.prompts.append(sent["message"]["content"])
                    self._tasks.append(asyncio.create_task(self._play(self._turns.pop(0))))

    async def _play(self, turn: list[Line]) -> None:
        for line in turn:
            if line["type"] != "hook":
                self._lines.put_nowait(line)
                continue
            for callback in self._hooks.get(line["event"], ()):
                unique = f"{callback}-{len(self.answers)}"
                answered = self._answered[unique] = asyncio.Event()
                given = {"hook_event_name": line["event"], "session_id": SESSION, **line["input"]}
                request = {"subtype": "hook_callback", "callback_id": callback, "input": given, "tool_use_id": None}
                self._lines.put_nowait({"type": "control_request", "request_id": unique, "request": request})
                await answered.wait()
        if not self._turns:
            self._lines.put_nowait(None)

    async def read_messages(self) -> AsyncIterator[Line]:
        while (line := await self._lines.get()) is not None:
            yield line
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._lines.put_nowait(None)

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None:
        """The script ends by itself."""


def scripted_cli(*turns: list[Line]) -> Any:
    """A transport that plays ``turns``."""
    from claude_agent_sdk import Transport

    kind: Any = type("ScriptedTransport", (ScriptedCli, Transport), {})
    return kind(*turns)


def prompt(text: str) -> list[Line]:
    """A turn begins."""
    return [
        {"type": "hook", "event": "UserPromptSubmit", "input": {"prompt": text}},
        {"type": "system", "subtype": "init", "session_id": SESSION, "model": "policy", "tools": ["Bash"]},
    ]


def text(said: str) -> Line:
    return {"type": "text", "text": said}


def use(call_id: str, name: str, **arguments: Any) -> Line:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def answered(unique: str, *blocks: Line, parent: str | None = None, **more: Any) -> list[Line]:
    """An answer: each block is a message of its own."""
    message = {"id": unique, "role": "assistant", "model": "claude-5", "stop_reason": None, "usage": USAGE}
    return [
        {"type": "assistant", "message": message | {"content": [block]}, "parent_tool_use_id": parent, **more}
        for block in blocks
    ]


def returned(call_id: str, content: Any, *, failed: bool = False, parent: str | None = None) -> Line:
    """The result of a tool."""
    block = {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": failed}
    return user([block]) | {"parent_tool_use_id": parent}


def user(content: Any) -> Line:
    return {"type": "user", "message": {"role": "user", "content": content}, "parent_tool_use_id": None}


def task(subtype: str, call_id: str, **fields: Any) -> Line:
    """A message about a sub-agent."""
    known = {"task_id": f"task-{call_id}", "tool_use_id": call_id, "uuid": "u", "session_id": SESSION}
    return {"type": "system", "subtype": subtype, **known, **fields}


def started(call_id: str, *, is_backgrounded: bool = False) -> Line:
    kind = {"task_type": "local_agent", "subagent_type": "Explore", "description": "look"}
    return task("task_started", call_id, is_backgrounded=is_backgrounded, **kind)


def result(said: str | None, **fields: Any) -> Line:
    """The end of a turn."""
    counts = {"duration_ms": 9, "duration_api_ms": 5, "num_turns": 1, "is_error": False, "stop_reason": "end_turn"}
    return {"type": "result", "subtype": "success", "session_id": SESSION, "result": said, **counts, **fields}
