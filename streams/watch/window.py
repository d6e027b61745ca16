"""Windows: observations of one key that are measured together, and how they are divided.

rows of v41 … 64 of them │ first row of v42 …        a window ends at a newer version if it has at least 32 rows,
                                                     otherwise at 256
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from headrace.schemas.records.watch import Lane, Observation
from headrace.streams.watch.chart import Chart
from headrace.streams.watch.distances import deviation, mean
from headrace.streams.watch.offsets import Offset
from headrace.streams.watch.shares import Shares

LEAST, LARGEST = 32, 256
"""Rows from which a window may end at a newer version, and at which it ends anyway."""
LARGEST_WITHOUT_VERSION = 64
"""Rows at which windows of lanes end that do not distinguish versions."""


VALUE, WEIGHT = "value:", "weight:"
"""Before the name of a reward's component: names of its value and of its weight in a row."""


class Key(NamedTuple):
    """What is compared: observations with the same key."""

    lane: Lane
    """Kind of observations."""
    run: str = ""
    """Training run."""
    agent: str = ""
    """Agent."""
    task_source: str = ""
    """Task source."""
    spec: str = ""
    """Reward spec, or signal of feedback."""


@dataclass(frozen=True, slots=True)
class Row:
    """An observation in a window."""

    id: str
    """Trajectory."""
    version: int | None
    """Policy version."""
    time_ms: int
    """Stream time, Unix milliseconds."""
    values: dict[str, float]
    """Numbers, by name."""
    labels: tuple[str, ...] = ()
    """Labels."""
    task_source: str = ""
    """Task source."""
    tenant: str = ""
    """Tenant."""
    difficulty: str = ""
    """Difficulty of the task; empty if it names none."""
    group: str = ""
    """Group of attempts at the same prompt, of a reward; empty if it has none."""
    tools_offered: str = ""
    """The tools that the model may use, as one label; empty if unknown."""


def keys_of(observation: Observation) -> list[Key]:
    """Returns the keys under which ``observation`` counts; none for what the policy in training did not do itself.

    An evaluation counts only as a reward, where it is the held-out side of a comparison. A rejection and a feedback
    know neither agent nor task source: their keys get those of the trajectory (``places.py``).
    """
    run, agent, source = observation.run, observation.agent, observation.task_source
    match observation.of:
        case Lane.ATTEMPT:
            if observation.values.get("frozen") or observation.values.get("evaluates"):
                return []
            return [Key(Lane.ATTEMPT, run, agent, source), Key(Lane.INPUT, run, agent)]
        case Lane.REWARD:
            return [] if observation.values.get("frozen") else [Key(Lane.REWARD, run, agent, source, observation.spec)]
        case Lane.FATE:
            return [Key(Lane.FATE, run)]
        case Lane.FEEDBACK:
            return [Key(Lane.FEEDBACK, spec=observation.spec)]
        case Lane.INPUT:
            return []


def row_of(observation: Observation, time_ms: int) -> Row:
    """Returns ``observation``, whose record has the timestamp ``time_ms``, as a row."""
    return Row(
        observation.trajectory_id,
        observation.version,
        time_ms,
        dict(observation.values),
        tuple(observation.labels),
        observation.task_source,
        observation.tenant,
        observation.difficulty,
        observation.group,
        observation.tools_offered,
    )


def ends_before(key: Key, rows: Sequence[Row], row: Row) -> bool:
    """Whether the window ``rows`` of ``key`` ends before the next ``row``."""
    if key.lane not in (Lane.ATTEMPT, Lane.REWARD):
        return len(rows) >= LARGEST_WITHOUT_VERSION
    if len(rows) < LEAST:
        return False
    newest = max((each.version for each in rows if each.version is not None), default=None)
    newer = row.version is not None and newest is not None and row.version > newest
    return newer or len(rows) >= LARGEST


@dataclass(slots=True)
class View:
    """A window with what measures may compare it with."""

    rows: Sequence[Row]
    """All rows."""
    charts: dict[str, Chart] = field(default_factory=dict)
    """Charts of this key before the window, by monitor."""
    shares: dict[str, Shares] = field(default_factory=dict)
    """Usual shares of labels before the window, by monitor."""
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Values of single trajectories in the baseline, by name."""
    offsets: Mapping[str, Mapping[str, Offset]] = field(default_factory=dict)
    """Offsets of difficulties before the window, by the name of the value."""
    rests: Mapping[str, float] = field(default_factory=dict)
    """What the reward paid besides a component before the window, by component."""
    reward_rise: float | None = None
    """How much the mean reward is above that of the baseline, in standard deviations of single trajectories; ``None``
    while the baseline is learnt."""
    now: dict[str, dict[str, float]] = field(default_factory=dict)
    """Shares of labels in the window, by monitor, as far as they were asked for."""
    _columns: dict[str, list[float]] = field(default_factory=dict)
    _acted: list[Row] | None = None

    @property
    def acted(self) -> list[Row]:
        """The rows without evaluations."""
        if self._acted is None:
            self._acted = [row for row in self.rows if not row.values.get("evaluates")]
        return self._acted

    @property
    def evaluated(self) -> list[Row]:
        """The evaluations among the rows."""
        return [row for row in self.rows if row.values.get("evaluates")]

    def column(self, name: str) -> list[float]:
        """Returns the value ``name`` of each row that has it, without evaluations."""
        if name not in self._columns:
            self._columns[name] = [row.values[name] for row in self.acted if name in row.values]
        return self._columns[name]

    def pairs(self, x: str, y: str) -> tuple[list[float], list[float]]:
        """Returns the values ``x`` and ``y`` of the rows that have both, without evaluations."""
        both = [row.values for row in self.acted if x in row.values and y in row.values]
        return [values[x] for values in both], [values[y] for values in both]


class Measured(NamedTuple):
    """A monitor's value for a window."""

    value: float
    """The value."""
    trajectories: int
    """Number of rows that it was computed from."""
    spread: float = 1.0
    """Standard deviation of single rows, for changes that are measured in it."""
    label: str = ""
    """The label that it is about, if any."""
    centres: tuple[float, ...] = ()
    """Means that single rows are compared with, to tell which of them show it."""
    falls: bool = False
    """Whether the evidence is that it has fallen; known after it was judged."""


Measure: TypeAlias = Callable[[View], Measured | None]
"""Measures a window; ``None`` if too few of its rows have the values."""
Guilt: TypeAlias = Callable[[Row, Measured], float | None]
"""How well a row shows what is measured; ``None`` if it does not. The examples are the rows that show it best."""


def averaged(values: Sequence[float], least: int) -> Measured | None:
    """Returns the mean of ``values`` with their standard deviation; ``None`` for fewer than ``least``."""
    return Measured(mean(values), len(values), deviation(values)) if len(values) >= least else None
