"""Settings of a supervised stage: what is looked at, what is chosen, how it is imitated."""

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

_ELSEWHERE = frozenset({"bootstrap", "out", "threads"})
"""Settings that say where, not what is learnt: left out of the hash."""


class TuningStage(StrEnum):
    """What is imitated."""

    SFT = "sft"
    """What Context-1's filter keeps, to warm up a base model."""
    RFT = "rft"
    """Successes of reinforcement: rejection sampling."""


@dataclass(frozen=True, slots=True)
class StageConfig:
    """Settings of a supervised stage; a setting that cannot work raises ``ValueError`` naming it."""

    bootstrap: str
    """Kafka's address."""
    model_dir: Path
    """Hugging Face directory of the model to begin with."""
    out: Path
    """Folder in which the model appears when the stage is done."""
    stage: TuningStage
    """What is imitated: ``sft`` by the table ``context1``, ``rft`` by the table ``successes``."""
    source: Source = field(default_factory=Source)
    """Which rewards are looked at."""
    context1: Context1Filter = field(default_factory=Context1Filter)
    """Bounds of the stage sft."""
    successes: RejectionSampling = field(default_factory=RejectionSampling)
    """Bounds of the stage rft."""
    held_out_share: float = 0.05
    """Share of tasks that are never trained on, decided by a task's id alone: the same in every stage."""
    training: SupervisedConfig = field(default_factory=SupervisedConfig)
    """How it is imitated."""
    threads: int = 2
    """Torch's threads on a CPU."""
    device: str = "cpu"
    """Torch device."""
    layers: LayerSettings = field(default_factory=LayerSettings)
    """What a pass trades for what: {"activation_checkpointing": true}."""

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
        """Hash (hex) of the settings that decide what is learnt, as canonical JSON."""
        settings = {name: value for name, value in asdict(self).items() if name not in _ELSEWHERE}
        return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
