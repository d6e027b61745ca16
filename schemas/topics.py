"""The topics: what flows where, how it is keyed, how long it stays. Declared here and nowhere else."""

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.schemas import events
from headrace.schemas.model import Record
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.dead_letter import DeadLetter, Redriven, Repaired
from headrace.schemas.records.group import Rejection, TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.step import Budget, Step
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.records.weights import Applied, Weights

_DAY_MS = 24 * 3600 * 1000
_MIB = 1024 * 1024

TIMESTAMP_TYPE = "message.timestamp.type"
"""Setting that says whose clock a topic's timestamps are."""

FOREVER = -1
"""Retention of what provenance rests on."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic: its records, its key and its settings."""

    name: str
    """Name in Kafka."""
    key: str
    """What records are keyed by, in words."""
    models: tuple[type[Record], ...]
    """Types that flow through it."""
    partitions: int
    """Partitions when headrace creates it; existing topics keep theirs."""
    about: str
    """What it carries, in a sentence."""
    retention_ms: int = FOREVER
    """How long records stay, in milliseconds."""
    max_bytes: int = _MIB
    """Largest record that the broker takes, in bytes."""
    compacted: bool = False
    """Whether the newest record of each key stays, and older ones may go."""
    broker_time: bool = False
    """Whether the broker stamps records as they come in; else they bear the log time of what they were made of."""

    @property
    def configs(self) -> dict[str, str]:
        """Topic-level settings as Kafka names them."""
        return {
            "cleanup.policy": "compact" if self.compacted else "delete",
            "retention.ms": str(self.retention_ms),
            "max.message.bytes": str(self.max_bytes),
            TIMESTAMP_TYPE: "LogAppendTime" if self.broker_time else "CreateTime",
        }


PARTITIONS = 4
"""Partitions of the topics that carry trajectories. ``trajectories`` must have as many as ``events``."""

EVENTS = Topic(
    "events",
    "trajectory id",
    events.FACTS,
    PARTITIONS,
    "What agents did.",
    retention_ms=30 * _DAY_MS,
    max_bytes=4 * _MIB,
    broker_time=True,
)
FEEDBACK = Topic(
    "feedback",
    "trajectory id",
    (events.FeedbackGiven,),
    PARTITIONS,
    "What people and systems said of it.",
    broker_time=True,
)
SDK_STATS = Topic(
    "sdk-stats",
    "source",
    (events.SdkStatsReported,),
    1,
    "What SDKs sent and dropped.",
    retention_ms=30 * _DAY_MS,
    broker_time=True,
)
TRAJECTORIES = Topic(
    "trajectories",
    "trajectory id",
    (Trajectory,),
    PARTITIONS,
    "Events folded: tokens, turns, tools, labels.",
    retention_ms=30 * _DAY_MS,
    max_bytes=32 * _MIB,
)
REWARDS = Topic(
    "rewards", "group id, else cohort key, else trajectory id", (Reward,), PARTITIONS, "Scores, by component."
)
TRAINING = Topic("training", "group id", (TrainingGroup,), PARTITIONS, "Groups that carry a gradient.")
REJECTED = Topic("rejected", "trajectory id", (Rejection,), PARTITIONS, "What will not be trained, and why.")
STEPS = Topic("steps", "run", (Step,), 1, "Optimiser steps and what they were trained on.", max_bytes=8 * _MIB)
WEIGHTS = Topic("weights", "run", (Weights,), 1, "Policy versions that can be had.")
BUDGET = Topic("budget", "run", (Budget,), 1, "How much may be under way: samplers wait for it.", compacted=True)
APPLIED = Topic("applied", "run", (Applied,), 1, "Policy versions that engines serve.")
ALERTS = Topic("alerts", "run", (Alert,), 1, "What a person should know of.")
DEAD_LETTERS = Topic(
    "dead-letters",
    "topic:partition",
    (DeadLetter, Repaired, Redriven),
    1,
    "What could not be read, whole, and what was done about it.",
    max_bytes=8 * _MIB,
)

TOPICS: tuple[Topic, ...] = (
    EVENTS,
    FEEDBACK,
    SDK_STATS,
    TRAJECTORIES,
    REWARDS,
    TRAINING,
    REJECTED,
    STEPS,
    WEIGHTS,
    BUDGET,
    APPLIED,
    ALERTS,
    DEAD_LETTERS,
)

MODELS: dict[str, type[Record]] = {model.TYPE: model for topic in TOPICS for model in topic.models}
"""Every type on the wire by its CloudEvents name."""


def topic_named(name: str, topics: Iterable[Topic] = TOPICS) -> Topic:
    """The topic called ``name``; raises ``KeyError`` that lists the known names."""
    by_name = {topic.name: topic for topic in topics}
    if name not in by_name:
        raise KeyError(f"no topic {name!r}: the topics are {', '.join(by_name)}")
    return by_name[name]
