"""One trajectory in the ledger: what the topics contain about it, and whether that is contradictory. Values only.

    events ✓ started ✓ trajectories ✓ rewards ✓ training ✓   version 3   task "q17"   trained in r/12   → trained

Topics only add information, so two accounts of one trajectory merge to the same result in any order.
"""

from collections.abc import Container, Iterator
from typing import NamedTuple, TypeVar

from headrace.schemas.records.group import Stage
from headrace.schemas.topics import EVENTS, TRAJECTORIES

V = TypeVar("V", int, str)


class Known:
    """Which records of a trajectory exist: flags. Plain numbers, because the ledger looks at one for every event, and
    an ``IntFlag`` makes an object of each result.
    """

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
"""Stages of a trajectory that is neither trained nor rejected, in processing order."""


class Account(NamedTuple):
    """The information about one trajectory."""

    known: int = 0
    """Flags of :class:`Known`."""
    version: int | None = None
    """Oldest policy version among its tokens."""
    task: str | None = None
    """Task."""
    agent: str | None = None
    """Agent."""
    steps: tuple[str, ...] = ()
    """``run/step`` of each step that trained it; more than one is a contradiction."""
    rejections: tuple[tuple[str, str], ...] = ()
    """Stage and reason of each rejection; more than one is a contradiction."""

    def merged(self, other: "Account") -> "Account":
        """Returns the union of both. If values differ, the lesser is used, so that the order does not matter."""
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
        """The stage at which it waits; ``None`` once it has a fate."""
        if self.steps or self.rejections:
            return None
        if self.known & Known.GROUPED:
            return "untrained"
        if self.known & Known.SCORED:
            return "ungrouped"
        return "unscored" if self.known & Known.ASSEMBLED else "open"

    @property
    def is_expired(self) -> bool:
        """Whether none of its events exists, as after retention has deleted them."""
        return not self.known & Known.SEEN

    def contradictions(self, cut: Container[str] = ()) -> Iterator[str]:
        """Yields its contradictions as clauses that follow its id. ``cut``: topics whose oldest records are deleted."""
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
