"""Counts, records and commits of one partition of the assembler, without a broker."""

from collections.abc import Iterable

from headrace.schemas.envelope import SUBJECT
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.topics import DEAD_LETTERS, TRAJECTORIES
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.partition import PartitionAssembly
from headrace.streams.assembly.recovery import CommitMetadata
from headrace.streams.raw import StoredRecord
from tests.streams.builders import log, session, without


def begun(limits: FoldLimits | None = None) -> PartitionAssembly:
    """A partition from which nothing was read yet."""
    start = CommitMetadata(next=0, stream_ms=0, output=0)
    return PartitionAssembly.resume(limits or FoldLimits(), start, [], position=0, output_end=0)


def taken(partition: PartitionAssembly, records: Iterable[StoredRecord]) -> PartitionAssembly:
    for record in records:
        partition.take(record)
    return partition


def test_each_trajectory_and_each_dead_letter_is_counted_and_sent_once() -> None:
    nameless = [without(record, SUBJECT) for record in session("s9", "ask")[:2]]
    late = session("s1", "ask", "ask")[-1]
    records = [*session("s1", "ask"), nameless[0], *session("s2", "ask"), late, nameless[1]]
    partition = taken(begun(), log(records))
    assert partition.trajectories == 2
    assert partition.dead_letters == {DeadLetterError.BAD_HEADERS: 2, DeadLetterError.LATE: 1}
    topics = [outgoing.topic for outgoing in partition.pending]
    assert topics == [TRAJECTORIES, DEAD_LETTERS, TRAJECTORIES, DEAD_LETTERS, DEAD_LETTERS]
    assert partition.pending_bytes == sum(len(outgoing.message.value) for outgoing in partition.pending)
    partition.sent([0, 1])
    assert (partition.pending, partition.pending_bytes) == ([], 0)


def test_a_commit_names_the_oldest_output_that_a_restart_must_remember() -> None:
    partition = begun(FoldLimits(remember=2, max_remembered=100))
    records = log([record for number in range(6) for record in session(f"s{number}", "ask")])
    named = []
    for number in range(6):
        taken(partition, records[3 * number : 3 * number + 3])
        offset, checkpoint = partition.sent([10 * number])
        assert offset == checkpoint.next == 3 * number + 3
        named.append(checkpoint.output)
    # The last two closed trajectories: at outputs 10 (n − 1) and 10 n.
    assert named == [0, 0, 10, 20, 30, 40]
