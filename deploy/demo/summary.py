"""The result of a demo: pure functions from the log's records to figures, and the figures as text.

held-out reward   sampled 0.31 → 0.79   greedy 0.34 → 0.83
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from headrace.agents.rollouts.rollout_metrics import SamplingReport
from headrace.deploy.demo.exactness import Exactness
from headrace.deploy.demo.usage import Usage, usage_lines
from headrace.schemas.events import Purpose
from headrace.schemas.records.alert import Alert, EpisodeState
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.watch import Readings

REWARD_SHARE = "reward, share of the maximum"
"""What held-out attempts are worth, unless the system has a measure of its own."""


class HeldOut(BaseModel):
    """Mean of the measure (0 to 1) on tasks that training never sees."""

    model_config = ConfigDict(frozen=True)

    sampled_before: float
    sampled_after: float
    greedy_before: float
    greedy_after: float

    @property
    def gain(self) -> float:
        """The smaller of the two improvements: both must show learning."""
        return min(self.sampled_after - self.sampled_before, self.greedy_after - self.greedy_before)


class VersionReward(BaseModel):
    """The mean reward of a policy version's training rollouts."""

    model_config = ConfigDict(frozen=True)

    version: int
    """Oldest policy version among a trajectory's tokens."""
    mean: float
    """Mean normalised reward."""
    trajectories: int
    """Number of scored trajectories."""


class Figure(BaseModel):
    """A system's own figure, over the sampled held-out attempts."""

    model_config = ConfigDict(frozen=True)

    before: float | None
    """Before training; ``None`` if no attempt had it."""
    after: float | None
    """After training."""


class Monitored(BaseModel):
    """What the monitors said about the run."""

    model_config = ConfigDict(frozen=True)

    windows: int
    """Windows that were complete."""
    judged: int
    """Values that were compared with a baseline; the first 25 windows of a monitor make it."""
    alarms: list[str]
    """Monitors that alarmed, with agent and task source."""


class Summary(BaseModel):
    """The JSON that ``headrace demo --json`` writes."""

    model_config = ConfigDict(frozen=True)

    system: str = "search"
    """What learned."""
    arm: str | None = None
    """Variant of the system; ``None``: the system itself."""
    seed: int
    control: bool
    through_gateway: bool = False
    """Whether the agent was a program behind the gateway."""
    exactness: Exactness | None = None
    """What became of its calls; ``None`` for the reference agent, which samples tokens itself."""
    heldout: HeldOut
    heldout_tasks: int
    measure: str = REWARD_SHARE
    """What ``heldout`` is a mean of."""
    figures: dict[str, Figure] = {}
    """What the system shows of the sampled held-out attempts, by name."""
    steps: int
    sampling: SamplingReport | None = None
    """What the sampler did while the policy learned; ``None`` in summaries of older releases."""
    usage: Usage | None = None
    """Where processors and time went while it learned; ``None`` in summaries of older releases."""
    monitors: Monitored | None = None
    """What the monitors said; ``None`` in summaries of older releases."""
    ledger: dict[str, Any]
    weights_published: int
    weights_applied: int
    mixed_version_trajectories: int
    reward_by_version: list[VersionReward]
    seconds: dict[str, float]
    processor_s: float | None = None
    """Processor seconds of the whole demo, from its start to its summary; ``None`` in summaries of older releases."""
    peak_memory_bytes: int
    plot: str
    data: str
    dashboard: str | None


def by_trajectory(rewards: Iterable[Reward]) -> dict[str, Reward]:
    """Returns the last reward of each trajectory: a duplicate counts once, a revision replaces the earlier reward."""
    return {reward.trajectory_id: reward for reward in rewards}


def normalised(reward: Reward) -> float:
    """Returns the reward as a share of its maximum; 0 for a trajectory that could not be scored."""
    if reward.total is None or not reward.maximum:
        return 0.0
    return reward.total / reward.maximum


def mean_reward(
    rewards: Mapping[str, Reward], trajectory_ids: Collection[str], of: Callable[[Reward], float] = normalised
) -> float:
    """Returns the mean of a value of the rewards of ``trajectory_ids``; raises ``LookupError`` if one has none."""
    missing = [name for name in trajectory_ids if name not in rewards]
    if missing or not trajectory_ids:
        raise LookupError(
            f"{len(missing)} of {len(trajectory_ids)} evaluation trajectories have no reward: {missing[:3]}"
        )
    return sum(of(rewards[name]) for name in trajectory_ids) / len(trajectory_ids)


def reward_by_version(rewards: Iterable[Reward]) -> list[VersionReward]:
    """Returns the mean reward of training rollouts by the oldest version that sampled them, ascending."""
    by_version: dict[int, list[float]] = defaultdict(list)
    for reward in rewards:
        if reward.purpose is Purpose.TRAIN and reward.oldest_version is not None:
            by_version[reward.oldest_version].append(normalised(reward))
    return [
        VersionReward(version=version, mean=sum(values) / len(values), trajectories=len(values))
        for version, values in sorted(by_version.items())
    ]


def mixed_versions(rewards: Iterable[Reward]) -> int:
    """Returns the number of trajectories that were sampled by more than one policy version."""
    return sum(reward.oldest_version != reward.newest_version for reward in rewards)


def figures_of(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Figure]:
    """Returns a system's figures before and after training, in the order of their names' first occurrence."""
    return {name: Figure(before=before.get(name), after=after.get(name)) for name in {**before, **after}}


