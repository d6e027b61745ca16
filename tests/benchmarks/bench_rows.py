"""Processor time of the sink's conversion of trajectories into Arrow columns: by the extension module and by Python.

    python -m tests.benchmarks.bench_rows [--trajectories 2048] [--rounds 7]

Trajectories of 20 events, 11 KB each, as the assembler writes them. Both ways convert the same chunk in turn, in one
process; the figure is that of each way's fastest round, because other processes can only add to it.
"""

import argparse
import time
from collections.abc import Sequence

from headrace.schemas.envelope import SUBJECT
from headrace.schemas.topics import EVENTS, TRAJECTORIES
from headrace.schemas.wire import Message
from headrace.streams.clickhouse import trajectory_rows
from headrace.streams.clickhouse.batches import convert
from headrace.streams.raw import StoredRecord
from tests.benchmarks.bench_watch import PROCESSORS, passed, stored
from tests.benchmarks.load import history


def trajectories(count: int) -> list[StoredRecord]:
    """So many records of `trajectories`."""
    events = []
    for number in range(count):
        key = f"t{number}".encode()
        for message in history("template"):
            headers = [(name, key if name == SUBJECT else value) for name, value in message.headers]
            events.append(Message(key, message.value, headers))
    assembled, _ = passed(PROCESSORS["assemble"], stored(EVENTS.name, events))
    return stored(TRAJECTORIES.name, assembled)


def seconds(records: Sequence[StoredRecord]) -> float:
    """Processor time of one conversion."""
    began = time.process_time()
    convert(records)
    return time.process_time() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trajectories", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    records = trajectories(options.trajectories)
    ways = {"extension module": trajectory_rows._COLUMNS, "Python": None}
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(options.rounds):
        for way, columns in ways.items():
            trajectory_rows._COLUMNS = columns
            best[way] = min(best[way], seconds(records))
    print(f"µs per trajectory of {len(records[0].value or b''):,} bytes, the fastest of {options.rounds} rounds")
    for way, taken in best.items():
        print(f"  {way:18}{1e6 * taken / len(records):7.1f}")


if __name__ == "__main__":
    main()
