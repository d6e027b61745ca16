"""Settings of the learner."""

from dataclasses import dataclass

from headrace.trainer.learning.optimizers import OptimizerSettings
from headrace.trainer.learning.plausibility import PlausibilitySettings
from headrace.trainer.learning.schedules import ScheduleSettings
from headrace.trainer.losses.loss import Loss
from headrace.trainer.losses.settings import CorrectionSettings, HintSettings, KlSettings
from headrace.trainer.model.settings import ModelSettings
from headrace.trainer.parallel.settings import ParallelSettings


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """Settings of a learner; the fields of the same names in ``TrainerConfig`` describe them in full."""

    model: ModelSettings
    """The trained model."""
    loss: Loss
    """The loss, with the run's settings applied."""
    correction: CorrectionSettings
    """Weights and masks for off-policy tokens."""
    kl: KlSettings
    """KL penalty."""
    hints: HintSettings
    """Distillation of hints."""
    constant_length: int
    """Divisor of the normaliser ``constant_length``, in tokens."""
    optimizer: OptimizerSettings
    """The optimiser."""
    schedule: ScheduleSettings
    """The learning rate over the steps."""
    max_grad_norm: float
    """Gradients are scaled down to this norm."""
    plausibility: PlausibilitySettings
    """When recorded log-probabilities count as implausible."""
    substeps: int
    """Gradient steps per batch."""
    max_tokens_per_pass: int
    """Tokens of a micro-batch (one forward and backward pass)."""
    parallel: ParallelSettings
    """How several ranks work together."""
    canary_shape: tuple[int, int]
    """Number of canaries published with a version, and the tokens of each."""
