"""The actions that a model writes in text: one line that starts with the name of a tool.

    I need the base class first.
    search_corpus base class of http.server.HTTPServer          → Action("search_corpus", "base class of …")

What stands before that line is thought and stays in the context; a message without such a line, with two, or with text
after it is malformed, because it is not clear which call is meant.
"""

import re
from dataclasses import dataclass

SEARCH, GREP, READ, PRUNE, ANSWER = "search_corpus", "grep_corpus", "read_document", "prune_chunks", "answer"
TOOLS = (SEARCH, GREP, READ, PRUNE, ANSWER)

MAX_ARGUMENT = 1_000
"""Longest argument, in characters."""
MAX_IDS = 64
"""Most chunks of one prune or answer."""

_CHUNK_ID = re.compile(r"[\w.:/-]{1,128}")


@dataclass(frozen=True, slots=True)
class Action:
    """A well-formed call of a tool."""

    tool: str
    argument: str
    """Query, pattern or document id; for ``prune_chunks`` and ``answer`` the chunk ids as they were written."""

    @property
    def chunk_ids(self) -> tuple[str, ...]:
        """The chunk ids of a prune or an answer, each once."""
        return tuple(dict.fromkeys(_words(self.argument)))


@dataclass(frozen=True, slots=True)
class Malformed:
    """A message that is no action."""

    tool: str
    """The named tool, otherwise ``unknown``."""
    reason: str


def parse(said: str) -> Action | Malformed:
    """Parse a message of the model. Never raises."""
    lines = [line.strip() for line in said.strip().splitlines()]
    calls = [place for place, line in enumerate(lines) if line and line.split(maxsplit=1)[0] in TOOLS]
    if not calls:
        return Malformed("unknown", f"no line starts with one of {', '.join(TOOLS)}")
    tool, *rest = lines[calls[0]].split(maxsplit=1)  # at any white space, such as a tab
    argument = rest[0] if rest else ""
    if len(calls) > 1:
        return Malformed(tool, "more than one call in a message")
    if any(lines[calls[0] + 1 :]):
        return Malformed(tool, "text after the call")
    if len(argument) > MAX_ARGUMENT:
        return Malformed(tool, f"the argument has more than {MAX_ARGUMENT} characters")
    if tool in (PRUNE, ANSWER):
        ids = _words(argument)
        if len(ids) > MAX_IDS or not all(map(_CHUNK_ID.fullmatch, ids)):
            return Malformed(tool, f"expected at most {MAX_IDS} chunk ids, with spaces between")
        if tool == PRUNE and not ids:
            return Malformed(tool, "expected the ids of the chunks to remove")
    elif not argument:
        return Malformed(tool, "expected an argument")
    return Action(tool, argument)


def _words(argument: str) -> list[str]:
    return argument.replace(",", " ").split()
