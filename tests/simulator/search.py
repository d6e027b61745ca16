"""The search agent's episodes for the simulator: the shipped harness, and rewards by a shipped spec over real records.

episode = SearchEpisode(make_task("search-train-000017"), version=12, spec=SEARCH_ANNEALED)
"""

from collections.abc import Callable, Sequence
from random import Random

from headrace.agents.search import vocabulary as words
from headrace.agents.search.demonstrations import Mistakes, demonstrate
from headrace.agents.search.harness import HARNESS_VERSION, Done, Harness, Limits, Observation
from headrace.agents.search.rollouts import AGENT
from headrace.agents.search.tasks import Split, Task, make_task, task_id
from headrace.schemas.events import EndStatus, ToolStatus, TrajectoryStarted, VersionSpan
from headrace.schemas.records.trajectory import Segment, ToolUse, Trajectory, Turn
from headrace.streams.rewards.context1 import SEARCH_RECALLS
from headrace.streams.rewards.spec import RewardSpec, Score
from tests.simulator.records import NOWHERE, RUN
from tests.simulator.sampling import Call, SamplingSettings

FIRST_TRAINING_TASK = 1_000_000
"""Demonstrations of the base model use the first million; each seed of a sampler has its own million."""


def sampling_settings(limits: Limits | None = None, *, rows: int = 128) -> SamplingSettings:
    """Returns the sampling of the live episodes under ``limits``."""
    chosen = limits or Limits()
    # A context is below the budget before a call; its tokens, a result and the usage line come on top.
    room = chosen.budget + chosen.sampled_tokens + 16
    return SamplingSettings((words.END_ID,), chosen.sampled_tokens, rows=rows, capacity=room)


class SearchEpisode:
    """One attempt, whose reward is that of its trajectory's record."""

    def __init__(
        self, task: Task, version: int = 0, *, spec: RewardSpec = SEARCH_RECALLS, limits: Limits | None = None
    ) -> None:
        self.harness = Harness(task, limits)
        self.turns: list[Turn] = []
        """Every model call with the tools that it called, as the stream assembles them."""
        self.done: Done | None = None
        self._version, self._spec = version, spec
        self._score: Score | None = None

    def observe(self) -> Sequence[int]:
        """As in ``SimulatedEpisode``."""
        return self.harness.observe()

    def act(self, sampled: Sequence[int]) -> None:
        """As in ``SimulatedEpisode``."""
        step = self.harness.act(sampled)
        observation = step.observation if isinstance(step, Done) else step
        self.turns.append(_turn(len(self.turns), len(sampled), observation))
        self.done = step if isinstance(step, Done) else None

    @property
    def is_done(self) -> bool:
        """As in ``SimulatedEpisode``."""
        return self.done is not None

    def reward(self) -> float:
        """Returns the spec's total. Raises ``ValueError`` for an attempt that cannot be scored."""
        total = self.score().total
        if total is None:
            raise ValueError(f"{self.harness.task.task_id}: {self.score().unscored}")
        return total

    def score(self) -> Score:
        """Returns the spec's components and total."""
        if self._score is None:
            self._score = self._spec.score(self.trajectory())
        return self._score

    def trajectory(self, trajectory_id: str = "simulated", segments: Sequence[Segment] = ()) -> Trajectory:
        """Returns the attempt's record.

        Rewards need no tokens: without ``segments``, a single one has the number of sampled tokens and their version.
        """
        task, sampled = self.harness.task, sum(turn.sampled_tokens for turn in self.turns)
        versions = Segment(
            token_ids=[0] * sampled,
            loss_mask=[1] * sampled,
            logprobs=None,
            version_spans=[VersionSpan(version=self._version, start=0, end=sampled)],
        )
        return Trajectory(
            trajectory_id=trajectory_id,
            started=TrajectoryStarted(
                task_id=task.task_id, agent=AGENT, harness_version=HARNESS_VERSION, task=task.facts, run=RUN
            ),
            segments=list(segments) or [versions],
            turns=self.turns,
            sampled_tokens=sampled,
            status=self.status,
            answer=self.done.answer if self.done else None,
            first=NOWHERE,
            last=NOWHERE,
            started_ms=0,
            ended_ms=0,
        )

    @property
    def maximum(self) -> float:
        """Largest possible reward; 1 if the spec declares none."""
        return self._spec.maximum or 1.0

    @property
    def status(self) -> EndStatus | None:
        """How it ended."""
        return self.done.status if self.done else None


def _turn(number: int, sampled: int, observation: Observation | None) -> Turn:
    if observation is None:
        return Turn(sampled_tokens=sampled)
    failed = observation.error_class is not None
    use = ToolUse(
        call_id=f"c{number}",
        tool=observation.tool,
        arguments=observation.arguments,
        status=ToolStatus.ERROR if failed else ToolStatus.OK,
        error_class=observation.error_class,
        result=observation.result,
    )
    pruned = list(observation.pruned.chunk_ids) if observation.pruned else []
    return Turn(sampled_tokens=sampled, tools=[use], pruned_ids=pruned)


def demonstrated(
    task: Task, rng: Random, *, mistakes: Mistakes | None = None, limits: Limits | None = None
) -> tuple[SearchEpisode, list[Call]]:
    """Returns a scripted attempt at ``task`` that has ended, and its calls, whose log-probabilities are all 0."""
    episode, calls = SearchEpisode(task, limits=limits), list[Call]()
    for example in demonstrate(task, rng, mistakes, limits):
        start = 0
        for end, (token, imitated) in enumerate(zip(example.token_ids, example.mask, strict=True), start=1):
            if imitated and token == words.END_ID:
                begin = next(place for place in range(start, end) if example.mask[place])
                sampled = example.token_ids[begin:end]
                calls.append(Call(example.token_ids[:begin], sampled, (0.0,) * len(sampled)))
                episode.act(sampled)
                start = end
    return episode, calls


def training_episodes(
    *, spec: RewardSpec = SEARCH_RECALLS, limits: Limits | None = None
) -> Callable[[int, int], SearchEpisode]:
    """Returns attempts at training tasks, by number from ``FIRST_TRAINING_TASK`` on."""
    return lambda number, version: SearchEpisode(
        make_task(task_id(Split.TRAIN, FIRST_TRAINING_TASK + number)), version, spec=spec, limits=limits
    )


def held_out_episodes(
    *, spec: RewardSpec = SEARCH_RECALLS, limits: Limits | None = None
) -> Callable[[int, int], SearchEpisode]:
    """Returns attempts at held-out tasks, by number."""
    return lambda number, version: SearchEpisode(
        make_task(task_id(Split.HELD_OUT, number)), version, spec=spec, limits=limits
    )
