"""Small builders of trajectories and rewards for the tests of score and group."""

from typing import Any

from headrace.schemas.events import EndStatus, Purpose, Role, SamplingSpan, ToolStatus, TrajectoryStarted, VersionSpan
from headrace.schemas.ids import derived_id
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Defect, Segment, ToolUse, Trajectory, Turn
from headrace.schemas.wire import Message, record_message
from headrace.streams.scoring.score import score

START_MS = 1_763_000_000_000


def attempt(
    trajectory_id: str,
    *,
    group: str | None = "g",
    size: int | None = 2,
    outcome: float | None = 1.0,
    agent: str = "helper",
    task: dict[str, Any] | None = None,
    turns: list[Turn] | None = None,
    answer: object = None,
    version: int | None = 3,
    defects: list[Defect] | None = None,
    purpose: Purpose = Purpose.TRAIN,
    role: Role = Role.TRAINABLE,
    run: str = "r",
    started: bool = True,
    ended_ms: int = START_MS,
) -> Trajectory:
    """A trajectory of three context and two sampled tokens, by default without defects."""
    tokens = Segment(
        token_ids=[5, 6, 7, 8, 9],
        loss_mask=[0, 0, 0, 1, 1],
        logprobs=[-0.5, -0.25],
        version_spans=[VersionSpan(version=version, start=0, end=2)],
        sampling_spans=[SamplingSpan(temperature=1.0, start=0, end=2)],
    )
    start = TrajectoryStarted(
        task_id=f"task-of-{group}",
        group_id=group,
        group_size=size,
        agent=agent,
        run=run,
        task=task or {},
        purpose=purpose,
        role=role,
    )
    return Trajectory(
        trajectory_id=trajectory_id,
        started=start if started else None,
        segments=[tokens],
        turns=[Turn(sampled_tokens=2)] if turns is None else turns,
        sampled_tokens=2,
        status=EndStatus.COMPLETED,
        answer=answer,
        outcome=outcome,
        defects=defects or [],
        first=Reference(partition=0, offset=0),
        last=Reference(partition=0, offset=9),
        started_ms=ended_ms - 1000,
        ended_ms=ended_ms,
    )


def rewarded(trajectory_id: str, total: float | None = 1.0, *, offset: int = 0, **fields: Any) -> Reward:
    """The reward of an :func:`attempt` whose outcome was ``total``."""
    return score(attempt(trajectory_id, outcome=total, **fields), Reference(partition=0, offset=offset))


def shows(*chunk_ids: str, tool: str = "search_corpus", status: ToolStatus = ToolStatus.OK) -> Turn:
    """A turn whose tool showed ``chunk_ids``."""
    result = {"chunk_ids": list(chunk_ids), "text": "…"}
    return Turn(sampled_tokens=2, tools=[ToolUse(call_id="c", tool=tool, status=status, result=result)])


def prunes(count: int) -> Turn:
    """A turn with ``count`` prune calls in a row."""
    use = ToolUse(call_id="c", tool="prune_chunks", arguments={"chunk_ids": ["x"]}, status=ToolStatus.OK, result={})
    return Turn(sampled_tokens=2, tools=[use] * count)


def trajectory_message(trajectory: Trajectory) -> Message:
    """``trajectory`` as the assembler would write it."""
    return record_message(
        trajectory,
        id=derived_id(Trajectory.TYPE, trajectory.trajectory_id, trajectory.first.partition, trajectory.first.offset),
        key=trajectory.trajectory_id,
        source="/streams/assemble",
        time_ms=trajectory.ended_ms,
        subject=trajectory.trajectory_id,
    )
