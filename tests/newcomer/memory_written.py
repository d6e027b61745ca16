"""The event type `memory.written` as a newcomer would add it: the lines to add to each file.

An agent wrote something into its memory. Each edit puts its text before the first line that begins with its anchor.
"""

from pathlib import Path
from typing import NamedTuple


class Edit(NamedTuple):
    """Lines put into a file."""

    path: str
    """The file, from the root of the repository."""
    before: str
    """Start of the line before which they are inserted, indentation included."""
    text: str
    """The lines."""


THE_TYPE = (
    Edit(
        "schemas/events.py",
        "class SubagentStarted(AgentRecord)",
        '''class MemoryWritten(AgentRecord):
    """The agent wrote something into its memory."""

    TYPE: ClassVar[Literal["headrace.memory.written.v1"]] = "headrace.memory.written.v1"

    key: Name
    """Key under which it is stored."""
    text: str
    """What was written."""


''',
    ),
    Edit("schemas/events.py", "    | SubagentStarted", "    | MemoryWritten\n"),
)
"""The definition. With it alone mypy names the files of :data:`WHAT_MYPY_ASKS_FOR`, and a test reports that the example
is missing.
"""

WHAT_MYPY_ASKS_FOR = (
    Edit(
        "streams/assembly/turns.py",
        "            case TrajectoryStarted.TYPE |",
        "            case MemoryWritten.TYPE:\n                pass  # nothing of a turn\n",
    ),
    Edit("streams/assembly/turns.py", "    ModelCalled,", "    MemoryWritten,\n"),
    Edit(
        "deploy/tail/sentence.py",
        "        case events.SubagentStarted()",
        '        case events.MemoryWritten():\n            return f"{fact.key} {_cut(fact.text)}"\n',
    ),
)
"""Its representation in a trajectory, and in a line of `headrace tail`."""

THE_REST = (
    Edit(
        "agents/trajectory.py",
        "    def subagent(",
        '''    def memory_written(self, key: str, text: str, **extra: Any) -> None:
        """The agent wrote ``text`` into its memory."""
        self._note(MemoryWritten, {"key": key, "text": text, **extra})

''',
    ),
    Edit("agents/trajectory.py", "    ModelCalled,", "    MemoryWritten,\n"),
    Edit(
        "schemas/examples.py",
        "    events.TrajectoryEnded(answer=",
        '    events.MemoryWritten(key="ada", text="Works at the mill (c17)."),\n',
    ),
)
"""How an agent emits it, and an example."""

EDITS = (*THE_TYPE, *WHAT_MYPY_ASKS_FOR, *THE_REST)


def apply(edits: tuple[Edit, ...], root: Path) -> None:
    """Write ``edits`` into the tree at ``root``. Raises ``ValueError`` if an anchor is missing."""
    for edit in edits:
        path = root / edit.path
        lines = path.read_text().splitlines(keepends=True)
        places = [number for number, line in enumerate(lines) if line.startswith(edit.before)]
        if not places:
            raise ValueError(f"{edit.path} has no line that begins with {edit.before!r}: mend the edit")
        lines.insert(places[0], edit.text)
        path.write_text("".join(lines))
