"""``replay``: recomputes a range of the log with other rewards, limits or code, into its own topics.

    events ──▶ trajectories ──▶ rewards ──▶ training | rejected      live
       └──────────────┴─────────────┴──▶ replay.NAME.*               from any of the three on

Further processors of the topology run along, where the replay has the records that they read (``further.py``).

The same input gives the same bytes, and with the rules that ran live it gives what live processing wrote: equal keys,
values and record ids. What may differ is where a record stands, the header ``headrace_trajectories`` that it has more,
and the times of group decisions: live reads partitions concurrently, a replay in stream time. For the same
reason a member that came when its group's time was over is late here; live, catching up, may still have let it in.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import chain
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from headrace.schemas.kafka.clients import open_consumer
from headrace.schemas.kafka.reading import partitions_of
from headrace.schemas.side_topics import LIVE, SIDE, OffsetRange, ReplayFinished, ReplayStage, side_topic
from headrace.schemas.topics import EVENTS, FEEDBACK, TRAJECTORIES, Topic
from headrace.streams.processors.decider import Verdicts
from headrace.streams.replay.delivery import open_delivery
from headrace.streams.replay.fold_processes import FoldedPartitions, fold_partitions
from headrace.streams.replay.further import FurtherSelection, further_processors
from headrace.streams.replay.input import RangeReader, find_spans
from headrace.streams.replay.order import LogTimeOrder
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
    """Kafka, ``host:port``; several by comma."""
    name: str
    """Its name: it writes ``replay.NAME.*``."""
    stage: ReplayStage = ReplayStage.TRAJECTORIES
    """What it starts from."""
    begin: Bound | None = None
    """Where the range begins; ``None``: with the log."""
    end: Bound | None = None
    """Before what it ends; ``None``: with the log as of now."""
    rules: Rules = field(default_factory=Rules)
    """Rewards and limits in force."""
    judging: Judging | None = None
    """Who is asked for the verdicts of judges; ``None``: what is on record in live rewards counts."""
    judge_wait_s: float = 120.0
    """Seconds that judges have for as many trajectories as are asked about at once."""

    def __post_init__(self) -> None:
        side_topic(EVENTS, self.name)  # checks the name


async def run_replay(config: ReplayConfig, progress: Callable[[int], None] = lambda _: None) -> ReplayFinished:
    """Replay, and write the manifest as the last record of all. ``progress`` is told how many records were read.

    Raises ``ReplayRefused`` where the name is taken or the side topics hold something else, ``ValueError`` where the
    range is not in the log, ``LookupError`` where a live topic is missing.
    """
    source, references = SOURCE_OF[config.stage], SIDE if config.stage is ReplayStage.EVENTS else LIVE
    spans = await find_spans(config.bootstrap, source, config.begin, config.end)
    heard = await _feedback_spans(config, spans)
    from_events = config.stage is ReplayStage.EVENTS
    reading = _places(FEEDBACK, heard) if from_events else _places(source, spans) | _places(FEEDBACK, heard)
    verdicts = await _verdicts(config, _places(source, spans))
    async with (
        fold_partitions(config.bootstrap, spans if from_events else {}, config.rules.fold) as folded,
        open_consumer(config.bootstrap) as consumer,
        open_delivery(config.bootstrap) as delivery,
    ):
        further = _further(config, heard=bool(heard))
        partitions = await _partition_counts(consumer, config.stage, further.makes)
        sink = ReplaySink(delivery, config.name, partitions, references)
        await sink.prepare(config.bootstrap)
        pipeline = ReplayPipeline(config.rules, spans, partitions, verdicts, further.run)
        places = [*_places(source, spans), *_places(FEEDBACK, heard)]
        await _flow(RangeReader(consumer, reading), folded, places, pipeline, sink, progress)
        written = await sink.finish(config.bootstrap)
        rules = config.rules
        finished = ReplayFinished(
            name=config.name,
            stage=config.stage,
            software=version("headrace"),
            rewards=_labels(rules),
            settings=_settings(rules),
            spans={source.name: list(spans.values()), **({FEEDBACK.name: list(heard.values())} if heard else {})},
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
    """Everything that is read of ``places``, in stream time, through the pipeline into the sink."""
    order: LogTimeOrder[TopicPartition, Item] = LogTimeOrder(places)
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


async def _feedback_spans(config: ReplayConfig, spans: Mapping[int, OffsetRange]) -> dict[int, OffsetRange]:
    """What is read of ``feedback``: as long before the range as feedback is remembered, and up to the range's end.

    Where the range is given by offsets, all feedback there is.
    """
    if config.stage is ReplayStage.REWARDS or not uses_feedback(config.rules.rewards):
        return {}
    begin = max(0, config.begin - config.rules.join.remember_ms) if isinstance(config.begin, int) else None
    end = config.end if isinstance(config.end, int) else None
    found = await find_spans(config.bootstrap, FEEDBACK, begin, end)
    if found.keys() < spans.keys():
        raise ValueError(
            f"{FEEDBACK.name} has {len(found)} partitions and {SOURCE_OF[config.stage].name} more: feedback is joined "
            "by partition, so both need as many"
        )
    return {number: span for number, span in found.items() if number in spans}


async def _verdicts(config: ReplayConfig, places: Mapping[TopicPartition, OffsetRange]) -> Verdicts:
    """What judges said: asked now where the config has whom to ask, else as live rewards have it on record."""
    terms = [term for spec in config.rules.rewards.specs for term in spec.judges]
    if config.stage is ReplayStage.REWARDS or not terms:
        return {}
    if config.judging is None:
        return await recorded(terms, read_rewards(config.bootstrap))
    if config.stage is ReplayStage.EVENTS:
        raise ValueError(
            "judges can be asked about trajectories that are in the log: replay them with stage trajectories"
        )
    async with open_consumer(config.bootstrap) as consumer:
        records = RangeReader(consumer, places).records()
        return await asked(records, config.rules.rewards, config.judging, wait_s=config.judge_wait_s)


def _places(topic: Topic, spans: Mapping[int, OffsetRange]) -> dict[TopicPartition, OffsetRange]:
    return {TopicPartition(topic.name, number): span for number, span in spans.items()}


def _settings(rules: Rules) -> dict[str, dict[str, Any]]:
    policies = {spec: asdict(policy) for spec, policy in rules.policies.by_spec.items()}
    return {"fold": asdict(rules.fold), "groups": asdict(rules.groups), "join": asdict(rules.join)} | {
        "policies": policies
    }


def _further(config: ReplayConfig, *, heard: bool) -> FurtherSelection:
    """The processors of the topology that run besides score and group; the log names those that do not run.

    ``heard``: whether feedback is read.
    """
    read = () if config.stage is ReplayStage.EVENTS else (SOURCE_OF[config.stage],)
    available = (*read, *((FEEDBACK,) if heard else ()), *config.stage.makes)
    further = further_processors(TOPOLOGY, available, config.rules)
    for name, why in further.left_out.items():
        logger.warning("processor %s does not run in replay %s: %s", name, config.name, why)
    return further


async def _partition_counts(
    consumer: AIOKafkaConsumer, stage: ReplayStage, further: Iterable[Topic]
) -> dict[Topic, int]:
    """The topics that the replay writes, each with as many partitions as its live one."""
    makes = dict.fromkeys((*stage.makes, *further))
    counts = {topic: len(await partitions_of(consumer, topic)) for topic in makes}
    if stage is ReplayStage.EVENTS:
        counts[TRAJECTORIES] = len(await partitions_of(consumer, EVENTS))
    return counts


def _labels(rules: Rules) -> dict[str, str]:
    named = {agent: spec.label for agent, spec in sorted(rules.rewards.by_agent.items())}
    return {**named, ANY_AGENT: rules.rewards.default.label}
