"""Settings of the sender, as the SDK's constructor has checked them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.agents.masking.settings import Masking
from headrace.agents.spool_frames import cluster_fingerprint
from headrace.schemas.kafka.security import account_of

SPOOL_BYTES = 256 * 1024 * 1024
"""Default limit of the spool, in bytes: some 200,000 events of a kilobyte."""


@dataclass(frozen=True, slots=True)
class SenderConfig:
    """Settings of the sender."""

    bootstrap: str
    """Kafka address, ``host:port``, several separated by commas."""
    source: str
    """Name of the emitting program: ``ce_source``, and the key of its statistics."""
    queue_size: int = 10_000
    """Largest number of waiting events, encoded or not, in addition to the one that is being encoded."""
    queue_bytes: int = 64 * 1024 * 1024
    """Largest total size of waiting encoded events, in bytes."""
    max_event_bytes: int = 1024 * 1024
    """Size of the largest event in bytes, serialised."""
    flush_deadline_s: float = 5.0
    """Longest wait for the final flush, in seconds; writing to the spool what is left comes after it."""
    stats_interval_s: float = 10.0
    """Seconds between two records in ``sdk-stats``."""
    kafka_options: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the aiokafka producer, such as timeouts; TLS and SASL replace those of the environment."""
    spool_folder: Path | None = None
    """Folder for events that Kafka does not take; ``None``: no spool."""
    spool_bytes: int = SPOOL_BYTES
    """Most bytes of all files in ``spool_folder``."""
    masking: Masking | None = None
    """What is hidden in the texts of events; ``None``: nothing."""

    @property
    def cluster(self) -> bytes:
        """Fingerprint of where the events go: the servers in any order, and the account. Events that a process spooled
        are sent only by a process with the same."""
        servers = sorted(each.strip() for each in self.bootstrap.split(","))
        return cluster_fingerprint(*servers, "account", account_of(self.kafka_options))
