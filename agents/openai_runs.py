"""Converts recorded runs in OpenAI's chat format to facts, deterministically.

    {"task_id": 7, "trial": 0, "reward": 1.0, "info": {…}, "traj": [{"role": "user", "content": "Hi"}, …]}

Such runs have neither token ids nor log-probabilities (the model was closed), and none are invented. The runs are used
for rewards, filters, analytics and supervised data; training rejects them for that reason.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from headrace.schemas.envelope import Envelope
from headrace.schemas.events import (
    ModelCalled,
    ToolCalled,
    ToolReturned,
    ToolStatus,
    TrajectoryEnded,
    TrajectoryStarted,
)
from headrace.schemas.ids import derived_id
from headrace.schemas.model import Record
from headrace.schemas.wire import Message, encode

ERROR_PREFIX = "Error"
"""Prefix with which tools of the recorded benchmarks report a failure: ``Error: …``."""

UNKNOWN_MODEL = "unknown"
"""Model name if neither the line nor the user specifies one."""


class BadRun(ValueError):
    """A line that is not a recorded run; the message describes the problem."""


class _ChatModel(BaseModel):
    # Unknown fields are kept, so that events contain messages as recorded.
    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)


class _Function(_ChatModel):
    name: str
    arguments: str | dict[str, Any] = "{}"


class _ToolCall(_ChatModel):
    id: str
    function: _Function


class _ChatMessage(_ChatModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Any = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class RecordedRun(_ChatModel):
    """One line: a recorded attempt at a task."""

    task_id: int | str
    """The task."""
    trial: int | None = None
    """Number of the attempt."""
    reward: float | None = None
    """Verifiable outcome, if there is one."""
    model: str | None = None
    """Model that was called, if recorded."""
    info: dict[str, Any] | None = None
    """Additions of the recorder: the expected actions, costs …"""
    messages: list[_ChatMessage] = Field(validation_alias=AliasChoices("traj", "messages"), min_length=1)
    """The chat, including the system message."""


IMPORT_SOURCES = "headrace/import/"
"""Prefix of ``ce_source`` of imported events."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """Properties that all runs of an import share."""

    name: str
    """Part of every id, and the trajectories' run."""
    agent: str = "imported"
    """Name of the recorded agent."""
    model: str = UNKNOWN_MODEL
    """Model that was called, for lines that do not name one."""

    @property
    def source(self) -> str:
        """``ce_source`` of the events."""
        return f"{IMPORT_SOURCES}{self.name}"

    def group_id(self, task_id: str) -> str:
        """Return the id of the group of a task's attempts."""
        return f"{self.name}/{task_id}"

    def trajectory_id(self, task_id: str, trial: int) -> str:
        """Return the trajectory id of an attempt."""
        return derived_id("import", self.name, task_id, trial)


def parse_run(line: bytes) -> RecordedRun:
    """Parse a line of JSON; raise a :class:`BadRun` that describes the problem and its position."""
    try:
        run = RecordedRun.model_validate_json(line)
    except ValidationError as error:
        raise BadRun(problems_of(error)) from error
    for position, message in enumerate(run.messages):
        if message.role == "tool" and message.tool_call_id is None:
            raise BadRun(f"traj.{position}: a tool message without tool_call_id")
    return run


def problems_of(error: ValidationError) -> str:
    """Return the first three problems in ``error``, each with its position, and the number of others."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    shown = "; ".join(
        f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}".lstrip(": ") for problem in problems[:3]
    )
    return shown + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")


def run_to_facts(run: RecordedRun, dataset: Dataset, trial: int, group_size: int) -> list[Record]:
    """Return the facts of ``run``, in order; the index of a fact is its sequence number.

    ``trial`` is the run's own or, if it has none, its index among the task's attempts; ``group_size`` is the number of
    these attempts. Every message is in exactly one event: the messages of a turn in its ``model.called``, those after
    the last answer in ``trajectory.ended``.
    """
    task_id = str(run.task_id)
    facts: list[Record] = [
        TrajectoryStarted(
            task_id=task_id,
            group_id=dataset.group_id(task_id),
            group_size=group_size,
            agent=dataset.agent,
            run=dataset.name,
            task={"trial": trial} if run.info is None else {"trial": trial, "info": run.info},
        )
    ]
    calls = _CallIds()
    new_messages: list[dict[str, Any]] = []
    answer: Any = None
    for message in run.messages:
        new_messages.append(message.model_dump(exclude_unset=True))
        if message.role == "assistant":
            answer = message.content
            facts.append(ModelCalled(model=run.model or dataset.model, messages=new_messages))
            facts += [_tool_called(call, calls) for call in message.tool_calls or ()]
            new_messages = []
        elif message.role == "tool":
            facts.append(_tool_returned(message, calls))
    ended: dict[str, Any] = {"answer": answer, "outcome": run.reward}
    facts.append(TrajectoryEnded.model_validate(ended | {"messages": new_messages} if new_messages else ended))
    return facts


def fact_messages(facts: list[Record], dataset: Dataset, trajectory_id: str, time_ms: int) -> Iterator[Message]:
    """Encode ``facts`` as Kafka records. Their ids and payloads are the same at every import. ``time_ms`` (Unix
    milliseconds) is the start of the import, because recordings contain no times."""
    for seq, fact in enumerate(facts):
        envelope = Envelope(
            id=derived_id(trajectory_id, seq),
            type=fact.TYPE,
            source=dataset.source,
            time_ms=time_ms + seq,
            subject=trajectory_id,
            sequence=seq,
        )
        yield encode(fact, key=trajectory_id, envelope=envelope)


class _CallIds:
    """Makes call ids unique within a run: recorded agents reuse an id in a later turn."""

    def __init__(self) -> None:
        self._uses: defaultdict[str, int] = defaultdict(int)
        self._open: defaultdict[str, deque[tuple[str, str]]] = defaultdict(deque)

    def called(self, call_id: str, tool: str) -> str:
        """Return a unique id for a new call."""
        unique = self._unique(call_id)
        self._open[call_id].append((unique, tool))
        return unique

    def returned(self, call_id: str, tool: str | None) -> tuple[str, str]:
        """Return the unique id and the tool of the oldest call under ``call_id`` that has no result yet."""
        waiting = self._open[call_id]
        return waiting.popleft() if waiting else (self._unique(call_id), tool or "")

    def _unique(self, call_id: str) -> str:
        self._uses[call_id] += 1
        return call_id if self._uses[call_id] == 1 else f"{call_id}#{self._uses[call_id]}"


def _tool_called(call: _ToolCall, calls: _CallIds) -> ToolCalled:
    arguments = call.function.arguments
    if isinstance(arguments, str):
        try:
            parsed = from_json(arguments, allow_inf_nan=False)
        except ValueError:
            parsed = None
        arguments = parsed if isinstance(parsed, dict) else {"raw": arguments}
    tool = call.function.name
    return ToolCalled(call_id=calls.called(call.id, tool), tool=tool, arguments=arguments)


def _tool_returned(message: _ChatMessage, calls: _CallIds) -> ToolReturned:
    call_id, tool = calls.returned(message.tool_call_id or "", message.name)
    failed = isinstance(message.content, str) and message.content.startswith(ERROR_PREFIX)
    # The cause of a failure is not recorded: the error class stays empty.
    status = ToolStatus.ERROR if failed else ToolStatus.OK
    return ToolReturned(call_id=call_id, tool=tool, status=status, result=message.content)
