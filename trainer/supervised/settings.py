"""Settings of a supervised stage: which trajectories are read, which are selected, how they are imitated."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from headrace.trainer.model.layers import LayerSettings
from headrace.trainer.supervised.context1_filter import Context1Filter
from headrace.trainer.supervised.fine_tune import SupervisedConfig
from headrace.trainer.supervised.reading import Source
from headrace.trainer.supervised.rejection_sampling import RejectionSampling

_NOT_HASHED = frozenset({"bootstrap", "out", "threads"})
"""Settings of where to run, not of what is learnt: excluded from the hash."""


class TuningStage(StrEnum):
    """The kind of a supervised stage."""

    SFT = "sft"
    """Warm-up of a base model with the selection of Context-1's filter."""
    RFT = "rft"
    """Rejection sampling: imitation of successful trajectories."""


@dataclass(frozen=True, slots=True)
class StageConfig:
    """Settings of a supervised stage; an invalid setting raises ``ValueError`` naming it."""

    bootstrap: str
    """Kafka's address."""
    model_dir: Path
    """Hugging Face directory of the initial model."""
    out: Path
    """Folder for the model, created when the stage is complete."""
    stage: TuningStage
    """The stage: ``sft`` with the settings ``context1``, or ``rft`` with the settings ``successes``."""
    source: Source = field(default_factory=Source)
    """Which rewards are read."""
    context1: Context1Filter = field(default_factory=Context1Filter)
    """Filter of the stage sft."""
    successes: RejectionSampling = field(default_factory=RejectionSampling)
    """Filter of the stage rft."""
    held_out_share: float = 0.05
    """Share of tasks that are never trained on; depends on a task's id alone, so it is the same in every stage."""
    training: SupervisedConfig = field(default_factory=SupervisedConfig)
    """Settings of the fine-tuning."""
    threads: int = 2
    """Torch threads on a CPU."""
    device: str = "cpu"
    """Torch device."""
    layers: LayerSettings = field(default_factory=LayerSettings)
    """How layers are computed: {"activation_checkpointing": true}."""

    def __post_init__(self) -> None:
        if self.stage not in list(TuningStage):
            raise ValueError(f"stage is {self.stage!r}: choose one of {', '.join(TuningStage)}")
        if not 0 < self.held_out_share < 1:
            raise ValueError(f"held_out_share is {self.held_out_share}: it must be between 0 and 1")
        if self.threads < 1:
            raise ValueError(f"threads is {self.threads}: it must be at least 1")

    @property
    def filter(self) -> Context1Filter | RejectionSampling:
        """The stage's filter."""
        return self.context1 if self.stage == TuningStage.SFT else self.successes

    def sha256(self) -> str:
        """Returns the hash (hex) of the settings that decide what is learnt, as canonical JSON."""
        settings = {name: value for name, value in asdict(self).items() if name not in _NOT_HASHED}
        return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
