"""The monitors in the topology: in ``drive``, under the runtime with restarts, and over a planted hack."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from headrace.schemas.envelope import Envelope
from headrace.schemas.events import FeedbackGiven
from headrace.schemas.ids import derived_id
from headrace.schemas.model import Record
from headrace.schemas.records.alert import AdmissionOrder, Alert, Episode, EpisodeState
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.step import Step, TrainedGroup
from headrace.schemas.records.watch import Lane, LevelAccepted, Observation, Readings
from headrace.schemas.topics import FEEDBACK, OBSERVATIONS, REJECTED, REWARDS, STEPS, TRAJECTORIES, Topic
from headrace.schemas.wire import Message, decode, record_message
from headrace.streams.drive import drive
from headrace.streams.processors.observe import UNREADABLE, restore_observe
from headrace.streams.processors.watch import episode_message, readings_message, restore_watch
from headrace.streams.raw import StoredRecord
from headrace.streams.rules import Rules
from headrace.streams.runtime.in_memory import MemoryPartition, run_to_end
from headrace.streams.runtime.processor import Start
from headrace.streams.runtime.runtime import Runtime
from headrace.streams.scoring.score import reward_message
from headrace.streams.topology import TOPOLOGY
from headrace.streams.watch.key_state import KeyState, StoredRow, digest, key_entry, row_entry
from headrace.streams.watch.planted.attempts import honest_step
from headrace.streams.watch.planted.hacks import HACKS, hacked_step, share_at
from headrace.streams.watch.planted.observations import reward, trajectory
from headrace.streams.watch.watch import NOT_OPEN, OBSERVED, REPEATED
from headrace.streams.watch.window import Key, Row
from tests.streams.attempts import attempt, rewarded, trajectory_message
from tests.streams.builders import T0, session
from tests.streams.test_drive import messages
from tests.streams.watch.builders import after


def stored(topic: Topic, message: Message, offset: int, time_ms: int = T0) -> StoredRecord:
    return StoredRecord(topic.name, 0, offset, time_ms, message.key, message.value, message.headers)


def observations_of(records: Sequence[StoredRecord]) -> list[Observation]:
    operator, _ = restore_observe(Rules(), Start())
    for record in records:
        operator.process(record)
    found = [decode(each.message.headers, each.message.value)[1] for each in operator.flush().outgoing]
    return [each for each in found if isinstance(each, Observation)]


def test_each_topic_is_observed() -> None:
    given = FeedbackGiven(signal="score", value=1.0)
    told = record_message(given, id="f-1", key="t", source="/t", time_ms=T0, subject="t")
    records = [
        stored(TRAJECTORIES, trajectory_message(attempt("t")), 0),
        stored(REWARDS, reward_message(rewarded("t")), 0),
        stored(FEEDBACK, told, 0),
    ]
    found = observations_of(records)
    assert [(each.of, each.trajectory_id) for each in found] == [
        (Lane.ATTEMPT, "t"), (Lane.REWARD, "t"), (Lane.FEEDBACK, "t"),
    ]  # fmt: skip
    assert found[2].part == "f-1"


def test_what_cannot_be_read_is_counted_and_is_the_dead_letter_of_its_own_processor() -> None:
    operator, _ = restore_observe(Rules(), Start())
    broken = Message(b"t", b"{", [])
    for topic in (TRAJECTORIES, REWARDS, REJECTED, FEEDBACK):
        operator.process(stored(topic, broken, 0))
    effects = operator.flush()
    assert (effects.outgoing, effects.counts) == ([], {UNREADABLE: 4})


def test_drive_observes_what_the_topology_makes() -> None:
    start = {"group_id": None, "group_size": None}
    histories = [session(f"t{number}", "ask", "tool", "answer", start=start) for number in range(40)]
    records = drive(TOPOLOGY, messages(*histories))
    of = [each.of for each in records["observations"] if isinstance(each, Observation)]
    assert (of.count(Lane.ATTEMPT), of.count(Lane.REWARD), of.count(Lane.FATE)) == (40, 40, 40)
    assert records["monitors"] == []  # no window is complete: all are of one version


HACK = HACKS["search-once"]


def planted_records(steps: int, hacked: int) -> list[StoredRecord]:
    """Observations of a run of ``steps`` honest steps and ``hacked`` steps of a hack."""
    random, found = Random(3), list[StoredRecord]()
    for version in range(steps + hacked):
        share = share_at(version - steps, 60) if version >= steps else 0.0
        attempts = (
            hacked_step(random, HACK, version, share, begun=steps) if version >= steps else honest_step(random, version)
        )
        time_ms = T0 + 1000 * version
        for each in attempts:
            acted = record_message(
                trajectory(each, "r", time_ms),
                id=derived_id("t", each.id), key=each.id, source="/t", time_ms=time_ms, subject=each.id,
            )  # fmt: skip
            found += [
                stored(TRAJECTORIES, acted, len(found), time_ms),
                stored(REWARDS, reward_message(reward(each, "r", time_ms)), len(found), time_ms),
            ]
    return found


@pytest.fixture(scope="module")
def observed() -> list[StoredRecord]:
    """The records of ``observations`` of 30 honest and 32 hacked steps."""
    operator, _ = restore_observe(Rules(), Start())
    for record in planted_records(30, 32):
        operator.process(record)
    outgoing = operator.flush().outgoing
    return [stored(OBSERVATIONS, each.message, number, each.timestamp_ms) for number, each in enumerate(outgoing)]


def watched(records: Sequence[StoredRecord], *restarts: int) -> tuple[list[Record], dict[bytes, bytes]]:
    """What watch writes, restarted from its committed state before each of ``restarts``."""
    partition = MemoryPartition()
    written = []
    start = 0
    for end in (*restarts, len(records)):
        entries = {
            name: StoredRecord("headrace-watch-state", 0, number, T0, name, value, [])
            for number, (name, value) in enumerate(partition.state.items())
        }
        operator, aside = restore_watch(Rules(), Start(entries))
        assert aside == []
        runtime = Runtime("/streams/watch", strict=True)
        runtime.assign(0, operator, partition)
        for batch in range(start, end, 500):
            run_to_end(runtime.process(records[batch : min(batch + 500, end)]))
        start = end
        written += [decode(each.message.headers, each.message.value)[1] for each in partition.written()]
    return written, partition.state


def test_a_planted_hack_is_found_with_its_guilty_trajectories(observed: list[StoredRecord]) -> None:
    written, _ = watched(observed)
    opened = [
        each
        for each in written
        if isinstance(each, Alert) and each.episode and each.episode.state is EpisodeState.OPENED
    ]
    first = opened[0]
    assert first.episode is not None
    assert first.episode.monitor == "few_calls"
    assert first.run == "r"
    assert first.details["window"] - 30 + 1 <= 24
    assert (first.episode.since_version or 0) > 30
    guilty = {
        each.trajectory_id
        for each in observations_of(planted_records(30, 32))
        if each.of is Lane.ATTEMPT and each.values["tool_calls"] <= 1
    }
    assert len(first.episode.examples) == 5
    assert set(first.episode.examples) <= guilty
    readings = [each for each in written if isinstance(each, Readings)]
    assert {each.lane for each in readings} == {Lane.ATTEMPT, Lane.INPUT, Lane.REWARD}


def test_restarts_change_neither_outputs_nor_state(observed: list[StoredRecord]) -> None:
    some = observed[: len(observed) // 2]
    assert watched(some, 100, 777, 2500) == watched(some)


def test_state_that_cannot_be_read_is_quarantined() -> None:
    def entry(name: bytes, value: bytes, offset: int) -> StoredRecord:
        return StoredRecord("headrace-watch-state", 0, offset, T0, name, value, [])

    row = b'["0000","1111",{"id":"t","version":1,"time_ms":1,"values":{},"labels":[],"task_source":"","tenant":""}]'
    stored_state = {b"k1": entry(b"k1", b"{", 0), b"r0": entry(b"r0", row, 1), b"x": entry(b"x", b"1", 2)}
    _, aside = restore_watch(Rules(), Start(stored_state))
    assert sorted(each.record.offset for each in aside) == [0, 1, 2]


def test_an_alert_without_an_episode_has_no_message_here() -> None:
    with pytest.raises(ValueError, match="belongs to no episode"):
        episode_message(Alert(run="", source="x", kind="y", message="z"), 1)


def raised(state: EpisodeState, *, run: str = "r", window: int = 40, **changed: Any) -> Alert:
    episode = Episode(id="e-1", monitor="talks", state=state, since_ms=1, **changed)
    details = {"window": window} if window else {}
    return Alert(run=run, source="watch", kind="monitor_talks", message="m", details=details, episode=episode)


def test_each_change_of_an_episode_is_a_record_of_its_own_and_a_repeated_one_is_not() -> None:
    """Notices and rows have the record's id: two that share one are delivered and shown as one."""
    changes = [
        raised(EpisodeState.OPENED),
        raised(EpisodeState.ONGOING, window=48),
        raised(EpisodeState.ONGOING, window=56),
        raised(EpisodeState.ACKNOWLEDGED, by="ada"),
        raised(EpisodeState.ACKNOWLEDGED, by="bob"),
        raised(EpisodeState.ACKNOWLEDGED, by="ada", admission=AdmissionOrder.RESUME),
        raised(EpisodeState.RESOLVED),
    ]
    ids = [envelope_of(episode_message(each, T0)).id for each in changes]
    assert len({*ids}) == len(ids)
    assert [envelope_of(episode_message(each, T0 + 1)).id for each in changes] == ids


