"""Folds the partitions of a replay from events in several processes, and requests portions as the replay needs them.

    replay ──"3"──▶ process of partitions 1, 3 ──portion of 3──▶ replay

One core is left for the replay itself. The result does not depend on how partitions are distributed.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import BinaryIO

import msgspec

from headrace.schemas.side_topics import OffsetRange
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.replay.fold_process import LENGTH_BYTES, FoldTask, RangeToFold
from headrace.streams.replay.portion_codec import Failure, from_bytes
from headrace.streams.replay.sink import ReplayRefused
from headrace.streams.replay.trajectories import Portion

_STOP_S = 5.0
"""Seconds after which a process that has not exited is killed."""


class FoldFailed(RuntimeError):
    """A partition could not be folded; the message gives the reason."""


class FoldedPartitions:
    """Receives the portions of all partitions of a range; made by :func:`fold_partitions`."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        """``threads``: one for each process."""
        self._threads = threads
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._portions: dict[int, asyncio.Queue[Portion | Exception]] = {}

    async def read(self, partitions: Collection[int]) -> list[Portion]:
        """Returns the next portion of each of ``partitions``, which all have one left.

        Raises ``ReplayRefused`` if retention deleted a part of the range, :class:`FoldFailed` for any other failure.
        """
        found = []
        for partition in partitions:
            portion = await self._portions[partition].get()
            if isinstance(portion, Exception):
                raise portion
            if not portion.is_last:
                self._ask(partition)
            found.append(portion)
        return found

    async def start(self, task: FoldTask, opened: AsyncExitStack) -> None:
        """Start a process for ``task``. It is stopped when ``opened`` closes."""
        reading, writing = os.pipe()
        output = opened.enter_context(os.fdopen(reading, "rb"))
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "headrace.streams.replay.fold_process"),
                stdin=asyncio.subprocess.PIPE,
                stdout=writing,
                start_new_session=True,  # Ctrl-C ends the replay, and the end of its input this process
            )
        finally:
            os.close(writing)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(task) + b"\n")
        for span in task.spans:
            self._processes[span.partition], self._portions[span.partition] = process, asyncio.Queue()
            self._ask(span.partition)
        receiving = asyncio.ensure_future(self._receive(process, output, [span.partition for span in task.spans]))
        opened.push_async_callback(asyncio.wait, [receiving])
        opened.push_async_callback(_stop, process)  # first: the output ends with the process

    def _ask(self, partition: int) -> None:
        requests = self._processes[partition].stdin
        assert requests is not None
        requests.write(b"%d\n" % partition)

    async def _receive(self, process: asyncio.subprocess.Process, output: BinaryIO, partitions: list[int]) -> None:
        """Receive the portions of ``partitions`` from the ``output`` of ``process`` until it ends.

        A thread reads them, so that they arrive while the event loop is busy with earlier ones.
        """
        loop = asyncio.get_running_loop()

        def deliver(portion: Portion) -> None:
            loop.call_soon_threadsafe(self._portions[portion.partition].put_nowait, portion)

        why: Exception
        try:
            failure = await loop.run_in_executor(self._threads, _read_portions, output, deliver)
            why = ReplayRefused(failure.message) if failure.refused else FoldFailed(failure.message)
        except Exception as error:  # noqa: BLE001 - after any error no more portions come, and the replay must not wait for them
            status = await process.wait() if isinstance(error, EOFError) else None
            why = FoldFailed(f"the process that folds events{partitions} ended with status {status}: {error}")
        for partition in partitions:
            self._portions[partition].put_nowait(why)


@asynccontextmanager
async def fold_partitions(
    bootstrap: str, spans: Mapping[int, OffsetRange], limits: FoldLimits, archive: str | None = None
) -> AsyncIterator[FoldedPartitions]:
    """Fold ``spans``, ranges of partitions of ``events``, in processes that are stopped on exit. ``archive``: object
    store with what the log no longer has.
    """
    count = min(len(spans), max(1, len(os.sched_getaffinity(0)) - 1))
    async with AsyncExitStack() as opened:
        folded = FoldedPartitions(opened.enter_context(ThreadPoolExecutor(count or 1, "folded")))
        ranges = [RangeToFold(each.partition, each.start, each.stop, each.begins_log) for each in spans.values()]
        for number in range(count):
            await folded.start(FoldTask(bootstrap, limits, ranges[number::count], archive), opened)
        yield folded


def _read_portions(output: BinaryIO, deliver: Callable[[Portion], None]) -> Failure:
    """Deliver portions until the process reports a failure, which is returned. Raises ``EOFError`` if it ends."""
    while True:
        frame = from_bytes(_read_exactly(output, int.from_bytes(_read_exactly(output, LENGTH_BYTES))))
        if isinstance(frame, Failure):
            return frame
        deliver(frame)


def _read_exactly(output: BinaryIO, count: int) -> bytes:
    data = output.read(count)
    if len(data) < count:
        raise EOFError(f"{len(data)} of {count} bytes were read")
    return data


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Stop ``process`` by closing its input."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
