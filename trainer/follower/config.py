"""Settings of a follower."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from headrace.schemas.objects.store_url import scheme_of
from headrace.schemas.stamp import RUN_NAME
from headrace.trainer.weights.signing import require_public_key

_DISTANCES = {"float32": (0.02, 1e-3), "bfloat16": (0.15, 0.15)}
"""Type of the weights → default tolerance and noise (nats, root mean square)."""


@dataclass(frozen=True, slots=True)
class FollowerConfig:
    """Settings of a follower."""

    bootstrap: str
    """Kafka's bootstrap address."""
    run: str
    """Training run to follow."""
    engine_url: str
    """HTTP address of the vLLM server."""
    engine: str
    """The engine's name in ``applied`` and ``alerts``; one follower per engine."""
    cache_dir: Path
    """Folder for downloaded weights; the engine must have it under the same path."""
    store_url: str
    """Object store of the weights, as in the trainer's settings; weights are loaded from nowhere else."""
    trust: tuple[str, ...] = ()
    """Public keys of the trainers whose versions are loaded, as ``headrace keys`` prints them; several during a key
    rotation. The local stack sets its own. A follower does not start without any."""
    take_over: str | None = None
    """Another run whose engine this follower may take over; otherwise an engine that serves another run is left alone.
    Stop that run's follower first."""
    canary_tolerance: float | None = None
    """Largest distance (nats, root mean square) between the log-probabilities of engine and trainer at which a swap is
    accepted; unset: 0.02 for float32 weights, 0.15 for bfloat16."""
    canary_noise: float | None = None
    """Distance that counts as noise if the version served before is unknown; unset: 0.001 for float32 weights, 0.15 for
    bfloat16. An engine that computes in half precision with float32 weights needs 0.15 for both."""
    poll_interval_s: float = 0.5
    """Interval at which the engine's served version is checked, in seconds."""
    engine_timeout_s: float = 60.0
    """Timeout of a call to the engine, in seconds."""
    failing_after_s: float = 30.0
    """Seconds for which engine or store may fail before an alert is published."""
    fetch_attempts: int = 3
    """Attempts to fetch corrupt weights before the version is refused."""
    fetch_patience_s: float = 600.0
    """Seconds for which objects may be missing before the version is refused: a store may list them late, and an
    operator may restore them. The previous version is served meanwhile."""
    keep_versions: int = 4
    """Number of downloaded versions that are kept."""

    def __post_init__(self) -> None:
        if not re.fullmatch(RUN_NAME, self.run):
            raise ValueError(f"run {self.run!r}: use up to 100 letters, digits, dots, dashes and underscores")
        if self.take_over is not None and (self.take_over == self.run or not re.fullmatch(RUN_NAME, self.take_over)):
            raise ValueError(f"take_over is {self.take_over!r}: name the other run whose engine may be taken over")
        scheme_of(self.store_url)  # raises for an invalid address
        if not self.trust:
            raise ValueError(
                "trust is empty: name the public key of the run's trainer, as `headrace keys` prints it where the "
                "trainer runs; without it anyone with write access to the log could make an engine load other weights"
            )
        for key in self.trust:
            require_public_key(key)
        if not 0 <= self.fetch_patience_s < math.inf:
            raise ValueError(f"fetch_patience_s must be finite and not negative, not {self.fetch_patience_s}")
        for dtype in _DISTANCES:
            tolerance, noise = self.canary_bounds(dtype)
            if not 0 < noise < math.inf or not 0 < tolerance < math.inf:
                raise ValueError(
                    f"canary_noise ({noise}) and canary_tolerance ({tolerance}) must be positive and finite"
                )
        if not 0 < self.poll_interval_s < math.inf:
            raise ValueError(f"poll_interval_s must be positive, not {self.poll_interval_s}")
        if self.keep_versions < 1 or self.fetch_attempts < 1:
            raise ValueError("keep_versions and fetch_attempts must be at least 1")

    def canary_bounds(self, dtype: str) -> tuple[float, float]:
        """Returns tolerance and noise (nats, root mean square) for weights of type ``dtype``."""
        tolerance, noise = _DISTANCES.get(dtype, _DISTANCES["float32"])
        tolerance = tolerance if self.canary_tolerance is None else self.canary_tolerance
        return tolerance, min(tolerance, noise if self.canary_noise is None else self.canary_noise)
