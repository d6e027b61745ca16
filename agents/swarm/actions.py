"""Parses the model's tokens as a turn: one call of a search tool, sub-agents to create, sub-tasks to assign, an answer.

    find_page ada <end>                            →  Find("ada")
    assign_task alpha ada assign_task alpha bruno  →  Assign((("alpha", ("ada",)), ("alpha", ("bruno",))))

Tokens that are no turn become ``Malformed``, with a reason: an observation for the model and a labelled fact in the
log. No sample is dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headrace.agents.swarm import vocabulary as words

MAX_PROMPT_WORDS = 6
MAX_ASSIGNED = 12
"""Largest number of sub-tasks of one turn, and so of sub-agents that run concurrently."""

_CHUNKS = frozenset(words.CHUNKS)
_ENTITIES = frozenset(words.ENTITIES)
_DOCUMENTS = frozenset(words.DOCUMENTS)
_RELATIONS = frozenset(words.RELATIONS)
_NAMES = frozenset(words.NAMES)


@dataclass(frozen=True, slots=True)
class Find:
    """``find_page``: which document is about an entity."""

    entity: str


@dataclass(frozen=True, slots=True)
class Read:
    """``read_page``: the chunk of a document that states a relation."""

    doc_id: str
    relation: str


Prompts: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""Name of a sub-agent and words, per call."""


@dataclass(frozen=True, slots=True)
class Create:
    """``create_subagent``, one or several times: names and system prompts."""

    calls: Prompts


@dataclass(frozen=True, slots=True)
class Assign:
    """``assign_task``, one or several times: names and prompts."""

    calls: Prompts


@dataclass(frozen=True, slots=True)
class Answer:
    """``answer``: chunk ids in order, each once."""

    chunk_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Malformed:
    """Tokens that are no turn."""

    tool: str
    """The first named tool, otherwise ``unknown``."""
    raw: str
    """The tokens as text; ids outside the vocabulary appear as ``#id``."""
    reason: str


Turn: TypeAlias = Find | Read | Create | Assign | Answer | Malformed


def parse(sampled: Sequence[int]) -> Turn:
    """Parse ``sampled`` tokens. Never raises: a policy may sample any ids."""
    text = [words.VOCABULARY[item] if 0 <= item < len(words.VOCABULARY) else f"#{item}" for item in sampled]
    tool = text[0] if text and text[0] in (*words.TOOLS, words.ANSWER) else "unknown"
    if not text or text[-1] != words.END:
        return Malformed(tool, " ".join(text), f"the turn does not end in {words.END}")
    arguments = tuple(text[1:-1])
    match tool:
        case words.FIND if len(arguments) == 1 and arguments[0] in _ENTITIES:
            return Find(arguments[0])
        case words.READ if len(arguments) == 2 and arguments[0] in _DOCUMENTS and arguments[1] in _RELATIONS:
            return Read(*arguments)
        case words.CREATE | words.ASSIGN:
            calls = _calls(tool, text[:-1])
            if calls is not None:
                return Create(calls) if tool == words.CREATE else Assign(calls)
        case words.ANSWER if _CHUNKS.issuperset(arguments):
            return Answer(tuple(dict.fromkeys(arguments)))
        case "unknown":
            return Malformed(tool, " ".join(text), f"{text[0]!r} is not a tool")
    return Malformed(tool, " ".join(text), f"{' '.join(arguments)!r} are not valid arguments of {tool}")


def _calls(tool: str, text: Sequence[str]) -> Prompts | None:
    """Split ``text`` at each ``tool``; ``None`` if a part is not a name and a prompt, or if there are too many."""
    starts = [position for position, word in enumerate(text) if word == tool]
    calls = []
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        name, prompt = text[start + 1 : start + 2], tuple(text[start + 2 : end])
        if not _NAMES.issuperset(name) or not 1 <= len(prompt) <= MAX_PROMPT_WORDS:
            return None
        if not words.PROMPT_WORDS.issuperset(prompt):
            return None
        calls.append((name[0], prompt))
    return tuple(calls) if len(calls) <= MAX_ASSIGNED else None
