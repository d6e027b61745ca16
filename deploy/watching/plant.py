"""`headrace watch plant`: a run with a planted hack through the observations and the fold of the processors.

step  share  alarms
  18    9 %  few_calls opened: 0.22, usual 0.05 (v68-31 v68-7 …)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from headrace.schemas.records.alert import Alert, EpisodeState
from headrace.schemas.records.step import Step
from headrace.schemas.records.watch import Observation
from headrace.streams.rewards.planted import LAMBDA
from headrace.streams.rewards.schedule import linear
from headrace.streams.watch.judgement import WatchRules
from headrace.streams.watch.monitors import in_words
from headrace.streams.watch.observe import observe_attempt, observe_feedback, observe_rejection, observe_reward
from headrace.streams.watch.planted.attempts import SPEC, Attempt, honest_step
from headrace.streams.watch.planted.hacks import Hack, hacked_step, share_at
from headrace.streams.watch.planted.observations import (
    feedback,
    feedback_id,
    rejection,
    reward,
    run_name,
    trained,
    trajectory,
)
from headrace.streams.watch.watch import Watch, WatchChanges

STEP_MS = 60_000
"""Time between two steps, in milliseconds."""
RULES = WatchRules({SPEC: {"parallel": linear(1.0, 0.0, until=LAMBDA.until)}})
"""λ of the simulated reward should decline."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A run with a hack."""

    hack: Hack | None
    """The hack or drift; ``None``: none, for an honest run."""
    honest: int = 50
    """Steps before it."""
    ramp: int = 60
    """Steps until 90 % of the attempts are hacked."""
    steps: int = 60
    """Steps with it."""
    seed: int = 1
    """Seed of all draws."""

    @property
    def run(self) -> str:
        """Name of the run."""
        return run_name(self.hack.name if self.hack else "nothing")

    def share(self, step: int) -> float:
        """Returns the share of hacked attempts at ``step``, which is 0 for the first one with the hack."""
        return share_at(step, self.ramp) if self.hack is not None and step >= 0 else 0.0


@dataclass(frozen=True, slots=True)
class PlantedStep:
    """A step of the run."""

    step: int
    """Number from the first hacked step, which is 0; below 0 before it."""
    share: float
    """Share of hacked attempts."""
    attempts: list[Attempt]
    """Its attempts."""
    run: str
    """Name of the run."""
    time_ms: int
    """Time, Unix milliseconds."""

    @property
    def observations(self) -> list[Observation]:
        """What observe would make of its records."""
        return list(_observed(self.attempts, self.run, self.time_ms))

    @property
    def trained(self) -> Step:
        """The step that trains what is not rejected."""
        return trained(self.attempts, self.run)


def planted_steps(plan: Plan, begin_ms: int) -> Iterator[PlantedStep]:
    """Yields the steps of ``plan``; the first is at ``begin_ms`` (Unix milliseconds)."""
    random = Random(f"{plan.hack.name if plan.hack else ''}/{plan.seed}")
    for version in range(plan.honest + plan.steps):
        step = version - plan.honest
        share = plan.share(step)
        if plan.hack is not None and step >= 0:
            attempts = hacked_step(random, plan.hack, version, share, begun=plan.honest)
        else:
            attempts = honest_step(random, version)
        time_ms = begin_ms + STEP_MS * version
        yield PlantedStep(step, share, attempts, plan.run, time_ms)


def _observed(attempts: list[Attempt], run: str, time_ms: int) -> Iterator[Observation]:
    for attempt in attempts:
        yield observe_attempt(trajectory(attempt, run, time_ms))
        yield observe_reward(reward(attempt, run, time_ms))
        if attempt.rejected is not None and not attempt.evaluates:
            yield observe_rejection(rejection(attempt, run))
        if attempt.feedback and not attempt.evaluates:
            yield observe_feedback(feedback(attempt), attempt.id, feedback_id(attempt))


def alarms(steps: Iterator[PlantedStep]) -> Iterator[tuple[PlantedStep, list[Alert]]]:
    """Yields each step, with the alerts about it."""
    fold = Watch(RULES)
    previous: PlantedStep | None = None
    for each in steps:
        changes = WatchChanges()
        for observation in each.observations:
            fold.add(observation, each.time_ms, changes)
        fold.add(each.trained, each.time_ms, changes)
        if previous is not None:  # a window is complete when the next version begins
            yield previous, [alert for alert, _ in changes.alerts]
        previous = each


def line(step: int, share: float, alert: Alert) -> str:
    """Returns an alert as a line. ``step``: of the attempts that it is about, 0 for the first hacked ones, of which
    ``share`` are hacked. Raises ``ValueError`` if it belongs to no episode.
    """
    if (episode := alert.episode) is None:
        raise ValueError(f"{alert.kind} belongs to no episode")
    figures = alert.details
    examples = f" ({' '.join(episode.examples[:3])} …)" if episode.state is EpisodeState.OPENED else ""
    value = in_words(episode.monitor, figures["value"], figures.get("expected"))
    what = f"{episode.monitor} {episode.state}: {value}{examples}"
    return f"{step + 1:5d}  {share:4.0%}  {what}"
