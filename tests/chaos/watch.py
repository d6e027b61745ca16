"""What is seen of the assembler from outside while it is broken: how far it is, twice a second."""

import asyncio
import time
from dataclasses import dataclass, field

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupLoadInProgressError, KafkaError

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.topics import EVENTS
from headrace.streams.assembly.recovery import checkpoint_of
from tests.chaos.produce import Producers

GROUP = "assemble"
_EVERY_S = 0.5
_ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. Offsets are of ``events``, by partition."""

    at_s: float
    """Seconds from the start of the run."""
    acknowledged: int
    """Events that the broker had taken."""
    ends: dict[int, int]
    """Next offset to be written."""
    folded: dict[int, int]
    """Next offset to be folded, as of the last commit."""
    committed: dict[int, int]
    """Committed offset: the oldest open trajectory's first record."""

    @property
    def lag(self) -> int:
        """Records that were not folded."""
        return sum(self.ends.values()) - sum(self.folded.values())

    @property
    def is_settled(self) -> bool:
        """Nothing is left to fold, and nothing open."""
        return self.committed == self.folded and all(self.folded[p] >= end for p, end in self.ends.items())

    def is_past(self, earlier: "Sample") -> bool:
        """Whether everything is folded that stood in the log at ``earlier``."""
        return all(self.folded[partition] >= end for partition, end in earlier.ends.items())


@dataclass(slots=True)
class Watch:
    """Looks until it is cancelled, and keeps what it saw."""

    bootstrap: str
    partitions: int
    producers: Producers
    begin: float = field(default_factory=time.monotonic)
    """Moment that ``at_s`` counts from."""
    samples: list[Sample] = field(default_factory=list)
    """Looks so far; none while the broker is away."""
    setbacks: list[str] = field(default_factory=list)
    """Commits that went backwards, in words: there must be none."""

    @property
    def now_s(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() - self.begin

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    sample = await self._look()
            except (KafkaError, TimeoutError, OSError):
                await asyncio.sleep(_EVERY_S)
                continue
            if self.samples:
                self._compare(self.samples[-1], sample)
            self.samples.append(sample)
            await asyncio.sleep(_EVERY_S)

    async def until_seen(self) -> None:
        """Return after the first look."""
        while not self.samples:  # noqa: ASYNC110 - a look has no event to wait for
            await asyncio.sleep(0.05)

    async def until_settled(self, timeout_s: float) -> None:
        """Return once nothing is left to do; raises ``TimeoutError`` that says what is left."""
        begin = len(self.samples)
        try:
            async with asyncio.timeout(timeout_s):
                while not any(sample.is_settled for sample in self.samples[begin:]):  # noqa: ASYNC110
                    await asyncio.sleep(_EVERY_S / 2)
        except TimeoutError as error:
            raise TimeoutError(f"not settled within {timeout_s:g} s; last seen: {self.samples[-1:]}") from error

    async def _look(self) -> Sample:
        partitions = [TopicPartition(EVENTS.name, number) for number in range(self.partitions)]
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap, request_timeout_ms=4000)
        await admin.start()
        try:
            commits = await admin.list_consumer_group_offsets(GROUP, partitions=partitions)
        finally:
            await admin.close()
        if len(commits) < len(partitions):
            raise GroupLoadInProgressError("the coordinator is still loading")
        # Ends come after commits: a commit is never ahead of an end that was looked up later.
        async with open_consumer(self.bootstrap) as consumer:
            ends = await consumer.end_offsets(partitions)
        folded, committed = {}, {}
        for partition in partitions:
            commit = commits[partition]
            checkpoint = checkpoint_of(commit.metadata or "")
            committed[partition.partition] = max(0, commit.offset)
            folded[partition.partition] = checkpoint.next if checkpoint else committed[partition.partition]
        return Sample(
            self.now_s, self.producers.acknowledged, {p.partition: end for p, end in ends.items()}, folded, committed
        )

    def _compare(self, before: Sample, after: Sample) -> None:
        for name in ("folded", "committed"):
            earlier, later = getattr(before, name), getattr(after, name)
            self.setbacks += [
                f"{name} of events[{partition}] went from {offset} back to {later[partition]} at {after.at_s:.1f} s"
                for partition, offset in earlier.items()
                if later[partition] < offset
            ]
