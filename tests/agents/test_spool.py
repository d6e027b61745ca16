"""A spool returns records in order, survives its process, stays within its limit and belongs to one cluster."""

import errno
import fcntl
import itertools
import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents import spool as spool_module
from headrace.agents import spool_segments
from headrace.agents.spool import Spool
from headrace.agents.spool_folder import STATE_VARIABLE, SpoolFolder, SpoolUnusable, abandoned_sets, default_folder
from headrace.agents.spool_frames import HEADER_BYTES, Loss, SpooledRecord, cluster_fingerprint, frame_of
from headrace.agents.spool_segments import Taken, left_on_disk

HERE, ELSEWHERE = cluster_fingerprint("here:9092"), cluster_fingerprint("elsewhere:9092")
EVERYTHING = (1_000_000, 1 << 40)


def numbered(number: int, size: int = 20) -> SpooledRecord:
    return SpooledRecord("events", b"t", b"%d" % number + bytes(size), (("ce_id", b"%d" % number),))


def numbers(taken: list[Taken]) -> list[int]:
    return [int(each.record.headers[0][1]) for each in taken]


class Losses(list[tuple[str, Loss]]):
    def __call__(self, path: str, loss: Loss) -> None:
        self.append((path, loss))


@pytest.fixture
def losses() -> Losses:
    return Losses()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "spool"


def opened(folder: Path, losses: Losses, limit: int = 1 << 24, cluster: bytes = HERE) -> Spool:
    return Spool(folder, limit, cluster, losses)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def all_done(spool: Spool, taken: list[Taken]) -> None:
    for each in taken:
        spool.done(each.segment)


# Order, crashes and adoption.

operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.just("take"), st.integers(1, 7)),
        st.tuples(st.just("done"), st.integers(1, 7)),
        st.tuples(st.just("crash"), st.just(0)),
        st.tuples(st.just("close"), st.just(0)),
    ),
    max_size=40,
)


@given(operations)
def test_every_record_is_taken_in_order_until_it_is_done(steps: list[tuple[str, int]]) -> None:
    """Processes follow one another on a folder; each adopts what the one before it left. A crash repeats records whose
    segment was not finished, and loses none."""
    with TemporaryDirectory() as name:
        losses, folder = Losses(), Path(name) / "spool"
        spool = opened(folder, losses, limit=20_000)  # segments of 1,250 bytes
        written, done = 0, set[int]()
        own_next = first_own = 0
        held = deque[Taken]()
        for step, count in [*steps, ("crash", 0)]:
            if step == "append":
                records = [numbered(each, size=100) for each in range(written, written + count)]
                segments = spool.append(records, range(written, written + count))
                assert len(segments) in (0, count)
                written += len(segments)
            elif step == "take":
                taken = spool.take(count, 1 << 20)
                assert numbers(taken) == list(range(own_next, min(own_next + count, written)))
                assert [each.tag for each in taken] == numbers(taken)
                own_next += len(taken)
                held.extend(taken)
            elif step == "done":
                for _ in range(min(count, len(held))):
                    done.add(numbers([held[0]])[0])
                    spool.done(held.popleft().segment)
            else:
                if step == "crash":
                    spool.forget()
                else:
                    spool.close()
                held.clear()
                spool = opened(folder, losses, limit=20_000)
                left = list[int]()
                while spool.adopt():
                    adopted = spool.take_adopted(3, 1 << 20)
                    left += numbers(adopted)
                    all_done(spool, adopted)
                assert left == sorted(set(left)), "once and in order"
                assert set(range(first_own, written)) - done <= set(left)
                done |= set(left)
                own_next = first_own = written
            assert spool.waiting == written - own_next
            assert spool.oldest_tag == (own_next if own_next < written else None)
        assert done == set(range(written))
        assert losses == []
        spool.close()
        assert files(folder) == [], "neither segments nor locks are left"


def test_records_that_the_caller_holds_are_on_disk_and_not_taken(folder: Path, losses: Losses) -> None:
    spool = opened(folder, losses)
    (held,) = spool.append([numbered(0)], [10], held=True)
    spool.append([numbered(1), numbered(2)], [11, 12])
    assert (spool.waiting, spool.oldest_tag) == (2, 11)
    with pytest.raises(ValueError, match="none are waiting"):
        spool.append([numbered(3)], held=True)
    taken = spool.take(*EVERYTHING)
    assert [(each.tag, numbers([each])) for each in taken] == [(11, [1]), (12, [2])]
    all_done(spool, taken)
    assert len(files(folder)) == 2, "the held record is not done"
    successor = opened(folder, losses)
    assert not successor.adopt(), "its process lives"
    spool.done(held)
    assert len(files(folder)) == 1
    spool.append([numbered(4)], [13], held=True)
    spool.forget()
    assert successor.adopt()
    assert numbers(successor.take_adopted(*EVERYTHING)) == [4]


