"""Runs one processor on its partitions: records and stream time in, effects committed.

    records ─▶ fold into their partitions' operators ─▶ hook (judges) ─▶ commit each partition's effects and offsets

A record that cannot be decoded, or for which the code raises, becomes a dead letter, and the partition continues. This
code runs live, in ``drive`` and in a replay; they differ in the :class:`Committer` and in how records are read.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from headrace.streams.raw import LogRecord, Outgoing
from headrace.streams.runtime.operator_run import OperatorRun
from headrace.streams.runtime.processor import Effects, Hook, Operator


class Committer(Protocol):
    """Makes the effects of one partition durable."""

    async def commit(
        self, offsets: Mapping[str, int], state: Mapping[bytes, bytes | None], outgoing: Iterable[Outgoing]
    ) -> None:
        """Write everything or nothing: ``offsets`` after the records that were processed (by topic), changes of the
        ``state``, and the records ``outgoing``.
        """


class _Task:
    """The operator of one partition, and what makes its effects durable."""

    def __init__(self, run: OperatorRun, committer: Committer) -> None:
        self.operator = run.operator
        self._run = run
        self._committer = committer
        self._offsets: dict[str, int] = {}

    def process(self, record: LogRecord) -> None:
        self._offsets[record.topic] = record.offset + 1
        self._run.process(record)

    async def commit(self) -> tuple[Effects, list[Outgoing]]:
        """Commit the effects since the last call and return them."""
        effects, outgoing = self._run.flush()
        offsets, self._offsets = self._offsets, {}
        if offsets or effects.state or outgoing:
            await self._committer.commit(offsets, effects.state, outgoing)
        return effects, outgoing


class Runtime:
    """A running processor. After an exception its partitions must be assigned again, from what was committed."""

    def __init__(
        self,
        source: str,
        hook: Hook | None = None,
        *,
        at_most: int = 500,
        revoked: asyncio.Event | None = None,
        strict: bool = False,
    ) -> None:
        """``source`` names the processor in its outputs. If stream time makes much due, ``at_most`` pieces of work are
        committed at a time. While ``revoked`` is set no more work is started. ``strict``: an exception of the operator
        is raised instead of becoming a dead letter, for a person who tries it out.
        """
        self.counts: Counter[str] = Counter()
        """Counts of the operators, for committed effects."""
        self.read: Counter[str] = Counter()
        """Records processed and committed, by topic."""
        self.written: Counter[str] = Counter()
        """Records written and committed, by topic."""
        self._source = source
        self._hook = hook
        self._at_most = at_most
        self._revoked = revoked or asyncio.Event()
        self._strict = strict
        self._tasks: dict[int, _Task] = {}

    @property
    def operators(self) -> dict[int, Operator]:
        """The operator of each assigned partition."""
        return {number: task.operator for number, task in self._tasks.items()}

    def assign(self, partition: int, operator: Operator, committer: Committer) -> None:
        """Have ``operator`` process the records of ``partition``."""
        self._tasks[partition] = _Task(OperatorRun(self._source, operator, strict=self._strict), committer)

    def release(self) -> None:
        """Release every partition. Uncommitted effects are dropped."""
        self._tasks = {}

    async def process(self, records: Collection[LogRecord]) -> None:
        """Process ``records`` of assigned partitions, and commit their effects."""
        touched = dict.fromkeys(record.partition for record in records)
        for record in records:
            self._tasks[record.partition].process(record)
        await self._commit(touched)
        self.read.update(record.topic for record in records)

    async def advance(self, times: Mapping[int, int]) -> None:
        """Advance the stream time of each partition to ``times`` (Unix milliseconds); do and commit what is due."""
        for partition, now_ms in times.items():
            if (task := self._tasks.get(partition)) is None:
                continue
            while not self._revoked.is_set():
                task.operator.advance(now_ms, self._at_most)
                await self._commit([partition])
                if not task.operator.is_due(now_ms):
                    break

    async def _commit(self, partitions: Collection[int]) -> None:
        tasks = {number: self._tasks[number] for number in partitions}
        if self._hook is not None:
            await self._hook.complete({number: task.operator for number, task in tasks.items()})
        for effects, outgoing in await _all_done([task.commit() for task in tasks.values()]):
            self.counts += effects.counts
            self.written.update(each.topic.name for each in outgoing)


async def _all_done(
    pending: Sequence[Awaitable[tuple[Effects, list[Outgoing]]]],
) -> list[tuple[Effects, list[Outgoing]]]:
    """The results of all, once every one is done; raises the first exception, if any."""
    if len(pending) == 1:  # as in memory, where there is no event loop
        return [await pending[0]]
    results = []
    for result in await asyncio.gather(*pending, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results
