"""Side topics: where a replay writes, beside the topics that live processing writes.

    trajectories  →  replay.rewards-v7.trajectories        replay.rewards-v7.manifest: written last, by one record

A side record is the record that live processing would have written, and one header more: ``headrace_trajectories``
says whether its references stand in the live ``trajectories`` or in the side topic of the same replay. One header less,
too: ``headrace_rollouts`` tells what live processing decided between two groups.
"""

import re
from dataclasses import replace
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import NonNegativeInt

from headrace.schemas.model import Part, Record
from headrace.schemas.topics import DEAD_LETTERS, REJECTED, REWARDS, TRAINING, TRAJECTORIES, Topic

PREFIX = "replay."
"""Side topics are called ``replay.NAME.TOPIC``."""

REFERENCES = "headrace_trajectories"
"""Header of side records: which ``trajectories`` their references point into."""
LIVE, SIDE = b"live", b"side"

_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")


class ReplayStage(StrEnum):
    """What a replay starts from; everything after it is made again."""

    EVENTS = "events"
    TRAJECTORIES = "trajectories"
    REWARDS = "rewards"

    @property
    def makes(self) -> tuple[Topic, ...]:
        """The topics that it writes beside the live ones."""
        made = {
            ReplayStage.EVENTS: (TRAJECTORIES, REWARDS),
            ReplayStage.TRAJECTORIES: (REWARDS,),
            ReplayStage.REWARDS: (),
        }
        return (*made[self], TRAINING, REJECTED, DEAD_LETTERS)


class Span(Part):
    """A range of one partition."""

    partition: NonNegativeInt
    """Partition."""
    start: NonNegativeInt
    """First offset."""
    stop: NonNegativeInt
    """First offset beyond it."""
    begins_log: bool
    """Whether nothing ever stood before it: what is incomplete at its beginning was not cut by it."""


class Written(Part):
    """What one partition of a side topic holds."""

    topic: str
    """The live topic that it stands beside."""
    partition: NonNegativeInt
    """Partition."""
    records: NonNegativeInt
    """Records; they stand at the offsets from 0."""
    sha256: str
    """Hash of all keys, values, headers and timestamps in order. The same input gives the same, whatever the name."""


class ReplayFinished(Record):
    """A replay that came to its end: what was read, with what settings, and what came of it."""

    TYPE: ClassVar[str] = "headrace.replay.finished.v1"

    name: str
    """Its name."""
    stage: ReplayStage
    """What it started from."""
    software: str
    """Version of headrace."""
    rewards: dict[str, str]
    """Agent → label of its reward spec; ``*`` for every other."""
    settings: dict[str, dict[str, Any]]
    """Limits and policies in force."""
    spans: dict[str, list[Span]]
    """Topic → what was read of it."""
    begin_ms: NonNegativeInt
    """Log time at which the range begins, Unix milliseconds."""
    end_ms: NonNegativeInt
    """Log time at which it ends."""
    counts: dict[str, NonNegativeInt]
    """How many of what: read, left out (and why), decided."""
    written: list[Written]
    """What the side topics hold."""
    sha256: str
    """Hash of ``written``: equal for two replays that wrote the same."""


MANIFEST = Topic(
    "manifest", "replay", (ReplayFinished,), 1, "What a replay read and wrote; only a finished one has it."
)


def side_topic(topic: Topic, name: str, partitions: int | None = None) -> Topic:
    """The topic beside ``topic`` that the replay ``name`` writes: the same settings, as many partitions.

    Raises ``ValueError`` where ``name`` cannot be part of a topic's name.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a replay: use up to 80 of letters, digits, - and _")
    return replace(topic, name=f"{PREFIX}{name}.{topic.name}", partitions=partitions or topic.partitions)
