"""Side topics: the topics that a replay writes instead of those of live processing.

    trajectories  →  replay.rewards-v7.trajectories        replay.rewards-v7.manifest: one record, written last

A side record equals the record that live processing would have written, except for two headers. It has
``headrace_trajectories``, which states whether its references point into the live topic ``trajectories`` or into the
side topic of the same replay. It lacks ``headrace_rollouts``, whose counts depend on the order of live processing.
"""

import re
from dataclasses import replace
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import NonNegativeInt

from headrace.schemas.model import Part, Record
from headrace.schemas.topics import DEAD_LETTERS, REJECTED, REWARDS, TRAINING, TRAJECTORIES, Topic

PREFIX = "replay."
"""Prefix of side topics, which are named ``replay.NAME.TOPIC``."""

REFERENCES = "headrace_trajectories"
"""Header of side records: whether their references point into the live ``trajectories`` or into the side topic."""
LIVE, SIDE = b"live", b"side"

_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")


class ReplayStage(StrEnum):
    """Input of a replay; everything derived from it is recomputed."""

    EVENTS = "events"
    TRAJECTORIES = "trajectories"
    REWARDS = "rewards"

    @property
    def makes(self) -> tuple[Topic, ...]:
        """The topics for which it writes side topics."""
        made = {
            ReplayStage.EVENTS: (TRAJECTORIES, REWARDS),
            ReplayStage.TRAJECTORIES: (REWARDS,),
            ReplayStage.REWARDS: (),
        }
        return (*made[self], TRAINING, REJECTED, DEAD_LETTERS)


class OffsetRange(Part):
    """A range of one partition."""

    partition: NonNegativeInt
    """Partition."""
    start: NonNegativeInt
    """First offset."""
    stop: NonNegativeInt
    """First offset after the range."""
    begins_log: bool
    """Whether there was never a record before the range, so that a trajectory that is incomplete at its start was not
    cut off by the range."""


class Written(Part):
    """Content of one partition of a side topic."""

    topic: str
    """The live topic to which the side topic corresponds."""
    partition: NonNegativeInt
    """Partition."""
    records: NonNegativeInt
    """Number of records; their offsets start at 0."""
    sha256: str
    """Hash of all keys, values, headers and timestamps in order. It depends on the input only, not on the replay's
    name."""


class ReplayFinished(Record):
    """A completed replay: its input, its settings and its results."""

    TYPE: ClassVar[str] = "headrace.replay.finished.v1"

    name: str
    """Its name."""
    stage: ReplayStage
    """Its input."""
    software: str
    """Version of headrace."""
    rewards: dict[str, str]
    """Label of the reward spec by agent; ``*`` stands for all other agents."""
    settings: dict[str, dict[str, Any]]
    """Limits and policies in effect."""
    spans: dict[str, list[OffsetRange]]
    """Offset ranges that were read, by topic."""
    begin_ms: NonNegativeInt
    """Stream time at which the range begins, Unix milliseconds."""
    end_ms: NonNegativeInt
    """Stream time at which the range ends, Unix milliseconds."""
    counts: dict[str, NonNegativeInt]
    """Numbers of records that were read, skipped (by reason) and decided."""
    written: list[Written]
    """Content of the side topics."""
    sha256: str
    """Hash of ``written``: equal for two replays that wrote the same records."""


MANIFEST = Topic(
    "manifest", "replay", (ReplayFinished,), 1, "Input and results of a replay; written when it has finished."
)


def side_topic(topic: Topic, name: str, partitions: int | None = None) -> Topic:
    """Return the side topic of ``topic`` that the replay ``name`` writes, with the same settings and, unless
    ``partitions`` is given, as many partitions. It accepts any time, as its records have the stream time of the range.

    Raises ``ValueError`` if ``name`` cannot be part of a topic name.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid name of a replay: use up to 80 letters, digits, - and _")
    partitions = partitions or topic.partitions
    return replace(topic, name=f"{PREFIX}{name}.{topic.name}", partitions=partitions, any_time=True)
