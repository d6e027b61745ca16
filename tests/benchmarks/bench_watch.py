"""Processor time of the monitors' processors per event, beside that of score and group, on the same trajectories.

    python -m tests.benchmarks.bench_watch [--trajectories 4000] [--rounds 3]

Trajectories of 20 events and 240 tokens go through each processor in memory, in batches of 500 as live, one after the
other: what each costs without Kafka's clients, which cost the same for every record. The assembler, which is C++, is
not timed here (`tests.benchmarks.streams` does).
"""

import argparse
import time
from collections.abc import Iterable, Sequence
from statistics import median

from headrace.schemas.topics import EVENTS, OBSERVATIONS, REJECTED, REWARDS, TRAJECTORIES
from headrace.schemas.wire import Message
from headrace.streams.raw import Outgoing, StoredRecord
from headrace.streams.rules import Rules
from headrace.streams.runtime.in_memory import MemoryPartition, run_to_end
from headrace.streams.runtime.processor import Processor, Start
from headrace.streams.runtime.runtime import Runtime
from headrace.streams.topology import TOPOLOGY
from tests.benchmarks.flow import SIZE
from tests.benchmarks.load import EVENTS_EACH
from tests.streams.attempts import attempt, trajectory_message

BATCH = 500
PROCESSORS = {processor.name: processor for processor in TOPOLOGY}


def stored(topic: str, messages: Iterable[Message | Outgoing]) -> list[StoredRecord]:
    """Messages as records of ``topic``, a millisecond apart."""
    found = []
    for number, each in enumerate(messages):
        message = each.message if isinstance(each, Outgoing) else each
        found.append(StoredRecord(topic, 0, number, 1_000_000 + number, message.key, message.value, message.headers))
    return found


def passed(processor: Processor[Rules], records: Sequence[StoredRecord]) -> tuple[list[Outgoing], float]:
    """What ``processor`` makes of ``records``, and the processor time in seconds."""
    operator, _ = processor.restore(Rules(), Start())
    partition = MemoryPartition()
    runtime = Runtime(processor.source, strict=True)
    runtime.assign(0, operator, partition)
    written: list[Outgoing] = []
    began = time.process_time()
    for start in range(0, len(records), BATCH):
        run_to_end(runtime.process(records[start : start + BATCH]))
        written += partition.written()
    return written, time.process_time() - began


def measure(trajectories: int) -> dict[str, float]:
    """Microseconds of processor time per event, by processor."""
    made = stored(
        TRAJECTORIES.name,
        (
            trajectory_message(attempt(f"t{number}", group=f"g{number // SIZE}", size=SIZE, outcome=number % 2))
            for number in range(trajectories)
        ),
    )
    rewards, score_s = passed(PROCESSORS["score"], made)
    paid = stored(REWARDS.name, rewards)
    grouped, group_s = passed(PROCESSORS["group"], paid)
    rejected = stored(REJECTED.name, [each for each in grouped if each.topic is REJECTED])
    observations, observe_s = passed(PROCESSORS["observe"], [*made, *paid, *rejected])
    _, watch_s = passed(PROCESSORS["watch"], stored(OBSERVATIONS.name, observations))
    seconds = {"score": score_s, "group": group_s, "observe": observe_s, "watch": watch_s}
    return {name: 1e6 * each / (trajectories * EVENTS_EACH) for name, each in seconds.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trajectories", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rounds = [measure(options.trajectories) for _ in range(options.rounds)]
    print(f"{EVENTS.name}: {EVENTS_EACH} a trajectory; µs of processor time per event, median of {options.rounds}")
    for name in rounds[0]:
        values = [each[name] for each in rounds]
        print(f"  {name:8} {median(values):6.2f}   ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