def figure_lines(figures: Mapping[str, Figure]) -> list[str]:
    """Returns a system's own figures, as text."""
    width = max(map(len, figures), default=0)
    shown = {name: ["none" if v is None else f"{v:.3f}" for v in (f.before, f.after)] for name, f in figures.items()}
    return [f"  {name:<{width}}  {before} → {after}" for name, (before, after) in shown.items()]


def sampling_lines(done: SamplingReport) -> list[str]:
    """Returns what the sampler did, as text."""
    equal = sum(number for fate, number in done.fates.items() if fate.startswith("zero_variance"))
    share = f", waiting for the trainer {done.waited_s / done.seconds:.0%} of the time" if done.seconds else ""
    lines = [f"Groups sampled {done.groups}, one task each; {equal} without a gradient{share}"]
    rates = {level: f"{rate:.0%} passed" for level, rate in done.pass_rates.items()}
    if done.levels:
        lines.append(f"  curriculum {' → '.join(done.levels)}")
    lines += [f"  {level}: {number} groups, {rates.get(level, 'none scored')}" for level, number in
              done.groups_by_level.items() if done.levels]  # fmt: skip
    if done.restored:
        lines.append("  after a restart: " + ", ".join(f"{number} {how}" for how, number in done.restored.items()))
    return lines


def monitored(readings: Iterable[Readings], alerts: Iterable[Alert]) -> Monitored:
    """Returns what the monitors said, from the records of ``monitors`` and ``alerts`` of a run."""
    windows = judged = 0
    for each in readings:
        windows += 1
        judged += sum(reading.expected is not None for reading in each.readings.values())
    opened = [each.episode for each in alerts if each.episode and each.episode.state is EpisodeState.OPENED]
    alarms = {each.id: "/".join(filter(None, (each.monitor, each.agent, each.task_source))) for each in opened}
    return Monitored(windows=windows, judged=judged, alarms=list(alarms.values()))


def monitor_lines(found: Monitored) -> list[str]:
    """Returns what the monitors said, as text."""
    said = f"{len(found.alarms)} alarmed: {', '.join(found.alarms)}" if found.alarms else "none alarmed"
    return [f"Monitors: {found.windows} windows, {found.judged} values judged, {said}"]


def exactness_lines(found: Exactness) -> list[str]:
    """Returns what became of the calls of a program behind the gateway, as text."""
    equal, other = found.echoes.get("equal", 0), sum(found.echoes.values()) - found.echoes.get("equal", 0)
    return [
        f"Calls through the gateway {found.calls}, text only; {found.continuing} continue an earlier one",
        f"  retokenisation differences                {found.retokenised + found.unknown_prefixes:>6}",
        f"  prompts that the engine reports otherwise {other:>6}  (equal: {equal})",
        f"  answers whose text has other tokens       {found.text_differs:>6}  (kept as sampled)",
    ]


def processor_lines(processor_s: float, usage: Usage | None) -> list[str]:
    """Returns the processor time of the whole demo, and how long that takes if nothing waits, as text."""
    cores = usage.cores if usage is not None else 1
    least = f"at least {processor_s / cores:.0f} s on {cores} core{'s' * (cores > 1)} that nothing else uses"
    return [f"Processor time {processor_s:.0f} s: {least}"]


def render(summary: Summary) -> str:
    """Returns the summary as text."""
    held, ledger, seconds = summary.heldout, summary.ledger, summary.seconds
    rejected = {
        f"{stage}: {reason}": count for stage, by in ledger["rejected_by"].items() for reason, count in by.items()
    }
    fates = {"trained": ledger["trained"], **rejected} | {
        f"pending: {stage}": count for stage, count in ledger["pending_by"].items() if count
    }
    width = max(map(len, fates))
    lines = [
        "",
        "Control: advantages were shuffled inside their groups." if summary.control else "",
        f"Held-out {summary.measure}, {summary.heldout_tasks} tasks",
        f"  sampled  {held.sampled_before:.3f} → {held.sampled_after:.3f}",
        f"  greedy   {held.greedy_before:.3f} → {held.greedy_after:.3f}",
        *figure_lines(summary.figures),
        f"Steps {summary.steps}; versions published {summary.weights_published}, served {summary.weights_applied}; "
        f"trajectories sampled by more than one version {summary.mixed_version_trajectories}",
        *(() if summary.sampling is None else sampling_lines(summary.sampling)),
        *(() if summary.usage is None else usage_lines(summary.usage)),
        *(() if summary.monitors is None else monitor_lines(summary.monitors)),
        *(() if summary.exactness is None else exactness_lines(summary.exactness)),
        f"Trajectories {ledger['started']}: " + ("the ledger adds up" if ledger["adds_up"] else "DOES NOT ADD UP"),
        *(f"  {name:<{width}}  {count:>6}" for name, count in fates.items()),
        f"Seconds {seconds['total']:.0f}: "
        + ", ".join(f"{name} {s:.0f}" for name, s in seconds.items() if name != "total"),
        *(() if summary.processor_s is None else processor_lines(summary.processor_s, summary.usage)),
        f"Memory at most {summary.peak_memory_bytes / 2**30:.1f} GiB",
        f"Picture {summary.plot}",
        f"Data and logs {summary.data}" + (f"; dashboard {summary.dashboard}" if summary.dashboard else ""),
    ]
    return "\n".join(line for line in lines if line or line == lines[0])
