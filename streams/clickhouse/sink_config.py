"""The settings of the sink."""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

_MOST_S = 3600.0
"""Longest of all times that can be set."""
_MOST_PAUSE_SHARE = 10.0
"""Largest pause that can be set, as a share of a write."""
_MOST = {"batch_records": 1_048_576, "buffer_bytes": 64 * 1024**3, "concurrent_inserts": 64}
"""Largest of the numbers that can be set."""


@dataclass(frozen=True, slots=True)
class SinkConfig:
    """Settings of the sink."""

    bootstrap: str
    """Kafka address, host:port."""
    clickhouse_url: str
    """ClickHouse address, http://host:port."""
    clickhouse_secrets: Path | None = None
    """Folder with the embedded ClickHouse's passwords, for an address that names no user."""
    group: str = "sink"
    """Consumer group. A new name reads all topics from the start, to fill empty tables again."""
    member: str | None = None
    """Static membership name of this process: after a crash it gets its partitions back immediately instead of after
    the session timeout. Each name belongs to one running process. Unset: the broker chooses a name."""
    cluster: str = ""
    """Name of the ClickHouse cluster on all servers of which tables and views are created, replicated (engine
    ReplicatedReplacingMergeTree, with the server's default path and replica name). Empty: one server."""
    prices: dict[str, list[float]] = field(default_factory=dict)
    """Prices of a million tokens by model, those of prompts and those of answers, for the views on costs:
    ``{"qwen3-4b": [0.1, 0.4]}``. They replace those in the table `prices`; without any, the table stays as it is."""
    currency: str = "USD"
    """Currency of the prices."""
    linger_s: float = 0.3
    """Seconds that a record waits for others before its batch is cut, unless another partition of its topic is due
    before; up to twenty times as long while thousands more records are waiting in Kafka. A pause comes on top."""
    pause_share: float = 0.5
    """The pause after a write of t seconds is ``pause_share * t ** 2 / linger_s``, at most three lingers: a busy
    machine or a slow ClickHouse gets fewer and larger inserts, each of which costs some 20 ms of processor time, merges
    included, whatever its size."""
    batch_records: int = 65_536
    """Full batches of a partition end at multiples of this many offsets; also the most offsets of an insert, over all
    its partitions."""
    buffer_bytes: int = 128 * 1024 * 1024
    """Bytes of records and columns in memory at which the largest batch is cut and reading pauses. The readers of
    `events` hold up to 8 MiB per partition in addition, and an announced insert that is repeated its rows."""
    concurrent_inserts: int = 3
    """Inserts, each of partitions of one topic, that are converted and sent concurrently."""
    lag_interval_s: float = 5.0
    """Seconds between two measurements of the consumer groups' lag."""
    sign_interval_s: float = 1.0
    """Seconds between two signs of life in the table `sinks`, by which pages notice within five seconds that nothing is
    written any more."""
    retry_most_s: float = 10.0
    """Longest pause in seconds between two attempts while ClickHouse does not answer."""

    def __post_init__(self) -> None:
        for name in ("linger_s", "lag_interval_s", "sign_interval_s", "retry_most_s"):
            value = getattr(self, name)
            if value <= 0:
                raise ValueError(f"the sink's setting {name} must be positive, not {value}")
            if not value <= _MOST_S:
                raise ValueError(f"the sink's setting {name} must be at most {_MOST_S:g} seconds, not {value}")
        if not 0 <= self.pause_share <= _MOST_PAUSE_SHARE:
            raise ValueError(
                f"the sink's setting pause_share must be from 0 to {_MOST_PAUSE_SHARE:g}, not {self.pause_share}"
            )
        for name, most in _MOST.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise ValueError(f"the sink's setting {name} must be a whole number from 1 to {most}, not {value!r}")
        if not re.fullmatch(r"[\w.-]*", self.cluster):
            raise ValueError(
                f"the sink's setting cluster is {self.cluster!r}: it is a name of system.clusters, of letters, digits, "
                "_, . and -"
            )
        for model, prices in self.prices.items():
            if len(prices) != 2 or not all(math.isfinite(price) and price >= 0 for price in prices):
                raise ValueError(
                    f"the sink's setting prices has {prices!r} for {model!r}: give two numbers of at least 0, the "
                    'prices of a million tokens of prompts and of answers, such as {"qwen3-4b": [0.1, 0.4]}'
                )
        if not self.currency.strip():
            raise ValueError("the sink's setting currency must not be empty: it says that a model has a price")
        if not self.group.strip():
            raise ValueError("the sink's setting group must not be empty: it names the consumer group")
