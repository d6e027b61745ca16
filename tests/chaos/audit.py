"""The ledger, taken all the time while things break: at every moment every trajectory is in one place."""

import asyncio
import time
from dataclasses import dataclass, field

from aiokafka.errors import KafkaError

from headrace.streams.ledger.ledger import Ledger, kafka_reader

_EVERY_S = 0.5
_ROUND_S = 30.0
"""A round that takes longer waits for a broker that is away."""
_MAX_WRONG = 20


@dataclass(frozen=True, slots=True)
class Entry:
    """A ledger and its moment."""

    at_s: float
    """Seconds from the start of the run."""
    ledger: Ledger


@dataclass(slots=True)
class Audit:
    """Takes the ledger until it is cancelled."""

    bootstrap: str
    begin: float = field(default_factory=time.monotonic)
    """Moment that ``at_s`` counts from."""
    entries: list[Entry] = field(default_factory=list)
    """Ledgers so far; none while the broker is away."""
    wrong: list[str] = field(default_factory=list)
    """What did not add up, in words: there must be nothing."""

    async def run(self) -> None:
        """Take it until cancelled. Not one ledger may contradict itself: no patience here."""
        reader = kafka_reader(self.bootstrap)
        while True:
            try:
                async with asyncio.timeout(_ROUND_S):
                    await reader.catch_up()
            except (KafkaError, LookupError, OSError):  # a broker that is not all there yet may know no topics
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
        """Return once every trajectory is trained or rejected; raises ``TimeoutError`` that says what waits."""
        begin = len(self.entries)
        try:
            async with asyncio.timeout(timeout_s):
                while not any(entry.ledger.pending == 0 for entry in self.entries[begin:]):  # noqa: ASYNC110
                    await asyncio.sleep(_EVERY_S / 2)
        except TimeoutError as error:
            waiting = self.entries[-1].ledger.pending_by if self.entries else "no ledger"
            raise TimeoutError(f"not everything was decided within {timeout_s:g} s: {waiting}") from error
