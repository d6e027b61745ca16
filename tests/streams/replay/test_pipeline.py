"""A replay without a broker matches the topology, and guesses nothing about trajectories cut by its range."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schemas.envelope import from_headers
from headrace.schemas.records.group import Reason, Rejection, TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.side_topics import OffsetRange, ReplayStage
from headrace.schemas.topics import DEAD_LETTERS, REJECTED, REWARDS, TRAINING, TRAJECTORIES, Topic
from headrace.schemas.wire import Message, decode
from headrace.streams.drive import drive
from headrace.streams.grouping.groups import GroupLimits
from headrace.streams.raw import StoredRecord
from headrace.streams.replay.order import StreamTimeOrder
from headrace.streams.replay.pipeline import Item, ReplayPipeline
from headrace.streams.replay.placed import Placed
from headrace.streams.replay.portion_codec import from_bytes, to_bytes
from headrace.streams.replay.trajectories import Portion, Rederivation
from headrace.streams.rewards.registry import parse_rewards
from headrace.streams.rules import Rules
from headrace.streams.runtime.processor import Processor
from headrace.streams.topology import TOPOLOGY
from tests.streams.attempts import attempt, trajectory_message
from tests.streams.builders import T0, log, session, tick, ticks

HOUR = 3_600_000


def replayed(
    stage: ReplayStage,
    partitions: Mapping[int, Sequence[StoredRecord]],
    rules: Rules | None = None,
    *,
    begins_log: bool = True,
    portion: int = 7,
    width: int = 4,
    further: Sequence[Processor[Rules]] = (),
) -> tuple[list[Placed], dict[str, int]]:
    """The output and counts of a replay of ``partitions``, read ``portion`` records at a time.

    Each side topic has ``width`` partitions.
    """
    spans = {
        number: OffsetRange(partition=number, start=0, stop=len(records), begins_log=begins_log)
        for number, records in partitions.items()
    }
    rules = rules or Rules()
    makes = (*stage.makes, *(topic for processor in further for topic in processor.writes))
    pipeline = ReplayPipeline(rules, spans, dict.fromkeys(makes, width), further=further)
    folds = {number: Rederivation(number, rules.fold, begins_log=begins_log) for number in spans}
    order: StreamTimeOrder[int, Item] = StreamTimeOrder(spans)
    left = {number: list(records) for number, records in partitions.items()}
    placed: list[Placed] = []
    while order.starving:
        for number in sorted(order.starving):
            now, left[number] = left[number][:portion], left[number][portion:]
            if stage is ReplayStage.EVENTS:
                list(folds[number].take(now))
                folded = folds[number].portion() if now else folds[number].finish()
                received = from_bytes(to_bytes(folded))
                assert received == folded
                assert isinstance(received, Portion)
                order.offer(number, pipeline.read_folded(received))
            else:
                order.offer(number, [made for record in now for made in pipeline.read(record)])
            if not now:
                order.end(number)
        placed += [each for ready in order.ready() for each in pipeline.take(*ready)]
    return placed + pipeline.finish(), pipeline.counts


def of(placed: Iterable[Placed], topic: Topic) -> dict[str, bytes]:
    """Record ID → payload of records for ``topic``."""
    messages = [each.outgoing.message for each in placed if each.outgoing.topic is topic]
    return {from_headers(message.headers).id: message.value for message in messages}


def payloads(placed: Iterable[Placed], topic: Topic) -> list[object]:
    messages = [each.outgoing.message for each in placed if each.outgoing.topic is topic]
    return [decode(message.headers, message.value)[1] for message in messages]


def groups(count: int, *, spread_ms: int = 0) -> list[list[StoredRecord]]:
    """Sessions: ``count`` groups of two; a third of them succeed throughout."""
    made = []
    for number in range(count):
        for member in (0, 1):
            outcome = 1.0 if number % 3 == 0 else float(member)
            start = {"group_id": f"g{number}", "group_size": 2, "task_id": f"t{number}"}
            time_ms = T0 + 1000 * number + member * spread_ms
            made.append(session(f"s{number}-{member}", "ask", "answer", outcome=outcome, time_ms=time_ms, start=start))
    return made


def as_messages(records: Iterable[StoredRecord]) -> list[Message]:
    return [Message(r.key or b"", r.value or b"", [(k, v or b"") for k, v in r.headers]) for r in records]


def in_time(histories: Iterable[Sequence[StoredRecord]]) -> list[StoredRecord]:
    return log(sorted((record for history in histories for record in history), key=lambda record: record.timestamp))


def test_a_replay_from_events_matches_the_topology() -> None:
    records = in_time(groups(9, spread_ms=5))
    live = drive(TOPOLOGY, as_messages(records))
    placed, counts = replayed(ReplayStage.EVENTS, {0: records})
    for topic in (TRAJECTORIES, REWARDS, TRAINING, REJECTED):
        assert payloads(placed, topic) == live[topic.name], topic.name
    assert counts == {
        "read_events": 72, "rejected_zero_variance_all_success": 6, "rewards": 18,
        "trained": 12, "training": 6, "trajectories": 18,
    }  # fmt: skip


def test_replays_from_trajectories_and_rewards_make_the_same_decisions() -> None:
    first, _ = replayed(ReplayStage.EVENTS, {0: in_time(groups(9))})
    again, _ = replayed(ReplayStage.TRAJECTORIES, stored(first, TRAJECTORIES))
    last, _ = replayed(ReplayStage.REWARDS, stored(again, REWARDS))
    assert of(again, REWARDS) == of(first, REWARDS)
    for topic in (TRAINING, REJECTED):
        assert of(first, topic) == of(again, topic) == of(last, topic)


def stored(placed: Iterable[Placed], topic: Topic) -> dict[int, list[StoredRecord]]:
    """The records written to ``topic``, as stored there."""
    found: dict[int, list[StoredRecord]] = {number: [] for number in range(4)}
    for (target, message, timestamp_ms), partition in placed:
        if target is topic:
            records = found[partition]
            records.append(
                StoredRecord(
                    topic.name, partition, len(records), timestamp_ms, message.key, message.value, message.headers
                )
            )
    return found


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=12, max_size=12), st.integers(1, 50))
def test_how_the_log_is_read_changes_nothing(places: list[int], portion: int) -> None:
    histories = groups(6, spread_ms=3)
    partitions = {
        number: in_time(history for history, place in zip(histories, places, strict=True) if place == number)
        for number in range(4)
    }
    partitions = {
        number: [replace(record, partition=number) for record in records] for number, records in partitions.items()
    }
    assert replayed(ReplayStage.EVENTS, partitions, portion=portion) == replayed(ReplayStage.EVENTS, partitions)


def test_another_reward_changes_rewards_and_fates_and_nothing_else() -> None:
    first, _ = replayed(ReplayStage.EVENTS, {0: in_time(groups(9))})
    rules = Rules(rewards=parse_rewards({"*": "search@1"}))
    again, counts = replayed(ReplayStage.TRAJECTORIES, stored(first, TRAJECTORIES), rules)
    assert {reward.spec for reward in payloads(again, REWARDS) if isinstance(reward, Reward)} == {"search@1"}
    assert counts["rejected_unscored"] == counts["unscored_no_targets"] == 18


def test_a_trajectory_that_began_before_the_range_is_left_out_and_counted() -> None:
    whole, cut = session("whole", "ask", time_ms=T0 + 5), session("cut", "ask", time_ms=T0)
    records = log([*cut[1:], *whole, *ticks(T0, T0 + HOUR)])
    placed, counts = replayed(ReplayStage.EVENTS, {0: records}, begins_log=False)
    assert [each.trajectory_id for each in payloads(placed, TRAJECTORIES) if isinstance(each, Trajectory)] == ["whole"]
    assert counts["trajectories_cut_at_begin"] == 1
    placed, counts = replayed(ReplayStage.EVENTS, {0: records}, begins_log=True)
    assert counts["trajectories"] == 2
    assert "trajectories_cut_at_begin" not in counts


def test_a_gap_long_after_the_start_is_a_gap() -> None:
    early, holed = session("early", "ask", time_ms=T0), session("holed", "ask", time_ms=T0 + HOUR)
    silence, end = ticks(T0, T0 + HOUR - 1), ticks(T0 + HOUR, T0 + 2 * HOUR)
    _, counts = replayed(ReplayStage.EVENTS, {0: log([*early, *silence, *holed[1:], *end])}, begins_log=False)
    assert (counts["trajectories"], counts["rejected_no_start"]) == (2, 1)


def test_open_trajectories_at_the_end_are_counted() -> None:
    closed, under_way = session("closed", "ask"), session("open", "ask", time_ms=T0 + 1000)[:-1]
    placed, counts = replayed(ReplayStage.EVENTS, {0: log([*closed, *under_way])})
    assert (counts["trajectories"], counts["trajectories_open_at_end"], counts["rewards_open_at_end"]) == (1, 1, 1)
    assert not of(placed, REJECTED)


def trajectories(*places: tuple[str, str, int]) -> list[StoredRecord]:
    """(trajectory, group, stream time) as records of ``trajectories``; groups of two, first members succeed."""
    records = []
    for number, (name, group, time_ms) in enumerate(places):
        made = attempt(name, group=group, outcome=float(name.endswith("0")), ended_ms=time_ms)
        message = trajectory_message(made)
        records.append(StoredRecord(TRAJECTORIES.name, 0, number, time_ms, message.key, message.value, message.headers))
    return records


LIMITS = Rules(groups=GroupLimits(timeout_ms=1000))


def test_a_group_that_may_start_before_the_range_is_left_out_and_counted() -> None:
    records = trajectories(("a1", "a", T0), ("b0", "b", T0 + 2000), ("c0", "c", T0 + 9000), ("c1", "c", T0 + 9000))
    placed, counts = replayed(ReplayStage.TRAJECTORIES, {0: records}, LIMITS, begins_log=False)
    assert (counts["rewards_cut_at_begin"], counts["rejected_incomplete_group"], counts["trained"]) == (1, 1, 2)
    assert [each.trajectory_id for each in payloads(placed, REJECTED) if isinstance(each, Rejection)] == ["b0"]


def test_a_group_may_lack_a_trajectory_left_out_long_after_the_start() -> None:
    start = {"group_id": "g", "group_size": 2}
    slow = session("slow", "ask", start=start, time_ms=T0)
    late = [replace(record, timestamp=T0 + 300_000 * number) for number, record in enumerate(slow)]
    mate = session("mate", "ask", start=start, time_ms=T0 + 600_000)
    between = [tick(T0 + 10_000 * number) for number in range(31, 90)]
    spread = sorted([*late[1:], *mate, *between], key=lambda record: record.timestamp)
    records = log([*spread, *ticks(T0 + 900_000, T0 + 5 * HOUR)])
    _, counts = replayed(ReplayStage.EVENTS, {0: records}, begins_log=False)
    assert (counts["trajectories_cut_at_begin"], counts["rewards_cut_at_begin"]) == (1, 1)


def test_timeouts_follow_stream_time_of_any_partition() -> None:
    apart = {
        0: trajectories(("a0", "a", T0)),
        1: [replace(record, partition=1) for record in trajectories(("a1", "a", T0 + 1000))],
    }
    placed, _ = replayed(ReplayStage.TRAJECTORIES, apart, LIMITS)
    reasons = Counter(each.reason for each in payloads(placed, REJECTED) if isinstance(each, Rejection))
    assert reasons == {Reason.INCOMPLETE_GROUP: 1, Reason.LATE_FOR_GROUP: 1}
    together = {0: apart[0], 1: [replace(apart[1][0], timestamp=T0 + 999)]}
    placed, _ = replayed(ReplayStage.TRAJECTORIES, together, LIMITS)
    assert [type(each) for each in payloads(placed, TRAINING)] == [TrainingGroup]


def test_an_unreadable_record_becomes_a_dead_letter_of_the_replay() -> None:
    spoiled = replace(trajectories(("a0", "a", T0))[0], value=b"{")
    for stage in (ReplayStage.TRAJECTORIES, ReplayStage.REWARDS):
        placed, counts = replayed(stage, {0: [spoiled]})
        assert len(of(placed, DEAD_LETTERS)) == len(placed) == counts["unreadable"] == 1
