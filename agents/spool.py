"""A spool: Kafka records that wait on the local disk until they can be sent, in order, and survive the process.

    append ──▶ segment 2 (being written), segment 1, segment 0 ──take──▶ the caller sends ──done──▶ segment 0 is removed

Records are taken in the order in which they were appended. A segment's file is removed once all of its records are
done, so a process that is killed leaves what was not sent, with some records that were: another process adopts them and
sends them all, under the same event IDs. The size on disk is limited. A spool belongs to one cluster (a fingerprint of
its settings) and never returns records that were spooled for another.

Methods block for the disk and may be called from any thread, so an event loop calls them on one.
"""

import errno
import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Final

from headrace.agents.spool_folder import SegmentSet, SpoolFolder, abandoned_sets, new_set
from headrace.agents.spool_frames import Loss, SpooledRecord, frame_of, header_of
from headrace.agents.spool_segments import MAX_SEGMENT_BYTES, Segment, SegmentQueue, Taken

SEGMENT_BYTES: Final = 4 * 1024 * 1024
"""A segment of this size is complete. What a killed process leaves is sent again by whole segments."""

SEGMENTS: Final = 16
"""A spool with a small limit has segments of this part of it, so that sending frees space early."""

NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
"""Errors of the system that mean that the disk is full."""

SCAN_S: Final = 1.0
"""Shortest time between two scans of a full folder for space that other processes have freed, in seconds."""


