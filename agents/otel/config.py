"""Settings of the OTLP receiver."""

import math
from dataclasses import dataclass
from pathlib import Path

from headrace.agents.consent import Consent
from headrace.agents.otel.buffer import BufferLimits


@dataclass(frozen=True, slots=True)
class OtlpConfig:
    """Settings of the OTLP receiver."""

    bootstrap: str
    """Kafka's bootstrap address."""
    port: int
    """Port to listen on (HEADRACE_OTLP_PORT)."""
    folder: Path
    """Folder of the spool."""
    host: str = "127.0.0.1"
    """Address to listen on; only the loopback interface, because senders are not authenticated. Senders elsewhere reach
    it through an OpenTelemetry collector on this machine."""
    consent: Consent = Consent.TRAIN
    """What may be done with trajectories whose spans have no `headrace.consent`."""
    sample_rate: float = 1.0
    """Share of the conversations, and of the traces outside any, that is recorded."""
    tenant: str | None = None
    """Owner of the data, if the spans have no `headrace.tenant`."""
    mask: bool = False
    """Whether e-mail addresses, keys and card numbers are hidden in all texts."""
    by_conversation: bool = True
    """Whether all traces of a conversation are one trajectory; otherwise each trace is."""
    grace_s: float = 10.0
    """Seconds without a further span after which a trace with its root is complete: at least the senders' interval."""
    idle_s: float = 600.0
    """Seconds without a further span after which a trace without its root, or a conversation, is complete."""
    max_traces: int = 50_000
    """Open traces; a further one sends the one that has been idle for longest."""
    max_characters: int = 256 * 1024 * 1024
    """Characters of all spans of open traces."""
    max_request_bytes: int = 16 * 1024 * 1024
    """Largest request, after decompression."""
    spool_bytes: int = 1024**3
    """Most bytes of events that wait on disk; senders are told to wait once it is full."""
    flush_s: float = 10.0
    """Longest wait for Kafka at the end, in seconds; what is left is sent by the next receiver."""

    def __post_init__(self) -> None:
        if self.host not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError(
                f"host is {self.host}: senders are not authenticated, so only 127.0.0.1 is allowed. Run an "
                "OpenTelemetry collector on this machine for senders elsewhere"
            )
        if not 0 < self.sample_rate <= 1:
            raise ValueError(f"sample_rate is {self.sample_rate}: expected more than 0 and at most 1")
        for name in ("port", "max_request_bytes", "spool_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: expected at least 1")
        if not 0 <= self.flush_s < math.inf:
            raise ValueError(f"flush_s is {self.flush_s}: expected a finite number of seconds, not negative")
        _ = self.limits  # checks the others

    @property
    def limits(self) -> BufferLimits:
        """Times and sizes of the buffer."""
        return BufferLimits(
            grace_s=self.grace_s,
            idle_s=self.idle_s,
            by_conversation=self.by_conversation,
            max_traces=self.max_traces,
            max_characters=self.max_characters,
        )
