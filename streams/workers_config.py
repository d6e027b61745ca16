"""Settings of a worker process; importing them does not import Faust."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.streams.grouping.group_policy import GroupPolicies, parse_policies
from headrace.streams.grouping.groups import GroupLimits
from headrace.streams.rewards.registry import parse_rewards
from headrace.streams.scoring.feedback_join import JoinLimits
from headrace.streams.topology import TOPOLOGY
from headrace.streams.watch.settings import WatchSettings

PROCESSORS = tuple(processor.name for processor in TOPOLOGY if processor.name != "assemble")
"""Processors that a worker can run. The assembler is a separate process (``assembly/assembler.py``)."""


@dataclass(frozen=True, slots=True)
class WorkersConfig:
    """Settings of one worker process."""

    bootstrap: str
    """Kafka brokers, ``host:port``, comma-separated."""
    data_dir: Path
    """Folder for Faust's own files. Nothing in it is needed after a restart."""
    processors: tuple[str, ...] = PROCESSORS
    """The ``PROCESSORS`` that run in this process."""
    group_timeout_s: float = 600.0
    """Seconds of stream time from a group's first reward until the group, if still incomplete, is rejected, or shrunk
    to the members that arrived (``incomplete`` of its policy)."""
    remember_s: float = 24 * 3600.0
    """Seconds of stream time for which a closed group is remembered, to tell duplicates from late rewards."""
    batch: int = 500
    """Most records that a processor reads at a time; each stage takes one round trip to the broker per batch."""
    member: str | None = None
    """Static membership name of this process: after a crash it gets its partitions back immediately."""
    rewards: Mapping[str, str] = field(default_factory=dict)
    """Agent → its reward spec: ``{"search": "search@1", "shop": "shop.rewards:CHECKOUT"}``; ``*`` is every other agent.
    Named modules are imported and run."""
    judge_url: str | None = None
    """Endpoint with an OpenAI-compatible API (``http://host:port``), for rewards with judges."""
    judge_key_file: Path | None = None
    """File with the endpoint's API key, such as a mounted secret."""
    judge_concurrency: int = 16
    """Most questions to judges in flight."""
    judge_batch: int = 32
    """Most trajectories that are judged together; if a reward has judges, records are read in batches of this size."""
    judge_wait_s: float = 120.0
    """Seconds that a batch waits for its judges; components without an answer by then are labelled ``judge_timeout``.
    """
    group_policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Reward spec → how its rewards are grouped: ``{"checkout": {"by": "cohort", "baseline": "running"}}``; ``*`` is
    every other spec. The fields are those of ``GroupPolicy``."""
    watch_anneals: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Reward spec → component → policy version from which its weight must be 0: ``{"mine@1": {"shaping": 200}}``. For
    specs that do not declare a schedule themselves."""
    watch_pauses: tuple[str, ...] = ()
    """Monitors of attempts and rewards whose open alert pauses admission: ``["tripwire", "marked"]``. Trajectories of
    its agent and task source are then rejected as ``admission_paused``. The other monitors only notify."""
    watch_baselines: Mapping[str, str] = field(default_factory=dict)
    """Run → an earlier run of this stack with whose baseline it is compared from its first window on:
    ``{"run-b": "run-a"}``, or ``{"*": "run-a"}`` for every other run. Without it a run learns its own baseline."""
    trust_producers_time: bool = False
    """Start although ``feedback`` uses producer timestamps: windows then end by the producers' clocks."""
    limits: GroupLimits = field(init=False)
    """Limits of grouping, from these settings."""
    policies: GroupPolicies = field(init=False)
    """The parsed ``group_policies``."""
    join_limits: JoinLimits = field(init=False)
    """Limits of the feedback join, from these settings."""
    watch: WatchSettings = field(init=False)
    """Settings of the monitors, from ``watch_anneals``, ``watch_pauses`` and ``watch_baselines``."""

    def __post_init__(self) -> None:
        unknown = set(self.processors) - set(PROCESSORS)
        if unknown or not self.processors:
            raise ValueError(f"processors is {self.processors!r}: name some of {', '.join(PROCESSORS)}")
        if self.group_timeout_s <= 0 or self.remember_s < self.group_timeout_s:
            raise ValueError("group_timeout_s must be above 0, and remember_s at least as long")
        if min(self.batch, self.judge_batch, self.judge_concurrency) < 1 or self.judge_wait_s <= 0:
            raise ValueError("batch, judge_batch and judge_concurrency start at 1, and judge_wait_s must be above 0")
        judged = [spec.label for spec in parse_rewards(self.rewards).specs if spec.judges]
        if judged and self.judge_url is None and "score" in self.processors:
            raise ValueError(f"judge_url is not set, and {', '.join(judged)} must ask judges: set it to an endpoint")
        if self.judge_key_file is not None and not self.judge_key_file.is_file():
            raise ValueError(f"judge_key_file names {self.judge_key_file}, which is not a file")
        limits = GroupLimits(timeout_ms=round(self.group_timeout_s * 1000), remember_ms=round(self.remember_s * 1000))
        object.__setattr__(self, "limits", limits)
        object.__setattr__(self, "policies", parse_policies(self.group_policies))
        object.__setattr__(self, "watch", WatchSettings(self.watch_anneals, self.watch_pauses, self.watch_baselines))
        object.__setattr__(self, "join_limits", JoinLimits(remember_ms=limits.remember_ms))
