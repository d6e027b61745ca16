"""Settings of the archiver."""

from dataclasses import dataclass

from headrace.schemas.objects.store_url import scheme_of
from headrace.schemas.topics import TOPICS, topic_named

ARCHIVED = tuple(topic for topic in TOPICS if not topic.compacted)
"""Topics that are archived by default: of a compacted one only the newest records matter, and those stay."""


@dataclass(frozen=True, slots=True)
class ArchiveConfig:
    """Settings of the archiver."""

    bootstrap: str
    """Kafka brokers, ``host:port``, comma-separated."""
    store_url: str
    """Object store (file://, s3://, gs://, az://); the archive is its folder ``archive``."""
    topics: tuple[str, ...] = tuple(topic.name for topic in ARCHIVED)
    """Topics that are archived."""
    interval_s: float = 3_600.0
    """Seconds after which records are archived although a file is not full."""
    file_records: int = 50_000
    """Records of a full file, and offsets that are read at once."""
    file_mb: int = 32
    """Size of keys, payloads and headers in MiB from which on a file is full. The process holds about five times as
    much."""
    check_s: float = 15.0
    """Seconds between two looks at the ends of the topics."""
    retry_most_s: float = 60.0
    """Longest pause in seconds between two attempts while Kafka or the store does not answer."""

    def __post_init__(self) -> None:
        scheme_of(self.store_url)
        if not self.topics:
            raise ValueError("topics is empty: name a topic, or leave it out for all")
        for name in self.topics:
            try:
                topic = topic_named(name)
            except KeyError as error:
                raise ValueError(f"topics: {error.args[0]}") from error
            if topic.compacted:
                raise ValueError(f"topics: {name} is compacted, so its newest records stay in the log: leave it out")
        for setting, value in (("check_s", self.check_s), ("retry_most_s", self.retry_most_s)):
            if value <= 0:
                raise ValueError(f"{setting} must be above 0")
        if not 0 <= self.interval_s <= 86_400:
            raise ValueError("interval_s must be within 0 and 86400: records must be archived before they are deleted")
        if not 1 <= self.file_records <= 1_000_000:
            raise ValueError("file_records must be within 1 and 1000000")
        if not 1 <= self.file_mb <= 128:
            raise ValueError("file_mb must be within 1 and 128: a file is in memory when it is written and read")
