"""The streams score the events of the agent: attempts through the whole topology, in memory."""

from array import array
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from headrace.agents.conversation import Conversation
from headrace.agents.policy import Completion
from headrace.agents.search import vocabulary as words
from headrace.agents.search.demonstrations import Mistakes, demonstrate
from headrace.agents.search.episode import run_episode
from headrace.agents.search.harness import HARNESS_VERSION
from headrace.agents.search.tasks import Split, Task, make_task, task_id
from headrace.schemas import events as facts
from headrace.schemas.envelope import Envelope
from headrace.schemas.model import Record
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.drive import drive
from headrace.streams.topology import TOPOLOGY

FLAWLESS = Mistakes(**dict.fromkeys(Mistakes.__dataclass_fields__, 0.0))
TASKS = [make_task(task_id(Split.TRAIN, number)) for number in range(40)]


class ScriptedModel:
    """An engine that samples given turns, with log-probability −0.5 per token."""

    model = "policy"

    def __init__(self, turns: list[list[int]]) -> None:
        self.turns = turns

    async def generate(
        self, token_ids: Sequence[int], sampling: facts.Sampling, *, stop_token_ids: Sequence[int] = ()
    ) -> Completion:
        turn = self.turns.pop(0)
        span = facts.VersionSpan(version=0, start=0, end=len(turn))
        return Completion(array("i", turn), array("f", [-0.5] * len(turn)), (span,), "stop", 0.01)


class Noted:
    """Replaces the SDK's trajectory: keeps facts in order."""

    def __init__(self, task: Task) -> None:
        self.facts: list[Record] = [
            facts.TrajectoryStarted(
                task_id=task.task_id, agent="search", harness_version=HARNESS_VERSION, task=task.facts, group_id="g"
            )
        ]

    def model_called(self, model: str, **fields: Any) -> None:
        self.facts.append(facts.ModelCalled(model=model, **fields))

    def tool(self, name: str, arguments: dict[str, Any]) -> Any:
        return NotedCall(self, name, arguments)

    def pruned(self, ids: Sequence[str], before: int, after: int) -> None:
        self.facts.append(facts.ContextPruned(pruned_ids=list(ids), tokens_before=before, tokens_after=after))

    def end(self, status: facts.EndStatus, answer: Any) -> None:
        self.facts.append(facts.TrajectoryEnded(status=status, answer=answer))


class NotedCall:
    """A tool call in a ``with``."""

    def __init__(self, noted: Noted, tool: str, arguments: dict[str, Any]) -> None:
        self.noted, self.tool, self.arguments = noted, tool, arguments
        self.call_id = f"c{len(noted.facts)}"
        self.result: Any = None
        self.error_class: facts.ToolErrorClass | None = None

    def error(self, error_class: facts.ToolErrorClass, result: Any = None) -> None:
        self.error_class, self.result = error_class, result

    def __enter__(self) -> "NotedCall":
        self.noted.facts.append(facts.ToolCalled(call_id=self.call_id, tool=self.tool, arguments=self.arguments))
        return self

    def __exit__(self, *_: object) -> None:
        status = facts.ToolStatus.OK if self.error_class is None else facts.ToolStatus.ERROR
        fields = {"call_id": self.call_id, "tool": self.tool, "status": status, "result": self.result}
        self.noted.facts.append(facts.ToolReturned(**fields, error_class=self.error_class))


def turns_of(task: Task, mistakes: Mistakes) -> list[list[int]]:
    """Return the turns of a demonstrator."""
    turns: list[list[int]] = [[]]
    for example in demonstrate(task, Random(task.task_id), mistakes):
        for token, imitated in zip(example.token_ids, example.mask, strict=True):
            if imitated:
                turns[-1].append(token)
                if token == words.END_ID:
                    turns.append([])
    return turns


async def scored(task: Task, turns: list[list[int]]) -> tuple[Trajectory, Reward]:
    """Return the reward of an attempt that samples ``turns``, after assembly and scoring."""
    noted = Noted(task)
    await run_episode(Conversation(ScriptedModel(turns), noted), task, noted)  # type: ignore[arg-type]
    events = [
        (Envelope(f"e{seq}", fact.TYPE, "test", 1_000 + seq, "t-1", seq), fact) for seq, fact in enumerate(noted.facts)
    ]
    records = drive(TOPOLOGY, events)
    [trajectory], [reward] = records["trajectories"], records["rewards"]
    assert isinstance(trajectory, Trajectory)
    assert isinstance(reward, Reward)
    return trajectory, reward


async def test_a_flawless_attempt_earns_the_maximum_and_has_no_defect() -> None:
    for task in TASKS:
        trajectory, reward = await scored(task, turns_of(task, FLAWLESS))
        assert trajectory.defects == []
        assert reward.total == pytest.approx(reward.maximum)


async def test_attempts_with_mistakes_are_scored_too_and_lose_no_sampled_token() -> None:
    for task in TASKS:
        turns = turns_of(task, Mistakes())
        sampled = sum(map(len, turns))
        trajectory, reward = await scored(task, turns)
        assert trajectory.defects == []
        assert reward.total is not None
        assert sum(sum(segment.loss_mask) for segment in trajectory.segments) == sampled == trajectory.sampled_tokens


async def test_every_prune_starts_a_segment() -> None:
    prunes = 0
    for task in TASKS:
        trajectory, _ = await scored(task, turns_of(task, FLAWLESS))
        pruned = sum(bool(turn.pruned_ids) for turn in trajectory.turns)
        assert len(trajectory.segments) == 1 + pruned
        prunes += pruned
    assert prunes


async def test_answering_with_the_targets_without_searching_earns_nothing() -> None:
    task = TASKS[0]
    _, reward = await scored(task, [words.encode(f"answer {' '.join(task.targets)} <end>")])
    assert reward.total == 0