class Spool:
    """A spool in a folder that other processes, and other spools of this one, may use as well.

    Methods raise ``OSError`` if the system does, and ``SpoolUnusable``, an ``OSError`` with a sentence for users, if
    the folder is not safe to use; the spool is then as it was before.
    """

    def __init__(
        self,
        folder: Path,
        limit_bytes: int,
        cluster: bytes,
        on_loss: Callable[[str, Loss], None],
        *,
        sync: Callable[[int], None] = os.fsync,
    ) -> None:
        """Touch no file yet: the first append creates the folder.

        ``limit_bytes``: most bytes of all files in ``folder``; several processes that share it may exceed it by an
        append each. ``cluster``: 32 bytes, ``cluster_fingerprint``. ``on_loss`` is called with the path of a file and
        its part that cannot be read. ``sync`` is called with a descriptor and returns once the file is on disk.
        """
        self.path = folder
        self.limit_bytes = limit_bytes
        self._cluster = cluster
        self._header = header_of(cluster)
        self._on_loss = on_loss
        self._sync = sync
        self._segment_bytes = min(SEGMENT_BYTES, limit_bytes // SEGMENTS)
        self._lock = threading.Lock()
        self._folder: SpoolFolder | None = None
        self._own: SegmentSet | None = None
        self._number = 0
        self._writing: Segment | None = None
        self._fd = -1
        self._mine = SegmentQueue()
        self._adopted = SegmentQueue()
        self._adopted_set: SegmentSet | None = None
        self._unreadable: set[str] = set()
        self._own_bytes = 0
        self._others_bytes = 0
        self._scanned_at = -SCAN_S

    @property
    def waiting(self) -> int:
        """Number of appended records that were not taken; adopted ones are not included."""
        return self._mine.waiting

    @property
    def oldest_tag(self) -> int | None:
        """The caller's number of the record that is taken next; ``None`` if there is none."""
        return self._mine.oldest_tag

    @property
    def has_adopted(self) -> bool:
        """Whether records of an ended process are to be taken or done."""
        return self._adopted_set is not None

    def append(
        self, records: Sequence[SpooledRecord], tags: Sequence[int] = (), *, held: bool = False, partly: bool = False
    ) -> list[Segment]:
        """Append ``records`` and return once they are on disk: one fsync for all of them.

        Returns the segment of each record; an empty list if they do not all fit, or not into one file that can be read
        whole (``MAX_SEGMENT_BYTES``), or the disk is full. With ``partly``,
        the segments of the first records, at least one if it fits: as many as one segment takes. ``tags``: the caller's
        number of each record. With ``held`` the caller keeps the records, which are not taken; only while none are
        waiting, else raises ``ValueError``. Raises ``RecordTooLarge`` for a record beyond the limits of a frame.
        """
        frames = [frame_of(record) for record in records]
        with self._lock:
            if held and self._mine.waiting:
                raise ValueError("records can be held only while none are waiting")
            sizes = list(accumulate(map(len, frames)))
            wanted = sizes[-1] if sizes else 0
            if self._writing is not None and self._writing.size + wanted > MAX_SEGMENT_BYTES:
                self._complete()
            count = bisect_right(sizes, min(self._room(wanted), MAX_SEGMENT_BYTES - len(self._header)))
            if not count or (count < len(frames) and not partly):
                return []
            if partly:
                written = self._writing.size if self._writing else 0
                count = min(count, bisect_left(sizes, self._segment_bytes - written) + 1)
            try:
                segment = self._write(b"".join(frames[:count]))
            except OSError as error:
                if error.errno in NO_SPACE:
                    return []
                if isinstance(error, FileNotFoundError):
                    self._leave_folder()  # it was removed: the next append creates it again
                raise
            segment.records = (segment.records or 0) + count
            segment.tags.extend(tags[:count] or [0] * count)
            if held:
                segment.held += count
                segment.open += count
            else:
                self._mine.waiting += count
            if segment.size >= self._segment_bytes:
                self._complete()
            return [segment] * count

    def take(self, most: int, most_bytes: int) -> list[Taken]:
        """Return the oldest appended records that were not taken: at most ``most``, and no further one once their
        values have ``most_bytes``."""
        with self._lock:
            return self._take(self._mine, most, most_bytes)

    def adopt(self) -> bool:
        """Adopt the oldest set of an ended process for this cluster, unless one is adopted already; return whether one
        is. Its records are returned by :meth:`take_adopted`."""
        with self._lock:
            if self._adopted_set is None:
                try:
                    folder = self._opened(create=False)
                except FileNotFoundError:
                    return False
                for owned, names in abandoned_sets(folder, self._cluster, self._unreadable, self._refused):
                    self._adopted_set = owned
                    self._adopted = SegmentQueue(Segment(name, folder.size_of(name)) for name in names)
                    break
            return self._adopted_set is not None

    def take_adopted(self, most: int, most_bytes: int) -> list[Taken]:
        """:meth:`take` for the adopted set. It is given up once all of its records are done."""
        with self._lock:
            taken = self._take(self._adopted, most, most_bytes)
            self._release_adopted()
            return taken

    def done(self, taken: Segment) -> None:
        """Note that a record of the segment needs no sending any more."""
        with self._lock:
            taken.open -= 1
            if taken is self._writing and taken.held == taken.records and not taken.open:
                self._complete()  # else its file would stay until something is taken, which may never happen
                self._mine.leave_out(taken)
            self._remove_if_done(taken)
            self._release_adopted()

    def close(self) -> None:
        """Close all files and give up the locks; what is not done stays on disk, for another process."""
        with self._lock:
            self._leave_folder()

    def forget(self) -> None:
        """Close all files in a forked child; the locks stay those of the parent. No other method may be called then."""
        with suppress(OSError):  # the parent's thread may have closed a file just before the fork
            if self._writing is not None:
                os.close(self._fd)
            for owned in (self._own, self._adopted_set):
                if owned is not None:
                    owned.forget()
            if self._folder is not None:
                self._folder.close()

    def _refused(self, sentence: str) -> None:
        self._on_loss(sentence, Loss(0, 0, 0, is_torn=False))

    def _opened(self, *, create: bool) -> SpoolFolder:
        if self._folder is None:
            self._folder = SpoolFolder(self.path, create=create)
        return self._folder

    def _leave_folder(self) -> None:
        self._complete()
        for owned, queue in ((self._own, self._mine), (self._adopted_set, self._adopted)):
            if owned is not None:
                owned.release(is_empty=not queue.files and not queue.has_kept)
        self._own = self._adopted_set = None
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _room(self, wanted: int) -> int:
        """Return how many bytes of frames may be appended. If that is less than ``wanted``, or a new segment is due,
        the folder is scanned for what other processes have added and freed."""
        folder, header = self._opened(create=True), 0 if self._writing else len(self._header)
        room = self.limit_bytes - self._own_bytes - self._others_bytes - header
        now = time.monotonic()
        if (room < wanted or header) and now - self._scanned_at >= SCAN_S:
            self._scanned_at = now
            self._others_bytes = max(0, folder.total_bytes() - self._own_bytes)
            room = self.limit_bytes - self._own_bytes - self._others_bytes - header
        return room

    def _write(self, data: bytes) -> Segment:
        """Write ``data`` to the end of a segment, and return the segment once it is on disk."""
        folder, segment = self._opened(create=True), self._writing
        if segment is None:
            if self._own is None:
                self._own = new_set(folder)
            segment = Segment(self._own.segment_name(self._number))
            self._fd = folder.create(segment.name)
            self._number += 1  # also if the write fails: its file may stay
            data = self._header + data
        try:
            rest, at = memoryview(data), segment.size
            while rest:
                written = os.pwrite(self._fd, rest, at)
                rest, at = rest[written:], at + written
            self._sync(self._fd)
            if segment is not self._writing:
                folder.sync()
        except OSError:
            self._roll_back(folder, segment)
            raise
        if segment is not self._writing:
            self._writing = segment
            self._mine.segments.append(segment)
            self._mine.files += 1
        segment.size += len(data)
        self._own_bytes += len(data)
        return segment

    def _roll_back(self, folder: SpoolFolder, segment: Segment) -> None:
        """Restore the file of ``segment`` after a failed write; if that fails too, nothing is added to it any more."""
        if segment is not self._writing:
            os.close(self._fd)
            with suppress(OSError):  # without a whole frame, the file is empty for a process that adopts it
                folder.remove(segment.name)
            return
        try:
            os.ftruncate(self._fd, segment.size)
        except OSError:
            self._complete()

    def _complete(self) -> None:
        """End the segment that is being written; the next append begins another."""
        if self._writing is not None:
            self._writing = None
            os.close(self._fd)

    def _take(self, queue: SegmentQueue, most: int, most_bytes: int) -> list[Taken]:
        taken: list[Taken] = []
        size = 0
        while len(taken) < most and size < most_bytes and queue.segments:
            try:
                if (first := queue.segments[0]) is self._writing:
                    if first.held == first.records and first.open:
                        break  # nothing is to be taken from it yet, and more may be added
                    self._complete()
                found = queue.next(self._opened(create=True), self._cluster, self._on_loss)
                if isinstance(found, Segment):
                    self._remove_if_done(found)
                    continue
            except OSError:
                if not taken:
                    raise
                break  # those before it have left the queue
            taken.append(found)
            size += len(found.record.value or b"")
        return taken

    def _remove_if_done(self, segment: Segment) -> None:
        if not segment.is_done or self._folder is None:
            return
        self._folder.remove(segment.name)
        if segment.records is None:
            self._adopted.files -= 1
        else:
            self._mine.files -= 1
            self._own_bytes -= segment.size

    def _release_adopted(self) -> None:
        if self._adopted_set is not None and not self._adopted.files:
            if self._adopted.has_kept:
                self._unreadable.add(self._adopted_set.id)
            self._adopted_set.release(is_empty=not self._adopted.has_kept)
            self._adopted_set = None
