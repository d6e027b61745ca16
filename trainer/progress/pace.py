"""The pace of a trainer: the usual duration of a step's phases, the time of the next weights, the bottleneck. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

_NEWEST = 0.3
"""Weight of the newest step in the moving averages, which cover about the last five steps."""
_MOST = 0.5
"""Share of the time above which a phase counts as the bottleneck."""


class Phase(StrEnum):
    """The phase of a trainer. A step passes through all but the first and the last, in this order."""

    STARTING = "starting"
    """Loading the model and the position."""
    WAITING = "waiting"
    """Waiting for groups: reading and admitting them."""
    TRAINING = "training"
    """Forward, backward, optimiser."""
    SAVING = "saving"
    """Writing the checkpoint."""
    PUBLISHING = "publishing"
    """Uploading the weights and announcing them."""
    DONE = "done"
    """All configured steps are trained."""


_STEP = (Phase.WAITING, Phase.TRAINING, Phase.SAVING, Phase.PUBLISHING)


@dataclass(frozen=True, slots=True)
class StepPace:
    """Seconds that each phase of a step usually takes."""

    usual_s: Mapping[Phase, float] = field(default_factory=dict)
    """Moving averages; empty before the first step."""

    def after(self, seconds: Mapping[Phase, float]) -> "StepPace":
        """Returns the pace after a step that took ``seconds``."""
        taken = {phase: seconds.get(phase, 0.0) for phase in _STEP}
        usual = self.usual_s or taken
        return StepPace({phase: (1 - _NEWEST) * usual[phase] + _NEWEST * taken[phase] for phase in _STEP})

    def share(self, phase: Phase) -> float:
        """Returns the share of a step's time that ``phase`` takes, in [0, 1]."""
        return self.usual_s.get(phase, 0.0) / (sum(self.usual_s.values()) or 1.0)

    def next_weights_s(self, phase: Phase, since_s: float, groups: int, wanted: int) -> float | None:
        """Returns the seconds until the current step is announced; ``None`` if they cannot be estimated.

        ``since_s``: seconds in the current ``phase``. While the trainer waits, the estimate extrapolates the rate at
        which the groups so far arrived.
        """
        if not self.usual_s or phase not in _STEP:
            return None
        left = max(0.0, self.usual_s[phase] - since_s)
        if phase == Phase.WAITING and groups:
            left = since_s / groups * max(0, wanted - groups)
        elif phase == Phase.WAITING and since_s > self.usual_s[phase]:
            return None  # overdue: there is no basis for an estimate
        return left + sum(self.usual_s[later] for later in _STEP[_STEP.index(phase) + 1 :])

    def verdict(self) -> str:
        """Returns the trainer's bottleneck in words; empty before the first step."""
        if not self.usual_s:
            return ""
        phase = max(_STEP, key=self.share)
        share = f"{100 * self.share(phase):.0f} % of the time"
        if self.share(phase) < _MOST:
            return "balanced: no phase takes half of the time"
        return {
            Phase.WAITING: f"starved: {share} is spent waiting for groups",
            Phase.TRAINING: f"busy: {share} is spent training",
            Phase.SAVING: f"delayed by the disk: {share} is spent writing checkpoints",
            Phase.PUBLISHING: f"delayed by the object store or Kafka: {share} is spent publishing",
        }[phase]
