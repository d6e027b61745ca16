"""A coverage-guided fuzzer of the extension module: ``make sanitize`` runs it for a minute, under the sanitizers.

An input is a payload or a header of one event in a small trajectory or, in the second half of the time, the record of
the whole. Inputs that reach new branches are kept and mutated further. The module may read or doubt an input: the
trajectory that it writes, the row of `events`, and the summary of a trajectory must equal Python's, without a sanitizer
report.

    HEADRACE_SANITIZED=build/sanitized/streams.so python -m tests.streams.native.fuzz --seconds 60 --seed 1
"""

import argparse
import ctypes
import os
import random
import re
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
from pydantic import ValidationError

import tests.streams.native.sanitized  # noqa: F401  # before anything imports the module
from headrace.schemas.events import (
    ContextPruned,
    ContextSummarized,
    EnvironmentForked,
    EnvironmentRestored,
    EnvironmentSnapshotted,
    Sampling,
    SubagentFinished,
    SubagentStarted,
    ToolCalled,
    ToolReturned,
    TrajectoryEnded,
    VersionSpan,
)
from headrace.schemas.model import Record
from headrace.schemas.topics import TRAJECTORIES
from headrace.streams.assembly.arrival import arrival_of, plain_arrival_of
from headrace.streams.assembly.assemble import _conclude
from headrace.streams.assembly.fold import PartitionFold
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.history import History, UnusableRecord
from headrace.streams.assembly.trajectory_writer import plainly_written
from headrace.streams.clickhouse.batches import convert_validated
from headrace.streams.clickhouse.event_rows import EventRows
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.raw import Outgoing, StoredRecord
from headrace.streams.scoring.trajectory_summary import read_summary
from tests.streams.builders import T0, called, event, log, started, with_header
from tests.streams.native.test_trajectory_summary import summarized

EDGES = (ctypes.c_uint8 * (1 << 16)).in_dll(ctypes.CDLL(os.environ["HEADRACE_SANITIZED"]), "headrace_edges")
NUMBERS = (
    b"0", b"-0", b"-1", b"1", b"0.1", b"1e9", b"1.50", b"0.001", b"9999999999.5", b"2147483647", b"2147483648",
    b"4294967296", b"1000000000000", b"999999999999999999", b"9223372036854775807", b"9223372036854775808", b"9" * 19,
)  # fmt: skip
"""Numbers next to the bound of a type, or to a change in the form in which Python writes numbers."""
WORDS = (
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"\\u0000", b"\\u00", b"\\u001", b"\\ud83d",
    b"\xc3\xa9", b"\xc3", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xf0\x9f\x98", b"\xff", b"\0", b" ",
    b"zstd:", b"AAAA", b"=", b"==", b'"":',
)  # fmt: skip
NUMBER = re.compile(rb"-?\d+(\.\d+)?")

COMPARED_EVERY = 8
"""One of this many inputs is compared with Python, which takes several times as long; new branches always are."""

Case = tuple[int, str, bytes]
"""Index of the event, name of the header (empty for the payload), and the bytes."""


def every_fact() -> list[StoredRecord]:
    """A trajectory with an event of each type, and with each field that has a rule of its own."""
    tokens = array("i", range(300))  # enough to be compressed
    sampling = Sampling(
        temperature=0.6, top_p=0.9, top_k=40, min_p=0.1, presence_penalty=0.5, min_tokens=2, altered_by=["logit_bias"],
        logprobs="processed",
    )  # fmt: skip
    spans = [VersionSpan(version=version, start=at, end=at + 1) for at, version in enumerate((1, 1, None))]
    facts: list[Record] = [
        started(tenant="a", cohort_key="eu", task={"target": ["é", 1.5, None]}),
        called(tokens, tokens, messages=[{"role": "user", "content": "é\n"}], finish_reason="stop", latency_s=0.25),
        called([7], [8, 9, 10], after=[*tokens, *tokens], version_spans=spans, sampling=sampling),
        called([*tokens, *tokens, 7, 8, 9, 10, 11], [12], hidden=["messages", "logprobs"]),
        called([13], [14], after=[*tokens, *tokens], call_id="request-1", choice=0, delivered=True),
        called([13], [15], after=[*tokens, *tokens], call_id="request-1", choice=1, delivered=False),
        called([16], [17], after=[*tokens, *tokens, 13, 14], version_spans=spans[:1]),
        ToolCalled(call_id="c1", tool="search", arguments={"query": {"deep": [[[]]]}}),
        ToolCalled(call_id="c2", tool="read", thinking_tokens=12),
        ToolReturned(call_id="c2", tool="read", status="error", error_class="timeout", latency_s=1.5),
        ToolReturned(call_id="c1", tool="search", result=[{"text": "found"}, 0.1, 12]),
        ToolReturned(call_id="c3", tool="search", status="error"),
        ContextPruned(pruned_ids=["p1", "p2"], tokens_before=610, tokens_after=2),
        called([1, 2], [3], version_spans=[]),
        ContextSummarized(summary="so far", tokens_before=3, tokens_after=1),
        called([1], [4, 5]),
        SubagentStarted(name="one", sub_trajectory_id="s2", stage=1),
        SubagentFinished(name="one", sub_trajectory_id="s2", stage=1, steps=3),
        SubagentFinished(name="two", sub_trajectory_id="s3", stage=1, steps=12, status="failed"),
        EnvironmentSnapshotted(snapshot_id="é", parent_id="p", sha256="9f86", provider="overlay", ms=1.5),
        EnvironmentForked(snapshot_id="é", forks=3),
        EnvironmentRestored(snapshot_id="é", source_trajectory_id="s9", kind="memory"),
        TrajectoryEnded(outcome=0.5, answer={"text": "done"}),
    ]
    records = [event("s1", place, fact, time_ms=T0 + 10 * place) for place, fact in enumerate(facts)]
    trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    return log([with_header(record, "traceparent", trace) for record in records])


