"""Forks a recorded attempt: after a number of its model calls, other attempts continue from what it had done.

    point = fork_point("019f…", events, turn=3)
    await run_fork(config, source, attempts, point, count=8)

A continuation is a trajectory of its own, whose first model call has the parent's context as context, without a prefix:
the parent's tokens are masked in it (``streams/README.md``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.agents.conversation import Conversation
from headrace.agents.policy import Completion, PolicyError
from headrace.agents.rollouts.journal import LABEL, place_in
from headrace.agents.rollouts.replayed import ReplayedPolicy
from headrace.agents.rollouts.tasks import Task, TaskSource
from headrace.schemas.arrays import IntArray
from headrace.schemas.envelope import Envelope
from headrace.schemas.events import (
    EnvironmentSnapshotted,
    ModelCalled,
    Purpose,
    Sampling,
    SubagentStarted,
    TrajectoryEnded,
    TrajectoryStarted,
)
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import partitions_of, scan
from headrace.schemas.kafka.sending import partition_of
from headrace.schemas.model import Record
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import UnreadableRecord, decode_payload, envelope_of

MAX_CONTINUATIONS = 1_024
"""Most continuations of one fork; as many count for the parent's reward."""

TaskT = TypeVar("TaskT", bound=Task)


class CannotFork(ValueError):
    """The attempt cannot be continued from there; the message says why."""


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """A recorded attempt, up to the point from which others continue."""

    trajectory_id: str
    """The attempt."""
    started: TrajectoryStarted
    """Its start."""
    turn: int
    """Number of its model calls up to the point, at least 1."""
    events: tuple[Record, ...]
    """Its events up to the point, in order: the start, the calls, and what followed from them."""
    ends_for_continuations: bool
    """Whether it ended in order to be continued. If not, it is trained by its own end."""

    @property
    def has_snapshots(self) -> bool:
        """Whether snapshots of its environment were taken."""
        return any(isinstance(event, EnvironmentSnapshotted) for event in self.events)

    @property
    def calls(self) -> list[ModelCalled]:
        """Its model calls up to the point."""
        return [event for event in self.events if isinstance(event, ModelCalled)]

    def start(self, group_id: str, count: int) -> dict[str, Any]:
        """Return the fields of ``trajectory.started`` that its continuations have, besides task and agent: consent and
        tenant are those of the parent, because its tokens are in the context."""
        started = self.started
        return {
            "group_id": group_id,
            "group_size": count,
            "role": started.role,
            "consent": started.consent,
            "tenant": started.tenant,
            "task": {name: value for name, value in started.task.items() if name != LABEL},
            "parent_trajectory_id": self.trajectory_id,
            "fork_turn": self.turn,
            "fork_group_id": (started.fork_group_id or started.group_id) if self.ends_for_continuations else None,
        }


def fork_point(trajectory_id: str, events: Mapping[int, Record], turn: int) -> ForkPoint:
    """Return the point after ``turn`` model calls of an attempt with these ``events``, by number.

    Raises :class:`CannotFork` if events or tokens are missing, if the attempt had ended there, or if it had started
    sub-agents, which would be started again.
    """
    ordered = [events[number] for number in sorted(events)]
    if not ordered:
        raise CannotFork(f"the log has no events of trajectory {trajectory_id}: check the id; events are kept 30 days")
    started = ordered[0]
    if not isinstance(started, TrajectoryStarted):
        raise CannotFork(f"the start of trajectory {trajectory_id} is not in the log: retention has deleted it")
    if started.purpose is not Purpose.TRAIN:
        raise CannotFork(f"trajectory {trajectory_id} is an evaluation: its task must not be trained on")
    places = [place for place, event in enumerate(ordered) if isinstance(event, ModelCalled)]
    ended = ordered[-1] if isinstance(ordered[-1], TrajectoryEnded) else None
    continued = bool(ended is not None and ended.continuations)
    most = len(places) - (ended is not None and not continued)
    if not 1 <= turn <= most:
        forkable = f"choose a turn from 1 to {most}" if most > 0 else "it ended with its first one"
        raise CannotFork(f"trajectory {trajectory_id} has {len(places)} model calls: {forkable}")
    until = places[turn] if turn < len(places) else len(ordered) - (ended is not None)
    if sorted(events)[:until] != list(range(until)):
        raise CannotFork(f"events of trajectory {trajectory_id} are missing before its turn {turn} ends")
    kept = tuple(ordered[:until])
    for number, place in enumerate(places[:turn], start=1):
        call = ordered[place]
        assert isinstance(call, ModelCalled)
        if call.sampled_ids is None or call.context_ids is None:
            raise CannotFork(f"the tokens of call {number} of trajectory {trajectory_id} are not recorded")
    if any(isinstance(event, SubagentStarted) for event in kept):
        raise CannotFork(f"trajectory {trajectory_id} has started sub-agents by then, which cannot be repeated")
    return ForkPoint(trajectory_id, started, turn, kept, continued)


