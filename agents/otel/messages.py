"""Messages of both conventions → messages in OpenAI's format.

GenAI has a list with parts, as JSON or as values; OpenInference has an attribute for each field of each message:

    gen_ai.input.messages                       [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]
    llm.input_messages.0.message.content        Hi
                                                        ↓
                                                {"role": "user", "content": "Hi"}
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pydantic_core import from_json

Messages = list[dict[str, Any]]

Report = Callable[[str], None]
"""Called with a label for each kind of malformed value."""

MAX_MESSAGES: Final = 4096
"""Most messages of a call that are kept; further ones are dropped and labelled."""

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")


def parsed(value: Any) -> Any:
    """Return ``value``, parsed if it is the text of a JSON object or list; otherwise unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return from_json(value, allow_inf_nan=False)
        except ValueError:
            return value
    return value


def arguments_of(value: Any) -> dict[str, Any]:
    """Return a tool's arguments as an object; ``{"raw": …}`` if they are none."""
    found = parsed(value)
    if isinstance(found, dict):
        return found
    return {} if found is None or found == "" else {"raw": found}


def gen_ai_messages(value: Any, report: Report, default_role: str) -> Messages:
    """Convert messages of the GenAI conventions; anything else is left out and reported."""
    found = parsed(value)
    if found is None:
        return []
    if not isinstance(found, list):
        report("malformed_messages")
        return []
    messages: Messages = []
    for message in found:
        if not isinstance(message, dict):
            report("malformed_messages")
        elif len(messages) >= MAX_MESSAGES:
            report("too_many_messages")
            break
        else:
            messages += _from_parts(message, report, default_role)
    return messages


def system_message(value: Any, report: Report) -> Messages:
    """Convert ``gen_ai.system_instructions``, a list of parts."""
    found = parsed(value)
    if found is None:
        return []
    parts = found if isinstance(found, list) else [{"type": "text", "content": found}]
    return _from_parts({"role": "system", "parts": parts}, report, "system")


def openinference_messages(attributes: Mapping[str, Any], prefix: str, report: Report) -> Messages:
    """Convert the messages under ``prefix``, such as ``llm.input_messages``."""
    tree = _tree(attributes, f"{prefix}.", report)
    messages: Messages = []
    for entry in _listed(tree):
        if len(messages) >= MAX_MESSAGES:
            report("too_many_messages")
            break
        message = entry.get("message") if isinstance(entry, dict) else None
        if not isinstance(message, dict):
            report("malformed_messages")
            continue
        messages.append(_from_openinference(message))
    return messages


def _from_parts(message: Mapping[str, Any], report: Report, default_role: str) -> Messages:
    """Convert a message; each result of a tool becomes a message of its own."""
    role, parts = _role(message.get("role"), default_role), message.get("parts")
    if parts is None and "content" in message:
        parts = [{"type": "text", "content": message["content"]}]
    if not isinstance(parts, list):
        report("malformed_messages")
        return []
    content: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    results: Messages = []
    reasoning: list[str] = []
    for part in parts:
        if not isinstance(part, dict):
            report("malformed_messages")
            continue
        match part.get("type"):
            case "text":
                content.append({"type": "text", "text": _text(part.get("content"))})
            case "reasoning":
                reasoning.append(_text(part.get("content")))
            case "tool_call":
                calls.append(_call(part.get("id"), part.get("name"), part.get("arguments")))
            case "tool_call_response":
                result = part.get("response", part.get("result"))
                results.append({"role": "tool", "tool_call_id": _text(part.get("id")), "content": _text(result)})
            case _:
                content.append(part)
    if results and not content and not calls:
        return results
    return [*results, _message(role, content, calls, "".join(reasoning))]


def _from_openinference(message: Mapping[str, Any]) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    whole = message.get("content")
    if whole is not None:
        content.append({"type": "text", "text": _text(whole)})
    for entry in _listed(message.get("contents")):
        part = entry.get("message_content") if isinstance(entry, dict) else None
        if isinstance(part, dict):
            text = part.get("text")
            plain = part.get("type", "text") == "text"
            content.append({"type": "text", "text": _text(text)} if plain else _nested(part))
    calls = []
    for entry in _listed(message.get("tool_calls")):
        call = entry.get("tool_call") if isinstance(entry, dict) else None
        if isinstance(call, dict):
            function = call.get("function")
            function = function if isinstance(function, dict) else {}
            calls.append(_call(call.get("id"), function.get("name"), function.get("arguments")))
    role = _role(message.get("role"), "user")
    if role == "tool":
        text = "".join(part.get("text", "") for part in content)
        return {"role": "tool", "tool_call_id": _text(message.get("tool_call_id")), "content": text}
    return _message(role, content, calls, "")


def _message(role: str, content: list[dict[str, Any]], calls: list[dict[str, Any]], reasoning: str) -> dict[str, Any]:
    """Return a message in one form, so that equal messages of two spans are equal."""
    whole: Any = content
    if not content:
        whole = None
    elif len(content) == 1 and content[0].get("type") == "text" and "text" in content[0]:
        whole = content[0]["text"]
    message = {"role": role, "content": whole}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _call(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    return {
        "id": _text(call_id),
        "type": "function",
        "function": {"name": _text(name), "arguments": _text(arguments)},
    }


def _role(value: Any, default: str) -> str:
    text = value.lower() if isinstance(value, str) else default
    return {"model": "assistant", "human": "user", "function": "tool"}.get(text, text if text in _ROLES else default)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _tree(attributes: Mapping[str, Any], prefix: str, report: Report) -> dict[str, Any]:
    """Return the attributes under ``prefix`` by the parts of their names; a name that is also a prefix is reported."""
    tree: dict[str, Any] = {}
    for name, value in attributes.items():
        if not name.startswith(prefix):
            continue
        *path, last = name[len(prefix) :].split(".")[:_MAX_PATH]
        place: Any = tree
        for part in path:
            place = place.setdefault(part, {}) if isinstance(place, dict) else None
        if isinstance(place, dict) and last not in place:
            place[last] = value
        else:
            report("malformed_messages")
    return tree


_MAX_PATH: Final = 16


def _listed(tree: Any) -> Iterator[Any]:
    """Yield the values of a tree whose names are numbers, in their order."""
    if isinstance(tree, dict):
        numbers = [name for name in tree if name.isascii() and name.isdigit() and len(name) < _MAX_PATH]
        for name in sorted(numbers, key=int):
            yield tree[name]


def _nested(tree: Any) -> Any:
    """Return a tree with lists where all names are numbers."""
    if not isinstance(tree, dict):
        return tree
    listed = [_nested(value) for value in _listed(tree)]
    return listed if listed and len(listed) == len(tree) else {name: _nested(value) for name, value in tree.items()}
