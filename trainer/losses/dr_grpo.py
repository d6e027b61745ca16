"""Dr. GRPO (Liu et al., 2025): GRPO without its two biases.

    max Σ min(ρ A, clip(ρ, 1 − ε, 1 + ε) A) / (trajectories · constant length),   A = r − mean(r)

GRPO divides by each answer's own length and by the group's standard deviation; this loss does neither. Composer 2 uses
the same normalisation.
"""

from headrace.trainer.losses.grpo import objective
from headrace.trainer.losses.loss import Loss
from headrace.trainer.losses.settings import Normaliser

DR_GRPO = Loss(objective, Normaliser.CONSTANT_LENGTH)
