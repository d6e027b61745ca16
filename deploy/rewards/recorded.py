"""Recorded trajectories for checking a reward: from files, or the newest ones in Kafka.

A file has one JSON object per line: recorded runs in OpenAI's format, as for ``headrace import``, or records of
``trajectories``, as any Kafka client prints them. The assembler processes runs in memory, as it would from Kafka.
"""

import heapq
import json
from codecs import BOM_UTF8
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from headrace.agents.importer import BadLine, survey
from headrace.agents.openai_runs import Dataset, fact_messages, parse_run, run_to_facts
from headrace.schemas.envelope import Envelope
from headrace.schemas.events import FeedbackGiven
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import KafkaRecord, partitions_of, read_to_end
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import FEEDBACK, TRAJECTORIES, Topic
from headrace.schemas.wire import Message, UnreadableRecord, decode
from headrace.streams.drive import drive
from headrace.streams.rewards.finding import Sample
from headrace.streams.rewards.spec import Feedback
from headrace.streams.topology import TOPOLOGY

START_MS = 1_000
"""Time of the first event of a recorded run, in Unix milliseconds: recordings have no times."""


def file_samples(
    files: Iterable[Path], *, agent: str, report: Callable[[Path, BadLine], None] = lambda file, bad: None
) -> list[Sample]:
    """Returns the trajectories in ``files``; ``report`` is called with each line that cannot be read.

    ``agent`` is the agent's name for recorded runs, which do not contain it.
    """
    found: list[Trajectory] = []
    for file in files:
        read = _trajectory_lines if _holds_trajectories(file) else _runs
        found += read(file, agent, lambda bad, file=file: report(file, bad))  # type: ignore[misc]
    return [Sample(trajectory) for trajectory in found]


async def kafka_samples(bootstrap: str, last: int) -> list[Sample]:
    """Returns the ``last`` newest trajectories at ``bootstrap``, oldest first, with their feedback.

    Records that cannot be decoded are left out; they have dead letters. Raises aiokafka's ``KafkaError`` if the broker
    fails, and :class:`RangeExpired` if retention deletes records before they are read.
    """
    start = await _near_the_end(bootstrap, TRAJECTORIES, last)
    records = [record async for record in read_to_end(bootstrap, TRAJECTORIES, start=start, whole=True)]
    newest = heapq.nlargest(last, records, key=lambda record: (record.timestamp, record.partition, record.offset))
    trajectories = [payload for _, payload in _decoded(reversed(newest)) if isinstance(payload, Trajectory)]
    feedback = await _feedback(bootstrap, {trajectory.trajectory_id for trajectory in trajectories})
    return [Sample(trajectory, feedback[trajectory.trajectory_id]) for trajectory in trajectories]


async def _feedback(bootstrap: str, wanted: set[str]) -> defaultdict[str, list[Feedback]]:
    found: defaultdict[str, dict[str, Feedback]] = defaultdict(dict)
    async for record in read_to_end(bootstrap, FEEDBACK, whole=True):
        for envelope, payload in _decoded([record]):
            if isinstance(payload, FeedbackGiven) and envelope.subject in wanted:
                place = Reference(partition=record.partition, offset=record.offset)
                given = Feedback(envelope.id, payload.signal, payload.value, envelope.time_ms, place)
                found[envelope.subject].setdefault(given.id, given)
    return defaultdict(list, {subject: list(given.values()) for subject, given in found.items()})


async def _near_the_end(bootstrap: str, topic: Topic, last: int) -> dict[int, int]:
    """Returns an offset of the log for each partition from which on it has at most ``last`` records."""
    async with open_consumer(bootstrap) as consumer:
        partitions = await partitions_of(consumer, topic)
        begins, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
        return {each.partition: max(begins[each], ends[each] - last) for each in partitions}


def _decoded(records: Iterable[KafkaRecord]) -> Iterator[tuple[Envelope, object]]:
    for record in records:
        try:
            yield decode(record.headers, record.value)
        except UnreadableRecord:
            continue


def _holds_trajectories(file: Path) -> bool:
    with file.open("rb") as lines:
        first = next((line for line in lines if line.strip()), b"{}")
    try:
        fields = json.loads(first)
    except ValueError:
        return False
    return isinstance(fields, dict) and {"trajectory_id", "first", "last"} <= fields.keys()


def _trajectory_lines(file: Path, agent: str, report: Callable[[BadLine], None]) -> Iterator[Trajectory]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield Trajectory.model_validate_json(line)
            except ValidationError as error:
                problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
                report(BadLine(number, f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}".lstrip(": ")))


def _runs(file: Path, agent: str, report: Callable[[BadLine], None]) -> Sequence[Trajectory]:
    dataset = Dataset(file.stem, agent=agent)
    found = survey(file, dataset, report)
    messages: list[Message] = []
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if number not in found.trials:
                continue
            run, trial = parse_run(line.removeprefix(BOM_UTF8)), found.trials[number]
            task_id = str(run.task_id)
            facts = run_to_facts(run, dataset, trial, found.group_sizes[task_id])
            messages += fact_messages(facts, dataset, dataset.trajectory_id(task_id, trial), START_MS)
    assembler = tuple(processor for processor in TOPOLOGY if processor.name == "assemble")
    made = drive(assembler, messages)[TRAJECTORIES.name]
    return [record for record in made if isinstance(record, Trajectory)]
