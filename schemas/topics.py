"""The only declaration of the topics: their records, keys and retention."""

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
from headrace.schemas.records.watch import LevelAccepted, Observation, Readings
from headrace.schemas.records.weights import Applied, Weights

_DAY_MS = 24 * 3600 * 1000
_MIB = 1024 * 1024

TIMESTAMP_TYPE = "message.timestamp.type"
"""Topic setting that selects the clock of the timestamps: the producer's or the broker's."""

FOREVER = -1
"""Unlimited retention, for the topics that provenance depends on."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic: its records, its key and its settings."""

    name: str
    """Name in Kafka."""
    key: str
    """Description of the record key."""
    models: tuple[type[Record], ...]
    """Types of its records."""
    partitions: int
    """Number of partitions if headrace creates the topic; existing topics keep theirs."""
    about: str
    """Description of its content, in a sentence."""
    retention_ms: int = FOREVER
    """Retention in milliseconds."""
    max_bytes: int = _MIB
    """Largest record that the broker accepts, in bytes."""
    compacted: bool = False
    """Whether the topic is compacted: the newest record of each key is kept, and older ones may be deleted."""
    broker_time: bool = False
    """Whether the broker stamps records on arrival; otherwise records carry the stream time of their inputs."""
    any_time: bool = False
    """Whether the broker accepts timestamps of more than an hour ahead of its clock, which it refuses by default."""

    @property
    def configs(self) -> dict[str, str]:
        """Topic-level settings by their names in Kafka."""
        return {
            "cleanup.policy": "compact" if self.compacted else "delete",
            "retention.ms": str(self.retention_ms),
            "max.message.bytes": str(self.max_bytes),
            TIMESTAMP_TYPE: "LogAppendTime" if self.broker_time else "CreateTime",
            **({"message.timestamp.after.max.ms": str(2**63 - 1)} if self.any_time else {}),
        }


PARTITIONS = 4
"""Partitions of the topics that carry trajectories. ``trajectories`` must have as many as ``events``, and so must
``feedback`` if a reward uses it."""

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
    "Judgements of trajectories by people and systems.",
    broker_time=True,
)
SDK_STATS = Topic(
    "sdk-stats",
    "source",
    (events.SdkStatsReported, events.GatewayStatsReported),
    1,
    "Counts of events that SDKs sent and dropped, and of gateways' calls.",
    retention_ms=30 * _DAY_MS,
    broker_time=True,
)
TRAJECTORIES = Topic(
    "trajectories",
    "trajectory id",
    (Trajectory,),
    PARTITIONS,
    "Trajectories assembled from events: tokens, turns, tools, labels.",
    retention_ms=30 * _DAY_MS,
    max_bytes=32 * _MIB,
)
REWARDS = Topic(
    "rewards", "group id, else cohort key, else trajectory id", (Reward,), PARTITIONS, "Scores, by component."
)
TRAINING = Topic("training", "group id", (TrainingGroup,), PARTITIONS, "Groups that carry a gradient.")
REJECTED = Topic("rejected", "trajectory id", (Rejection,), PARTITIONS, "Trajectories that are not trained, and why.")
STEPS = Topic("steps", "run", (Step,), 1, "Optimiser steps and what they were trained on.", max_bytes=8 * _MIB)
WEIGHTS = Topic("weights", "run", (Weights,), 1, "Published policy versions.")
BUDGET = Topic("budget", "run", (Budget,), 1, "How many groups samplers may have in progress.", compacted=True)
APPLIED = Topic("applied", "run", (Applied,), 1, "Policy versions that engines serve.")
ALERTS = Topic("alerts", "run", (Alert,), 1, "Problems that need a person's attention.")
OBSERVATIONS = Topic(
    "observations",
    "trajectory id",
    (Observation, LevelAccepted),
    1,
    "Trajectories, rewards, rejections and feedback as numbers, for the monitors, and levels that people accept.",
    retention_ms=30 * _DAY_MS,
)
MONITORS = Topic(
    "monitors", "run", (Readings,), 1, "Readings of the monitors, window by window.", retention_ms=90 * _DAY_MS
)
DEAD_LETTERS = Topic(
    "dead-letters",
    "topic:partition",
    (DeadLetter, Repaired, Redriven),
    1,
    "Complete copies of records that could not be processed, and what was done about them.",
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
    OBSERVATIONS,
    MONITORS,
    ALERTS,
    DEAD_LETTERS,
)

TYPES: dict[str, frozenset[str]] = {topic.name: frozenset(model.TYPE for model in topic.models) for topic in TOPICS}
"""Types of the records of each topic, by the topic's name."""

MODELS: dict[str, type[Record]] = {model.TYPE: model for topic in TOPICS for model in topic.models}
"""Every type on the wire by its CloudEvents name."""


TRAINER_GROUPS = "headrace-trainer-"
"""How the names of trainers' consumer groups begin."""


def trainer_group(run: str) -> str:
    """Returns the consumer group with which the trainer of ``run`` commits what it has decided of ``training``."""
    return f"{TRAINER_GROUPS}{run}"


def topic_named(name: str, topics: Iterable[Topic] = TOPICS) -> Topic:
    """Return the topic ``name``; raise a ``KeyError`` that lists the known names if there is none."""
    by_name = {topic.name: topic for topic in topics}
    if name not in by_name:
        raise KeyError(f"no topic {name!r}: the topics are {', '.join(by_name)}")
    return by_name[name]