def test_records_that_the_caller_holds_share_a_file_until_they_are_done(folder: Path, losses: Losses) -> None:
    """A caller that looks for work now and then must not fill the folder with files."""
    spool = opened(folder, losses)
    held = []
    for number in range(20):
        held += spool.append([numbered(number)], held=True)
        assert spool.take(*EVERYTHING) == []
    assert len(list(folder.glob("*.spool"))) == 1
    for segment in held:
        spool.done(segment)
    assert spool.take(*EVERYTHING) == []
    assert list(folder.glob("*.spool")) == []
    spool.append([numbered(20)], held=True)
    assert spool.take(*EVERYTHING) == []
    spool.append([numbered(21)])
    assert numbers(spool.take(*EVERYTHING)) == [21]
    spool.forget()
    successor = opened(folder, losses)
    assert successor.adopt()
    assert numbers(successor.take_adopted(*EVERYTHING)) == [20, 21]


def test_sets_are_adopted_oldest_first_by_one_process(folder: Path, losses: Losses) -> None:
    for number in range(3):
        spool = opened(folder, losses)
        spool.append([numbered(number)])
        spool.close()
        time.sleep(0.002)  # sets sort by their millisecond
    one, other = opened(folder, losses), opened(folder, losses)
    assert one.adopt()
    assert other.adopt()
    assert numbers(one.take_adopted(*EVERYTHING)) == [0]
    taken = other.take_adopted(*EVERYTHING)
    assert numbers(taken) == [1]
    all_done(other, taken)
    assert other.adopt()
    assert numbers(other.take_adopted(*EVERYTHING)) == [2]


def test_a_set_that_cannot_be_read_hides_no_younger_one(folder: Path, losses: Losses) -> None:
    for number in range(2):
        spool = opened(folder, losses)
        spool.append([numbered(number)], [number])
        spool.close()
    first, second = sorted({name[:36] for name in files(folder)})
    found = []
    for owned, _ in abandoned_sets(SpoolFolder(folder, create=False), HERE, {first}, found.append):
        found.append(owned.id)
        owned.release(is_empty=False)
    assert found == [second]


def test_events_for_one_cluster_are_not_returned_for_another(folder: Path, losses: Losses) -> None:
    spool = opened(folder, losses, cluster=ELSEWHERE)
    spool.append([numbered(0)])
    spool.close()
    here = opened(folder, losses)
    assert not here.adopt()
    assert here.take_adopted(*EVERYTHING) == []
    assert len(files(folder)) == 2
    there = opened(folder, losses, cluster=ELSEWHERE)
    assert there.adopt()
    assert numbers(there.take_adopted(*EVERYTHING)) == [0]


def test_a_set_of_another_cluster_hides_no_younger_one(folder: Path, losses: Losses) -> None:
    for number, cluster in enumerate((ELSEWHERE, HERE)):
        spool = opened(folder, losses, cluster=cluster)
        spool.append([numbered(number)])
        spool.close()
    successor = opened(folder, losses)
    assert successor.adopt()
    assert numbers(successor.take_adopted(*EVERYTHING)) == [1]


def test_a_set_with_a_segment_of_another_cluster_is_left_alone(folder: Path, losses: Losses) -> None:
    for cluster in (HERE, ELSEWHERE):
        spool = opened(folder, losses, cluster=cluster)
        spool.append([numbered(0)])
        spool.close()
    first, second = (name for name in files(folder) if name.endswith(".spool"))
    (folder / second).rename(folder / first.replace("-000000", "-000001"))
    assert not opened(folder, losses).adopt()
    assert not opened(folder, losses, cluster=ELSEWHERE).adopt()


def test_a_set_stays_adopted_until_all_of_its_records_are_done(folder: Path, losses: Losses) -> None:
    for number in range(2):
        spool = opened(folder, losses)
        spool.append([numbered(10 * number), numbered(10 * number + 1)])
        spool.close()
        time.sleep(0.002)  # sets sort by their millisecond
    spool = opened(folder, losses)
    taken: list[Taken] = []
    for _ in range(4):
        assert spool.adopt()
        taken += spool.take_adopted(1, 1 << 20)
    assert numbers(taken) == [0, 1]
    all_done(spool, taken)
    assert not spool.has_adopted
    assert spool.adopt()
    assert numbers(spool.take_adopted(*EVERYTHING)) == [10, 11]


