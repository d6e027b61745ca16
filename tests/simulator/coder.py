"""The coder's episodes for the simulator: the shipped harness, tests in forked processes, and rewards by a shipped spec
over real records.

with WarmRunner() as runner:
    episode = CoderEpisode(make_task("coder-train-000017"), runner=TestCache(runner), spec=CODER)
"""

from collections.abc import Callable, Sequence

from headrace.agents.coder import vocabulary as words
from headrace.agents.coder.grading import Outputs
from headrace.agents.coder.harness import HARNESS_VERSION, Done, Harness, Limits, Observation, TestRun
from headrace.agents.coder.rollouts import AGENT
from headrace.agents.coder.tasks import Split, Task, make_task, task_id
from headrace.agents.coder.warm_runner import WarmRunner
from headrace.schemas.events import ToolStatus, TrajectoryStarted, VersionSpan
from headrace.schemas.records.trajectory import Segment, ToolUse, Trajectory, Turn
from headrace.streams.rewards.coder import CODER
from headrace.streams.rewards.spec import RewardSpec, Score
from tests.simulator.records import NOWHERE, RUN
from tests.simulator.sampling import SamplingSettings

FIRST_TRAINING_TASK = 1_000_000
"""Demonstrations of the base model use the first million; each seed of a sampler has its own million."""

MOST_CACHED = 200_000


def sampling_settings(limits: Limits | None = None, *, rows: int = 128) -> SamplingSettings:
    """Returns the sampling of the live episodes under ``limits``."""
    chosen = limits or Limits()
    # A context is below the budget, or a summary is due; a call, a result and the usage line come on top.
    room = chosen.budget + 2 * chosen.sampled_tokens + 40
    return SamplingSettings((words.END_ID,), chosen.sampled_tokens, rows=rows, capacity=room)


class TestCache:
    """Runs tests in a warm runner, and remembers results: functions of the grammar are deterministic."""

    __test__ = False  # not a test of pytest

    def __init__(self, runner: WarmRunner) -> None:
        self._runner = runner
        self._known: dict[object, tuple[Outputs, str | None]] = {}
        self.runs = self.hits = 0
        """Test runs, and how many of them were known."""

    def run(self, test_run: TestRun, task: Task, harness: Harness) -> tuple[Outputs, str | None]:
        """Returns the outputs of ``test_run`` on the harness's files, and why they are incomplete or ``None``."""
        self.runs += 1
        key = (task.task_id, test_run.purpose, tuple(sorted(harness.repository.files.items())))
        if key in self._known:
            self.hits += 1
        else:
            if len(self._known) >= MOST_CACHED:
                self._known.clear()
            self._known[key] = self._runner.run(test_run, harness.repository.texts())
        return self._known[key]


class CoderEpisode:
    """One attempt, whose reward is that of its trajectory's record."""

    def __init__(
        self,
        task: Task,
        version: int = 0,
        *,
        runner: TestCache,
        spec: RewardSpec = CODER,
        limits: Limits | None = None,
    ) -> None:
        self.harness = Harness(task, limits)
        self.turns: list[Turn] = []
        """Every model call with the tool that it called, as the stream assembles them."""
        self.done: Done | None = None
        self._version, self._spec, self._runner = version, spec, runner
        self._score: Score | None = None

    def observe(self) -> Sequence[int]:
        """As in ``SimulatedEpisode``."""
        return self.harness.observe()

    def act(self, sampled: Sequence[int]) -> None:
        """As in ``SimulatedEpisode``."""
        step = self.harness.act(sampled)
        if isinstance(step, TestRun):
            step = self.harness.tested(*self._runner.run(step, self.harness.task, self.harness))
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

    def trajectory(self) -> Trajectory:
        """Returns the record that rewards read, without ids of tokens. Its only segment has the version."""
        task, sampled = self.harness.task, sum(turn.sampled_tokens for turn in self.turns)
        versions = Segment(
            token_ids=[0] * sampled,
            loss_mask=[1] * sampled,
            logprobs=None,
            version_spans=[VersionSpan(version=self._version, start=0, end=sampled)],
        )
        return Trajectory(
            trajectory_id=task.task_id,
            started=TrajectoryStarted(
                task_id=task.task_id, agent=AGENT, harness_version=HARNESS_VERSION, task=task.facts, run=RUN
            ),
            segments=[versions],
            turns=self.turns,
            sampled_tokens=sampled,
            status=self.done.status if self.done else None,
            answer=self.done.answer if self.done else None,
            outcome=self.done.outcome if self.done else None,
            first=NOWHERE,
            last=NOWHERE,
            started_ms=0,
            ended_ms=0,
        )


def _turn(number: int, sampled: int, observation: Observation | None) -> Turn:
    if observation is None:
        return Turn(sampled_tokens=sampled)
    if observation.summarized is not None:
        return Turn(sampled_tokens=sampled, summarized=True)
    failed = observation.error_class is not None
    use = ToolUse(
        call_id=f"c{number}",
        tool=observation.tool,
        arguments=observation.arguments,
        thinking_tokens=observation.thinking_tokens,
        status=ToolStatus.ERROR if failed else ToolStatus.OK,
        error_class=observation.error_class,
        result=observation.result,
    )
    return Turn(sampled_tokens=sampled, tools=[use])


def training_episodes(
    runner: TestCache, *, first: int = FIRST_TRAINING_TASK, spec: RewardSpec = CODER, limits: Limits | None = None
) -> Callable[[int, int], CoderEpisode]:
    """Returns attempts at training tasks, by number from ``first`` on."""
    return lambda number, version: CoderEpisode(
        make_task(task_id(Split.TRAIN, first + number)), version, runner=runner, spec=spec, limits=limits
    )


def held_out_episodes(
    runner: TestCache, *, size: int | None = None, spec: RewardSpec = CODER, limits: Limits | None = None
) -> Callable[[int, int], CoderEpisode]:
    """Returns attempts at held-out tasks, by number; ``size``: functions to repair, ``None`` for the usual mixture."""
    return lambda number, version: CoderEpisode(
        make_task(task_id(Split.HELD_OUT, number, size)), version, runner=runner, spec=spec, limits=limits
    )
