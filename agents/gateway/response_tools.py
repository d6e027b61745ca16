"""Tools of the Responses API that a model sees as functions: custom tools, whose input is free text, and namespaces.

    the client's tool                                    the model's call            the client's call
    {"type": "custom", "name": "apply_patch"}            apply_patch({"input": …})   custom_tool_call, input "*** Beg…"
    {"type": "namespace", "name": "mcp", "tools": […]}   mcp__search({…})            function_call, namespace "mcp"

vLLM writes them so into the prompt, and its own endpoint translates calls back. What is recorded is what the model
wrote; :class:`ResponseTools` has the client's names.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_INPUT = "input"
_SEPARATOR = "__"

_LONE = "\ufffd"
"""Instead of half of a surrogate pair."""

_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def flat_name(namespace: str, name: str) -> str:
    """Return the model's name of a tool in a namespace."""
    return f"{namespace}{_SEPARATOR}{name}"


def custom_arguments(text: str) -> str:
    """Return the input of a custom tool as the model writes it: JSON arguments."""
    return json.dumps({_INPUT: text}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """Return the input of a custom tool that was called with ``arguments``, as :class:`CustomInput` reads it."""
    reader = CustomInput()
    return reader.feed(arguments) + reader.end()


@dataclass(frozen=True, slots=True)
class ClientName:
    """A tool as the client named it."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


class ResponseTools:
    """The client's names of a request's tools."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        """``request``: the body of a request of the Responses API; tools of unknown form are left out."""
        self._names: dict[str, ClientName] = {}
        tools = request.get("tools")
        for tool in tools if isinstance(tools, list) else ():
            name = _name_of(tool)
            if name is None:
                continue
            if tool.get("type") == "custom":
                self._names[name] = ClientName(name, is_custom=True)
            elif tool.get("type") == "namespace" and isinstance(inner := tool.get("tools"), list):
                for each in inner:
                    if (local := _name_of(each)) is not None:
                        self._names[flat_name(name, local)] = ClientName(local, name)

    def named(self, tool: str) -> ClientName:
        """Return the client's name of what the model calls ``tool``."""
        return self._names.get(tool) or ClientName(tool)


def without_grammars(tools: Any) -> Any:
    """Return ``tools`` with custom tools of free text: vLLM refuses a grammar, and the model is not shown it."""
    if not isinstance(tools, list) or not any(_has_grammar(tool) for tool in tools):
        return tools
    return [{key: tool[key] for key in tool if key != "format"} if _has_grammar(tool) else tool for tool in tools]


def _has_grammar(tool: Any) -> bool:
    form = tool.get("format") if isinstance(tool, Mapping) and tool.get("type") == "custom" else None
    return isinstance(form, Mapping) and form.get("type") == "grammar"


def _name_of(tool: Any) -> str | None:
    name = tool.get("name") if isinstance(tool, Mapping) else None
    return name if isinstance(name, str) else None


class CustomInput:
    """Reads the input of a custom tool out of the JSON arguments that a model writes, while it writes them.

    What :meth:`feed` and :meth:`end` return, joined, is the input. It is the first member of the arguments, as it
    almost always is, or known at the end only. A string may hold line breaks as they are, which JSON forbids and models
    write. Arguments of another form are the input themselves.
    """

    def __init__(self) -> None:
        self._text = ""
        """What was not read yet; at the start, all of it."""
        self._high = ""
        """First half of a surrogate pair."""
        self._is_open = False
        self._is_read = False

    def feed(self, arguments: str) -> str:
        """Take a piece of the arguments, and return the piece of the input that is certain."""
        if self._is_read:
            return ""
        self._text += arguments
        if not self._is_open:
            start = _start_of_string(self._text)
            if start is None:
                return ""
            self._is_open, self._text = True, self._text[start:]
        return self._read()

    def end(self) -> str:
        """Return what remains of the input, now that the arguments are complete, or cut."""
        if self._is_open:
            return ""  # half of an escape is left out
        try:
            found = json.loads(self._text, strict=False)
        except (ValueError, RecursionError):
            return self._text
        value = found.get(_INPUT) if isinstance(found, dict) else None
        return value if isinstance(value, str) else self._text

    def _read(self) -> str:
        """Read the string as far as it goes."""
        text, at, found = self._text, 0, list[str]()
        while at < len(text):
            stop = min((place for mark in '"\\' if (place := text.find(mark, at)) >= 0), default=len(text))
            if stop > at:
                found += (self._lone(), text[at:stop])
                at = stop
            elif text[at] == '"':
                self._is_read = True
                found.append(self._lone())
                at = len(text)
            else:
                length, character = _escaped(text, at)
                if not length:
                    break
                at += length
                found.append(self._joined(character))
        self._text = text[at:]
        return "".join(found)

    def _joined(self, character: str) -> str:
        """Join the halves of a surrogate pair; one without the other becomes U+FFFD."""
        if "\ud800" <= character <= "\udbff":
            lone, self._high = self._lone(), character
            return lone
        if "\udc00" <= character <= "\udfff":
            high, self._high = self._high, ""
            return (high + character).encode("utf-16", "surrogatepass").decode("utf-16") if high else _LONE
        return self._lone() + character

    def _lone(self) -> str:
        high, self._high = self._high, ""
        return _LONE if high else ""


def _start_of_string(text: str) -> int | None:
    """Return where the input begins, if ``text`` is the start of ``{"input": "…``."""
    at = 0
    for token in ("{", f'"{_INPUT}"', ":", '"'):
        while at < len(text) and text[at].isspace():
            at += 1
        if not text.startswith(token, at):
            return None
        at += len(token)
    return at


def _escaped(text: str, at: int) -> tuple[int, str]:
    """Return the length of the escape at ``at``, and its character; length 0: it is not complete."""
    if at + 1 >= len(text):
        return 0, ""
    kind = text[at + 1]
    if kind != "u":
        return 2, _ESCAPES.get(kind, kind)
    digits = text[at + 2 : at + 6]
    if len(digits) < 4:
        return 0, ""
    try:
        return 6, chr(int(digits, 16))
    except ValueError:
        return 2, kind
