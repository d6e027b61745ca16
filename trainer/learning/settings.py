"""What the learner needs to know, beside the model itself."""

from dataclasses import dataclass

from headrace.trainer.learning.optimizers import OptimizerSettings
from headrace.trainer.learning.plausibility import PlausibilitySettings
from headrace.trainer.learning.schedules import ScheduleSettings
from headrace.trainer.losses.loss import Loss
from headrace.trainer.losses.settings import CorrectionSettings, KlSettings
from headrace.trainer.model.settings import ModelSettings
from headrace.trainer.parallel.settings import ParallelSettings


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """Settings of a learner; what each does is said at the setting of that name in ``TrainerConfig``."""

    model: ModelSettings
    """The model that it trains."""
    loss: Loss
    """The loss, as the run's settings have it."""
    correction: CorrectionSettings
    """Weights and masks for tokens that another policy sampled."""
    kl: KlSettings
    """Penalty for leaving a reference policy."""
    constant_length: int
    """Divisor in tokens of the normaliser ``constant_length``."""
    optimizer: OptimizerSettings
    """What moves the weights."""
    schedule: ScheduleSettings
    """The learning rate over the steps."""
    max_grad_norm: float
    """Gradients are scaled down to this norm."""
    plausibility: PlausibilitySettings
    """When recorded log-probabilities are not believed."""
    substeps: int
    """Optimiser updates a batch is divided into."""
    max_tokens_per_pass: int
    """Tokens of one forward and backward pass."""
    parallel: ParallelSettings
    """How several ranks work together."""
    canary_shape: tuple[int, int]
    """Canaries that are published with a version, and the tokens of each."""
