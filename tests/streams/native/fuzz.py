"""A coverage-guided fuzzer of the extension module: ``make sanitize`` runs it for a minute, under the sanitizers.

An input is a payload or a header of one event in a small trajectory. What reaches new branches is kept and changed
further. The module may read it or doubt it: what it writes must be what Python writes, and nothing may be reported.

    HEADRACE_SANITIZED=build/sanitized/speedups.so python -m tests.streams.native.fuzz --seconds 60 --seed 1
"""

import argparse
import ctypes
import os
import random
import time
from array import array
from dataclasses import replace

import tests.streams.native.sanitized  # noqa: F401  # before anything imports the module
from headrace.streams.assembly.arrival import arrival_of, plain_arrival_of
from headrace.streams.assembly.assemble import _conclude, conclude
from headrace.streams.assembly.fold import PartitionFold
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.history import History
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.raw import StoredRecord
from tests.streams.builders import called, event, log, session

EDGES = (ctypes.c_uint8 * (1 << 16)).in_dll(ctypes.CDLL(os.environ["HEADRACE_SANITIZED"]), "headrace_edges")
WORDS = (
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"-0", b"1e9", b"0.1", b"9" * 19, b"\\u0000",
    b"\xc3\xa9", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xff", b"\0", b" ", b"zstd:", b"AAAA", b"==", b'"":',
)  # fmt: skip

Case = tuple[int, str, bytes]
"""Which event, which header (or none for the payload), and its bytes."""


def seeds(records: list[StoredRecord]) -> list[Case]:
    payloads = [(place, "", record.value or b"") for place, record in enumerate(records)]
    return payloads + [(1, name, text or b"") for name, text in records[1].headers]


def changed(case: Case, corpus: list[Case], chance: random.Random) -> Case:
    """``case`` with a few bytes changed, left out, doubled, or taken from another."""
    place, name, text = case
    data = bytearray(text)
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0:
                data[at:at] = chance.choice(WORDS)
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
            case _:
                data[at : at + 1] = chance.choice(WORDS)
    return place, name, bytes(data[:20_000])


def run(records: list[StoredRecord], case: Case) -> None:
    """Give ``case`` to both ways; raises ``AssertionError`` where they differ."""
    place, name, text = case
    record = records[place]
    if name:
        headers = [(known, text if known == name else value) for known, value in record.headers]
        spoiled = replace(record, headers=headers)
    else:
        spoiled = replace(record, value=text)
    given = [*records[:place], spoiled, *records[place + 1 :]]
    quick, plain = PartitionFold(FoldLimits()), PartitionFold(FoldLimits())
    arrivals, index, found = [arrival_of(each) for each in given], 0, []
    while (index := quick.take_ordinary(arrivals, index)) < len(arrivals):
        found += quick.arrive(arrivals[index])
        index += 1
    same = [outcome for each in given for outcome in plain.arrive(plain_arrival_of(each))]
    assert len(found) == len(same), case
    for one, other in zip(found, same, strict=True):
        if isinstance(one, History) and isinstance(other, History):
            assert conclude(one)[0] == _conclude(other)[0], case


def fuzz(seconds: float, seed: int) -> tuple[int, int, int]:
    """How many inputs were tried, how many kept, and how many edges ran."""
    chance = random.Random(seed)
    whole = called(array("i", range(300)), array("i", range(300)), messages=[{"role": "user", "content": "é\n"}])
    records = session("s1", "ask", "tool", "prune", "ask")
    records[1] = event("s1", 1, whole, time_ms=records[1].timestamp)
    records = log(records)
    corpus, seen, tried = seeds(records), bytearray(len(EDGES)), 0
    waiting = list(corpus)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        case = waiting.pop() if waiting else changed(chance.choice(corpus), corpus, chance)
        ctypes.memset(EDGES, 0, len(EDGES))
        run(records, case)
        tried += 1
        ran = int.from_bytes(bytes(EDGES), "little")
        if ran & ~int.from_bytes(seen, "little"):
            seen = bytearray((int.from_bytes(seen, "little") | ran).to_bytes(len(EDGES), "little"))
            corpus.append(case)
    return tried, len(corpus), sum(count > 0 for count in seen)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    assert SPEEDUPS is not None
    tried, kept, edges = fuzz(options.seconds, options.seed)
    print(f"{tried} inputs, {kept} kept, {edges} edges: nothing reported, and both ways agreed")
