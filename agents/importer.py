"""A file of recorded runs, into Kafka: once, whatever happens in between.

The ids of all events follow from the data set's name, the task and the trial. An import first looks which of them the
log has, then sends the others; so a second import changes nothing, and one that was interrupted is completed.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.agents.imported_ids import id_digest, imported_ids
from headrace.agents.openai_runs import BadRun, Dataset, RecordedRun, fact_messages, parse_run, run_to_facts
from headrace.schemas.envelope import ID
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.sending import send
from headrace.schemas.topics import EVENTS

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest line that is read."""

MAX_EVENT_BYTES = 1024 * 1024
"""Largest event that the assembler takes: a run with a larger one is reported rather than sent to the dead letters."""

IN_FLIGHT = 1_000
"""Events sent and not yet acknowledged."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that was left out."""

    number: int
    """Its number in the file, from 1."""
    reason: str
    """What is wrong with it."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What a file holds, found out before anything is sent."""

    lines: int
    """Lines that are not empty."""
    trials: dict[int, int]
    """Line number → trial, for every line that can be imported."""
    group_sizes: dict[str, int]
    """Task → attempts at it."""
    bad: list[BadLine]
    """Lines that cannot."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did."""

    survey: Survey
    """The file."""
    sent: int
    """Events that are in the log because of this import."""
    skipped: int
    """Events that were there before."""


def survey(path: Path, dataset: Dataset, report: Callable[[BadLine], None] = lambda bad: None) -> Survey:
    """Read all of ``path``; ``report`` is told of each line that cannot be imported as it is met."""
    lines = 0
    trials: dict[int, int] = {}
    first_lines: dict[tuple[str, int], int] = {}
    sizes: Counter[str] = Counter()
    bad: list[BadLine] = []
    for number, line in _lines(path):
        lines += 1
        try:
            run = parse_run(_whole(line))
            task_id = str(run.task_id)
            trial = sizes[task_id] if run.trial is None else run.trial
            if (task_id, trial) in first_lines:
                raise BadRun(f"task {task_id}, trial {trial} stands on line {first_lines[task_id, trial]} already")
            _check_sizes(run, dataset, trial)
        except BadRun as error:
            bad.append(BadLine(number, str(error)))
            report(bad[-1])
        else:
            trials[number] = trial
            first_lines[task_id, trial] = number
            sizes[task_id] += 1
    return Survey(lines, trials, dict(sizes), bad)


async def import_runs(
    path: Path,
    dataset: Dataset,
    found: Survey,
    bootstrap: str,
    advance: Callable[[int], None] = lambda trajectories: None,
    *,
    cache: Path | None = None,
) -> Imported:
    """Send what the log at ``bootstrap`` does not have yet; ``advance`` is told of every trajectory that is done.

    ``found`` is the :func:`survey` of the same file; ``cache`` the folder that keeps what the log has until the next
    import, which then reads only what came since. Raises aiokafka's ``KafkaError`` where the broker fails; the same
    import can then be run again.
    """
    known = await imported_ids(bootstrap, dataset.source, cache)
    time_ms = time.time_ns() // 1_000_000
    sent = skipped = 0
    async with open_producer(bootstrap) as producer:
        in_flight: list[asyncio.Future[Any]] = []
        for number, line in _lines(path):
            if number not in found.trials:
                continue
            run, trial = parse_run(line), found.trials[number]
            task_id = str(run.task_id)
            facts = run_to_facts(run, dataset, trial, found.group_sizes[task_id])
            for message in fact_messages(facts, dataset, dataset.trajectory_id(task_id, trial), time_ms):
                if id_digest(dict(message.headers)[ID]) in known:
                    skipped += 1
                else:
                    in_flight.append(await send(producer, EVENTS, message))
                    sent += 1
            if len(in_flight) >= IN_FLIGHT:
                await asyncio.gather(*in_flight)
                in_flight = []
            advance(1)
        await asyncio.gather(*in_flight)
    return Imported(found, sent, skipped)


def _check_sizes(run: RecordedRun, dataset: Dataset, trial: int) -> None:
    facts = run_to_facts(run, dataset, trial, 1)
    for message, fact in zip(fact_messages(facts, dataset, "-" * 36, 0), facts, strict=True):
        if len(message.value) > MAX_EVENT_BYTES:
            raise BadRun(f"its {fact.TYPE} has {len(message.value)} bytes, more than the {MAX_EVENT_BYTES} of an event")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number and content of every line that is not empty; one over ``MAX_LINE_BYTES`` comes cut off after that many."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            whole = line
            while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
                line = file.readline(MAX_LINE_BYTES + 1)
            content = whole.removeprefix(_BYTE_ORDER_MARK) if number == 1 else whole
            if content.strip():
                yield number, content


def _whole(line: bytes) -> bytes:
    if len(line) > MAX_LINE_BYTES:
        raise BadRun(f"longer than {MAX_LINE_BYTES} bytes")
    return line