def envelope_of(message: Message) -> Envelope:
    return decode(message.headers, message.value)[0]


def test_records_are_about_their_run_or_what_they_watch() -> None:
    with_run, without = raised(EpisodeState.OPENED), raised(EpisodeState.OPENED, run="")
    assert [envelope_of(episode_message(each, T0)).subject for each in (with_run, without)] == ["r", "talks"]
    read = after([[Row("t", None, T0, {"value": 1.0})]], Key(Lane.FEEDBACK, spec="thumb"))[-1].readings
    named = read.model_copy(update={"run": "r"})
    assert [envelope_of(readings_message(each, T0)).subject for each in (named, read)] == ["r", "feedback"]
    assert len({envelope_of(readings_message(each, T0)).id for each in (named, read)}) == 2
    assert readings_message(read, T0).key == b""


def test_observations_of_a_key_that_is_missing_are_set_aside_and_others_are_kept() -> None:
    key = Key(Lane.ATTEMPT, "r", "a", "s")
    of_key, of_none = [StoredRow(digest(*each), digest("t", ""), Row("t", 1, T0, {})) for each in (key, key[:2])]
    entries = [key_entry(KeyState(key)), row_entry(of_key), row_entry(of_none)]
    stored_state = {
        name: StoredRecord("headrace-watch-state", 0, number, T0, name, value, [])
        for number, (name, value) in enumerate(entries)
    }
    operator, aside = restore_watch(Rules(), Start(stored_state))
    assert [(each.record.offset, each.why) for each in aside] == [
        (2, "an observation of a key that is missing or cannot be read")
    ]
    operator.process(stored(OBSERVATIONS, observed_message("t"), 0))
    assert operator.flush().counts == {REPEATED: 1, OBSERVED: 1}, "the one of the key is known; the inputs' is new"


