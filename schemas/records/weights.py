"""Policy versions: where their weights stand, how they are verified, who serves them."""

from typing import ClassVar

from pydantic import NonNegativeFloat, NonNegativeInt

from headrace.schemas.arrays import LogProbs, TokenIds
from headrace.schemas.model import Part, Record


class Canary(Part):
    """A prompt whose log-probabilities under a version are known: what an engine must reproduce."""

    token_ids: TokenIds
    """(T,) the whole sequence."""
    logprobs: LogProbs
    """(T − 1,) the trainer's log-probability of each token after the first."""
    parent_logprobs: LogProbs | None = None
    """(T − 1,) the same under the parent version; ``None`` where it has none, or was asked other tokens."""


class Manifest(Part):
    """What stands beside an object of weights, and must be verified before it is loaded."""

    run: str
    """Training run."""
    version: NonNegativeInt
    """Policy version."""
    parent: NonNegativeInt | None
    """The version it was trained from."""
    files: dict[str, str]
    """Object path → sha256 (hex)."""
    sizes: dict[str, int]
    """Object path → bytes."""
    tensors: NonNegativeInt
    """Number of tensors."""
    canaries: list[Canary]
    """What an engine must reproduce after the swap."""
    dtype: str = ""
    """Type of the weights: ``float32`` or ``bfloat16``; empty: not said."""
    exact: bool = False
    """Whether the canaries were computed in float32 from the weights as they are published, whatever their type."""


class Weights(Record):
    """A policy version that can be had. The record is a pointer; the weights stand in the object store."""

    TYPE: ClassVar[str] = "headrace.weights.published.v1"

    run: str
    """Training run."""
    version: NonNegativeInt
    """Policy version; 0 is the base model."""
    parent: NonNegativeInt | None
    """The version it was trained from."""
    kind: str
    """``anchor`` (complete) or ``delta``."""
    manifest_uri: str
    """Where the manifest stands."""
    sha256: str
    """Hash of the manifest's bytes."""
    size: NonNegativeInt
    """Bytes of the weights."""
    step: NonNegativeInt
    """The step that made it; 0 for the base."""
    signature: str = ""
    """Ed25519 signature (128 hex digits) of run, version, parent, kind, sha256, size and step; empty: not signed."""
    signed_by: str = ""
    """Public key (64 hex digits) of whoever signed it. It proves nothing by itself: followers have keys they trust."""


class Applied(Record):
    """An engine serves a version: swapped, and its log-probabilities compared with the canary's."""

    TYPE: ClassVar[str] = "headrace.weights.applied.v1"

    run: str
    """Training run."""
    engine: str
    """The inference engine's address or name."""
    version: NonNegativeInt
    """Policy version."""
    download_s: NonNegativeFloat
    """Seconds to fetch and verify."""
    swap_s: NonNegativeFloat
    """Seconds in which requests stood still."""
    canary_max_error: NonNegativeFloat
    """Largest absolute difference of log-probabilities over the canaries."""
    canary_rms_error: NonNegativeFloat | None = None
    """Root mean square of the differences, in nats."""
    canary_evidence: str = ""
    """What the swap was believed for: ``position``, ``change`` or ``distance``; empty: not said."""
    canary_position: float | None = None
    """Where the engine lies between the version that it served before (0) and this one (1), by least squares."""
    canary_position_error: NonNegativeFloat | None = None
    """Standard error of that position."""
