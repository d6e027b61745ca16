"""The segments of a spool that wait to be read, in order: of this process, or of an ended one."""

import errno
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final

from headrace.agents.spool_folder import SpoolFolder, SpoolUnusable, segments_in
from headrace.agents.spool_frames import FrameReader, Loss, SpooledRecord, cluster_of

MAX_SEGMENT_BYTES: Final = 1024 * 1024 * 1024
"""Most of a file that is written or read: what is appended at once may make a segment that much larger than usual."""


class Segment:
    """A segment file with records that are not done."""

    __slots__ = ("held", "is_kept", "is_read", "name", "open", "records", "size", "tags")

    def __init__(self, name: str, size: int = 0, records: int | None = None) -> None:
        self.name = name
        self.size = size
        """Its size in bytes."""
        self.records = records
        """Number of its records; ``None`` if another process wrote it."""
        self.tags = array("q")
        """The caller's number of each record, if this process wrote it."""
        self.held = 0
        """Number of records at its start that the caller kept, so that they are not taken."""
        self.open = 0
        """Number of records that are held or taken, and not done."""
        self.is_read = False
        """Whether no further record will be taken from it."""
        self.is_kept = False
        """Whether its file stays, because it could not be read."""

    @property
    def is_done(self) -> bool:
        """Whether its file is no longer needed."""
        return self.is_read and not self.open and not self.is_kept


@dataclass(frozen=True, slots=True)
class Taken:
    """A record for sending. Its segment is passed to ``Spool.done`` once the record needs no sending any more."""

    record: SpooledRecord
    segment: Segment
    tag: int | None
    """The caller's number, as it was appended; ``None`` if another process appended it."""


class SegmentQueue:
    """Segments in the order in which they were written, and the place of the next record in the first of them."""

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self.segments = deque(segments)
        """Segments with records to be taken; the last may be one that is being written."""
        self.files = len(self.segments)
        """Number of files that are to be removed, including those of which all records are taken."""
        self.waiting = 0
        """Number of records to be taken, of segments of this process."""
        self.has_kept = False
        """Whether a file could not be read and stays."""
        self._reader: FrameReader | None = None
        self._index = 0

    @property
    def oldest_tag(self) -> int | None:
        """The caller's number of the next record; ``None`` if there is none."""
        at = self._index
        for segment in self.segments:
            at = max(at, segment.held)
            if at < len(segment.tags):
                return segment.tags[at]
            at = 0
        return None

    def next(self, folder: SpoolFolder, cluster: bytes, on_loss: Callable[[str, Loss], None]) -> Taken | Segment:
        """Return the next record of the first segment, or that segment: it had no further record and left the queue.

        ``on_loss``: as for ``Spool``. Raises ``OSError`` for what may pass, such as too many open files.
        """
        segment = self.segments[0]
        if segment.held == segment.records:
            return self._left()
        if self._reader is None:
            try:
                self._reader = FrameReader(_content(folder, segment.name, cluster))
            except OSError as error:
                is_missing = isinstance(error, FileNotFoundError)
                if not is_missing and not isinstance(error, SpoolUnusable) and error.errno != errno.EIO:
                    raise
                if not is_missing:
                    segment.is_kept = self.has_kept = True
                    self.files -= 1
                return self._lose(
                    f"{folder.path / segment.name} ({error})", Loss(0, segment.size, 0, is_torn=False), on_loss
                )
        while self._index != segment.records and (record := self._reader.next()) is not None:
            self._index += 1
            if self._index > segment.held:
                segment.open += 1
                if segment.records is None:
                    return Taken(record, segment, None)
                self.waiting -= 1
                return Taken(record, segment, segment.tags[self._index - 1])
        loss = self._reader.loss or Loss(segment.size, 0, 0, is_torn=False)
        return self._lose(str(folder.path / segment.name), loss, on_loss)

    def leave_out(self, segment: Segment) -> None:
        """Let ``segment`` leave, wherever it is: its records were all held, so that none is to be taken from it."""
        self.segments.remove(segment)
        segment.tags = array("q")
        segment.is_read = True

    def _lose(self, path: str, loss: Loss, on_loss: Callable[[str, Loss], None]) -> Segment:
        """Let the first segment leave, and report what was not read of it: exactly how many records, if this process
        wrote it."""
        segment = self.segments[0]
        if segment.records is not None:
            lost = segment.records - max(self._index, segment.held)
            self.waiting -= lost
            loss = replace(loss, records=lost, is_torn=False)
        if segment.records != self._index and (loss.size or loss.records):
            on_loss(path, loss)
        return self._left()

    def _left(self) -> Segment:
        segment = self.segments.popleft()
        self._reader, self._index = None, 0
        segment.tags = array("q")
        segment.is_read = True
        return segment


def left_on_disk(path: Path, cluster: bytes, on_loss: Callable[[Loss], None]) -> Iterator[SpooledRecord]:
    """Yield the records for ``cluster`` in the folder ``path``, of every process, and leave them where they are.

    ``on_loss`` is called for what cannot be read. Raises ``OSError`` if the folder or a file is not safe to use. A file
    that is removed meanwhile is skipped: Kafka has its records.
    """
    try:
        folder = SpoolFolder(path, create=False)
    except FileNotFoundError:
        return
    try:
        for name in chain.from_iterable(segments_in(folder).values()):
            try:
                data = _read(folder, name)
            except FileNotFoundError:
                continue
            if cluster_of(data) not in (cluster, None):
                continue
            reader = FrameReader(data)
            while (record := reader.next()) is not None:
                yield record
            if reader.loss is not None:
                on_loss(reader.loss)
    finally:
        folder.close()


def _content(folder: SpoolFolder, name: str, cluster: bytes) -> bytes:
    data = _read(folder, name)
    if cluster_of(data) not in (cluster, None):
        raise SpoolUnusable(f"{folder.path / name} holds events for another cluster: it is not sent")
    return data


def _read(folder: SpoolFolder, name: str) -> bytes:
    with open(folder.open(name), "rb") as file:
        return file.read(MAX_SEGMENT_BYTES)