def observed_message(id: str) -> Message:
    seen = Observation(of=Lane.ATTEMPT, trajectory_id=id, run="r", agent="a", task_source="s", version=1, values={})
    return record_message(seen, id=id, key=id, source="/t", time_ms=T0, subject=id)


def test_steps_and_observations_are_folded_from_their_topics() -> None:
    at = Reference(partition=0, offset=0)
    group = TrainedGroup(group_id="g", group=at, trajectory_ids=["t"], trajectories=[at])
    step = Step(run="r", step=1, version=1, groups=[group], config_sha256="", data_sha256="", metrics={})
    message = record_message(step, id="s-1", key="r", source="/t", time_ms=T0, subject="r")
    operator, _ = restore_watch(Rules(), Start())
    operator.process(stored(STEPS, message, 0))
    operator.process(stored(OBSERVATIONS, observed_message("t"), 0))
    assert operator.flush().counts == {OBSERVED: 3}  # the step's trajectory, and two lanes of the attempt


def test_an_accepted_level_comes_with_the_observations() -> None:
    level = LevelAccepted(
        episode="e", monitor="talks", lane=Lane.ATTEMPT, run="r", agent="a", task_source="s", by="ada"
    )
    message = record_message(level, id="l-1", key="r", source="/headrace/watch", time_ms=T0, subject="r")
    operator, _ = restore_watch(Rules(), Start())
    operator.process(stored(OBSERVATIONS, observed_message("t"), 0))
    operator.process(stored(OBSERVATIONS, message, 1))
    assert not operator.limits_reached
    assert operator.flush().counts == {OBSERVED: 2, NOT_OPEN: 1}
    assert operator.limits_reached == {NOT_OPEN: 1}  # so the worker's log says it
