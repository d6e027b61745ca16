"""Limits per key: token buckets for requests, tokens and bytes. The clock is an argument.

A bucket holds up to ``burst`` units and gains ``per_s`` units a second. A request is admitted if every bucket holds
what it needs; otherwise nothing is taken, and the answer says after how many seconds it would be admitted.
"""

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum


class Unit(StrEnum):
    """What is limited."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit of one unit."""

    per_s: float
    """Units gained per second; above 0."""
    burst: float
    """Most units that a bucket holds, and the largest request; above 0."""

    def __post_init__(self) -> None:
        if not (self.per_s > 0 and self.burst > 0):
            raise ValueError(f"a limit of {self.per_s} per second with a burst of {self.burst}: both must be above 0")


@dataclass(frozen=True, slots=True)
class Exceeded:
    """Why a request is refused."""

    unit: Unit
    """The limit that it exceeds."""
    retry_after_s: float | None
    """Seconds until it would be admitted; ``None`` if it is larger than the bucket."""


@dataclass(slots=True)
class _Bucket:
    level: float
    at_s: float


class Limiter:
    """The buckets of many keys; those not used for longest are forgotten, which only refills them."""

    def __init__(self, rates: dict[Unit, Rate], *, max_keys: int = 100_000) -> None:
        """``rates``: the limits of every key; units that are absent are not limited."""
        self._rates = dict(rates)
        self._max_keys = max_keys
        self._keys: OrderedDict[str, dict[Unit, _Bucket]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def admit(self, key: str, needs: dict[Unit, float], now_s: float) -> Exceeded | None:
        """Take ``needs`` from the buckets of ``key``, all or nothing. ``now_s``: seconds of a monotonic clock.

        Returns ``None`` if the request is admitted.
        """
        buckets = self._refilled(key, now_s)
        worst: Exceeded | None = None
        for unit, rate in self._rates.items():
            need = needs.get(unit, 0.0)
            missing = need - buckets[unit].level
            if missing <= 0:
                continue
            if need > rate.burst:
                return Exceeded(unit, None)
            wait_s = missing / rate.per_s
            if worst is None or worst.retry_after_s is None or wait_s > worst.retry_after_s:
                worst = Exceeded(unit, wait_s)
        if worst is None:
            for unit in self._rates:
                buckets[unit].level -= needs.get(unit, 0.0)
        return worst

    def charge(self, key: str, unit: Unit, amount: float, now_s: float) -> None:
        """Take ``amount`` after the fact, such as tokens that were sampled: the level may become negative."""
        if unit in self._rates:
            self._refilled(key, now_s)[unit].level -= amount

    def _refilled(self, key: str, now_s: float) -> dict[Unit, _Bucket]:
        buckets = self._keys.get(key)
        if buckets is None:
            buckets = {unit: _Bucket(rate.burst, now_s) for unit, rate in self._rates.items()}
            self._keys[key] = buckets
            if len(self._keys) > self._max_keys:
                self._keys.popitem(last=False)
            return buckets
        self._keys.move_to_end(key)
        for unit, rate in self._rates.items():
            bucket = buckets[unit]
            if now_s > bucket.at_s:
                bucket.level = min(rate.burst, bucket.level + (now_s - bucket.at_s) * rate.per_s)
                bucket.at_s = now_s
        return buckets
