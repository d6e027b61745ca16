"""Parses the model's tokens as actions.

    search_corpus ada employer <end>  →  Action("search_corpus", ("ada", "employer"))

Tokens that are not an action become ``Malformed``, with a reason: an observation for the model and a labelled fact in
the log. No sample is dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.agents.search import vocabulary as words

MAX_QUERY_WORDS = 6

_CHUNKS = frozenset(words.CHUNKS)
_DOCUMENTS = frozenset(words.DOCUMENTS)
_NAMES = (*words.TOOLS, words.ANSWER)


@dataclass(frozen=True, slots=True)
class Action:
    """A call that can be carried out, or an answer."""

    tool: str
    arguments: tuple[str, ...]

    @property
    def named_arguments(self) -> dict[str, Any]:
        """The arguments as JSON, by the names of the tool's parameters."""
        match self.tool:
            case words.SEARCH:
                return {"query": " ".join(self.arguments)}
            case words.GREP:
                return {"pattern": self.arguments[0]}
            case words.READ:
                return {"doc_id": self.arguments[0]}
            case _:
                return {"chunk_ids": list(self.arguments)}


@dataclass(frozen=True, slots=True)
class Malformed:
    """Tokens that are not an action."""

    tool: str
    """The named tool, otherwise ``unknown``."""
    raw: str
    """The tokens as text; ids outside the vocabulary appear as ``#id``."""
    reason: str


def parse(sampled: Sequence[int]) -> Action | Malformed:
    """Parse ``sampled`` tokens. Never raises: a policy may sample any ids."""
    text = [words.VOCABULARY[item] if 0 <= item < len(words.VOCABULARY) else f"#{item}" for item in sampled]
    tool = text[0] if text and text[0] in _NAMES else "unknown"
    reason = _fault(text)
    return Action(tool, tuple(text[1:-1])) if reason is None else Malformed(tool, " ".join(text), reason)


def _fault(text: Sequence[str]) -> str | None:
    if not text or text[-1] != words.END:
        return f"the turn does not end in {words.END}"
    tool, arguments = text[0], text[1:-1]
    match tool:
        case words.SEARCH:
            fits = 1 <= len(arguments) <= MAX_QUERY_WORDS and words.SEARCHABLE.issuperset(arguments)
        case words.GREP:
            fits = len(arguments) == 1 and arguments[0] in words.SEARCHABLE
        case words.READ:
            fits = len(arguments) == 1 and arguments[0] in _DOCUMENTS
        case words.PRUNE:
            fits = bool(arguments) and _CHUNKS.issuperset(arguments)
        case words.ANSWER:
            fits = _CHUNKS.issuperset(arguments)
        case _:
            return f"{tool!r} is not a tool"
    return None if fits else f"{' '.join(arguments)!r} are not valid arguments of {tool}"
