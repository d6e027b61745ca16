"""``replay``: recomputes a range of the log with other rewards, limits or code, into its own topics.

    events ──▶ trajectories ──▶ rewards ──▶ training | rejected      live
       └──────────────┴─────────────┴──▶ replay.NAME.*               from any of the three on

Further processors of the topology run, too, if the replay has the records that they read (``other_processors.py``).

The same input gives the same bytes, and with the rules that ran live it gives what live processing wrote: equal keys,
values and record ids. Only offsets, the additional header ``headrace_trajectories`` and times of group decisions may
differ: live processing reads partitions concurrently, a replay in stream time. For the same reason a member that comes
after its group's timeout is always late in a replay; live processing that catches up may still have accepted it.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import chain
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from headrace.schemas.archive.archive import Archive, open_archive
from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.side_topics import LIVE, SIDE, OffsetRange, ReplayFinished, ReplayStage, side_topic
from headrace.schemas.topics import EVENTS, FEEDBACK, TRAJECTORIES, Topic
from headrace.streams.processors.score_hook import Verdicts
from headrace.streams.replay.delivery import open_delivery
from headrace.streams.replay.fold_processes import FoldedPartitions, fold_partitions
from headrace.streams.replay.input import RangeReader, find_spans, open_range
from headrace.streams.replay.order import StreamTimeOrder
from headrace.streams.replay.other_processors import FurtherSelection, further_processors
from headrace.streams.replay.pipeline import SOURCE_OF, Item, ReplayPipeline
from headrace.streams.replay.range import Bound
from headrace.streams.replay.sink import ReplaySink, sha256_of
from headrace.streams.replay.verdicts import Judging, asked, read_rewards, recorded
from headrace.streams.rewards.registry import ANY_AGENT
from headrace.streams.rules import Rules
from headrace.streams.scoring.score_intake import uses_feedback
from headrace.streams.topology import TOPOLOGY

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """One replay."""

    bootstrap: str
    """Kafka brokers, ``host:port``, comma-separated."""
    name: str
    """Name; the side topics are ``replay.NAME.*``."""
    stage: ReplayStage = ReplayStage.TRAJECTORIES
    """The topic that it starts from."""
    begin: Bound | None = None
    """Start of the range; ``None``: start of the log."""
    end: Bound | None = None
    """End of the range, exclusive; ``None``: the current end of the log."""
    rules: Rules = field(default_factory=Rules)
    """Rewards and limits."""
    judging: Judging | None = None
    """Client of the judges; ``None``: the verdicts recorded in live rewards are used."""
    judge_wait_s: float = 120.0
    """Time limit in seconds for a batch of questions to judges."""
    archive: str | None = None
    """Object store with the archive of what the log no longer has; ``None``: only the log is read."""

    def __post_init__(self) -> None:
        side_topic(EVENTS, self.name)  # checks the name


async def run_replay(config: ReplayConfig, progress: Callable[[int], None] = lambda _: None) -> ReplayFinished:
    """Replay, write the manifest as the last record, and return it. ``progress`` receives the number of records read.

    Raises ``ReplayRefused`` if the name is taken or the side topics hold other records, ``ValueError`` if the range is
    not in the log, and ``LookupError`` if a live topic is missing or retention deletes records of the range meanwhile.
    """
    source, references = SOURCE_OF[config.stage], SIDE if config.stage is ReplayStage.EVENTS else LIVE
    archive = None
    if config.archive is not None:
        archive = await open_archive(config.archive, config.bootstrap, (source.name, FEEDBACK.name))
    spans = await find_spans(config.bootstrap, source, config.begin, config.end, archive)
    feedback = await _feedback_spans(config, spans, archive)
    from_events = config.stage is ReplayStage.EVENTS
    reading = _places(FEEDBACK, feedback) if from_events else _places(source, spans) | _places(FEEDBACK, feedback)
    verdicts = await _verdicts(config, _places(source, spans), archive)
    async with (
        fold_partitions(config.bootstrap, spans if from_events else {}, config.rules.fold, config.archive) as folded,
        open_consumer(config.bootstrap) as consumer,
        open_range(config.bootstrap, reading, archive) as reader,
        open_delivery(config.bootstrap) as delivery,
    ):
        further = _further(config, has_feedback=bool(feedback))
        partitions = await _partition_counts(consumer, config.stage, further.makes)
        sink = ReplaySink(delivery, config.name, partitions, references)
        await sink.prepare(config.bootstrap)
        pipeline = ReplayPipeline(config.rules, spans, partitions, verdicts, further.run)
        places = [*_places(source, spans), *_places(FEEDBACK, feedback)]
        await _flow(reader, folded, places, pipeline, sink, progress)
        written = await sink.finish(config.bootstrap)
        rules = config.rules
        finished = ReplayFinished(
            name=config.name,
            stage=config.stage,
            software=version("headrace"),
            rewards=_labels(rules),
            settings=_settings(rules),
            spans={source.name: list(spans.values()), **({FEEDBACK.name: list(feedback.values())} if feedback else {})},
            begin_ms=pipeline.begin_ms or 0,
            end_ms=pipeline.end_ms,
            counts=pipeline.counts,
            written=written,
            sha256=sha256_of(written),
        )
        await sink.announce(finished)
        return finished


async def _flow(
    reader: RangeReader,
    folded: FoldedPartitions,
    places: Collection[TopicPartition],
    pipeline: ReplayPipeline,
    sink: ReplaySink,
    progress: Callable[[int], None],
) -> None:
    """Pass all records of ``places``, in stream time, through the pipeline into the sink."""
    order: StreamTimeOrder[TopicPartition, Item] = StreamTimeOrder(places)
    while True:
        made = (pipeline.take(time_ms, place.partition, item) for time_ms, place, item in order.ready())
        await sink.write(chain.from_iterable(made))
        if not order.starving:
            break
        starving = list(order.starving)
        for portion in await folded.read([each.partition for each in starving if each.topic == EVENTS.name]):
            place = TopicPartition(EVENTS.name, portion.partition)
            order.offer(place, pipeline.read_folded(portion))
            progress(portion.records)
            if portion.is_last:
                order.end(place)
        raw = [place for place in starving if place.topic != EVENTS.name]
        for place, (records, is_last) in (await reader.read(raw)).items() if raw else ():
            order.offer(place, [made for record in records for made in pipeline.read(record)])
            progress(len(records))
            if is_last:
                order.end(place)
    await sink.write(pipeline.finish())


async def _feedback_spans(
    config: ReplayConfig, spans: Mapping[int, OffsetRange], archive: Archive | None
) -> dict[int, OffsetRange]:
    """Returns the range of ``feedback``: from as long before the range as feedback is remembered, to the range's end.

    If the range is given by offsets, it is all feedback.
    """
    if config.stage is ReplayStage.REWARDS or not uses_feedback(config.rules.rewards):
        return {}
    begin = max(0, config.begin - config.rules.join.remember_ms) if isinstance(config.begin, int) else None
    end = config.end if isinstance(config.end, int) else None
    found = await find_spans(config.bootstrap, FEEDBACK, begin, end, archive)
    if found.keys() < spans.keys():
        raise ValueError(
            f"{FEEDBACK.name} has {len(found)} partitions and {SOURCE_OF[config.stage].name} more: feedback is joined "
            "by partition, so both need as many"
        )
    return {number: span for number, span in found.items() if number in spans}


async def _verdicts(
    config: ReplayConfig, places: Mapping[TopicPartition, OffsetRange], archive: Archive | None
) -> Verdicts:
    """Returns the judges' verdicts: new ones if the config has a client, else those recorded in live rewards."""
    terms = [term for spec in config.rules.rewards.specs for term in spec.judges]
    if config.stage is ReplayStage.REWARDS or not terms:
        return {}
    if config.judging is None:
        return await recorded(terms, read_rewards(config.bootstrap))
    if config.stage is ReplayStage.EVENTS:
        raise ValueError("judges answer only about trajectories that are in the log: replay with stage trajectories")
    async with open_range(config.bootstrap, places, archive) as reader:
        return await asked(reader.records(), config.rules.rewards, config.judging, wait_s=config.judge_wait_s)


