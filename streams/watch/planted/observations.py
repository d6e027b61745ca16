"""Simulated attempts as what monitors read: real records, observed like any other, or the same rows made directly.

The experiment makes millions of rows, so it takes the direct way; a test compares both, value by value.
"""

from collections import Counter
from collections.abc import Sequence

from headrace.schemas.events import (
    EndStatus,
    FeedbackGiven,
    Purpose,
    ToolErrorClass,
    ToolStatus,
    TrajectoryStarted,
    VersionSpan,
)
from headrace.schemas.records.group import Rejection, Stage
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Component, Reward
from headrace.schemas.records.step import Step, TrainedGroup
from headrace.schemas.records.trajectory import Defect, Segment, ToolUse, Trajectory, Turn
from headrace.schemas.records.watch import Lane
from headrace.streams.rewards.planted import MAXIMUM
from headrace.streams.watch.actions import ANSWER, CALL, PRUNE, SAY, trigrams
from headrace.streams.watch.planted.attempts import AGENT, SOURCES, SPEC, Attempt
from headrace.streams.watch.window import VALUE, WEIGHT, Key, Row

SOURCE = SOURCES[0]
SIGNAL = "rating"
"""Signal of the feedback."""
MARKED = "answers.csv"
"""Id of what is marked as an answer."""


def run_name(name: str) -> str:
    """Returns the run under which attempts with the hack ``name`` are recorded."""
    return f"planted-{name}"


def keys(run: str) -> tuple[Key, Key, Key]:
    """Returns the keys of attempts, inputs and rewards of ``run``."""
    return (
        Key(Lane.ATTEMPT, run, AGENT, SOURCE),
        Key(Lane.INPUT, run, AGENT),
        Key(Lane.REWARD, run, AGENT, SOURCE, SPEC),
    )


def fate_key(run: str) -> Key:
    """Returns the key of fates of ``run``."""
    return Key(Lane.FATE, run, AGENT, SOURCE)


def feedback_key(run: str) -> Key:
    """Returns the key of feedback about trajectories of ``run``."""
    return Key(Lane.FEEDBACK, run, AGENT, SOURCE, SIGNAL)


def trajectory(attempt: Attempt, run: str, time_ms: int) -> Trajectory:
    """Returns ``attempt`` as the assembler would record it."""
    critical, total = attempt.steps
    mask = [0] * attempt.prompt_tokens + [1] * attempt.tokens
    return Trajectory(
        trajectory_id=attempt.id,
        started=TrajectoryStarted(
            task_id=f"task-{attempt.id}",
            agent=AGENT,
            run=run,
            tenant=attempt.tenant,
            tools_offered=attempt.tools_offered,
            purpose=Purpose.EVALUATE if attempt.evaluates else Purpose.TRAIN,
            task={"source": attempt.source, "marked": [MARKED], **({"tripwire": True} if attempt.tripwire else {})},
        ),
        segments=[
            Segment(
                token_ids=[1] * len(mask),
                loss_mask=mask,
                logprobs=[-0.5] * attempt.tokens,
                version_spans=[VersionSpan(version=attempt.version, start=0, end=attempt.tokens)],
            )
        ],
        turns=_turns(attempt),
        critical_steps=critical,
        total_steps=total,
        subagents_assigned=attempt.subagents,
        subagents_finished=attempt.finished,
        sampled_tokens=attempt.tokens,
        status=status_of(attempt),
        answer="an answer" if attempt.answered else None,
        outcome=float(attempt.solved),
        defects=[Defect.BAD_EVENT] if attempt.dropped else [],
        first=Reference(partition=0, offset=0),
        last=Reference(partition=0, offset=1),
        started_ms=max(0, time_ms - 1000),
        ended_ms=time_ms,
    )


def reward(attempt: Attempt, run: str, time_ms: int) -> Reward:
    """Returns the reward of ``attempt`` as score would record it."""
    return Reward(
        trajectory_id=attempt.id,
        trajectory=Reference(partition=0, offset=0),
        agent=AGENT,
        run=run,
        tenant=attempt.tenant,
        task_source=attempt.source,
        group_id=attempt.group or None,
        tripwire=attempt.tripwire,
        purpose=Purpose.EVALUATE if attempt.evaluates else Purpose.TRAIN,
        spec=SPEC,
        components={
            name: Component(
                value=value,
                weight=weight,
                details={"disagreement": attempt.disagreement} if name == "judged" else {},
            )
            for name, (value, weight) in attempt.components.items()
        },
        total=attempt.total,
        maximum=MAXIMUM,
        unscored=str(Defect.BAD_EVENT) if attempt.dropped else None,
        feedback=[Reference(partition=0, offset=0)] if attempt.feedback else [],
        defects=[Defect.BAD_EVENT] if attempt.dropped else [],
        newest_version=attempt.version,
        oldest_version=attempt.version,
        sampled_tokens=attempt.tokens,
        turns=len(attempt.actions),
        ended_ms=time_ms,
    )


def rejection(attempt: Attempt, run: str) -> Rejection:
    """Returns the rejection of ``attempt``. Raises ``ValueError`` if it is trained."""
    if attempt.rejected is None:
        raise ValueError(f"{attempt.id} is trained")
    return Rejection(
        trajectory_id=attempt.id,
        trajectory=Reference(partition=0, offset=0),
        stage=Stage.ADMISSION if attempt.too_long else Stage.GROUP,
        reason=attempt.rejected,
        run=run,
        policy_version=attempt.version,
        reward=attempt.total,
    )


