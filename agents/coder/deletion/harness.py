"""The rules of an attempt at a deletion task, without the model and without the sandbox: a pure state machine.

    harness = DeletionHarness("graphlib.py", "TopologicalSorter.done", "test_graphlib.py")
    harness.act({"content": "…", "tool_calls": […]})       →  [Action("call_1", "read", {"path": "graphlib.py", …})]
    harness.answered(action, "import …")                   the context grows by the tool's result

A message without a call, a call that is malformed and a call after ``submit`` are answered with an error and counted;
none of them ends the attempt, but each message is a turn.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.agents.coder.deletion.actions import (
    EDIT,
    RUN_TESTS,
    SUBMIT,
    TODO_ADD,
    TODO_DONE,
    Action,
    Malformed,
    parse,
)
from headrace.agents.coder.todo import TodoList

HARNESS_VERSION = "deletion-2"
"""Part of every ``trajectory.started``; changes whenever the model's observations or permissions change."""

INSTRUCTION = """\
{feature} was deleted from {path}, and tests in {tests} fail. Write it anew, so that every test passes that passed with
it. Use the tools; `submit` ends the attempt, and only what is submitted counts. The tests are run again on your files,
with their original text."""

NO_CALL = "error: your message calls no tool; `submit` ends the attempt"

MAX_ITEM = 200
"""Longest item of the to-do list, in characters."""
MAX_ITEMS = 64
"""Most items."""


@dataclass(frozen=True, slots=True)
class DeletionLimits:
    """Limits of an attempt."""

    turns: int = 48
    """Messages of the model after which the attempt ends."""
    calls: int = 8
    """Calls of one message that are carried out."""
    result_characters: int = 16_000
    """Longest result of a tool; the rest is cut off, and the model is told."""

    def __post_init__(self) -> None:
        if min(self.turns, self.calls, self.result_characters) < 1:
            raise ValueError("turns, calls and result_characters must be at least 1")


class DeletionHarness:
    """One attempt. ``messages`` is the context."""

    def __init__(self, path: str, feature: str, tests: str, limits: DeletionLimits | None = None) -> None:
        self.limits = limits or DeletionLimits()
        self.turns = 0
        """Messages of the model so far."""
        self.calls = 0
        self.errors = 0
        """Calls, and messages without one, that were answered with an error."""
        self.test_runs = 0
        self.edits = 0
        """Edits that were carried out."""
        self.todo = TodoList()
        self.has_submitted = False
        self._waiting: deque[dict[str, Any]] = deque()
        """Results that are not there yet, in the order of the calls."""
        text = INSTRUCTION.format(feature=feature, path=path, tests=tests)
        self._messages: list[dict[str, Any]] = [{"role": "user", "content": text}]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The whole context of the model."""
        return [dict(message) for message in self._messages]

    @property
    def is_over(self) -> bool:
        """Whether no further message of the model is awaited."""
        return self.has_submitted or self.turns >= self.limits.turns

    @property
    def metrics(self) -> dict[str, float]:
        """What is counted."""
        return {
            "turns": self.turns,
            "tool_calls": self.calls,
            "tool_errors": self.errors,
            "test_runs": self.test_runs,
            "edits": self.edits,
            "open_todos": len(self.todo.open),
        }

    def act(self, message: Mapping[str, Any], *, was_cut: bool = False) -> list[Action]:
        """Apply a message of the model; return the calls to carry out, in order, each of which is then
        :meth:`answered`. ``was_cut``: it reached its limit of tokens, so its last call may be half of one."""
        self.turns += 1
        said = {name: value for name, value in message.items() if value is not None}
        given = said.pop("tool_calls", None)
        calls = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
        if calls:
            said["tool_calls"] = calls
        self._messages.append({"content": "", **said, "role": "assistant"})
        if not calls:
            self.errors += 1
            cut = "error: your message was cut off at its limit of tokens" if was_cut else NO_CALL
            self._messages.append({"role": "user", "content": cut})
            return []
        actions = []
        for number, call in enumerate(calls):
            self.calls += 1
            action = parse(call)
            if was_cut and number == len(calls) - 1:
                action = Malformed(str(call.get("id", "")), "", "the message was cut off at its limit of tokens")
            elif self.has_submitted or number >= self.limits.calls:
                why = "the attempt has ended" if self.has_submitted else f"at most {self.limits.calls} calls a message"
                action = Malformed(str(call.get("id", "")), "", f"not carried out: {why}")
            match action:
                case Malformed():
                    self._result(action.call_id, f"error: {action.reason}", is_error=True)
                case Action(tool=tool) if tool in (TODO_ADD, TODO_DONE):
                    self._todo(action)
                case Action(tool=tool) if tool == SUBMIT:
                    self.has_submitted = True
                    self._result(action.call_id, "submitted")
                case Action():
                    actions.append(action)
                    self._waiting.append(self._result(action.call_id, ""))
        return actions

    def answered(self, action: Action, text: str, *, is_error: bool = False) -> None:
        """Show the result of the next call that :meth:`act` returned."""
        self.test_runs += action.tool == RUN_TESTS
        self.edits += action.tool == EDIT and not is_error
        most = self.limits.result_characters
        if len(text) > most:
            text = f"{text[:most]}\n[cut off: {len(text) - most} more characters]"
        self.errors += is_error
        self._waiting.popleft()["content"] = f"error: {text}" if is_error else text

    def _todo(self, action: Action) -> None:
        item = action.arguments["item"].strip()
        try:
            if action.tool == TODO_DONE:
                self.todo = self.todo.finished(item)
            elif not item or len(item) > MAX_ITEM or len(self.todo.items) >= MAX_ITEMS:
                raise KeyError(f"an item has 1 to {MAX_ITEM} characters, the list at most {MAX_ITEMS} items")
            else:
                self.todo = self.todo.added((item,))
        except KeyError as error:
            self._result(action.call_id, f"error: {error.args[0]}", is_error=True)
            return
        self._result(action.call_id, f"open: {', '.join(self.todo.open) or 'nothing'}")

    def _result(self, call_id: str, text: str, *, is_error: bool = False) -> dict[str, Any]:
        self.errors += is_error
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
        return self._messages[-1]
