"""The pace of a trainer: what a step's phases usually take, when the next weights come, and what holds it up. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

_NEWEST = 0.3
"""Weight of the newest step in the averages: about the last five steps count."""
_MOST = 0.5
"""Share of the time from which on a phase is what holds the trainer up."""


class Phase(StrEnum):
    """What a trainer is doing; a step goes through those between the first and the last, in this order."""

    STARTING = "starting"
    """Loading the model and taking up its position."""
    WAITING = "waiting"
    """For groups: reading and admitting what comes."""
    TRAINING = "training"
    """Forward, backward, optimiser."""
    SAVING = "saving"
    """Writing the checkpoint."""
    PUBLISHING = "publishing"
    """Uploading the weights and announcing them."""
    DONE = "done"
    """All steps that were asked for are trained."""


_STEP = (Phase.WAITING, Phase.TRAINING, Phase.SAVING, Phase.PUBLISHING)


@dataclass(frozen=True, slots=True)
class StepPace:
    """Seconds that each phase of a step usually takes."""

    usual_s: Mapping[Phase, float] = field(default_factory=dict)
    """Moving averages; empty before the first step."""

    def after(self, seconds: Mapping[Phase, float]) -> "StepPace":
        """The pace after a step that took ``seconds``."""
        taken = {phase: seconds.get(phase, 0.0) for phase in _STEP}
        usual = self.usual_s or taken
        return StepPace({phase: (1 - _NEWEST) * usual[phase] + _NEWEST * taken[phase] for phase in _STEP})

    def share(self, phase: Phase) -> float:
        """Share of a step's time that ``phase`` takes, in [0, 1]."""
        return self.usual_s.get(phase, 0.0) / (sum(self.usual_s.values()) or 1.0)

    def next_weights_s(self, phase: Phase, since_s: float, groups: int, wanted: int) -> float | None:
        """Seconds until the step under way is announced; ``None`` where nothing is known of it.

        ``since_s``: how long the present ``phase`` has taken. While groups are awaited, those that came say how fast
        they come.
        """
        if not self.usual_s or phase not in _STEP:
            return None
        left = max(0.0, self.usual_s[phase] - since_s)
        if phase == Phase.WAITING and groups:
            left = since_s / groups * max(0, wanted - groups)
        elif phase == Phase.WAITING and since_s > self.usual_s[phase]:
            return None  # it should have come by now: whatever were said would be a guess
        return left + sum(self.usual_s[later] for later in _STEP[_STEP.index(phase) + 1 :])

    def verdict(self) -> str:
        """What holds the trainer up, in words; empty before the first step."""
        if not self.usual_s:
            return ""
        phase = max(_STEP, key=self.share)
        share = f"{100 * self.share(phase):.0f} % of the time"
        if self.share(phase) < _MOST:
            return "balanced: no phase takes half of the time"
        return {
            Phase.WAITING: f"starved: {share} goes in waiting for groups",
            Phase.TRAINING: f"busy: {share} goes in training",
            Phase.SAVING: f"held up by the disk: {share} goes in checkpoints",
            Phase.PUBLISHING: f"held up by the object store or Kafka: {share} goes in publishing",
        }[phase]