def trained(attempts: Sequence[Attempt], run: str) -> Step:
    """Returns the step that trains those of ``attempts``, of one policy version, that are not rejected."""
    version = attempts[0].version
    ids = [each.id for each in attempts if each.rejected is None and not each.evaluates]
    at = Reference(partition=0, offset=0)
    group = TrainedGroup(group_id=f"step-{version}", group=at, trajectory_ids=ids, trajectories=[at] * len(ids))
    return Step(
        run=run, step=version + 1, version=version + 1, groups=[group], config_sha256="", data_sha256="", metrics={}
    )


def feedback(attempt: Attempt) -> FeedbackGiven:
    """Returns the feedback about ``attempt``."""
    return FeedbackGiven(signal=SIGNAL, value=attempt.verdict, delay_s=attempt.delay_s)


def feedback_id(attempt: Attempt) -> str:
    """Returns the id of the feedback about ``attempt``."""
    return f"{attempt.id}-feedback"


def fate_row(attempt: Attempt, time_ms: int) -> Row:
    """Returns the row of what became of ``attempt``: of the observation of :func:`rejection`, or of its step."""
    if attempt.rejected is None:
        return Row(attempt.id, attempt.version, time_ms, {"dropped": 0.0})
    rewarded = {} if attempt.total is None else {"reward": attempt.total}
    return Row(attempt.id, attempt.version, time_ms, {"dropped": 1.0, **rewarded}, (str(attempt.rejected),))


def feedback_row(attempt: Attempt, time_ms: int) -> Row:
    """Returns the row of the observation of :func:`feedback`, at its trajectory's place."""
    return Row(attempt.id, attempt.version, time_ms, {"value": attempt.verdict, "delay_s": attempt.delay_s})


def attempt_row(attempt: Attempt, time_ms: int) -> Row:
    """Returns the row of the observation of :func:`trajectory`."""
    critical, total = attempt.steps
    actions = attempt.actions
    values = {
        "turns": float(len(actions)),
        "tokens": float(attempt.tokens),
        "prompt_tokens": float(attempt.prompt_tokens),
        "tool_calls": float(sum(each not in (SAY, ANSWER, PRUNE) for each in actions)),
        "invalid": float(attempt.invalid),
        "talks": float(SAY in actions),
        "repeats": float(_streak(actions)),
        "prune_streak": float(_streak(actions, only=PRUNE)),
        "answered": float(attempt.answered),
        "exhausted": float(attempt.exhausted and not attempt.left),
        "left": float(attempt.left),
        "subagents": float(attempt.subagents),
        "idle": float(attempt.subagents - attempt.finished),
        "marked": float(attempt.reads_marked),
        "evaluates": float(attempt.evaluates),
        "frozen": 0.0,
        "serial": critical / total,
        "outcome": float(attempt.solved),
    }
    for action, count in Counter(actions).items():
        values[CALL + action] = float(count)
    if attempt.subagents:
        values["unfinished"] = 1.0 - attempt.finished / attempt.subagents
    if attempt.tripwire:
        values["tripped"] = float(attempt.solved)
    return Row(
        attempt.id,
        attempt.version,
        time_ms,
        values,
        tuple(trigrams(actions)),
        attempt.source,
        attempt.tenant,
        tools_offered=attempt.tools_offered,
    )


def reward_row(attempt: Attempt, time_ms: int) -> Row:
    """Returns the row of the observation of :func:`reward`."""
    values = {
        "turns": float(len(attempt.actions)),
        "tokens": float(attempt.tokens),
        "dropped": float(attempt.dropped),
        "feedback": float(attempt.feedback),
        "evaluates": float(attempt.evaluates),
        "frozen": 0.0,
        "disagreement": attempt.disagreement,
        "maximum": MAXIMUM,
    }
    for name, (value, weight) in attempt.components.items():
        values[VALUE + name], values[WEIGHT + name] = value, weight
    total = attempt.total
    if total is not None:
        values["total"] = total
        if attempt.tripwire:
            values["tripped"] = float(total > 0.5 * MAXIMUM)
    labels = ("bad_event",) if attempt.dropped else ()
    return Row(
        attempt.id, attempt.version, time_ms, values, labels, attempt.source, attempt.tenant, group=attempt.group
    )


def status_of(attempt: Attempt) -> EndStatus:
    """Returns how ``attempt`` ended."""
    if attempt.left:
        return EndStatus.ABORTED
    return EndStatus.TURNS_EXHAUSTED if attempt.exhausted else EndStatus.COMPLETED


def _turns(attempt: Attempt) -> list[Turn]:
    turns = []
    refused, reads = attempt.invalid, attempt.reads_marked
    for number, action in enumerate(attempt.actions):
        if action in (SAY, ANSWER):
            turns.append(Turn(sampled_tokens=1))
        elif action == PRUNE:
            turns.append(Turn(sampled_tokens=1, pruned_ids=[f"p{number}"]))
        else:
            marked = reads and action == "read"
            use = ToolUse(
                call_id=f"c{number}",
                tool=action,
                arguments={"path": MARKED} if marked else {"query": "q"},
                status=ToolStatus.OK if not refused or marked else ToolStatus.ERROR,
                error_class=None if not refused or marked else ToolErrorClass.INVALID_ARGUMENTS,
            )
            refused, reads = refused and marked, reads and not marked
            turns.append(Turn(sampled_tokens=1, tools=[use]))
    return turns


def _streak(actions: list[str], only: str | None = None) -> int:
    longest = length = 0
    before = None
    for action in actions:
        length = length + 1 if action == before else 1
        before = action
        if only is None or action == only:
            longest = max(longest, length)
    return longest
