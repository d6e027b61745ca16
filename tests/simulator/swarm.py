"""The orchestrator's episodes for the simulator: the shipped harness, scripted sub-agents, rewards by a shipped spec.

episode = SwarmEpisode(make_task("swarm-train-1000017"), version=12, spec=SWARM_SHORT, member="3/12/0")
"""

from collections.abc import Callable, Sequence
from itertools import count
from random import Random

from headrace.agents.swarm import vocabulary as words
from headrace.agents.swarm.harness import HARNESS_VERSION, Assigned, Done, Harness, Limits
from headrace.agents.swarm.subagents import Skill, scripted_reports
from headrace.agents.swarm.tasks import Split, Task, make_task, task_id
from headrace.schemas.events import EndStatus, TrajectoryStarted, VersionSpan
from headrace.schemas.records.trajectory import Segment, Trajectory
from headrace.streams.rewards.spec import RewardSpec, Score
from headrace.streams.rewards.swarm import SWARM_SHORT
from tests.simulator.records import NOWHERE, RUN
from tests.simulator.sampling import SamplingSettings

FIRST_TRAINING_TASK = 1_000_000
"""Demonstrations of the base model use the first million; each seed of a sampler has its own million."""


def sampling_settings(limits: Limits | None = None, *, rows: int = 128) -> SamplingSettings:
    """Returns the sampling of the live episodes under ``limits``."""
    return SamplingSettings((words.END_ID,), (limits or Limits()).sampled_tokens, rows=rows, capacity=1024)


class SwarmEpisode:
    """One attempt, whose reward is that of its trajectory's record."""

    def __init__(
        self, task: Task, version: int = 0, *, spec: RewardSpec = SWARM_SHORT, member: str = "0",
        skill: Skill | None = None,
    ) -> None:  # fmt: skip
        """``member`` seeds which searches time out and how the sub-agents fare."""
        self.task, self.version = task, version
        self.harness = Harness(task, member)
        self.finished = 0
        """Sub-agents that completed."""
        self.subagent_steps = 0
        self.sampled = 0
        """Tokens."""
        self.done: Done | None = None
        self._rng = Random(f"subagents/{task.task_id}/{member}")
        self._spec, self._skill = spec, skill
        self._score: Score | None = None

    def observe(self) -> Sequence[int]:
        """As in ``SimulatedEpisode``."""
        return self.harness.observe()

    def act(self, sampled: Sequence[int]) -> None:
        """As in ``SimulatedEpisode``."""
        self.sampled += len(sampled)
        step = self.harness.act(sampled)
        if isinstance(step, Assigned):
            reports = scripted_reports(step.subtasks, self.task.corpus, step.max_steps, self._rng, self._skill)
            self.finished += sum(report.status is EndStatus.COMPLETED for report in reports)
            self.subagent_steps += sum(report.steps for report in reports)
            self.harness.report(reports)
        elif isinstance(step, Done):
            self.done = step

    @property
    def is_done(self) -> bool:
        """As in ``SimulatedEpisode``."""
        return self.done is not None

    @property
    def outcome(self) -> float:
        """Item F1 or accuracy."""
        return self.done.outcome if self.done else 0.0

    def reward(self) -> float:
        """Returns the spec's total. Raises ``ValueError`` for an attempt that cannot be scored."""
        total = self.score().total
        if total is None:
            raise ValueError(f"{self.task.task_id}: {self.score().unscored}")
        return total

    def score(self) -> Score:
        """Returns the spec's components and total."""
        if self._score is None:
            self._score = self._spec.score(self.trajectory())
        return self._score

    def trajectory(self) -> Trajectory:
        """Returns the record that rewards read: all but turns and tokens. Its only segment has the policy's version."""
        version = [VersionSpan(version=self.version, start=0, end=self.sampled)]
        zeros, ones = [0] * self.sampled, [1] * self.sampled
        return Trajectory(
            trajectory_id=self.task.task_id,
            started=TrajectoryStarted(
                task_id=self.task.task_id, agent="swarm", harness_version=HARNESS_VERSION, task=self.task.facts, run=RUN
            ),
            segments=[Segment(token_ids=zeros, loss_mask=ones, logprobs=None, version_spans=version)],
            sampled_tokens=self.sampled,
            critical_steps=self.harness.critical_steps + 1,
            total_steps=self.harness.turns + self.subagent_steps,
            subagents_assigned=self.harness.assigned,
            subagents_finished=self.finished,
            status=self.done.status if self.done else None,
            answer=self.done.answer if self.done else None,
            outcome=self.outcome,
            first=NOWHERE,
            last=NOWHERE,
            started_ms=0,
            ended_ms=0,
        )


def training_episodes(spec: RewardSpec, *, first: int = FIRST_TRAINING_TASK) -> Callable[[int, int], SwarmEpisode]:
    """Returns attempts at training tasks, by number from ``first`` on."""
    members = count()

    def episode(number: int, version: int) -> SwarmEpisode:
        task = make_task(task_id(Split.TRAIN, first + number))
        return SwarmEpisode(task, version, spec=spec, member=f"{version}/{next(members)}")

    return episode


def held_out_episodes(spec: RewardSpec) -> Callable[[int, int], SwarmEpisode]:
    """Returns attempts at held-out tasks, by number; the same searches time out for every policy."""
    return lambda number, version: SwarmEpisode(
        make_task(task_id(Split.HELD_OUT, number)), version, spec=spec, member="held-out"
    )
