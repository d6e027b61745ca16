"""Divergence: detects steps that would make the policy unusable, so that they are rolled back. Pure."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headrace.trainer.model.shards import local_shard


class TrainingDiverged(RuntimeError):
    """A step diverged: its loss, gradient or weights are not finite, or its gradient norm is far above the usual."""


@dataclass(frozen=True, slots=True)
class DivergenceSettings:
    """When a step is rolled back, and what follows. Weights and optimiser are then bit-identical to those before it."""

    max_norm_ratio: float | None = 100.0
    """A gradient norm above this multiple of the newest steps' median rolls the step back; ``None``: never. A norm
    below ``max_grad_norm``, to which gradients are clipped, never does."""
    norm_window: int = 64
    """Number of newest steps whose norms make the median."""
    norm_history: int = 16
    """Steps before norms are compared: the first ones vary widely."""
    retries: int = 1
    """Retries of a diverged step on the same groups before they are skipped: a GPU's memory error is transient, a bad
    batch is not."""
    max_skipped: int = 3
    """Consecutive skipped steps that stop the trainer: the cause is then not a single batch."""
    max_attempts: int = 5
    """Processes that may die while training the same groups (killed, out of memory) before these are skipped."""

    def __post_init__(self) -> None:
        if self.max_norm_ratio is not None and not self.max_norm_ratio > 1:
            raise ValueError(f"divergence: max_norm_ratio is {self.max_norm_ratio}: it must be above 1, or null")
        for name in ("norm_window", "norm_history", "max_skipped", "max_attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"divergence: {name} is {getattr(self, name)}: it must be at least 1")
        if self.retries < 0 or self.norm_history > self.norm_window:
            raise ValueError("divergence: retries must not be negative, nor norm_history above norm_window")


def norm_limit(norms: Sequence[float], settings: DivergenceSettings, *, max_grad_norm: float) -> float:
    """Returns the largest gradient norm allowed for the next step, given those of the newest steps; infinity: any."""
    if settings.max_norm_ratio is None or len(norms) < settings.norm_history:
        return math.inf
    return max(settings.max_norm_ratio * statistics.median(norms), max_grad_norm)


def with_norm(norms: Sequence[float], norm: float, settings: DivergenceSettings) -> list[float]:
    """Returns ``norms`` with ``norm`` appended, limited to the newest ``norm_window``.

    A norm of 0 is left out: a step with all tokens masked or clipped gives no information on the norms to expect.
    """
    if norm == 0:
        return list(norms)
    return [*norms, norm][-settings.norm_window :]


def check_numbers(loss: float, norm: float, *, limit: float, version: int) -> None:
    """Raises :class:`TrainingDiverged` unless ``loss`` and ``norm`` are finite and the norm is within ``limit``."""
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise TrainingDiverged(f"loss {loss:g} and gradient norm {norm:g} while training version {version}")
    if norm > limit:
        raise TrainingDiverged(
            f"gradient norm {norm:g} while training version {version}: above {limit:g}, which the newest steps allow"
        )


@torch.no_grad()
def not_finite(model: torch.nn.Module) -> list[str]:
    """Returns the parameters of ``model`` that hold values that are not finite; checks this rank's shard only."""
    return [
        name for name, parameter in model.named_parameters() if not bool(torch.isfinite(local_shard(parameter)).all())
    ]
