"""``python memory_program.py native|plain LOAD``: prints what a fold counts, and by how much its process grew."""

import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

WITHOUT_THE_MODULE = sys.argv[1:2] == ["plain"]
if WITHOUT_THE_MODULE:
    sys.modules["headrace.streams.native.speedups"] = None  # type: ignore[assignment]

from headrace.schemas.envelope import Envelope, to_headers  # noqa: E402
from headrace.schemas.events import ToolReturned, TrajectoryEnded  # noqa: E402
from headrace.streams.assembly.arrival import arrival_of  # noqa: E402
from headrace.streams.assembly.fold import PartitionFold  # noqa: E402
from headrace.streams.assembly.fold_limits import FoldLimits  # noqa: E402
from headrace.streams.assembly.gaps import gaps_of  # noqa: E402
from headrace.streams.assembly.remembered import Memory, Remembered  # noqa: E402
from headrace.streams.native.available import SPEEDUPS  # noqa: E402
from headrace.streams.raw import LogRecord, StoredRecord  # noqa: E402

MIB = 1024 * 1024
EVERYTHING = FoldLimits(
    max_trajectory_bytes=1024 * MIB, max_open=10**9, max_open_bytes=4096 * MIB,
    remember=10**9, remember_bytes=4096 * MIB, max_remembered=10**9,
)  # fmt: skip


def event(
    trajectory: int, number: int, *, size: int, more: int = 0, ends: bool = False, bad: bool = False
) -> StoredRecord:
    """An event as an agent would send it, with ``size`` bytes of payload and ``more`` additional headers."""
    time_ms = 1_700_000_000_000 + 7 * number
    kind = TrajectoryEnded.TYPE if ends else ToolReturned.TYPE
    subject = f"0193f5d2-6a7b-7c8d-9e0f-{trajectory:012d}"
    envelope = Envelope(
        f"0193f5d2-{number:04x}-7c8d-9e0f-{trajectory:012d}", kind, "/agents/checkout", time_ms, subject, number
    )
    headers = [*to_headers(envelope), *((f"header-{index:03d}", b"%020d" % index) for index in range(more))]
    value = b"" if bad else b"{" + b" " * (size - 2) + b"}"
    offset = 1_000_000 + trajectory * 1_000_000 + number
    return StoredRecord("events", 0, offset, time_ms + offset % 997, subject.encode(), value, headers)


def small() -> Iterator[StoredRecord]:
    for trajectory in range(3_000):
        for number in range(30):
            yield event(trajectory, number, size=60)


def single() -> Iterator[StoredRecord]:
    for trajectory in range(40_000):
        yield event(trajectory, 0, size=200)


def headers() -> Iterator[StoredRecord]:
    for trajectory in range(200):
        for number in range(50):
            yield event(trajectory, number, size=200, more=200)


def repeated() -> Iterator[StoredRecord]:
    for record in headers():
        pairs = [(name if name.startswith(("ce_", "content")) else "again", value) for name, value in record.headers]
        yield StoredRecord(*(getattr(record, name) for name in record.__slots__ if name != "headers"), headers=pairs)


def large() -> Iterator[StoredRecord]:
    for trajectory in range(20):
        for number in range(40):
            yield event(trajectory, number, size=100_000)


def unreadable() -> Iterator[StoredRecord]:
    for trajectory in range(40):
        for number in range(5_000):
            yield event(trajectory, number, size=60, bad=True)


def closed() -> Iterator[StoredRecord]:
    for trajectory in range(80_000):
        yield event(trajectory, 0, size=60, ends=True)


def resident() -> int:
    """Private memory of this process, bytes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run(load: Callable[[], Iterator[StoredRecord]]) -> tuple[int, int]:
    """What the fold counts, and by how much the process grew."""
    fold = PartitionFold(EVERYTHING)
    before = resident()
    batch: list[LogRecord] = []

    def take() -> None:
        index = 0
        while (index := fold.take_ordinary(batch, index)) < len(batch):
            fold.arrive(batch[index])
            index += 1
        batch.clear()

    for record in load():
        batch.append(arrival_of(record))
        if len(batch) == 200:
            take()
    take()
    return fold.held_bytes + fold.remembered_bytes, resident() - before


def remembering() -> tuple[int, int]:
    """The same of closed trajectories with two hundred gaps each."""
    memory = Memory(10**9, 4096 * MIB)
    before = resident()
    for number in range(30_000):
        gaps = gaps_of((2 * place, 2 * place + 1) for place in range(1, 201))
        memory.add(Remembered(b"0193f5d2-6a7b-7c8d-9e0f-%012d" % number, 402, gaps, b"0193f5d2-%027d" % number))
    return memory.size, resident() - before


LOADS: dict[str, Callable[[], tuple[int, int]]] = {
    load.__name__: partial(run, load) for load in (small, single, headers, repeated, large, unreadable, closed)
} | {"remembering": remembering}

if __name__ == "__main__":
    assert (SPEEDUPS is None) == WITHOUT_THE_MODULE
    counted, grown = LOADS[sys.argv[2]]()
    print(json.dumps({"counted": counted, "grown": grown}))