def seeds(records: list[StoredRecord]) -> list[Case]:
    payloads = [(place, "", record.value or b"") for place, record in enumerate(records)]
    return payloads + [(place, name, text or b"") for place in (0, 1) for name, text in records[place].headers]


def words_of(records: list[StoredRecord]) -> tuple[bytes, ...]:
    """Names of fields and headers, and their values: ``"steps":``, ``completed``, …"""
    found = {word for record in records for word in re.findall(rb'"[a-z_]+":?', record.value or b"")}
    return (*WORDS, *NUMBERS, *sorted(found))


def changed(corpus: list[Case], words: Sequence[bytes], chance: random.Random) -> Case:
    """One of ``corpus`` with a few bytes changed, removed, doubled, or taken from another; all events equally often."""
    where = chance.choice(sorted({(place, bool(name)) for place, name, _ in corpus}))
    place, name, text = chance.choice([case for case in corpus if (case[0], bool(case[1])) == where])
    data = bytearray(text)
    for _ in range(chance.choice((1, 1, 1, 1, 2, 4))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(8):
            case 0:
                data[at:at] = chance.choice(words)
            case 1:
                data[at : at + chance.randrange(1, 9)] = b""
            case 2:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 3:
                data[at:at] = data[at : at + chance.randrange(1, 40)]
            case 4:
                other = chance.choice(corpus)[2]
                begin = chance.randrange(len(other) + 1)
                data[at:at] = other[begin : begin + chance.randrange(1, 60)]
            case 5:
                data[at : at + 1] = chance.choice(words)
            case 6:  # truncated, but still ending like an object
                data[at:] = chance.choice((b"", chance.choice(WORDS))) + b"}"
            case _:
                if numbers := list(NUMBER.finditer(data)):
                    begin, end = chance.choice(numbers).span()
                    data[begin:end] = chance.choice(NUMBERS)
    return place, name, bytes(data[:20_000])


class Trajectory:
    """A trajectory of ``records``, one of which each case damages."""

    def __init__(self, records: list[StoredRecord]) -> None:
        self._records = records
        self._arrivals = [arrival_of(record) for record in records]
        self._plain = [plain_arrival_of(record) for record in records]

    def spoiled(self, case: Case) -> StoredRecord:
        place, name, text = case
        record = self._records[place]
        if not name:
            return replace(record, value=text)
        return replace(record, headers=[(known, text if known == name else value) for known, value in record.headers])

    def by_extension(self, case: Case) -> list[UnusableRecord | Outgoing | None]:
        """Dead letters, and the extension module's record of the trajectory; ``None`` if it doubts."""
        arrivals, index, found = list(self._arrivals), 0, []
        arrivals[case[0]] = arrival_of(self.spoiled(case))
        fold = PartitionFold(FoldLimits())
        while (index := fold.take_ordinary(arrivals, index)) < len(arrivals):
            found += fold.arrive(arrivals[index])
            index += 1
        return [written(each) if isinstance(each, History) else each for each in found]

    def by_python(self, case: Case) -> list[UnusableRecord | Outgoing]:
        """The same by the Python rules."""
        arrivals = list(self._plain)
        arrivals[case[0]] = plain_arrival_of(self.spoiled(case))
        fold = PartitionFold(FoldLimits())
        found = [outcome for each in arrivals for outcome in fold.arrive(each)]
        return [_conclude(each)[0] if isinstance(each, History) else each for each in found]


def written(history: History) -> Outgoing | None:
    """The extension module's record of a closed trajectory; ``None`` if it doubts."""
    message = plainly_written(history)
    return None if message is None else Outgoing(TRAJECTORIES, message, history.closed_ms)


def agree(one: UnusableRecord | Outgoing | None, other: UnusableRecord | Outgoing) -> bool:
    """Whether the extension module doubts or agrees with Python."""
    if isinstance(one, UnusableRecord) and isinstance(other, UnusableRecord):
        return (one.record.offset, str(one.error)) == (other.record.offset, str(other.error))
    return (one is None and isinstance(other, Outgoing)) or one == other


def row_of(record: StoredRecord) -> pa.Table | None:
    """The extension module's row of ``record``; ``None`` if it doubts."""
    rows = EventRows()
    return rows.to_arrow() if rows.take([arrival_of(record)], 0) else None


def compare_row(record: StoredRecord, row: pa.Table | None) -> None:
    """Raises ``AssertionError`` if the model's row differs from ``row``."""
    if row is not None:
        by_model = [rows for _, rows in convert_validated([record]).tables]
        assert by_model == [row], (
            f"{record}: {row.to_pylist()}, and by its model {[each.to_pylist() for each in by_model]}"
        )


def compare(trajectory: Trajectory, case: Case, found: Sequence[UnusableRecord | Outgoing | None]) -> None:
    """Raises ``AssertionError`` if Python's result differs from ``found``."""
    expected = trajectory.by_python(case)
    same = len(found) == len(expected) and all(map(agree, found, expected))
    assert same, f"{case}: {found}, and by Python {expected}"


class Explored(NamedTuple):
    """What a run of the fuzzer has seen."""

    tried: int
    """Inputs."""
    kept: int
    """Those that ran a new branch."""
    edges: int
    """Branches that ran."""


def explore(
    corpus: list[Case], words: Sequence[bytes], run: Callable[[Case], Callable[[], None]], seconds: float, seed: int
) -> Explored:
    """Call ``run`` with ``corpus`` and what becomes of it. ``run`` gives an input to the extension module, and returns
    what raises ``AssertionError`` if Python's result differs.
    """
    chance, waiting = random.Random(seed), list(corpus)
    seen, tried = bytearray(len(EDGES)), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        case = waiting.pop() if waiting else changed(corpus, words, chance)
        ctypes.memset(EDGES, 0, len(EDGES))
        compared = run(case)
        tried += 1
        ran = int.from_bytes(bytes(EDGES), "little")
        new = bool(ran & ~int.from_bytes(seen, "little"))
        if new:
            seen = bytearray((int.from_bytes(seen, "little") | ran).to_bytes(len(EDGES), "little"))
            corpus.append(case)
        if new or tried % COMPARED_EVERY == 0:
            compared()
    return Explored(tried, len(corpus), sum(count > 0 for count in seen))


def fuzz_events(seconds: float, seed: int) -> Explored:
    """Damage the events of a trajectory."""
    records = every_fact()
    trajectory, corpus = Trajectory(records), seeds(records)
    assert None not in trajectory.by_extension(corpus[0]), "doubted as it is: what is changed would not be looked at"
    assert all(row_of(record) for record in records), "doubted as it is, too"

    def run(case: Case) -> Callable[[], None]:
        found, record = trajectory.by_extension(case), trajectory.spoiled(case)
        row = row_of(record)

        def compared() -> None:
            compare(trajectory, case, found)
            compare_row(record, row)

        return compared

    return explore(corpus, words_of(records), run, seconds, seed)


def fuzz_summaries(seconds: float, seed: int) -> Explored:
    """Damage the record of a trajectory, of which a reward of the outcome needs a summary only."""
    records = every_fact()
    (trajectory,) = [each for each in Trajectory(records).by_python(seeds(records)[0]) if isinstance(each, Outgoing)]
    value = trajectory.message.value
    assert read_summary(value) is not None, "doubted as it is"

    def run(case: Case) -> Callable[[], None]:
        read_summary(case[2])
        return lambda: compare_summary(case[2])

    return explore([(0, "", value)], words_of([*records, stored(value)]), run, seconds, seed)


def compare_summary(value: bytes) -> None:
    """Raises ``AssertionError`` if a summary of ``value`` is not that of the model."""
    try:
        summarized(value)
    except ValidationError as error:
        raise AssertionError(f"{value!r} has a summary, and its model refuses it") from error


def stored(value: bytes) -> StoredRecord:
    """A record of `trajectories` with ``value``."""
    return StoredRecord(TRAJECTORIES.name, 0, 0, T0, None, value, [])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    assert SPEEDUPS is not None
    for name, fuzz in (("events", fuzz_events), ("summaries", fuzz_summaries)):
        tried, kept, edges = fuzz(options.seconds / 2, options.seed)
        print(f"{name}: {tried} inputs, {kept} kept, {edges} edges: nothing reported, and all ways agreed")
