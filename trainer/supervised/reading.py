"""Reads candidates for imitation from the log: the rewards of one spec, and the records of their trajectories."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from headrace.schemas.kafka.read_back import Place, read_back
from headrace.schemas.kafka.reading import KafkaRecord, read_to_end
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.side_topics import REFERENCES, SIDE, side_topic
from headrace.schemas.topics import REWARDS, TRAJECTORIES, Topic
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.trainer.supervised.attempt import ScoredTrajectory, attempt_of

AT_ONCE = 500
"""Trajectories held in memory at a time."""

ReadProgress = Callable[[str, int], None]
"""Called with the kind of records, and the number read so far."""


class NothingToImitate(LookupError):
    """The log does not hold the requested trajectories; the message names what it holds and the remedy."""


@dataclass(frozen=True, slots=True)
class Source:
    """Which rewards are read."""

    replay: str = ""
    """Name of a replay whose rewards are read instead of the live ones."""
    spec: str = ""
    """Reward spec: ``search@3``. Required if the log holds rewards of several."""
    run: str = ""
    """Only trajectories of this training run; empty: of all runs."""
    agent: str = ""
    """Only trajectories of this agent; empty: of all agents."""

    @property
    def rewards(self) -> Topic:
        """The topic of the rewards."""
        return side_topic(REWARDS, self.replay) if self.replay else REWARDS


@dataclass(slots=True)
class Candidates:
    """Candidates for imitation in the log."""

    attempts: list[ScoredTrajectory] = field(default_factory=list)
    """One for each reward, in the log's order."""
    trajectories: Topic = TRAJECTORIES
    """The topic of their places."""
    unreadable: int = 0
    """Rewards that could not be read."""


async def read_candidates(bootstrap: str, source: Source, on_read: ReadProgress) -> Candidates:
    """Read the attempts of ``source``, up to the log's current end.

    Raises :class:`NothingToImitate` if there is none, or if they are of several specs and ``source`` names none.
    """
    candidates, specs, others = Candidates(), Counter[str](), Counter[str]()
    count = 0
    try:
        async for record in read_to_end(bootstrap, source.rewards):
            count += 1
            on_read("rewards", count)
            reward = _reward(record)
            if reward is None:
                candidates.unreadable += 1
            elif (source.run and reward.run != source.run) or (source.agent and reward.agent != source.agent):
                others[f"{reward.agent} of run {reward.run}"] += 1
            else:
                specs[reward.spec] += 1
                if source.spec in ("", reward.spec):
                    candidates.attempts.append(attempt_of(reward))
                    if (REFERENCES, SIDE) in record.headers:
                        candidates.trajectories = side_topic(TRAJECTORIES, source.replay)
    except LookupError as error:
        raise NothingToImitate(f"there is no topic {source.rewards.name}: {error}") from error
    if candidates.attempts and (source.spec or len(specs) == 1):
        return candidates
    if len(specs) > 1 and not source.spec:
        raise NothingToImitate(f"{source.rewards.name} holds rewards of {_listed(specs)}: choose one by spec")
    wanted = f"rewards of {source.spec or 'any spec'}"
    there = f"of {_listed(specs)}" if specs else f"none but of {_listed(others)}" if others else "none at all"
    raise NothingToImitate(
        f"{source.rewards.name} holds no {wanted} that match; it holds {there}. "
        "`headrace replay NAME --rewards SPEC` scores history by another spec"
    )


async def trajectories_at(
    bootstrap: str, topic: Topic, places: Mapping[str, Place], on_read: ReadProgress
) -> AsyncIterator[tuple[str, Trajectory | None]]:
    """Yield the record of each trajectory of ``places`` (id → place), in log order, :data:`AT_ONCE` in memory.

    ``None`` if it has expired, is unreadable or is another trajectory's.
    """
    ordered = sorted(places.items(), key=lambda item: item[1])
    for start in range(0, len(ordered), AT_ONCE):
        some = ordered[start : start + AT_ONCE]
        found = await read_back(bootstrap, topic, [place for _, place in some])
        for trajectory_id, place in some:
            yield trajectory_id, _trajectory(found, place, trajectory_id)
        on_read("trajectories", start + len(some))


def _reward(record: KafkaRecord) -> Reward | None:
    try:
        _, payload = decode(record.headers, record.value)
    except UnreadableRecord:
        return None
    return payload if isinstance(payload, Reward) else None


def _trajectory(found: Mapping[Place, KafkaRecord], place: Place, trajectory_id: str) -> Trajectory | None:
    if place not in found:
        return None
    try:
        _, payload = decode(found[place].headers, found[place].value)
    except UnreadableRecord:
        return None
    return payload if isinstance(payload, Trajectory) and payload.trajectory_id == trajectory_id else None


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} ({count:,})" for name, count in counts.most_common(5))
