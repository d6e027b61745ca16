"""Divergence: when a step must not count, because what it would make of the policy is no policy any more. Pure."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headrace.trainer.model.shards import local_shard


class TrainingDiverged(RuntimeError):
    """A step must not count: its loss, gradient or weights are no numbers, or its gradient is far beyond the usual."""


@dataclass(frozen=True, slots=True)
class DivergenceSettings:
    """When a step is taken back, and what follows. Weights and optimiser are then those from before it, to the bit."""

    max_norm_ratio: float | None = 100.0
    """A gradient norm above so many times the median of the newest steps' takes the step back; ``None``: never. A norm
    below ``max_grad_norm``, which clips it, never does."""
    norm_window: int = 64
    """Newest steps whose norms make the median."""
    norm_history: int = 16
    """Steps that must have been taken before norms are compared: the first ones vary widely."""
    retries: int = 1
    """Times a step is tried again on the same groups before they are skipped: a memory error of a GPU passes, a bad
    batch does not."""
    max_skipped: int = 3
    """So many skipped steps in a row stop the trainer: it is not the batch then."""
    max_attempts: int = 5
    """Processes that may end while they train the same groups (killed, out of memory) before these are skipped."""

    def __post_init__(self) -> None:
        if self.max_norm_ratio is not None and not self.max_norm_ratio > 1:
            raise ValueError(f"divergence: max_norm_ratio is {self.max_norm_ratio}: it must be above 1, or null")
        for name in ("norm_window", "norm_history", "max_skipped", "max_attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"divergence: {name} is {getattr(self, name)}: it must be at least 1")
        if self.retries < 0 or self.norm_history > self.norm_window:
            raise ValueError("divergence: retries must not be negative, nor norm_history above norm_window")


def norm_limit(norms: Sequence[float], settings: DivergenceSettings, *, max_grad_norm: float) -> float:
    """Largest gradient norm that the next step may have, given those of the newest steps; infinity: any."""
    if settings.max_norm_ratio is None or len(norms) < settings.norm_history:
        return math.inf
    return max(settings.max_norm_ratio * statistics.median(norms), max_grad_norm)


def with_norm(norms: Sequence[float], norm: float, settings: DivergenceSettings) -> list[float]:
    """``norms`` and that of the step just taken, the newest ``norm_window`` of them.

    A step in which every token was masked or clipped has no gradient, and says nothing of the norms to expect.
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
    """Parameters of ``model`` that are not all finite numbers; of a sharded one, this rank's shard is looked at."""
    return [
        name for name, parameter in model.named_parameters() if not bool(torch.isfinite(local_shard(parameter)).all())
    ]
