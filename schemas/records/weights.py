"""Policy versions: location of their weights, verification, and the engines that serve them."""

from typing import ClassVar

from pydantic import NonNegativeFloat, NonNegativeInt

from headrace.schemas.arrays import LogProbs, TokenIds
from headrace.schemas.model import Part, Record


class Canary(Part):
    """A prompt with known log-probabilities under a version, which an engine must reproduce."""

    token_ids: TokenIds
    """(T,) the whole sequence."""
    logprobs: LogProbs
    """(T − 1,) the trainer's log-probability of each token after the first."""
    parent_logprobs: LogProbs | None = None
    """(T − 1,) the same under the parent version; ``None`` if there is no parent, or its canaries had other tokens."""


class Tokenizer(Part):
    """The tokenizer of a policy: a file of Hugging Face's tokenizers library, in the object store under its hash."""

    name: str
    """Name of the model's folder, for people."""
    sha256: str
    """Hash (hex) of ``tokenizer.json``, which is at ``tokenizers/<sha256>.json``."""
    size: NonNegativeInt
    """Its size in bytes."""


class Manifest(Part):
    """Description of the weights in the object store, against which they are verified before they are loaded."""

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
    """Log-probabilities that an engine must reproduce after the swap."""
    dtype: str = ""
    """Type of the weights: ``float32`` or ``bfloat16``; empty: unknown."""
    exact: bool = False
    """Whether the canaries were computed in float32 from the published weights, whatever the weights' type."""
    tokenizer: Tokenizer | None = None
    """The policy's tokenizer; ``None`` if its folder has no ``tokenizer.json``, and in manifests of older releases."""


class Weights(Record):
    """A published policy version. The record is a pointer; the weights are in the object store."""

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
    """Address of the manifest."""
    sha256: str
    """Hash of the manifest's bytes."""
    size: NonNegativeInt
    """Size of the weights, in bytes."""
    step: NonNegativeInt
    """The step that produced it; 0 for the base model."""
    signature: str = ""
    """Ed25519 signature (128 hex digits) of run, version, parent, kind, sha256, size and step; empty: not signed."""
    signed_by: str = ""
    """Public key (64 hex digits) of the signer. It proves nothing by itself: followers have their own list of trusted
    keys."""


class Applied(Record):
    """An engine serves a version, after its log-probabilities were compared with the canaries."""

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
    """Seconds during which requests were suspended."""
    canary_max_error: NonNegativeFloat
    """Largest absolute difference of log-probabilities over the canaries."""
    canary_rms_error: NonNegativeFloat | None = None
    """Root mean square of the differences, in nats."""
    canary_evidence: str = ""
    """Evidence on which the swap was accepted: ``position``, ``change`` or ``distance``; empty: unknown."""
    canary_position: float | None = None
    """Position of the engine between the previously served version (0) and this one (1), by least squares."""
    canary_position_error: NonNegativeFloat | None = None
    """Standard error of that position."""
