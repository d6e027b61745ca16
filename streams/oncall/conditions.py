"""The conditions that somebody on call must hear of: what is measured, from when on it is an alert, and its runbook.

    lag   age of the next record of a consumer group   ≥ 300 s for 60 s   headrace_oncall_lag_seconds   runbook lag

The process ``oncall`` measures them and raises alerts; ``headrace metrics --rules`` makes rules for Prometheus of the
same list.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.schemas.records.alert import Severity
from headrace.streams.metrics import Instrument

_LIMITS = (
    *("lag_s", "dead_letters", "step_age_s", "rollout_age_s", "sdk_dropped", "feedback_lost", "contradictions"),
    *("window_s", "hold_s", "steps_hold_s"),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """From which values on a condition is an alert."""

    lag_s: float = 300.0
    """Age in seconds of the next record that a consumer group has not processed."""
    dead_letters: float = 1.0
    """Dead letters within ``window_s``."""
    step_age_s: float = 1800.0
    """Seconds since the last optimiser step, or since the trainer started, of a run that is not finished."""
    rollout_age_s: float = 900.0
    """Seconds since the last rollout of a run that is not finished."""
    sdk_dropped: float = 1.0
    """Events that one SDK dropped within ``window_s``."""
    feedback_lost: float = 1.0
    """Feedback within ``window_s`` about trajectories that nobody knows."""
    contradictions: float = 1.0
    """Contradictions in the ledger."""
    window_s: float = 600.0
    """Seconds over which dead letters, dropped events and lost feedback are counted: an alert is resolved when there
    was none for so long."""
    hold_s: float = 60.0
    """Seconds for which lag and contradictions must last."""
    steps_hold_s: float = 300.0
    """Seconds for which ``step_age_s`` must be exceeded: a run that is resumed has so long for its first step."""

    def __post_init__(self) -> None:
        wrong = [name for name in _LIMITS if not getattr(self, name) > 0]
        if wrong:
            raise ValueError(f"{', '.join(wrong)} must be above 0")


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that must not last."""

    name: str
    """Its name in alerts, and of its runbook."""
    about: str
    """What an alert means, in a sentence."""
    limit: str
    """The limit: a field of :class:`Limits`."""
    metric: Instrument
    """The measured value, as Prometheus gets it."""
    subject: str
    """Label of the metric that names what it is about: ``group``, ``run``, ``topic``, ``source``; empty: nothing."""
    helps: str
    """A command that helps."""
    hold: str | None = None
    """How long the value must be beyond the limit: a field of :class:`Limits`; ``None``: not at all."""
    severity: Severity = Severity.WARNING
    """How urgent it is."""


def limit_of(condition: Condition, limits: Limits) -> float:
    """Returns the value from which on ``condition`` is an alert."""
    return float(getattr(limits, condition.limit))


def hold_of(condition: Condition, limits: Limits) -> float:
    """Returns the seconds for which it must last."""
    return 0.0 if condition.hold is None else float(getattr(limits, condition.hold))


@dataclass(frozen=True, slots=True)
class Found:
    """The present value of a condition for one subject."""

    subject: str
    """What it is about: a consumer group, a run, a topic, a source."""
    value: float
    """The value, in the metric's unit."""
    run: str = ""
    """Training run; empty if there is none."""
    details: Mapping[str, str | int | float] = field(default_factory=dict)
    """Figures that help to find the cause."""


LAG = Condition(
    "lag",
    "A consumer group is far behind: what it writes is late.",
    "lag_s",
    Instrument("headrace.oncall.lag", "s", "Age of the next record that a consumer group has not processed."),
    "group",
    "headrace topology --lag",
    hold="hold_s",
)
DEAD_LETTERS = Condition(
    "dead-letters",
    "Records could not be processed, and wait as dead letters.",
    "dead_letters",
    Instrument("headrace.oncall.dead_letters", "{record}", "Dead letters within the window, by topic."),
    "topic",
    "headrace dead-letters list --open",
)
NO_STEPS = Condition(
    "no-steps",
    "The trainer of a run makes no steps.",
    "step_age_s",
    Instrument("headrace.oncall.step.age", "s", "Seconds since the last optimiser step of a run that is not finished."),
    "run",
    "headrace ledger",
    hold="steps_hold_s",
    severity=Severity.CRITICAL,
)
SILENT_SAMPLERS = Condition(
    "silent-samplers",
    "No rollouts of a run arrive.",
    "rollout_age_s",
    Instrument("headrace.oncall.rollout.age", "s", "Seconds since the last rollout of a run that is not finished."),
    "run",
    "headrace ledger",
)
SDK_DROPS = Condition(
    "sdk-drops",
    "An SDK drops events: trajectories will be incomplete.",
    "sdk_dropped",
    Instrument("headrace.oncall.sdk.dropped", "{event}", "Events that an SDK dropped within the window, by source."),
    "source",
    "headrace tail sdk-stats",
)
LOST_FEEDBACK = Condition(
    "lost-feedback",
    "Feedback is about trajectories that nobody knows: it changes no reward.",
    "feedback_lost",
    Instrument("headrace.oncall.feedback.lost", "{feedback}", "Feedback within the window about unknown trajectories."),
    "",
    "headrace tail feedback",
)
LEDGER_MISMATCH = Condition(
    "ledger-mismatch",
    "The ledger does not add up: a trajectory has two fates, or records are lost.",
    "contradictions",
    Instrument("headrace.oncall.ledger.contradictions", "{trajectory}", "Contradictions in the ledger."),
    "",
    "headrace ledger",
    hold="hold_s",
    severity=Severity.CRITICAL,
)

CONDITIONS: tuple[Condition, ...] = (
    LAG,
    DEAD_LETTERS,
    NO_STEPS,
    SILENT_SAMPLERS,
    SDK_DROPS,
    LOST_FEEDBACK,
    LEDGER_MISMATCH,
)
"""All conditions that ``oncall`` measures."""

OPEN_MONITORS = Instrument(
    "headrace.oncall.monitors.open", "{alert}", "Open alerts of the monitors, by monitor: reward, heldout, tripwire …"
)
"""Alerts of ``watch`` that are not resolved, so that rules of Prometheus can be about them, too."""
CHECKED = Instrument("headrace.oncall.checked", "s", "Seconds since the conditions were last measured.")
"""By ``what``: kafka, lag, ledger."""
