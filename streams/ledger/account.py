"""One trajectory in the ledger: what the topics say of it, and which of that contradicts itself. Values only.

    events ✓ started ✓ trajectories ✓ rewards ✓ training ✓   version 3   task "q17"   trained in r/12   → trained

Nothing is ever taken back: topics only add. Two accounts of one trajectory therefore merge in any order to the same.
"""

from collections.abc import Container, Iterator
from enum import IntFlag
from typing import NamedTuple, TypeVar

from headrace.schemas.records.group import Stage
from headrace.schemas.topics import EVENTS, TRAJECTORIES

V = TypeVar("V", int, str)


class Known(IntFlag):
    """What knows a trajectory."""

    SEEN = 1
    """Any event."""
    STARTED = 2
    """Its ``trajectory.started``."""
    ASSEMBLED = 4
    """``trajectories``."""
    SCORED = 8
    """``rewards``."""
    GROUPED = 16
    """``training``."""


_OF_THE_TRAINER = (Stage.ADMISSION, Stage.TRAINING)

PENDING = ("open", "unscored", "ungrouped", "untrained")
"""Where a trajectory can be that is neither trained nor rejected, in the order of its way."""


class Account(NamedTuple):
    """What is known of one trajectory."""

    known: int = 0
    """Flags of :class:`Known`."""
    version: int | None = None
    """Oldest policy version among its tokens."""
    task: str | None = None
    """Task."""
    agent: str | None = None
    """Agent."""
    steps: tuple[str, ...] = ()
    """``run/step`` of each step that trained it; one, if all is well."""
    rejections: tuple[tuple[str, str], ...] = ()
    """Stage and reason of each rejection; one, if all is well."""

    def merged(self, other: "Account") -> "Account":
        """Everything that either says. Where they differ the lesser counts: the order must not."""
        return Account(
            self.known | other.known,
            self.version if other.version is None else _lesser(self.version, other.version),
            self.task if other.task is None else _lesser(self.task, other.task),
            self.agent if other.agent is None else _lesser(self.agent, other.agent),
            self.steps if not other.steps else tuple(sorted({*self.steps, *other.steps})),
            self.rejections if not other.rejections else tuple(sorted({*self.rejections, *other.rejections})),
        )

    @property
    def pending(self) -> str | None:
        """Where it waits; ``None`` once it has a fate."""
        if self.steps or self.rejections:
            return None
        if self.known & Known.GROUPED:
            return "untrained"
        if self.known & Known.SCORED:
            return "ungrouped"
        return "unscored" if self.known & Known.ASSEMBLED else "open"

    @property
    def is_expired(self) -> bool:
        """No event of it is there; so it is where ``events`` has been cut by its retention."""
        return not self.known & Known.SEEN

    def contradictions(self, cut: Container[str] = ()) -> Iterator[str]:
        """What cannot be, in words that follow its id. ``cut`` names the topics whose oldest records are gone."""
        if self.steps and self.rejections:
            yield "is both trained and rejected"
        if len(self.steps) > 1:
            yield f"is trained in {len(self.steps)} steps: {', '.join(self.steps)}"
        if len(self.rejections) > 1:
            yield f"is rejected {len(self.rejections)} times: {', '.join(map('/'.join, self.rejections))}"
        if self.is_expired and EVENTS.name not in cut:
            yield "has records and no event"
        reached_trainer = self.steps or any(stage in _OF_THE_TRAINER for stage, _ in self.rejections)
        decided = self.steps or self.rejections or self.known & Known.GROUPED
        if reached_trainer and not self.known & Known.GROUPED:
            yield "reached the trainer and is in no group"
        if decided and not self.known & Known.SCORED:
            yield "was decided on and never scored"
        if self.known & Known.SCORED and not self.known & Known.ASSEMBLED and TRAJECTORIES.name not in cut:
            yield "was scored and never assembled"


def _lesser(one: V | None, other: V) -> V:
    return other if one is None else min(one, other)
