"""The tools of an attempt at a deletion task, as a model calls them by OpenAI's API.

    {"id": "call_1", "function": {"name": "read", "arguments": '{"path": "graphlib.py"}'}}
    →  Action("call_1", "read", {"path": "graphlib.py", "start": 1, "lines": 200})

What is no call of a tool is a :class:`Malformed` with the reason, which the model is told.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

READ, GREP, EDIT, RUN_TESTS = "read", "grep", "edit", "run_tests"
TODO_ADD, TODO_DONE, SUBMIT = "todo_add", "todo_done", "submit"

MAX_ARGUMENT = 64_000
"""Longest text in an argument, in characters."""
READ_LINES = 200
"""Lines of a read that asks for no number."""
MAX_LINES = 1_000
"""Most lines of a read."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a tool."""

    description: str
    default: str | int | None = None
    """What applies if it is missing; ``None``: it must be given."""


_PATH = Parameter("a file, relative to the work folder")
_TOOLS: Mapping[str, tuple[str, Mapping[str, Parameter]]] = MappingProxyType({
    READ: (
        "Read lines of a file.",
        {
            "path": _PATH,
            "start": Parameter("first line, from 1", 1),
            "lines": Parameter("number of lines", READ_LINES),
        },
    ),
    GREP: (
        "Search files for an extended regular expression; the result has path, line and text.",
        {"pattern": Parameter("the expression"), "path": Parameter("a file or folder", ".")},
    ),
    EDIT: (
        "Replace a text that occurs exactly once in a file. An empty old text makes a new file.",
        {"path": _PATH, "old": Parameter("the text to replace"), "new": Parameter("the new text")},
    ),
    RUN_TESTS: ("Run the tests.", {}),
    TODO_ADD: ("Put an item on your to-do list.", {"item": Parameter("the item")}),
    TODO_DONE: ("Tick off an item of your to-do list.", {"item": Parameter("the item, as you added it")}),
    SUBMIT: ("End the attempt: what the files are now is judged.", {}),
})  # fmt: skip

NAMES = tuple(_TOOLS)
"""Names of the tools."""


def schemas() -> list[dict[str, Any]]:
    """Return the tools in the form of OpenAI's API. They are not *strict*: tokens of a constrained answer are not
    trained."""
    found = []
    for name, (description, parameters) in _TOOLS.items():
        properties = {
            each: {
                "type": "integer" if isinstance(parameter.default, int) else "string",
                "description": parameter.description,
            }
            for each, parameter in parameters.items()
        }
        required = [each for each, parameter in parameters.items() if parameter.default is None]
        schema = {"type": "object", "properties": properties, "required": required}
        function = {"name": name, "description": description, "parameters": schema}
        found.append({"type": "function", "function": function})
    return found


@dataclass(frozen=True, slots=True)
class Action:
    """A well-formed call."""

    call_id: str
    tool: str
    arguments: Mapping[str, Any]
    """Every parameter of the tool."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A call that cannot be carried out."""

    call_id: str
    tool: str
    """The name that was called."""
    reason: str


def parse(call: Any) -> Action | Malformed:
    """Parse an entry of ``tool_calls``. Never raises."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return Malformed("", "unknown", "this is no call of a function")
    call_id, tool = str(call.get("id", "")), str(function.get("name", ""))[:100]
    if tool not in _TOOLS:
        return Malformed(call_id, tool, f"there is no tool {tool!r}: choose from {', '.join(NAMES)}")
    try:
        given = json.loads(function.get("arguments") or "{}")
    except (ValueError, TypeError, RecursionError) as error:
        return Malformed(call_id, tool, f"the arguments are no JSON: {error}")
    if not isinstance(given, dict):
        return Malformed(call_id, tool, "the arguments are no JSON object")
    arguments: dict[str, Any] = {}
    for name, parameter in _TOOLS[tool][1].items():
        value = given.get(name, parameter.default)
        if value is None:
            return Malformed(call_id, tool, f"the argument {name!r} is missing")
        kind: type[int | str] = int if isinstance(parameter.default, int) else str
        if not isinstance(value, kind) or isinstance(value, bool):
            return Malformed(call_id, tool, f"the argument {name!r} must be {_named(kind)}")
        if isinstance(value, str) and len(value) > MAX_ARGUMENT:
            return Malformed(call_id, tool, f"the argument {name!r} has more than {MAX_ARGUMENT} characters")
        if isinstance(value, str) and not _is_unicode(value):  # the gateway would refuse a result that repeats it
            return Malformed(call_id, tool, f"the argument {name!r} has half of a surrogate pair: it is not valid text")
        if isinstance(value, int) and not 1 <= value <= 1_000_000:
            return Malformed(call_id, tool, f"the argument {name!r} must be from 1 to 1,000,000")
        arguments[name] = value
    if unknown := given.keys() - arguments.keys():
        return Malformed(call_id, tool, f"the tool has no argument {sorted(unknown)[0]!r}"[:200])
    return Action(call_id, tool, arguments)


def _is_unicode(text: str) -> bool:
    """Return whether ``text`` can be sent: JSON's escapes can express half of a surrogate pair, which UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _named(kind: type[int | str]) -> str:
    return "an integer" if kind is int else "a text"
