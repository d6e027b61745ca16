"""Continues an attempt whose process died, from its last recorded turn; no recorded token is sampled again.

    turns = recorded_turns(facts)                                   # of the trajectory, in order
    await resume_episode(conversation, task, trajectory, provider, turns)

The harness is a function of the turns, so it is rebuilt from the log. The files come from the snapshot after the last
complete turn, or from the rebuilt harness if there is none, or none any more. A turn that was sampled but has no
recorded result is carried out now.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from headrace.agents.coder.episode import AfterTurn, PolicyWithContext, run_episode
from headrace.agents.coder.grading import passed
from headrace.agents.coder.harness import Done, Harness, Limits, Observation, Purpose, TestRun, request_tests
from headrace.agents.coder.sandboxed_tests import run_in_sandbox
from headrace.agents.coder.tasks import Task, outcome
from headrace.agents.sandbox.protocol import Provider, Sandbox, Snapshot, SnapshotKind, SnapshotUnknown
from headrace.agents.trajectory import Trajectory
from headrace.schemas.events import ContextSummarized, EnvironmentSnapshotted, ModelCalled, ToolReturned
from headrace.schemas.model import Record

log = logging.getLogger(__name__)


class CannotResume(ValueError):
    """The recorded turns are not those of the task under these limits; the attempt has to be repeated."""


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """A turn as the log has it."""

    sampled: tuple[int, ...]
    """Tokens that the model sampled."""
    context_tokens: int
    """Length of the context before them."""
    is_complete: bool = False
    """Whether its result is recorded."""
    failed: tuple[str, ...] | None = None
    """Functions whose tests failed, if the turn ran tests."""
    snapshot: Snapshot | None = None
    """The files after the turn, if a snapshot was taken."""


def recorded_turns(facts: Iterable[Record]) -> list[RecordedTurn]:
    """Return the turns in ``facts``, the events of one trajectory in order.

    Raises ``CannotResume`` if a call lacks its tokens.
    """
    turns: list[RecordedTurn] = []
    for fact in facts:
        match fact:
            case ModelCalled():
                if fact.sampled_ids is None or fact.context_ids is None:
                    raise CannotResume(f"the tokens of call {len(turns)} are not recorded")
                turns.append(RecordedTurn(tuple(fact.sampled_ids), fact.prefix_length + len(fact.context_ids)))
            case ToolReturned() if turns:
                failed = fact.result.get("failed") if isinstance(fact.result, dict) else None
                named = None if failed is None else tuple(str(name) for name in failed)
                turns[-1] = replace(turns[-1], is_complete=True, failed=named)
            case ContextSummarized() if turns:
                turns[-1] = replace(turns[-1], is_complete=True)
            case EnvironmentSnapshotted() if turns:
                kind = SnapshotKind(fact.kind)
                taken = Snapshot(fact.snapshot_id, kind, fact.sha256, fact.parent_id, fact.ms)
                turns[-1] = replace(turns[-1], snapshot=taken)
            case _:
                pass
    return turns


def replayed(task: Task, turns: Sequence[RecordedTurn], limits: Limits | None = None) -> Harness:
    """Return the harness after ``turns``, all of which are complete.

    Raises ``CannotResume`` if a context differs in length from the recorded one, or if the attempt had ended.
    """
    harness = Harness(task, limits)
    for number, turn in enumerate(turns):
        if harness.context_tokens != turn.context_tokens:
            raise CannotResume(
                f"call {number} had a context of {turn.context_tokens} tokens, and the harness makes one of "
                f"{harness.context_tokens}: the task, the limits or the harness changed"
            )
        step = harness.act(turn.sampled)
        if isinstance(step, TestRun):
            if turn.failed is None:
                raise CannotResume(f"call {number} ran tests, and their result is not recorded")
            step = harness.concluded(frozenset(task.specifications) - frozenset(turn.failed))
        if not isinstance(step, Observation):
            raise CannotResume(f"the attempt had ended with call {number}")
    return harness


async def resume_episode(
    policy: PolicyWithContext,
    task: Task,
    trajectory: Trajectory,
    provider: Provider,
    turns: Sequence[RecordedTurn],
    *,
    temperature: float = 1.0,
    limits: Limits | None = None,
    after_turn: AfterTurn | None = None,
) -> Done:
    """Continue after ``turns`` to the end; see :func:`headrace.agents.coder.episode.run_episode`.

    Raises ``CannotResume`` as :func:`replayed` does, also for an incomplete turn before the last.
    """
    unfinished = turns[-1] if turns and not turns[-1].is_complete else None
    complete = turns[:-1] if unfinished else turns
    if not all(turn.is_complete for turn in complete):
        raise CannotResume("a turn before the last has no recorded result")
    harness = replayed(task, complete, limits)
    sandbox = await _restored(provider, complete[-1].snapshot if complete else None, harness)
    try:
        return await run_episode(
            policy,
            task,
            trajectory,
            sandbox,
            temperature=temperature,
            harness=harness,
            first=unfinished.sampled if unfinished else None,
            after_turn=after_turn,
        )
    finally:
        await sandbox.stop()


async def _restored(provider: Provider, snapshot: Snapshot | None, harness: Harness) -> Sandbox:
    if snapshot is not None:
        try:
            return await provider.restore(snapshot)
        except SnapshotUnknown as error:
            log.warning("the attempt continues without its snapshot, with the files of its recorded edits: %s", error)
    return await provider.start(harness.repository.texts())


async def score_snapshot(provider: Provider, task: Task, snapshot: Snapshot) -> float:
    """Return the verdict on the files of ``snapshot``, in [0, 1], in an environment restored from it."""
    sandbox = await provider.restore(snapshot)
    try:
        outputs, _ = await run_in_sandbox(sandbox, request_tests(task, Purpose.VERDICT))
        return outcome(task, passed(outputs, task.expected(task.verdict_inputs)))
    finally:
        await sandbox.stop()
