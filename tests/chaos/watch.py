"""Samples of the assembler's progress from outside during faults, twice a second."""

import asyncio
import time
from dataclasses import dataclass, field

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupLoadInProgressError, KafkaError

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.topics import EVENTS
from headrace.streams.assembly.recovery import parse_commit_metadata
from tests.chaos.produce import Producers

GROUP = "assemble"
_EVERY_S = 0.5
_ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample. Offsets are of ``events``, by partition."""

    at_s: float
    """Seconds from the start of the run."""
    acknowledged: int
    """Events that the broker had acknowledged."""
    ends: dict[int, int]
    """Next offset to be written."""
    folded: dict[int, int]
    """Next offset to be folded, as of the last commit."""
    committed: dict[int, int]
    """Committed offset: the oldest open trajectory's first record."""

    @property
    def lag(self) -> int:
        """Records that were not folded yet."""
        return sum(self.ends.values()) - sum(self.folded.values())

    @property
    def is_committed(self) -> bool:
        """Whether everything is folded, and no trajectory is open."""
        return self.committed == self.folded and all(self.folded[p] >= end for p, end in self.ends.items())

    def is_past(self, earlier: "Sample") -> bool:
        """Whether every record in the log at ``earlier`` is folded."""
        return all(self.folded[partition] >= end for partition, end in earlier.ends.items())


@dataclass(slots=True)
class Watch:
    """Takes samples until it is cancelled."""

    bootstrap: str
    partitions: int
    producers: Producers
    begin: float = field(default_factory=time.monotonic)
    """Monotonic time from which ``at_s`` counts."""
    samples: list[Sample] = field(default_factory=list)
    """Samples so far; none are added while the broker is unavailable."""
    regressions: list[str] = field(default_factory=list)
    """Descriptions of commits that went backwards: must stay empty."""

    @property
    def now_s(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() - self.begin

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    sample = await self._sample()
            except (KafkaError, TimeoutError, OSError):
                await asyncio.sleep(_EVERY_S)
                continue
            if self.samples:
                self._compare(self.samples[-1], sample)
            self.samples.append(sample)
            await asyncio.sleep(_EVERY_S)

    async def until_sampled(self) -> None:
        """Return after the first sample."""
        while not self.samples:  # noqa: ASYNC110 - a look has no event to wait for
            await asyncio.sleep(0.05)

    async def until_committed(self, timeout_s: float) -> None:
        """Return once all work is committed; the ``TimeoutError`` names what is left."""
        begin = len(self.samples)
        try:
            async with asyncio.timeout(timeout_s):
                while not any(sample.is_committed for sample in self.samples[begin:]):  # noqa: ASYNC110
                    await asyncio.sleep(_EVERY_S / 2)
        except TimeoutError as error:
            raise TimeoutError(f"not committed within {timeout_s:g} s; last sample: {self.samples[-1:]}") from error

    async def _sample(self) -> Sample:
        partitions = [TopicPartition(EVENTS.name, number) for number in range(self.partitions)]
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap, request_timeout_ms=4000)
        await admin.start()
        try:
            commits = await admin.list_consumer_group_offsets(GROUP, partitions=partitions)
        finally:
            await admin.close()
        if len(commits) < len(partitions):
            raise GroupLoadInProgressError("the coordinator is still loading")
        # Ends are read after commits, so that no commit is ahead of an end.
        async with open_consumer(self.bootstrap) as consumer:
            ends = await consumer.end_offsets(partitions)
        folded, committed = {}, {}
        for partition in partitions:
            commit = commits[partition]
            checkpoint = parse_commit_metadata(commit.metadata or "")
            committed[partition.partition] = max(0, commit.offset)
            folded[partition.partition] = checkpoint.next if checkpoint else committed[partition.partition]
        return Sample(
            self.now_s, self.producers.acknowledged, {p.partition: end for p, end in ends.items()}, folded, committed
        )

    def _compare(self, before: Sample, after: Sample) -> None:
        for name in ("folded", "committed"):
            earlier, later = getattr(before, name), getattr(after, name)
            self.regressions += [
                f"{name} of events[{partition}] went from {offset} back to {later[partition]} at {after.at_s:.1f} s"
                for partition, offset in earlier.items()
                if later[partition] < offset
            ]
