"""Follows the ledger: checks it every few seconds, and raises an alert if it repeatedly does not add up.

14:03:05  started 4,096  trained 2,048  rejected 1,203  pending 845 (open 512, ungrouped 301, untrained 32)  adds up
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aiokafka.errors import KafkaError

from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.sending import send
from headrace.schemas.topics import ALERTS
from headrace.schemas.wire import Message
from headrace.streams.alerts import alert_message
from headrace.streams.ledger.kept import kept_ledger
from headrace.streams.ledger.ledger import Ledger, cut_topics

logger = logging.getLogger(__name__)

SOURCE = "/streams/ledger"
MISMATCH = "ledger_mismatch"
"""Kind of the alert."""


class LedgerMismatch(RuntimeError):
    """The ledger did not add up in several consecutive checks; an alert was published."""


@dataclass(frozen=True, slots=True)
class LedgerCheck:
    """The ledger at one point in time."""

    time_ms: int
    """Time at which reading ended, Unix milliseconds."""
    ledger: Ledger
    """The counts."""


@dataclass(frozen=True, slots=True)
class FollowConfig:
    """Settings for following the ledger."""

    bootstrap: str
    """Kafka brokers, ``host:port``, comma-separated."""
    every_s: float = 5.0
    """Seconds between two checks."""
    patience: int = 3
    """Consecutive checks that do not add up until an alert is raised."""
    round_s: float = 60.0
    """Timeout of a check in seconds, for example if the broker is unavailable; the next check resumes from there."""
    cache: Path | None = None
    """Folder of stored folds, from which the first check resumes; ``None``: it reads the whole log."""
    from_start: bool = False
    """Read the whole log even if a fold is stored."""

    def __post_init__(self) -> None:
        if not (self.every_s > 0 and self.round_s > 0) or self.patience < 1:
            raise ValueError(
                f"every_s ({self.every_s}) and round_s ({self.round_s}) must be above 0, "
                f"and patience ({self.patience}) at least 1"
            )


async def follow_ledger(config: FollowConfig, *, stop: asyncio.Event, report: Callable[[LedgerCheck], None]) -> None:
    """Check until ``stop`` is set, and pass each check to ``report``. Every record is read only once, by this and by
    earlier processes with the same ``cache``.

    If the broker becomes unavailable, the checks are retried. Raises ``LookupError`` if a topic is missing at the
    start, aiokafka's errors if the broker does not answer then, and :class:`LedgerMismatch` after ``patience``
    consecutive checks that do not add up, once an alert is published.
    """
    reader = await kept_ledger(config.bootstrap, config.cache, from_start=config.from_start)
    wrong = 0
    while not stop.is_set():
        try:
            async with asyncio.timeout(config.round_s):
                await reader.catch_up()
                ledger = reader.tally.ledger(cut=await cut_topics(config.bootstrap))
        # A broker that has just restarted may not know its topics yet.
        except (KafkaError, LookupError, OSError) as error:
            logger.warning("the ledger could not be checked: %s", error or type(error).__name__)
        else:
            check = LedgerCheck(time.time_ns() // 1_000_000, ledger)
            report(check)
            wrong = 0 if ledger.adds_up else wrong + 1
            if wrong == config.patience:
                message = mismatch_message(check)
                await _raise_alert(config.bootstrap, message)
                raise LedgerMismatch(_words(ledger))
        with suppress(TimeoutError):
            async with asyncio.timeout(config.every_s):
                await stop.wait()


def mismatch_message(check: LedgerCheck) -> Message:
    """Returns the alert about a ledger that does not add up."""
    ledger = check.ledger
    return alert_message(
        MISMATCH,
        f"The ledger does not add up: {_words(ledger)}. `headrace ledger` lists the contradictions.",
        source=SOURCE,
        subject="ledger",
        time_ms=check.time_ms,
        about=(check.time_ms,),
        details={
            "started": ledger.started,
            "trained": ledger.trained,
            "rejected": ledger.rejected,
            "pending": ledger.pending,
            "conflicting": ledger.conflicting,
            "unreadable": ledger.unreadable,
            "conflicts": ledger.conflicts[:10],
        },
    )


def _words(ledger: Ledger) -> str:
    first = f", first: {ledger.conflicts[0]}" if ledger.conflicts else ""
    return f"{ledger.conflicting} contradictions and {ledger.unreadable} unreadable records{first}"


async def _raise_alert(bootstrap: str, message: Message) -> None:
    async with open_producer(bootstrap) as producer:
        await (await send(producer, ALERTS, message))
