"""Live attempts in memory: an engine that samples given turns, and events that go through the whole topology."""

from array import array
from collections.abc import Sequence
from typing import Any

from headrace.agents.coder.harness import HARNESS_VERSION
from headrace.agents.coder.tasks import Task
from headrace.agents.policy import Completion
from headrace.schemas import events as facts
from headrace.schemas.envelope import Envelope
from headrace.schemas.model import Record
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.drive import drive
from headrace.streams.topology import TOPOLOGY


class ScriptedModel:
    """An engine that samples given turns, with log-probability −0.5 per token."""

    model = "policy"

    def __init__(self, turns: Sequence[Sequence[int]]) -> None:
        self.turns = [list(turn) for turn in turns]
        self.contexts: list[list[int]] = []
        """The context of each call."""

    async def generate(
        self, token_ids: Sequence[int], sampling: facts.Sampling, *, stop_token_ids: Sequence[int] = ()
    ) -> Completion:
        self.contexts.append(list(token_ids))
        turn = self.turns.pop(0)
        span = facts.VersionSpan(version=0, start=0, end=len(turn))
        return Completion(array("i", turn), array("f", [-0.5] * len(turn)), (span,), "stop", 0.01)


class Noted:
    """Replaces the SDK's trajectory: keeps facts in order."""

    def __init__(self, task: Task) -> None:
        self.facts: list[Record] = [
            facts.TrajectoryStarted(
                task_id=task.task_id, agent="coder", harness_version=HARNESS_VERSION, task=task.facts, group_id="g"
            )
        ]

    def model_called(self, model: str, **fields: Any) -> None:
        self.facts.append(facts.ModelCalled(model=model, **fields))

    def tool(self, name: str, arguments: dict[str, Any], *, thinking_tokens: int | None = None) -> Any:
        return NotedCall(self, name, arguments, thinking_tokens)

    def summarized(self, tokens_before: int, tokens_after: int, summary: str | None = None, **extra: Any) -> None:
        self.facts.append(
            facts.ContextSummarized(summary=summary, tokens_before=tokens_before, tokens_after=tokens_after, **extra)
        )

    def snapshotted(self, snapshot_id: str, **fields: Any) -> None:
        self.facts.append(facts.EnvironmentSnapshotted(snapshot_id=snapshot_id, **fields))

    def end(self, status: facts.EndStatus, answer: Any, outcome: float | None = None) -> None:
        self.facts.append(facts.TrajectoryEnded(status=status, answer=answer, outcome=outcome))

    def of(self, kind: type[Record]) -> list[Any]:
        """Return the facts of a type."""
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def assembled(self) -> tuple[Trajectory, Reward]:
        """Return the trajectory and its reward, from the whole topology."""
        events = [
            (Envelope(f"e{seq}", fact.TYPE, "test", 1_000 + seq, "t-1", seq), fact)
            for seq, fact in enumerate(self.facts)
        ]
        records = drive(TOPOLOGY, events)
        [trajectory], [reward] = records["trajectories"], records["rewards"]
        assert isinstance(trajectory, Trajectory)
        assert isinstance(reward, Reward)
        return trajectory, reward


class NotedCall:
    """A tool call in a ``with``."""

    def __init__(self, noted: Noted, tool: str, arguments: dict[str, Any], thinking_tokens: int | None) -> None:
        self.noted, self.tool, self.arguments, self.thinking_tokens = noted, tool, arguments, thinking_tokens
        self.call_id = f"c{len(noted.facts)}"
        self.result: Any = None
        self.error_class: facts.ToolErrorClass | None = None

    def error(self, error_class: facts.ToolErrorClass, result: Any = None) -> None:
        self.error_class, self.result = error_class, result

    def __enter__(self) -> "NotedCall":
        called = {"tool": self.tool, "arguments": self.arguments, "thinking_tokens": self.thinking_tokens}
        self.noted.facts.append(facts.ToolCalled(call_id=self.call_id, **called))
        return self

    def __exit__(self, *_: object) -> None:
        status = facts.ToolStatus.OK if self.error_class is None else facts.ToolStatus.ERROR
        fields = {"call_id": self.call_id, "tool": self.tool, "status": status, "result": self.result}
        self.noted.facts.append(facts.ToolReturned(**fields, error_class=self.error_class))
