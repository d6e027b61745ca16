"""What monitors read, and what they say: observations of trajectories, and readings of windows of them.

    observed  {"of": "attempt", "trajectory_id": "t-1", "agent": "search", "values": {"turns": 6, "talks": 0}, …}
    readings  {"lane": "attempt", "first_version": 41, "last_version": 41, "readings": {"talks": {"value": 0.31, …}}}

An observation has no text and no tokens of the agent: numbers, and names of actions and reasons.
"""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import NonNegativeFloat

from headrace.schemas.bounds import Count, Name, Total, UnixMs, Within
from headrace.schemas.model import Part, Record

MAX_OBSERVED = 1e16
"""Largest absolute value of an observation: above every count, and small enough that sums of squares are finite."""


class Lane(StrEnum):
    """The kind of observations that are compared with one another."""

    ATTEMPT = "attempt"
    """Behaviour of the policy, from a trajectory."""
    REWARD = "reward"
    """Score of a trajectory."""
    FATE = "fate"
    """Whether a trajectory was trained, or rejected with a reason."""
    FEEDBACK = "feedback"
    """Feedback about a trajectory."""
    INPUT = "input"
    """What the policy was asked: of the same trajectories as ``attempt``, over all task sources of an agent."""


class Observation(Record):
    """What monitors need to know of a trajectory, a reward, a rejection or a feedback."""

    TYPE: ClassVar[str] = "headrace.trajectory.observed.v1"

    of: Lane
    """Which record it was made of."""
    trajectory_id: Name
    """The trajectory."""
    part: Name = ""
    """Tells several observations of one trajectory apart: the reward's spec, the id of the feedback."""
    run: Name = ""
    """Training run; empty if unknown."""
    agent: Name = ""
    """Agent; empty if unknown."""
    task_source: Name = ""
    """Where the task comes from: ``source`` of the task's data; empty if it has none."""
    difficulty: Name = ""
    """Difficulty of the task, of an attempt; empty if the task names none."""
    tools_offered: Name = ""
    """The tools that an attempt's model may use, as one label; empty if unknown."""
    group: Name = ""
    """Group of attempts at the same prompt, of a reward; empty if it has none."""
    spec: Name = ""
    """Reward spec with its version, of a reward; the signal, of feedback."""
    tenant: Name = ""
    """Owner of the data; empty if unknown."""
    version: Total | None = None
    """Newest policy version among its tokens; ``None`` if unknown."""
    values: dict[Name, Annotated[float, Within(MAX_OBSERVED)]] = {}
    """Numbers, by name."""
    labels: list[Name] = []
    """Of an attempt: its action trigrams. Of a reward and a rejection: why it is not trained."""


class LevelAccepted(Record):
    """Somebody has decided that what an open alert of a monitor shows is usual from now on. The monitor ends the alert,
    forgets what was usual, and learns it anew from the next windows."""

    TYPE: ClassVar[str] = "headrace.level.accepted.v1"

    episode: Name
    """Id of the alert's episode. One that has ended meanwhile is left as it is."""
    monitor: Name
    """The monitor."""
    lane: Lane
    """Kind of its observations."""
    run: Name = ""
    """Training run; empty if unknown."""
    agent: Name = ""
    """Agent; empty if unknown."""
    task_source: Name = ""
    """Task source; empty if the tasks name none."""
    spec: Name = ""
    """Reward spec with its version, or signal of feedback; empty for other lanes."""
    by: Name
    """Who decided it."""


class Reading(Part):
    """A monitor's value for one window, compared with those before it. Effects are in standard deviations of the
    windows' values: they do not grow with the number of trajectories, as p-values would."""

    value: float
    """The value."""
    trajectories: Count
    """Number of trajectories of the window that it was computed from."""
    pinned: float | None = None
    """Mean of the first windows, which stays: of this run, or of the one that ``workers.watch_baselines`` names for it.
    ``None`` while it is learnt, and for a reading without a baseline."""
    expected: float | None = None
    """Moving mean, with which the value is compared; ``None`` while it is learnt."""
    sd: NonNegativeFloat | None = None
    """Standard deviation of the value from window to window; ``None`` while it is learnt."""
    effect: float | None = None
    """(value − pinned) / sd."""
    change: float | None = None
    """(value − value of the window before) / sd."""
    strength: NonNegativeFloat = 0.0
    """Evidence for a change: from 1 on the monitor alarms."""


class Readings(Record):
    """What the monitors of one key say about one window of trajectories."""

    TYPE: ClassVar[str] = "headrace.monitor.read.v1"

    lane: Lane
    """Kind of observations."""
    run: Name
    """Training run; empty if unknown."""
    agent: Name
    """Agent; empty if unknown."""
    task_source: Name
    """Task source; empty if the tasks name none, for inputs, and if the trajectory of a fate or feedback is unknown."""
    spec: Name
    """Reward spec with its version, or signal of the feedback; empty for other lanes."""
    window: Total
    """Number of the window of this key, from 0."""
    trajectories: Count
    """Number of its observations."""
    first_version: Total | None
    """Oldest policy version in the window; ``None`` if unknown."""
    last_version: Total | None
    """Newest policy version in the window; ``None`` if unknown."""
    since_ms: UnixMs
    """Stream time of its first observation, Unix milliseconds."""
    until_ms: UnixMs
    """Stream time of its last observation, Unix milliseconds."""
    readings: dict[Name, Reading]
    """Reading by monitor."""
