"""The ledger, computed continuously during the faults: at every moment each trajectory has one state."""

import asyncio
import time
from dataclasses import dataclass, field

from aiokafka.errors import KafkaError

from headrace.streams.ledger.ledger import Ledger, kafka_reader

_EVERY_S = 0.5
_ROUND_S = 30.0
"""A pass that takes longer is waiting for an unavailable broker."""
_MAX_WRONG = 20


@dataclass(frozen=True, slots=True)
class Entry:
    """A ledger and its time."""

    at_s: float
    """Seconds from the start of the run."""
    ledger: Ledger


@dataclass(slots=True)
class Audit:
    """Computes the ledger until it is cancelled."""

    bootstrap: str
    begin: float = field(default_factory=time.monotonic)
    """Monotonic time from which ``at_s`` counts."""
    entries: list[Entry] = field(default_factory=list)
    """Ledgers so far; none are added while the broker is unavailable."""
    wrong: list[str] = field(default_factory=list)
    """Descriptions of ledgers that did not add up: must stay empty."""

    async def run(self) -> None:
        """Compute the ledger until cancelled. Every single ledger must add up, without retries."""
        reader = kafka_reader(self.bootstrap)
        while True:
            try:
                async with asyncio.timeout(_ROUND_S):
                    await reader.catch_up()
            except (KafkaError, LookupError, OSError):  # a broker that is still starting may know no topics
                await asyncio.sleep(_EVERY_S)
                continue
            entry = Entry(time.monotonic() - self.begin, reader.tally.ledger())
            self.entries.append(entry)
            if not entry.ledger.adds_up and len(self.wrong) < _MAX_WRONG:
                first = entry.ledger.conflicts[:1] or [f"{entry.ledger.unreadable} unreadable records"]
                self.wrong.append(
                    f"the ledger at {entry.at_s:.1f} s: {entry.ledger.conflicting} contradictions: {first[0]}"
                )
            await asyncio.sleep(_EVERY_S)

    async def until_decided(self, timeout_s: float) -> None:
        """Return once every trajectory is trained or rejected; the ``TimeoutError`` names what is pending."""
        begin = len(self.entries)
        try:
            async with asyncio.timeout(timeout_s):
                while not any(entry.ledger.pending == 0 for entry in self.entries[begin:]):  # noqa: ASYNC110
                    await asyncio.sleep(_EVERY_S / 2)
        except TimeoutError as error:
            waiting = self.entries[-1].ledger.pending_by if self.entries else "no ledger"
            raise TimeoutError(f"not everything was decided within {timeout_s:g} s: {waiting}") from error