@dataclass(frozen=True, slots=True)
class ForkedGroup:
    """A group of continuations."""

    group_id: str
    """The group."""
    trajectory_ids: tuple[str, ...]
    """Its members."""
    failed: int = 0
    """Number of members that failed because of the engine, or because their context was not the parent's."""


def forked_task(source: TaskSource[TaskT], point: ForkPoint) -> TaskT:
    """Return the task of a recorded attempt, which a sampler made. Raises :class:`CannotFork` if none did, or if the
    source makes another task of that number."""
    place = place_in(point.started.task)
    if place is None:
        raise CannotFork(
            f"trajectory {point.trajectory_id} says not which of its system's tasks it attempted: only attempts that a "
            "sampler made can be continued, and their continuations cannot"
        )
    task = source.training(place.number, place.level)
    if task.task_id != point.started.task_id:
        raise CannotFork(
            f"trajectory {point.trajectory_id} attempted {point.started.task_id}, and number {place.number} is now "
            f"{task.task_id}"
        )
    return task


class RepeatedConversation(Conversation):
    """A conversation whose first answers come from the parent's log and are not recorded again: they become context.

    What the episode does with them, such as tool calls, is recorded: rewards read it in every continuation.
    """

    def __init__(self, conversation: Conversation, point: ForkPoint) -> None:
        """``conversation``: the continuation's own, still empty."""
        self._own = conversation
        self._left = point.turn
        self._log = ReplayedPolicy(_NoPolicy(), point.calls)

    @property
    def ids(self) -> IntArray:
        """A copy of the current context."""
        return self._own.ids

    def __len__(self) -> int:
        return len(self._own)

    def append(self, token_ids: Sequence[int]) -> None:
        """Add tokens that the policy did not sample."""
        self._own.append(token_ids)

    def rewrite(self, token_ids: Sequence[int]) -> None:
        """Replace the context."""
        self._own.rewrite(token_ids)

    async def sample(self, sampling: Sampling, *, stop_token_ids: Sequence[int] = ()) -> Completion:
        """Return the next answer of the log, or sample one after the last. Raises
        :class:`headrace.agents.rollouts.replayed.NotTheSameContext` if the context is not the one that the log has."""
        if not self._left:
            return await self._own.sample(sampling, stop_token_ids=stop_token_ids)
        self._left -= 1
        completion = await self._log.generate(self._own.ids, sampling, stop_token_ids=stop_token_ids)
        self._own.append(completion.token_ids)
        return completion


class _NoPolicy:
    model = ""

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, stop_token_ids: Sequence[int] = ()
    ) -> Completion:
        raise PolicyError("the log has no further answer")


async def read_events(bootstrap: str, trajectory_id: str) -> dict[int, Record]:
    """Return the events of a trajectory by number, from its partition of ``events``; those that cannot be read are left
    out. It takes as long as reading what retention keeps of the partition; only these events are decoded."""
    found: dict[int, Record] = {}
    async with open_consumer(bootstrap) as consumer:
        places = await partitions_of(consumer, EVENTS)
        number = partition_of(trajectory_id.encode(), [place.partition for place in places])
        async for record in scan(consumer, [place for place in places if place.partition == number]):
            try:
                envelope: Envelope = envelope_of(record.headers)
                if envelope.subject == trajectory_id:
                    found[envelope.sequence or 0] = decode_payload(envelope.type, record.value)
            except UnreadableRecord:  # the assembler makes a dead letter of it, and here it is a missing event
                continue
    return found
