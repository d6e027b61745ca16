"""``replay``: a range of the log worked over again, with other rewards, limits or code, into topics of its own.

    events ──▶ trajectories ──▶ rewards ──▶ training | rejected      live
       └──────────────┴─────────────┴──▶ replay.NAME.*               from any of the three on

The same input gives the same bytes, and with the rules that ran live it gives what live processing wrote: equal keys,
values and record ids. What may differ is where a record stands, the header ``headrace_trajectories`` that it has more,
and the times of group decisions: live reads partitions side by side as they come, a replay in log time. For the same
reason a member that came when its group's time was over is late here; live, catching up, may still have let it in.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import version

from aiokafka import AIOKafkaConsumer

from headrace.schemas.log import open_consumer, open_producer, partitions_of
from headrace.schemas.side_topics import LIVE, SIDE, ReplayFinished, ReplayStage, Span, side_topic
from headrace.schemas.topics import EVENTS, TRAJECTORIES, Topic
from headrace.streams.replay_input import RangeReader, find_spans
from headrace.streams.replay_order import LogTimeOrder
from headrace.streams.replay_pipeline import SOURCE_OF, Item, ReplayPipeline, Rules
from headrace.streams.replay_range import Bound
from headrace.streams.replay_sink import ReplaySink, sha256_of
from headrace.streams.rewards.registry import ANY_AGENT


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

    def __post_init__(self) -> None:
        side_topic(EVENTS, self.name)  # checks the name


async def run_replay(config: ReplayConfig, progress: Callable[[int], None] = lambda _: None) -> ReplayFinished:
    """Replay, and write the manifest as the last record of all. ``progress`` is told how many records were read.

    Raises ``ReplayRefused`` where the name is taken or the side topics hold something else, ``ValueError`` where the
    range is not in the log, ``LookupError`` where a live topic is missing.
    """
    source = SOURCE_OF[config.stage]
    async with open_consumer(config.bootstrap) as consumer, open_producer(config.bootstrap) as producer:
        partitions = await _partition_counts(consumer, config.stage)
        spans = await find_spans(consumer, source, config.begin, config.end)
        sink = ReplaySink(producer, config.name, partitions, SIDE if config.stage is ReplayStage.EVENTS else LIVE)
        await sink.prepare(config.bootstrap)
        pipeline = ReplayPipeline(config.stage, config.rules, spans, partitions)
        await _flow(RangeReader(consumer, source, spans), spans, pipeline, sink, progress)
        written = await sink.finish(config.bootstrap)
        finished = ReplayFinished(
            name=config.name,
            stage=config.stage,
            software=version("headrace"),
            rewards=_labels(config.rules),
            settings={"fold": asdict(config.rules.fold), "groups": asdict(config.rules.groups)},
            spans={source.name: list(spans.values())},
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
    spans: dict[int, Span],
    pipeline: ReplayPipeline,
    sink: ReplaySink,
    progress: Callable[[int], None],
) -> None:
    """Everything in the spans, in log time, through the pipeline into the sink."""
    order: LogTimeOrder[int, Item] = LogTimeOrder(spans)
    while True:
        for time_ms, partition, item in order.ready():
            for placed in pipeline.take(time_ms, partition, item):
                await sink.write(*placed)
        if not order.starving:
            break
        for partition, (records, is_last) in (await reader.read(order.starving)).items():
            order.offer(partition, [made for record in records for made in pipeline.read(record)])
            progress(len(records))
            if is_last:
                order.end(partition)
    for placed in pipeline.finish():
        await sink.write(*placed)


async def _partition_counts(consumer: AIOKafkaConsumer, stage: ReplayStage) -> dict[Topic, int]:
    """The topics that the replay writes, each with as many partitions as its live one."""
    counts = {topic: len(await partitions_of(consumer, topic)) for topic in stage.makes}
    if stage is ReplayStage.EVENTS:
        counts[TRAJECTORIES] = len(await partitions_of(consumer, EVENTS))
    return counts


def _labels(rules: Rules) -> dict[str, str]:
    named = {agent: spec.label for agent, spec in sorted(rules.rewards.by_agent.items())}
    return {**named, ANY_AGENT: rules.rewards.default.label}
