"""A process that folds some partitions of ``events`` for a replay, so that folding uses several cores.

    python -m headrace.streams.replay.fold_process

It reads one line of JSON (:class:`FoldTask`) from stdin, then one line per requested portion, the partition's number.
To stdout it writes one frame per request, after the frame's length in four bytes. It exits when stdin is closed.
"""

import asyncio
import fcntl
import logging
import sys
from collections.abc import Mapping

import msgspec
from confluent_kafka import KafkaException

from headrace.schemas.archive.archive import NotArchived
from headrace.schemas.archive.segment import SegmentUnreadable
from headrace.schemas.kafka.reading import RangeExpired
from headrace.schemas.objects.unavailable import StoreUnavailable
from headrace.schemas.side_topics import OffsetRange
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.memory import fit_memory_to_folds
from headrace.streams.replay.folded_partition import fold_span
from headrace.streams.replay.portion_codec import Failure, to_bytes
from headrace.streams.replay.trajectories import Portion

logger = logging.getLogger(__name__)

LENGTH_BYTES = 4
_PIPE_BYTES = 1024 * 1024
"""Size of the pipe to the replay, the largest that an unprivileged process may set: its reader wakes less often."""
_TASK_BYTES = 64 * 1024 * 1024
"""Largest task. A range takes some 60 bytes."""
_AHEAD = 2
"""Portions of a partition that are folded before they are requested."""


class RangeToFold(msgspec.Struct):
    """As :class:`headrace.schemas.side_topics.OffsetRange`."""

    partition: int
    start: int
    stop: int
    begins_log: bool


class FoldTask(msgspec.Struct):
    """The work of one process."""

    bootstrap: str
    """Kafka brokers, ``host:port``, comma-separated."""
    limits: FoldLimits
    """Limits of the fold."""
    spans: list[RangeToFold]
    """Ranges of partitions."""
    archive: str | None = None
    """Object store with the archive of what the log no longer has."""


async def _fold(task: FoldTask, span: RangeToFold, portions: "asyncio.Queue[Portion | Failure]") -> None:
    """Fold ``span`` into ``portions``. If folding fails, a :class:`Failure` is the last of them."""
    try:
        given = OffsetRange(**msgspec.structs.asdict(span))
        async for portion in fold_span(task.bootstrap, given, task.limits, task.archive):
            await portions.put(portion)
    except (RangeExpired, NotArchived, SegmentUnreadable, StoreUnavailable) as error:
        await portions.put(Failure(f"{error}", refused=True))
    except KafkaException as error:
        await portions.put(Failure(f"events[{span.partition}] cannot be read: {error.args[0].str()}"))
    except Exception as error:
        logger.exception("folding events[%d] failed", span.partition)
        await portions.put(Failure(f"folding events[{span.partition}] failed: {type(error).__name__}: {error}"))


async def _serve() -> None:
    requests = asyncio.StreamReader(limit=_TASK_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    line = await requests.readline()
    if not line:  # the replay ended before it sent the task
        return
    task = msgspec.json.decode(line, type=FoldTask)
    portions: dict[int, asyncio.Queue[Portion | Failure]] = {
        span.partition: asyncio.Queue(_AHEAD) for span in task.spans
    }
    requested: asyncio.Queue[int] = asyncio.Queue()
    async with asyncio.TaskGroup() as group:
        work = [group.create_task(_fold(task, span, portions[span.partition])) for span in task.spans]
        work.append(group.create_task(_answer(requested, portions)))
        while line := await requests.readline():
            requested.put_nowait(int(line))
        for each in work:
            each.cancel()


async def _answer(requested: "asyncio.Queue[int]", portions: "Mapping[int, asyncio.Queue[Portion | Failure]]") -> None:
    """Write the requested portions until the replay closes the pipe."""
    try:
        fcntl.fcntl(sys.stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError as error:
        logger.debug("the pipe keeps its size: %s", error)
    try:
        while True:
            partition = await requested.get()
            await asyncio.to_thread(_write, to_bytes(await portions[partition].get()))
    except BrokenPipeError:
        logger.debug("the replay has ended")


def _write(frame: bytes) -> None:
    # Under PYTHONUNBUFFERED, sys.stdout loses the rest of a write that a stop signal interrupts.
    with open(sys.stdout.fileno(), "wb", closefd=False) as output:
        output.write(len(frame).to_bytes(LENGTH_BYTES))
        output.write(frame)


if __name__ == "__main__":
    fit_memory_to_folds()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asyncio.run(_serve())