KILLED = """
import os, sys, time
from pathlib import Path
from headrace.agents.spool import Spool
from headrace.agents.spool_frames import SpooledRecord, cluster_fingerprint

spool = Spool(Path(sys.argv[1]), 1 << 30, cluster_fingerprint("here:9092"), print)
number = 0
while True:
    batch = range(number, number + 7)
    spool.append([SpooledRecord("events", b"t", bytes(500), (("ce_id", b"%d" % each),)) for each in batch])
    number += 7
    os.write(1, b"%d\\n" % number)
"""


def test_a_killed_process_leaves_what_it_was_told_to_be_on_disk(folder: Path, losses: Losses) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(40)]
    assert not opened(folder, losses).adopt(), "it holds its lock"
    process.send_signal(signal.SIGKILL)
    said += process.stdout.read().splitlines()
    process.wait()
    promised = max(int(line) for line in said if line.strip().isdigit())
    spool = opened(folder, losses)
    assert spool.adopt()
    found = numbers(spool.take_adopted(*EVERYTHING))
    assert found == list(range(len(found)))
    assert len(found) >= promised >= 280


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_does_not_keep_its_parent_s_lock(folder: Path, losses: Losses) -> None:
    spool = opened(folder, losses)
    spool.append([numbered(0)])
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        spool.forget()
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    try:
        successor = opened(folder, losses)
        assert not successor.adopt(), "the child has not unlocked it"
        spool.forget()  # the parent ends
        while not successor.adopt():
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
    finally:
        os.close(write)
        os.waitpid(child, 0)


# The limit.


@given(st.integers(1, 30_000), st.lists(st.integers(1, 400), min_size=1, max_size=60))
def test_the_files_stay_within_the_limit(limit: int, sizes: list[int]) -> None:
    with TemporaryDirectory() as name:
        losses, folder = Losses(), Path(name)
        spool = opened(folder, losses, limit)
        accepted = 0
        for number, size in enumerate(sizes):
            record = numbered(number, size)
            before = sum(path.stat().st_size for path in folder.iterdir())
            accepted += len(spool.append([record]))
            used = sum(path.stat().st_size for path in folder.iterdir())
            assert used <= limit
            assert used > before or before + len(frame_of(record)) + HEADER_BYTES > limit
        assert spool.waiting == accepted


def test_a_full_spool_takes_all_records_or_none_and_more_once_some_are_done(folder: Path, losses: Losses) -> None:
    spool = opened(folder, losses, limit=8_000)
    records = [numbered(each, size=400) for each in range(20)]
    assert spool.append(records) == []
    assert files(folder) == [], "nothing was written"
    written = 0
    while segments := spool.append(records[written:], partly=True):
        written += len(segments)
    assert 10 < written < 20
    assert spool.append(records[written:], partly=True) == []
    taken = spool.take(3, 1 << 20)
    all_done(spool, taken)
    assert spool.append(records[written : written + 1])


def test_an_append_of_a_part_ends_with_its_segment(folder: Path, losses: Losses) -> None:
    size = len(frame_of(numbered(0, size=100)))
    spool = opened(folder, losses, limit=16 * (HEADER_BYTES + 10 * size))
    records = [numbered(each, size=100) for each in range(25)]
    written = len(spool.append(records[:4], partly=True))
    counts = []
    while segments := spool.append(records[written:], partly=True):
        counts.append(len(segments))
        written += len(segments)
    assert (counts, written) == ([6, 11, 4], 25)
    assert numbers(spool.take(*EVERYTHING)) == list(range(25))


def test_files_of_other_processes_count(folder: Path, losses: Losses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "SCAN_S", 0.0)
    one, other = opened(folder, losses, limit=8_000), opened(folder, losses, limit=8_000)
    assert one.append([numbered(0, size=5_000)])
    assert other.append([numbered(1, size=4_000)]) == []
    all_done(one, one.take(*EVERYTHING))
    assert other.append([numbered(1, size=4_000)])


def test_space_that_others_free_is_found_while_a_segment_is_written(
    folder: Path, losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "SCAN_S", 0.0)
    one, other = opened(folder, losses, limit=8_000), opened(folder, losses, limit=8_000)
    assert one.append([numbered(0, size=5_000)])
    assert other.append([numbered(1, size=100)])
    assert other.append([numbered(2, size=4_000)]) == []
    all_done(one, one.take(*EVERYTHING))
    assert other.append([numbered(2, size=4_000)])


