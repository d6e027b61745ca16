"""Imports a file of recorded runs into Kafka exactly once, even if the import is interrupted and repeated.

The ids of all events are derived from the data set's name, the task and the trial. An import reads which of them the
log contains and sends the others. So a second import changes nothing, and completes an interrupted one.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from headrace.agents.imported_ids import id_digest, imported_ids
from headrace.agents.openai_runs import (
    BadRun,
    Dataset,
    RecordedRun,
    fact_messages,
    parse_run,
    problems_of,
    run_to_facts,
)
from headrace.schemas.envelope import ID
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.sending import send
from headrace.schemas.nesting import MAX_NESTING, nesting
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import decode

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest line that is read, in bytes."""

MAX_EVENT_BYTES = 1024 * 1024
"""Largest event that the assembler accepts: a run with a larger event is reported instead of becoming a dead letter."""

IN_FLIGHT = 1_000
"""Number of sent events from which the import waits for their acknowledgement."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not imported."""

    number: int
    """Its number in the file, from 1."""
    reason: str
    """Why it cannot be imported."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Content of a file, determined before anything is sent."""

    lines: int
    """Number of lines that are not empty."""
    trials: dict[int, int]
    """Trial by line number, for every line that can be imported."""
    group_sizes: dict[str, int]
    """Number of attempts by task."""
    bad: list[BadLine]
    """Lines that cannot be imported."""


@dataclass(frozen=True, slots=True)
class Imported:
    """Result of an import."""

    survey: Survey
    """The file."""
    sent: int
    """Number of events that this import sent."""
    skipped: int
    """Number of events that the log already contained."""


def survey(path: Path, dataset: Dataset, report: Callable[[BadLine], None] = lambda bad: None) -> Survey:
    """Read all of ``path``; call ``report`` for each line that cannot be imported, as soon as it is read."""
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
                raise BadRun(f"task {task_id}, trial {trial} is already on line {first_lines[task_id, trial]}")
            _check_events(run, dataset, trial)
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
    """Send the events that the log at ``bootstrap`` does not contain yet; call ``advance`` for every completed
    trajectory.

    ``found`` is the :func:`survey` of the same file. ``cache`` is the folder that stores which events the log contains,
    so that the next import reads only newer records. Raises aiokafka's ``KafkaError`` if the broker fails; the import
    can then be repeated.
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


def _check_events(run: RecordedRun, dataset: Dataset, trial: int) -> None:
    """Raise :class:`BadRun` if the events of ``run`` could not be sent, or would become dead letters."""
    try:
        facts = run_to_facts(run, dataset, trial, 1)
        messages = list(fact_messages(facts, dataset, "-" * 36, 0))
        for message in messages:
            decode(message.headers, message.value)
    except ValidationError as error:
        raise BadRun(problems_of(error)) from error
    except ValueError as error:  # a number that is not finite, an identifier that no record may have
        raise BadRun(str(error)) from error
    for message, fact in zip(messages, facts, strict=True):
        if len(message.value) > MAX_EVENT_BYTES:
            raise BadRun(f"its {fact.TYPE} has {len(message.value)} bytes: an event may have at most {MAX_EVENT_BYTES}")
        if nesting(message.value) > MAX_NESTING:
            raise BadRun(f"its {fact.TYPE} is nested deeper than {MAX_NESTING}")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the content of every line that is not empty; a line longer than ``MAX_LINE_BYTES`` is cut
    one byte after that limit."""
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