def _places(topic: Topic, spans: Mapping[int, OffsetRange]) -> dict[TopicPartition, OffsetRange]:
    return {TopicPartition(topic.name, number): span for number, span in spans.items()}


def _settings(rules: Rules) -> dict[str, dict[str, Any]]:
    policies = {spec: asdict(policy) for spec, policy in rules.policies.by_spec.items()}
    return {"fold": asdict(rules.fold), "groups": asdict(rules.groups), "join": asdict(rules.join)} | {
        "policies": policies
    }


def _further(config: ReplayConfig, *, has_feedback: bool) -> FurtherSelection:
    """Returns the processors that run in addition to score and group, and logs those that do not run.

    ``has_feedback``: whether feedback is read.
    """
    read = () if config.stage is ReplayStage.EVENTS else (SOURCE_OF[config.stage],)
    available = (*read, *((FEEDBACK,) if has_feedback else ()), *config.stage.makes)
    further = further_processors(TOPOLOGY, available, config.rules)
    for name, why in further.left_out.items():
        logger.warning("processor %s does not run in replay %s: %s", name, config.name, why)
    return further


async def _partition_counts(
    consumer: AIOKafkaConsumer, stage: ReplayStage, further: Iterable[Topic]
) -> dict[Topic, int]:
    """Returns the topics that the replay writes, each with the number of partitions of its live topic."""
    makes = dict.fromkeys((*stage.makes, *further))
    counts = {topic: len(await partitions_of(consumer, topic)) for topic in makes}
    if stage is ReplayStage.EVENTS:
        counts[TRAJECTORIES] = len(await partitions_of(consumer, EVENTS))
    return counts


def _labels(rules: Rules) -> dict[str, str]:
    named = {agent: spec.label for agent, spec in sorted(rules.rewards.by_agent.items())}
    return {**named, ANY_AGENT: rules.rewards.default.label}