def test_of_a_link_only_itself_counts(folder: Path, losses: Losses, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(100_000))
    folder.mkdir(mode=0o700, parents=True)
    (folder / "link").symlink_to(large)
    assert opened(folder, losses, limit=10_000).append([numbered(0)])


def test_reading_an_older_segment_does_not_end_the_one_that_is_written(folder: Path, losses: Losses) -> None:
    """Else each round of reading and writing would begin a file."""
    spool = opened(folder, losses, limit=16 * 1_000)  # segments of 1,000 bytes
    spool.append([numbered(each, size=200) for each in range(5)])
    spool.append([numbered(5)])
    assert len(list(folder.glob("*.spool"))) == 2
    assert numbers(spool.take(1, 1 << 20)) == [0]
    spool.append([numbered(6)])
    assert len(list(folder.glob("*.spool"))) == 2


def test_own_files_count_once(folder: Path, losses: Losses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "SCAN_S", 0.0)
    spool = opened(folder, losses, limit=8_000)
    assert spool.append([numbered(0, size=3_000)])
    assert spool.append([numbered(1, size=3_000)])


def test_a_part_ends_once_its_values_have_the_bytes_asked_for(folder: Path, losses: Losses) -> None:
    spool = opened(folder, losses)
    spool.append([numbered(each) for each in range(9)])  # values of 21 bytes
    assert [numbers(spool.take(100, size)) for size in (1, 22, 42, 43)] == [[0], [1, 2], [3, 4], [5, 6, 7]]


def test_a_system_that_writes_little_at_once(folder: Path, losses: Losses, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:7], at))
    spool = opened(folder, losses)
    for number in range(3):
        assert spool.append([numbered(number)])
    assert numbers(spool.take(*EVERYTHING)) == [0, 1, 2]
    assert losses == []


