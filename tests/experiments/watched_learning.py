"""What the monitors say about the search agent while it learns honestly, without servers.

    python -m tests.experiments.watched_learning                          three seeds, 120 steps of 16 groups each
    python -m tests.experiments.watched_learning --seeds 1 --steps 80 --groups 8 --observations FILE.jsonl.gz

The second command, with ``--first-seed`` 0, 2 and 3, made ``tests/data/learning-0.observations.jsonl.gz`` and
``learning-2.…`` and ``learning-3.…``, which ``test_watched_learning.py`` judges again.
On another processor a policy learns a little differently.

The reference agent samples, is rewarded and trained as in ``tests/simulator``. Its attempts become the same records as
live ones, and these go through the functions of ``observe`` and ``watch``: what alarms here is a false alarm, or
something that the policy has learnt to do and that a person would have to look at.
"""

import argparse
import gzip
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from headrace.schemas.records.alert import EpisodeState
from headrace.schemas.records.watch import Lane, Observation
from headrace.streams.rewards.context1 import SEARCH
from headrace.streams.scoring.score import REWARDS_OF_AGENTS, score
from headrace.streams.watch.judgement import WatchRules
from headrace.streams.watch.observe import observe_attempt, observe_reward
from headrace.streams.watch.settings import WatchSettings, anneals_of
from headrace.streams.watch.watch import watch
from headrace.trainer.model.load import load_model
from tests.simulator.learn import LearnSettings, Step, learn, trainer_settings
from tests.simulator.records import NOWHERE, segments_of
from tests.simulator.sampling import Attempt
from tests.simulator.search import SearchEpisode, sampling_settings, training_episodes

BASE = Path(__file__).parents[2] / "agents" / "search" / "base"
TASKS_PER_SEED = 1_000_000


@dataclass(slots=True)
class Watched:
    """What the monitors said about one run."""

    seed: int
    windows: int = 0
    """Complete windows."""
    judged: int = 0
    """Values that were compared with a baseline."""
    alarms: list[tuple[str, int]] = field(default_factory=list)
    """Monitors that alarmed, each with the policy version of its window."""
    rewards: list[float] = field(default_factory=list)
    """Mean reward of each step."""

    def line(self) -> str:
        """The run as a sentence."""
        said = ", ".join(f"{monitor} at version {version}" for monitor, version in self.alarms) or "none"
        tenth = max(1, len(self.rewards) // 10)
        return (
            f"seed {self.seed}: reward {fmean(self.rewards[:tenth]):.2f} to {fmean(self.rewards[-tenth:]):.2f}, "
            f"{self.windows} windows, {self.judged} values judged; alarms: {said}"
        )


def observations(number: int, seed: int, members: Sequence[Attempt[SearchEpisode]], version: int) -> list[Observation]:
    """Returns the observations of a group's attempts and of their rewards."""
    found = []
    for place, member in enumerate(members):
        made = member.episode.trajectory(f"{seed}-{number}-{place}", segments_of(member.calls, version=version))
        if made.started is None:
            raise ValueError(f"{made.trajectory_id} has no start")
        started = made.started.model_copy(update={"group_id": f"{seed}-{number}", "group_size": len(members)})
        trajectory = made.model_copy(update={"started": started})
        found += [observe_attempt(trajectory), observe_reward(score(trajectory, NOWHERE))]
    return found


def watched(
    seed: int, steps: int, groups: int = 16, report: Callable[[Step], None] = lambda _: None
) -> tuple[Watched, list[Observation]]:
    """Learn for ``steps`` steps of ``groups`` groups of 8; returns what the monitors said, and what they read."""
    result, seen = Watched(seed), list[Observation]()
    episodes = training_episodes(spec=SEARCH)

    def after_group(number: int, members: Sequence[Attempt[SearchEpisode]]) -> None:
        for each in observations(number, seed, members, len(result.rewards)):
            seen.append(each)

    def after_step(step: object) -> None:
        if isinstance(step, Step):
            result.rewards.append(step.values["reward"])
            report(step)

    settings = LearnSettings(
        sampling_settings(),
        trainer=trainer_settings(steps=steps, substeps=4, groups_per_step=groups, seed=seed),
        maximum=SEARCH.maximum,
        first_task=seed * TASKS_PER_SEED,
    )
    learn(load_model(BASE), episodes, settings, report=after_step, after_group=after_group)
    return judged(result, seen), seen


def judged(result: Watched, seen: Iterable[Observation]) -> Watched:
    """Returns ``result`` with what the monitors say about the observations ``seen``."""
    readings, alerts = watch(seen, WatchRules(anneals_of(WatchSettings(), REWARDS_OF_AGENTS)))
    last = {(each.lane, each.window): each.last_version or 0 for each in readings}
    return replace(
        result,
        windows=len(readings),
        judged=sum(each.expected is not None for window in readings for each in window.readings.values()),
        alarms=[
            (alert.episode.monitor, last[Lane(str(alert.details["lane"])), int(alert.details["window"])])
            for alert in alerts
            if alert.episode and alert.episode.state is EpisodeState.OPENED
        ],
    )


def as_lines(seen: Iterable[Observation]) -> bytes:
    """Returns observations as compressed lines of JSON, the same bytes for the same observations."""
    lines = (each.model_dump_json(exclude_defaults=True) for each in seen)
    return gzip.compress("".join(f"{line}\n" for line in lines).encode(), 9, mtime=0)


def from_lines(content: bytes) -> list[Observation]:
    """Returns the observations in :func:`as_lines`. Raises ``ValueError``."""
    return [Observation.model_validate_json(line) for line in gzip.decompress(content).splitlines()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Learn, watch and print; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--observations", type=Path, help="write those of the last run there (.jsonl.gz)")
    options = parser.parse_args(arguments)
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        result, seen = watched(seed, options.steps, options.groups)
        print(result.line(), flush=True)
        if options.observations:
            options.observations.write_bytes(as_lines(seen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
