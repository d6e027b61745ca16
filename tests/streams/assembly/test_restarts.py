"""For any log and any crashes, the output is that of a batch over the whole log."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.schemas.envelope import SUBJECT
from headrace.schemas.records.dead_letter import DeadLetter
from headrace.schemas.topics import DEAD_LETTERS, TRAJECTORIES
from headrace.streams.assembly.arrival import arrival_of
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.partition import PartitionAssembly
from headrace.streams.assembly.recovery import CommitMetadata, emitted_of, parse_commit_metadata
from headrace.streams.raw import Outgoing, StoredRecord
from tests.streams.assembly.any_log import LIMITS, messy_log
from tests.streams.builders import T0
from tests.streams.oracle import expected


def subject_of(record: StoredRecord) -> str:
    return (dict(record.headers)[SUBJECT] or b"").decode()


def take(assembly: PartitionAssembly, records: Iterable[StoredRecord]) -> None:
    """Fold ``records`` as they come from a reader."""
    for _ in assembly.take_all([arrival_of(record) for record in records]):
        pass


@dataclass
class Log:
    """A Kafka partition pair in memory: input, committed output, committed offset."""

    records: list[StoredRecord]
    limits: FoldLimits
    out: list[tuple[int, Outgoing]] = field(default_factory=list)
    committed: tuple[int, str] | None = None

    def resume(self) -> PartitionAssembly:
        offset, metadata = self.committed or (0, "")
        checkpoint = (
            parse_commit_metadata(metadata) if self.committed else CommitMetadata(next=0, stream_ms=0, output=0)
        )
        assert checkpoint is not None
        back = [
            emitted_of(StoredRecord("trajectories", 0, place, 0, None, outgoing.message.value, ()))
            for place, outgoing in self.out
            if outgoing.topic is TRAJECTORIES and place >= checkpoint.output
        ]
        return PartitionAssembly.resume(
            self.limits, checkpoint, back, position=offset, output_end=self.out[-1][0] + 1 if self.out else 0
        )

    def commit(self, assembly: PartitionAssembly) -> None:
        places = itertools.count(self.out[-1][0] + 2 if self.out else 0)  # a transaction's marker takes an offset
        sent = list(zip(places, assembly.pending, strict=False))
        offset, checkpoint = assembly.sent(place for place, outgoing in sent if outgoing.topic is TRAJECTORIES)
        self.out += sent
        self.committed = offset, checkpoint.to_metadata()

    def run(self, crashes: Sequence[tuple[int, int]]) -> list[Outgoing]:
        """Process everything. Each crash gives a number of committed records and a number of further, lost ones."""
        for committed, in_vain in crashes:
            assembly = self.resume()
            start = assembly.position
            take(assembly, self.records[start : start + committed])
            self.commit(assembly)
            take(assembly, self.records[assembly.position : assembly.position + in_vain])
        assembly = self.resume()
        take(assembly, self.records[assembly.position :])
        self.commit(assembly)
        return [outgoing for _, outgoing in self.out]


@given(messy_log(), LIMITS, st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=8))
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_crashes_and_restarts_change_no_byte_of_the_output(
    records: list[StoredRecord], limits: FoldLimits, crashes: list[tuple[int, int]]
) -> None:
    assert Log(records, limits).run(crashes) == Log(records, limits).run([])


CRASHES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=4)

MODELLED = st.builds(
    FoldLimits,
    idle_timeout_ms=st.sampled_from([50, 200, 5000]),
    hole_grace_ms=st.sampled_from([1, 20, 300]),
    max_event_bytes=st.sampled_from([1500, 1_000_000]),
    max_trajectory_bytes=st.sampled_from([5_000, 1_000_000]),
    max_gaps=st.sampled_from([1, 2, 256]),
    max_trajectory_events=st.sampled_from([6, 65_536]),
)
"""Limits that the oracle knows: all of single trajectories."""


@given(messy_log(), MODELLED, CRASHES, st.integers(0, 40))
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_log_with_any_cuts_and_restarts_matches_the_oracle(
    records: list[StoredRecord], limits: FoldLimits, crashes: list[tuple[int, int]], cut: int
) -> None:
    records = records[: max(1, len(records) - cut)]
    oracle = expected({0: records}, limits)
    run = Log(records, limits)
    out = run.run(crashes)
    assert [outgoing.message.value for outgoing in out if outgoing.topic is TRAJECTORIES] == oracle.trajectories[0]
    letters = [
        DeadLetter.model_validate_json(outgoing.message.value) for outgoing in out if outgoing.topic is DEAD_LETTERS
    ]
    assert {(letter.partition, letter.offset): letter.error for letter in letters} == oracle.letters
    assert len(letters) == len(oracle.letters), "a dead letter was sent twice"
    assembly = run.resume()
    take(assembly, records[assembly.position :])
    assert assembly.fold.open_count == len(oracle.open[0])


@given(messy_log(), LIMITS)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_trajectory_named_by_a_record_is_written(records: list[StoredRecord], limits: FoldLimits) -> None:
    named = {subject_of(record) for record in records if SUBJECT in dict(record.headers)} - {"clock"}
    out = Log(records, limits).run([])
    assert {outgoing.message.key.decode() for outgoing in out if outgoing.topic is TRAJECTORIES} == named


def test_foreign_commit_metadata_is_not_a_checkpoint() -> None:
    for text in ("", "{}", "a note", '{"v": 2, "next": 1, "log_ms": 1, "output": 1}'):
        assert parse_commit_metadata(text) is None
    checkpoint = CommitMetadata(next=7104, stream_ms=T0, output=331)
    assert parse_commit_metadata(checkpoint.to_metadata()) == checkpoint
    assert len(CommitMetadata(next=2**62, stream_ms=2**62, output=2**62).to_metadata()) < 4096
