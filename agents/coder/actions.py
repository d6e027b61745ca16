"""Parses the model's tokens as calls of tools.

    edit billing.py charge : return x * 7 + 2 <end>  →  Action("edit", ("billing.py", "charge", "return", "x", …))

A turn may begin with thinking, a comment before the call: ``# rate 7 size 2 edit billing.py charge : …``.

Tokens that are not a call become ``Malformed``, with a reason: an observation for the model and a labelled fact in the
log. No sample is dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.agents.coder import vocabulary as words

MAX_TODO_NAMES = 12

_FILES = frozenset((*words.FILES, words.CONSTANTS_FILE, words.TESTS_FILE))
_FUNCTIONS = frozenset(words.FUNCTIONS)
_NAMES = frozenset((*words.FUNCTIONS, *words.CONSTANTS))


@dataclass(frozen=True, slots=True)
class Action:
    """A call that can be carried out."""

    tool: str
    arguments: tuple[str, ...]
    """Of ``edit``: file, function, and the words of its body."""

    @property
    def named_arguments(self) -> dict[str, Any]:
        """The arguments as JSON, by the names of the tool's parameters."""
        match self.tool:
            case words.READ:
                return {"path": self.arguments[0]}
            case words.GREP:
                return {"pattern": self.arguments[0]}
            case words.EDIT:
                path, function, *body = self.arguments
                return {"path": path, "function": function, "body": " ".join(body)}
            case words.TODO_ADD | words.TODO_DONE:
                return {"items": list(self.arguments)}
            case _:
                return {}


@dataclass(frozen=True, slots=True)
class Malformed:
    """Tokens that are not a call."""

    tool: str
    """The named tool, otherwise ``unknown``."""
    raw: str
    """The tokens as text; ids outside the vocabulary appear as ``#id``."""
    reason: str


def parse(sampled: Sequence[int]) -> Action | Malformed:
    """Parse ``sampled`` tokens. Never raises: a policy may sample any ids."""
    text = words.decode_words(sampled)
    text = text[thinking_tokens(text) :]
    tool = text[0] if text and text[0] in words.TOOLS else "unknown"
    reason = _fault(text)
    if reason is not None:
        return Malformed(tool, " ".join(text), reason)
    arguments = text[1:-1]
    return Action(tool, (*arguments[:2], *arguments[3:]) if tool == words.EDIT else tuple(arguments))


def thinking_tokens(text: Sequence[str]) -> int:
    """Return how many words of a turn come before its call as a comment; 0 if it has no comment or no call."""
    if list(text[:1]) != [words.THINK]:
        return 0
    return next((place for place, word in enumerate(text) if word in words.TOOLS), 0)


def _fault(text: Sequence[str]) -> str | None:
    if not text or text[-1] != words.END:
        return f"the turn does not end in {words.END}"
    tool, arguments = text[0], text[1:-1]
    match tool:
        case words.READ:
            fits = len(arguments) == 1 and arguments[0] in _FILES
        case words.GREP:
            fits = len(arguments) == 1 and arguments[0] in _NAMES
        case words.EDIT:
            path, function, colon, *body = (*arguments, *[""] * (3 - len(arguments)))
            fits = path in _FILES and function in _FUNCTIONS and colon == ":" and bool(body)
            fits = fits and words.CODE_WORDS.issuperset(body)
        case words.TODO_ADD:
            fits = 1 <= len(arguments) <= MAX_TODO_NAMES and _FUNCTIONS.issuperset(arguments)
        case words.TODO_DONE:
            fits = len(arguments) == 1 and arguments[0] in _FUNCTIONS
        case words.RUN_TESTS | words.SUBMIT:
            fits = not arguments
        case _:
            return f"{tool!r} is not a tool"
    return None if fits else f"{' '.join(arguments)!r} are not valid arguments of {tool}"