def test_a_file_whose_name_is_not_durable_is_not_on_disk(
    folder: Path, losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = opened(folder, losses)
    with monkeypatch.context() as patch:
        refuse(patch, "fsync", errno.EIO)  # of the folder: the spool has its own for files
        with pytest.raises(OSError, match="Input/output error"):
            spool.append([numbered(0)])
    assert list(folder.glob("*.spool")) == []
    assert spool.append([numbered(1)])
    assert numbers(spool.take(*EVERYTHING)) == [1]


def test_nothing_is_added_to_a_file_that_could_not_be_restored(
    folder: Path, losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = opened(folder, losses)
    spool.append([numbered(0)])
    pwrite = os.pwrite

    def write_some(fd: int, data: memoryview, at: int) -> int:
        if len(data) > 10:
            return pwrite(fd, data[:10], at)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", write_some)
        refuse(patch, "ftruncate", errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            spool.append([numbered(1)])
    assert spool.append([numbered(2)])
    assert len(list(folder.glob("*.spool"))) == 2
    spool.forget()
    successor = opened(folder, losses)
    assert successor.adopt()
    assert numbers(successor.take_adopted(*EVERYTHING)) == [0, 2]
    assert [(loss.records, loss.is_torn) for _, loss in losses] == [(1, True)]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_a_full_spool(folder: Path, losses: Losses, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    spool = opened(folder, losses)
    spool.append([numbered(0)])
    size, pwrite = (folder / files(folder)[0]).stat().st_size, os.pwrite

    def write_some(fd: int, data: memoryview, at: int) -> int:
        if len(data) > 10:
            return pwrite(fd, data[:10], at)
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "pwrite", write_some)
    assert spool.append([numbered(1)]) == []
    monkeypatch.setattr(os, "pwrite", pwrite)
    assert (folder / files(folder)[0]).stat().st_size == size, "what was written of it is cut off"
    spool.append([numbered(2)])
    assert numbers(spool.take(*EVERYTHING)) == [0, 2]


def test_an_error_of_the_disk_is_raised_and_changes_nothing(folder: Path, losses: Losses) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "planted")

    spool = Spool(folder, 1 << 20, HERE, losses, sync=fail)
    with pytest.raises(OSError, match="planted"):
        spool.append([numbered(0)])
    assert spool.waiting == 0
    assert [name for name in files(folder) if name.endswith(".spool")] == []
    spool.close()
    assert files(folder) == []


def refuse(monkeypatch: pytest.MonkeyPatch, function: str, error: int, name: str = "") -> None:
    """Have a function of the system fail for a file, or for each."""
    real = getattr(os, function)

    def failing(path: object, *rest: object, **named: object) -> object:
        if str(path).endswith(name):
            raise OSError(error, os.strerror(error))
        return real(path, *rest, **named)

    monkeypatch.setattr(os, function, failing)


@pytest.mark.parametrize("is_adopted", [False, True])
def test_records_that_were_read_before_a_file_cannot_be_opened_are_taken(
    folder: Path, losses: Losses, monkeypatch: pytest.MonkeyPatch, is_adopted: bool
) -> None:
    spool = opened(folder, losses, limit=16 * 600)
    for first in (0, 5):
        spool.append([numbered(each, size=100) for each in range(first, first + 5)], range(first, first + 5))
    if is_adopted:
        spool.close()
        spool = opened(folder, losses)
        assert spool.adopt()
    take = spool.take_adopted if is_adopted else spool.take
    with monkeypatch.context() as patch:
        refuse(patch, "open", errno.EMFILE, "-000001.spool")
        taken = take(*EVERYTHING)
        assert numbers(taken) == [0, 1, 2, 3, 4]
        with pytest.raises(OSError, match="Too many open files"):
            take(*EVERYTHING)
    taken += take(*EVERYTHING)
    assert numbers(taken) == list(range(10))
    all_done(spool, taken)
    spool.close()
    assert files(folder) == []


def test_records_are_taken_from_a_folder_in_which_nothing_can_be_removed(
    folder: Path, losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = opened(folder, losses, limit=16 * 600)
    for first in (0, 5, 10):
        spool.append([numbered(each, size=100) for each in range(first, first + 5)])
    damage(sorted(folder.glob("*.spool"))[1], HEADER_BYTES + 20)
    refuse(monkeypatch, "unlink", errno.EACCES)
    taken = [*spool.take(*EVERYTHING), *spool.take(*EVERYTHING)]
    assert numbers(taken) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    assert [loss.records for _, loss in losses] == [5]


def test_after_a_failed_write_whose_file_stays_the_next_one_succeeds(
    folder: Path, losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = opened(folder, losses)
    with monkeypatch.context() as patch:
        refuse(patch, "pwrite", errno.EIO)
        refuse(patch, "unlink", errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            spool.append([numbered(0)])
    assert len([name for name in files(folder) if name.endswith(".spool")]) == 1
    assert spool.append([numbered(1)])
    spool.close()
    spool = opened(folder, losses)
    assert spool.adopt()
    taken = spool.take_adopted(*EVERYTHING)
    assert numbers(taken) == [1]
    all_done(spool, taken)
    spool.close()
    assert files(folder) == []


def test_a_set_is_not_kept_locked_if_it_cannot_be_listed(
    folder: Path, losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = opened(folder, losses)
    spool.append([numbered(0)])
    spool.close()
    successor, scandir, calls = opened(folder, losses), os.scandir, itertools.count()

    def fail_at_the_second(fd: int) -> object:
        if next(calls) == 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return scandir(fd)

    monkeypatch.setattr(os, "scandir", fail_at_the_second)
    with pytest.raises(OSError, match="Too many open files"):
        successor.adopt()
    assert successor.adopt()
    assert numbers(successor.take_adopted(*EVERYTHING)) == [0]


def test_records_on_a_disk_that_became_read_only_are_taken(
    folder: Path, losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = opened(folder, losses)
    spool.append([numbered(0)])
    open_file = os.open

    def read_only(path: object, flags: int, *rest: int, **named: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return open_file(path, flags, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", read_only)
    assert numbers(spool.take(*EVERYTHING)) == [0]


def test_a_folder_in_which_nothing_can_be_locked_does_not_fill_with_locks(
    folder: Path, losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", fail)
    spool = opened(folder, losses)
    for _ in range(3):
        with pytest.raises(OSError, match="No locks available"):
            spool.append([numbered(0)])
    assert files(folder) == []


def test_what_is_appended_together_can_be_read_whole(
    folder: Path, losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file only the beginning is read."""
    for module in (spool_module, spool_segments):
        monkeypatch.setattr(module, "MAX_SEGMENT_BYTES", 2_000)
    spool = opened(folder, losses)
    assert spool.append([numbered(each, size=400) for each in range(8)]) == [], "it takes two files"
    assert files(folder) == []
    accepted = [bool(spool.append([numbered(each, size=400)])) for each in range(8)]
    assert accepted == [True] * 8
    assert max(path.stat().st_size for path in folder.iterdir()) <= 2_000
    assert numbers(spool.take(*EVERYTHING)) == list(range(8))
    assert losses == []


# Damage.


def damage(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


@pytest.fixture
def two_segments(folder: Path, losses: Losses) -> list[Path]:
    """Two segments of an ended process, with the records 0 to 4 and 5 to 9."""
    spool = opened(folder, losses, limit=16 * 600)
    for number in range(0, 10, 5):
        spool.append([numbered(each, size=100) for each in range(number, number + 5)])
    spool.close()
    return [folder / name for name in files(folder) if name.endswith(".spool")]


def test_after_damage_the_next_segment_is_read(folder: Path, losses: Losses, two_segments: list[Path]) -> None:
    frame = len(frame_of(numbered(0, size=100)))
    damage(two_segments[0], HEADER_BYTES + 2 * frame + 50)
    spool = opened(folder, losses)
    assert spool.adopt()
    taken = spool.take_adopted(*EVERYTHING)
    assert numbers(taken) == [0, 1, 5, 6, 7, 8, 9]
    assert losses == [(str(two_segments[0]), Loss(HEADER_BYTES + 2 * frame, 3 * frame, 3, is_torn=False))]
    all_done(spool, taken)
    spool.close()
    assert files(folder) == [], "it is not read again"


def test_a_segment_without_a_valid_header_is_not_sent(folder: Path, losses: Losses, two_segments: list[Path]) -> None:
    """Its cluster is unknown."""
    damage(two_segments[0], 20)
    spool = opened(folder, losses)
    assert spool.adopt()
    assert numbers(spool.take_adopted(*EVERYTHING)) == [5, 6, 7, 8, 9]
    ((_, loss),) = losses
    assert (loss.offset, loss.records) == (0, 5)


def test_of_an_own_damaged_segment_the_exact_number_of_records_is_reported(folder: Path, losses: Losses) -> None:
    spool = opened(folder, losses)
    spool.append([numbered(each) for each in range(6)], range(6))
    (segment,) = folder.glob("*.spool")
    damage(segment, HEADER_BYTES + 2)  # a length: the frames after it cannot be counted
    assert spool.take(*EVERYTHING) == []
    assert (spool.waiting, spool.oldest_tag) == (0, None)
    assert [loss.records for _, loss in losses] == [6]


def test_records_that_the_caller_holds_are_not_lost_with_their_file(folder: Path, losses: Losses) -> None:
    spool = opened(folder, losses)
    spool.append([numbered(0), numbered(1)], [0, 1], held=True)
    spool.append([numbered(2), numbered(3), numbered(4)], [2, 3, 4])
    (segment,) = folder.glob("*.spool")
    damage(segment, HEADER_BYTES + 20)
    assert spool.take(*EVERYTHING) == []
    assert (spool.waiting, spool.oldest_tag) == (0, None)
    assert [loss.records for _, loss in losses] == [3]


def test_what_is_on_disk_can_be_read_without_taking_it(
    folder: Path, losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Loss] = []
    assert list(left_on_disk(folder, HERE, found.append)) == []
    assert not folder.exists()
    for number, cluster in enumerate((HERE, ELSEWHERE, HERE, HERE)):
        spool = opened(folder, losses, cluster=cluster)
        spool.append([numbered(10 * number), numbered(10 * number + 1)])
        time.sleep(0.002)  # sets sort by their millisecond
    *_, removed, damaged = sorted(folder.glob("*.spool"))
    damage(damaged, len(damaged.read_bytes()) - 1)
    before = files(folder)

    def numbers_left() -> list[int]:
        return [int(record.headers[0][1]) for record in left_on_disk(folder, HERE, found.append)]

    assert numbers_left() == [0, 1, 20, 21, 30]
    assert [(loss.records, loss.is_torn) for loss in found] == [(1, False)]
    assert files(folder) == before
    refuse(monkeypatch, "open", errno.ENOENT, removed.name)
    assert numbers_left() == [0, 1, 30], "Kafka has its records"


def test_a_removed_segment_is_a_loss(folder: Path, losses: Losses) -> None:
    spool = opened(folder, losses)
    spool.append([numbered(each) for each in range(6)])
    for path in folder.glob("*.spool"):
        path.unlink()
    assert spool.take(*EVERYTHING) == []
    assert [loss.records for _, loss in losses] == [6]
    spool.append([numbered(7)])
    assert numbers(spool.take(*EVERYTHING)) == [7]


def test_after_an_adopted_segment_was_removed_the_rest_is_sent_and_other_sets_follow(
    folder: Path, losses: Losses, two_segments: list[Path]
) -> None:
    later = opened(folder, losses)
    later.append([numbered(10)])
    later.close()
    spool = opened(folder, losses)
    assert spool.adopt()
    two_segments[0].unlink()
    taken = spool.take_adopted(*EVERYTHING)
    assert numbers(taken) == [5, 6, 7, 8, 9]
    assert spool.has_adopted, "they are not done"
    assert len(losses) == 1
    all_done(spool, taken)
    assert spool.adopt()
    (removed,) = (path for path in folder.glob("*.spool"))
    removed.unlink()
    assert spool.take_adopted(*EVERYTHING) == []
    assert not spool.has_adopted
    spool.close()
    assert files(folder) == []


@pytest.mark.parametrize("error", [0, errno.EIO])
def test_a_file_that_cannot_be_read_stays_for_another_process(
    folder: Path, losses: Losses, two_segments: list[Path], monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Because of the disk, or since others can write to it."""
    spool = opened(folder, losses)
    assert spool.adopt()
    with monkeypatch.context() as patch:
        if error:
            refuse(patch, "open", error, "-000000.spool")
        two_segments[0].chmod(0o600 if error else 0o666)
        taken = spool.take_adopted(*EVERYTHING)
        assert numbers(taken) == [5, 6, 7, 8, 9]
        ((where, loss),) = losses
        assert (where.startswith(str(two_segments[0])), loss.records) == (True, 0)
        all_done(spool, taken)
    assert not spool.has_adopted
    two_segments[0].chmod(0o600)
    assert not spool.adopt(), "it is not tried again and again"
    spool.close()
    assert len(files(folder)) == 2
    successor = opened(folder, losses)
    assert successor.adopt()
    taken = successor.take_adopted(*EVERYTHING)
    assert numbers(taken) == [0, 1, 2, 3, 4]
    all_done(successor, taken)
    successor.close()
    assert files(folder) == []


def test_an_own_file_that_cannot_be_read_is_counted_and_stays(
    folder: Path, losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = opened(folder, losses, limit=16 * 600)
    for first in (0, 5):
        spool.append([numbered(each, size=100) for each in range(first, first + 5)])
    with monkeypatch.context() as patch:
        refuse(patch, "open", errno.EIO, "-000000.spool")
        taken = spool.take(*EVERYTHING)
    assert numbers(taken) == [5, 6, 7, 8, 9]
    assert [loss.records for _, loss in losses] == [5]
    all_done(spool, taken)
    spool.close()
    assert len(files(folder)) == 2
    successor = opened(folder, losses)
    assert successor.adopt()
    assert numbers(successor.take_adopted(*EVERYTHING)) == [0, 1, 2, 3, 4]


def test_files_of_others_are_left_alone(folder: Path, losses: Losses) -> None:
    """Some pass the folder of a project."""
    folder.mkdir(mode=0o700, parents=True)
    names = ["uv.lock", ".lock", "notes.spool", "0" * 35 + ".lock", "x" * 36 + ".lock"]
    for name in names:
        (folder / name).write_text("mine")
    spool = opened(folder, losses)
    assert not spool.adopt()
    spool.append([numbered(0)])
    all_done(spool, spool.take(*EVERYTHING))
    spool.close()
    assert files(folder) == sorted(names)
    assert {(folder / name).read_text() for name in names} == {"mine"}


def test_a_lock_without_segments_is_removed(folder: Path, losses: Losses) -> None:
    spool = opened(folder, losses)
    spool.append([numbered(0)])
    spool.forget()
    for path in folder.glob("*.spool"):
        path.unlink()
    assert len(files(folder)) == 1
    assert not opened(folder, losses).adopt()
    assert files(folder) == []


def test_a_removed_folder_is_created_again(folder: Path, losses: Losses) -> None:
    spool = opened(folder, losses)
    spool.append([numbered(0)])
    all_done(spool, spool.take(*EVERYTHING))
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    with pytest.raises(FileNotFoundError):
        spool.append([numbered(1)])
    assert spool.append([numbered(1)])
    assert numbers(spool.take(*EVERYTHING)) == [1]


# Permissions.


def test_only_the_user_can_read_what_is_written(folder: Path, losses: Losses) -> None:
    before = os.umask(0)
    try:
        opened(folder, losses).append([numbered(0)])
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o722])
def test_a_folder_that_others_can_write_to_is_refused(folder: Path, losses: Losses, mode: int) -> None:
    folder.mkdir(parents=True)
    folder.chmod(mode)
    with pytest.raises(SpoolUnusable, match=rf"can be written by other users.*chmod 700 {folder}"):
        opened(folder, losses).append([numbered(0)])
    with pytest.raises(SpoolUnusable, match="spool_folder"):
        opened(folder, losses).adopt()
    assert files(folder) == []


def test_the_modes_of_a_folder_for_all_users_are_left_alone(folder: Path, losses: Losses) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o1777)  # as /tmp is
    with pytest.raises(SpoolUnusable, match=r"mode 1777.*pass another folder as spool_folder") as error:
        opened(folder, losses).append([numbered(0)])
    assert "chmod" not in str(error.value)


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_a_name_that_no_folder_can_have_is_refused(tmp_path: Path, losses: Losses, name: str) -> None:
    spool = opened(tmp_path / name, losses)
    with pytest.raises(SpoolUnusable, match="is no path"):
        spool.append([numbered(0)])
    with pytest.raises(SpoolUnusable, match="is no path"):
        spool.adopt()


def test_a_path_below_a_file_is_refused(tmp_path: Path, losses: Losses) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolUnusable, match="is a link or a file"):
        opened(tmp_path / "file" / "spool", losses).append([numbered(0)])
    with pytest.raises(SpoolUnusable, match="is a link or a file"):
        opened(tmp_path / "file", losses).adopt()
    with pytest.raises(SpoolUnusable, match="is a link or a file"):
        opened(tmp_path / "file", losses).append([numbered(0)])


def test_a_folder_of_another_user_is_refused(folder: Path, losses: Losses, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(SpoolUnusable, match=r"belongs to user.*: pass another folder as spool_folder"):
        opened(folder, losses).append([numbered(0)])


def test_a_file_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened_folder = SpoolFolder(folder, create=True)
    (folder / "a").touch(0o600)
    os.close(opened_folder.open("a"))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(SpoolUnusable, match="is not a file of this user"):
        opened_folder.open("a")
    opened_folder.close()


def test_a_pipe_in_place_of_a_file_is_refused_without_waiting_for_its_writer(folder: Path) -> None:
    opened_folder = SpoolFolder(folder, create=True)
    os.mkfifo(folder / "a", 0o600)
    with pytest.raises(SpoolUnusable, match="is not a file of this user"):
        opened_folder.open("a")
    opened_folder.close()


def test_a_lock_that_another_process_has_removed_owns_nothing(
    folder: Path, losses: Losses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening it and locking it: the next process would lock a new file of that name, and both send the set."""
    spool = opened(folder, losses)
    spool.append([numbered(0)])
    spool.forget()
    (lock,) = folder.glob("*.lock")
    flock = fcntl.flock

    def removed_before(fd: int, how: int) -> None:
        lock.unlink()
        lock.touch(0o600)
        flock(fd, how)

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", removed_before)
        assert not opened(folder, losses).adopt()
    assert opened(folder, losses).adopt()


def test_links_are_not_followed(folder: Path, losses: Losses, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.parent.mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SpoolUnusable, match="is a link or a file"):
        opened(folder, losses).append([numbered(0)])
    folder.unlink()
    spool = opened(folder, losses)
    spool.append([numbered(0)])
    spool.close()
    (segment,) = folder.glob("*.spool")
    segment.rename(tmp_path / "segment")
    segment.symlink_to(tmp_path / "segment")
    assert not opened(folder, losses).adopt()
    assert ["is a link" in sentence for sentence, _ in losses] == [True]


def test_what_is_refused_is_closed(folder: Path, losses: Losses, two_segments: list[Path]) -> None:
    def refused() -> int:
        spool = opened(folder, losses)
        folder.chmod(0o722)
        with pytest.raises(SpoolUnusable):
            spool.adopt()
        folder.chmod(0o700)
        two_segments[0].chmod(0o666)
        assert not spool.adopt()
        spool.close()
        return len(os.listdir("/proc/self/fd"))

    assert refused() == refused()


def test_the_default_folder_is_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATE_VARIABLE, "/var/state")
    assert default_folder() == Path("/var/state/headrace/spool")
    monkeypatch.setenv(STATE_VARIABLE, "relative")
    monkeypatch.setenv("HOME", "/home/ada")
    assert default_folder() == Path("/home/ada/.local/state/headrace/spool")
