"""Forks at random moments around a program's first events: ``python -m tests.chaos.forks --parents 1000``.

Each parent is a process of its own that sends its first event and forks within the next moments, as ``gunicorn
--preload`` does, from its main thread or another, while its sender is resolving the broker's name, connecting, or
sending. Every process has a few seconds to have its events acknowledged; then each event must be in the log once, and
a child whose sender never sends is named. Costs about 30 ms per process on one core.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from headrace.agents.sdk import Headrace
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import decode
from tests.conftest import RunningKafka

CHILDREN = 3
"""Forks of a parent; the last child forks once more."""

SEND_LIMIT_S = 15.0
"""Time limit of a process for its events. They take some 30 ms, and much longer on a busy machine."""


def storm(bootstrap: str, source: str, parents: int, seed: int, longest_s: float = 0.001) -> list[str]:
    """Fork ``parents`` and their children; returns descriptions of failures, after all processes have ended.

    ``longest_s``: longest pause between the first event and the first fork.
    """
    chance = random.Random(seed)
    wrong = []
    for number in range(parents):
        read, write = os.pipe()
        moment, threaded = chance.random() * longest_s, chance.random() < 0.3
        if (parent := os.fork()) == 0:
            os.close(read)
            try:
                _parent(bootstrap, source, number, moment, threaded, write)
            finally:
                os._exit(0)
        os.close(write)
        lines_read = b""
        while part := os.read(read, 4096):
            lines_read += part
        os.close(read)
        os.waitpid(parent, 0)
        lines = lines_read.decode().splitlines()
        if len(lines) != CHILDREN + 2 or any(not line.endswith(" sent") for line in lines):
            wrong.append(f"parent {number}, forked after {1e6 * moment:.0f} µs: {'; '.join(lines)}")
    return wrong


def _parent(bootstrap: str, source: str, number: int, moment: float, threaded: bool, write: int) -> None:
    # A new client for each parent: state kept between forks would hide failures of the first fork.
    headrace = Headrace(bootstrap, source=source)
    headrace.trajectory(task_id="q", agent="a", trajectory_id=f"{source}-{number}")
    until = time.perf_counter() + moment
    while time.perf_counter() < until:
        time.sleep(0)
    children: list[int] = []

    def fork() -> None:
        for child in range(CHILDREN):
            if (pid := os.fork()) == 0:
                _child(headrace, f"{source}-{number}-{child}", write, again=child == CHILDREN - 1)
            children.append(pid)

    if threaded:
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
    else:
        fork()
    _report_sent(write, "parent", headrace.flush(SEND_LIMIT_S))
    for child in children:
        os.waitpid(child, 0)


def _child(headrace: Headrace, name: str, write: int, *, again: bool) -> None:
    """Sends an event and ends the process. ``again``: forks a child of its own in between."""
    try:
        headrace.trajectory(task_id="q", agent="a", trajectory_id=name)
        if again and (grandchild := os.fork()) == 0:
            _child(headrace, f"{name}-0", write, again=False)
        _report_sent(write, name, headrace.flush(SEND_LIMIT_S))
        if again:
            os.waitpid(grandchild, 0)
    finally:
        os._exit(0)


def _report_sent(write: int, name: str, sent: bool) -> None:
    os.write(write, f"{name} {'sent' if sent else 'DID NOT SEND'}\n".encode())


def in_the_log(bootstrap: str, source: str) -> Counter[str]:
    """How many events each trajectory of ``source`` has."""

    async def read() -> Counter[str]:
        envelopes = [decode(record.headers, record.value)[0] async for record in read_to_end(bootstrap, EVENTS)]
        return Counter(envelope.subject for envelope in envelopes if envelope.source == source)

    return asyncio.run(read())


def expected(source: str, parents: int) -> Counter[str]:
    """The expected content of the log after :func:`storm`: each event once."""
    last = CHILDREN - 1
    suffixes = ["", *(f"-{child}" for child in range(CHILDREN)), f"-{last}-0"]
    return Counter(f"{source}-{number}{suffix}" for number in range(parents) for suffix in suffixes)


def main() -> int:
    """Returns 0 if every event of every process is in the log once."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.forks", description=__doc__)
    parser.add_argument("--parents", type=int, default=1000, help="each forks four times")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kafka", help="address of a running broker; by default one is started")
    args = parser.parse_args()
    if args.kafka:
        return _report(args.kafka, args.parents, args.seed)
    with tempfile.TemporaryDirectory() as folder:
        broker = RunningKafka(Path(folder))
        broker.start()
        try:
            return _report(broker.bootstrap, args.parents, args.seed)
        finally:
            broker.kill()


def _report(bootstrap: str, parents: int, seed: int) -> int:
    began, source = time.monotonic(), f"storm-{os.getpid()}"
    # A host name, which has to be resolved.
    wrong = storm(bootstrap.replace("127.0.0.1", "localhost"), source, parents, seed)
    complete = in_the_log(bootstrap, source) == expected(source, parents)
    for line in wrong:
        print(line)
    took = time.monotonic() - began
    print(f"{parents * (CHILDREN + 2)} forks in {took:.0f} s, seed {seed}")
    print(f"parents with a process that did not send: {len(wrong)}")
    print(f"the log holds every event once: {'yes' if complete else 'NO'}")
    return 0 if complete and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
