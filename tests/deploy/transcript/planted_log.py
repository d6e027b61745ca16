"""The run of `hacked_run` on a real log: with places that refer to one another, feedback and a published tokenizer."""

from collections.abc import Sequence

from headrace.schemas.events import FeedbackGiven
from headrace.schemas.ids import derived_id
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.sending import send
from headrace.schemas.model import Record
from headrace.schemas.records.group import Rejection, TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Component, Reward
from headrace.schemas.records.step import Step
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import TOPICS
from headrace.schemas.wire import decode, encode
from tests.deploy.dashboard.hacked_run import log_of_run, publish_tokenizer
from tests.streams.clickhouse.stored_log import StoredLog

HACK, HONEST_ONE = "v1-tickets-1-0", "v1-tickets-1-1"
"""Two attempts of one group: the first rewrites the test in turn 1, where the second one answers."""
ORDER = ("events", "feedback", "trajectories", "rewards", "training", "rejected", "weights", "steps")
"""Topics in an order in which records refer to those before them."""


async def publish_planted(kafka: str) -> str:
    """Write the run to partition 0 of each topic. Returns the URL of the object store with its tokenizer."""
    log = log_of_run()
    liked = FeedbackGiven(signal="accepted", value=0.25, delay_s=60.0, comment="The test was\x1b[2J changed.")
    log.add("feedback", HACK, liked, id=derived_id("liked"))
    objects = publish_tokenizer(log)
    places: dict[tuple[str, str], Reference] = {}
    bases: dict[str, int] = {}
    topics = {topic.name: topic for topic in TOPICS}
    async with open_producer(kafka) as producer:
        for topic in ORDER:
            for envelope, record in _records(log, topic):
                moved = _moved(record, places, bases)
                sent = await (
                    await send(producer, topics[topic], encode(moved, key=envelope.subject, envelope=envelope), 0)
                )
                bases.setdefault(topic, sent.offset)
                places[topic, _subject(record) or envelope.subject] = Reference(partition=0, offset=sent.offset)
    return objects


def _records(log: StoredLog, topic: str) -> Sequence[tuple]:
    found = [decode(each.headers, each.value) for each in log.records if each.topic == topic]
    # The fold numbered events and trajectories in their order, which partitions of the stored log do not keep.
    return sorted(found, key=lambda each: each[0].time_ms) if topic in ("events", "trajectories") else found


def _subject(record: Record) -> str:
    return getattr(record, "trajectory_id", "") or getattr(record, "group_id", "")


def _moved(record: Record, places: dict[tuple[str, str], Reference], bases: dict[str, int]) -> Record:
    """Returns ``record`` with the places that records have in this log."""
    match record:
        case Trajectory():
            base = bases["events"]
            ends = {
                name: Reference(partition=0, offset=getattr(record, name).offset + base) for name in ("first", "last")
            }
            return record.model_copy(update=ends)
        case Reward():
            more = record.components | {"brevity": Component(value=0.0, weight=0.5)}
            return record.model_copy(
                update={"trajectory": places["trajectories", record.trajectory_id], "components": more}
            )
        case Rejection():
            return record.model_copy(update={"trajectory": places["trajectories", record.trajectory_id]})
        case TrainingGroup():
            members = [
                each.model_copy(update={"trajectory": places["trajectories", each.trajectory_id]})
                for each in record.members
            ]
            return record.model_copy(update={"members": members})
        case Step():
            groups = [
                each.model_copy(
                    update={
                        "group": places["training", each.group_id],
                        "trajectories": [places["trajectories", id] for id in each.trajectory_ids],
                    }
                )
                for each in record.groups
            ]
            return record.model_copy(update={"groups": groups})
        case _:
            return record
