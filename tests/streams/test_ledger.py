"""The ledger adds up exactly when every trajectory has one fate, in whatever order it is read and however often."""

import json
from collections.abc import Mapping

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from headrace.deploy.commands.ledger import command, table
from headrace.schemas.envelope import Envelope
from headrace.schemas.events import ClockTicked, ToolCalled, TrajectoryStarted
from headrace.schemas.log import open_producer, send
from headrace.schemas.records import (
    Member,
    Reason,
    Reference,
    Rejection,
    Stage,
    Step,
    TrainedGroup,
    TrainingGroup,
)
from headrace.schemas.topics import EVENTS, REJECTED, REWARDS, STEPS, TRAJECTORIES, Topic
from headrace.schemas.wire import Message, encode, record_message
from headrace.streams.group import output_message
from headrace.streams.ledger import Ledger, Tally, read_ledger
from headrace.streams.score import reward_message
from tests.streams.attempts import attempt, rewarded, trajectory_message

WHERE = Reference(partition=0, offset=0)
Sent = tuple[Topic, Message]


def event(trajectory_id: str, started: bool = True) -> Sent:
    fact = TrajectoryStarted(task_id="q", agent="a") if started else ToolCalled(call_id="c", tool="t")
    envelope = Envelope(id="e", type=fact.TYPE, source="/a", time_ms=0, subject=trajectory_id, sequence=0)
    return EVENTS, encode(fact, key=trajectory_id, envelope=envelope)


def assembled(trajectory_id: str) -> Sent:
    return TRAJECTORIES, trajectory_message(attempt(trajectory_id))


def scored(trajectory_id: str) -> Sent:
    return REWARDS, reward_message(rewarded(trajectory_id))


def grouped(*trajectory_ids: str) -> Sent:
    members = [
        Member(trajectory_id=each, trajectory=WHERE, reward=1, advantage=1, oldest_version=0, sampled_tokens=1)
        for each in trajectory_ids
    ]
    group = TrainingGroup(
        group_id="g",
        run="r",
        task_id="q",
        spec="s@1",
        baseline="mean",
        baseline_value=0,
        scored=1,
        members=members,
        oldest_version=0,
    )
    return output_message(group, 0)


def rejected(trajectory_id: str, reason: Reason = Reason.ALL_FAIL, stage: Stage = Stage.GROUP) -> Sent:
    return output_message(Rejection(trajectory_id=trajectory_id, trajectory=WHERE, stage=stage, reason=reason), 0)


def trained(number: int, *trajectory_ids: str) -> Sent:
    group = TrainedGroup(
        group_id="g", group=WHERE, trajectory_ids=list(trajectory_ids), trajectories=[WHERE] * len(trajectory_ids)
    )
    step = Step(run="r", step=number, version=number, groups=[group], config_sha256="", data_sha256="", metrics={})
    return STEPS, record_message(step, id="s", key="r", source="/trainer", time_ms=0, subject="r")


def ledger(*sent: Sent, cut: frozenset[str] = frozenset()) -> Ledger:
    tally = Tally()
    for topic, message in sent:
        headers: Mapping[str, bytes | None] = dict(message.headers)
        tally.add(topic.name, headers, message.value)
    return tally.ledger(cut=cut)


def through(trajectory_id: str, *further: Sent) -> tuple[Sent, ...]:
    """Everything up to the reward, and what came then."""
    return event(trajectory_id), assembled(trajectory_id), scored(trajectory_id), *further


CIRCLE: tuple[Sent, ...] = (
    event("open"),
    event("headless", started=False),
    *(event("unscored"), assembled("unscored")),
    *through("ungrouped"),
    *through("untrained", grouped("untrained")),
    *through("trained", grouped("trained"), trained(2, "trained")),
    *through("stale", grouped("stale"), rejected("stale", Reason.STALE, Stage.ADMISSION)),
    *through("flat", rejected("flat")),
)


def test_each_trajectory_is_counted_under_its_fate() -> None:
    found = ledger(*CIRCLE)
    assert (found.started, found.seen_without_start) == (7, 1)
    assert (found.trained, found.trained_by_step) == (1, {"r/2": 1})
    assert found.rejected_by == {"admission": {"stale": 1}, "group": {"zero_variance_all_fail": 1}}
    assert found.pending_by == {"open": 2, "unscored": 1, "ungrouped": 1, "untrained": 1}
    assert (found.rejected, found.pending, found.conflicts, found.adds_up) == (2, 5, [], True)


@given(st.permutations(CIRCLE * 2))
def test_order_and_repetition_change_nothing(sent: list[Sent]) -> None:
    assert ledger(*sent) == ledger(*CIRCLE)


def test_an_empty_log_adds_up() -> None:
    assert ledger().adds_up


def test_ticks_and_events_without_headers_are_no_trajectories() -> None:
    tick = ClockTicked(unix_ms=1)
    envelope = Envelope(id="e", type=tick.TYPE, source="/a", time_ms=0, subject="clock")
    bare = Message(b"k", b"{}", [])
    assert ledger((EVENTS, encode(tick, key="clock", envelope=envelope)), (EVENTS, bare)) == ledger()


@pytest.mark.parametrize(
    ("further", "says"),
    [
        ((grouped("t"), trained(1, "t"), rejected("t", Reason.STALE, Stage.ADMISSION)), "both trained and rejected"),
        ((grouped("t"), trained(1, "t"), trained(2, "t")), "trained in 2 steps: r/1, r/2"),
        ((rejected("t"), rejected("t", Reason.STALE, Stage.ADMISSION)), "rejected 2 times"),
    ],
)
def test_two_fates_are_a_conflict(further: tuple[Sent, ...], says: str) -> None:
    found = ledger(*through("t", *further))
    assert not found.adds_up
    assert says in found.conflicts[0]


@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_a_record_that_a_later_one_was_made_of_cannot_be_missing(missing: int) -> None:
    sent = [*through("t", grouped("t"), trained(1, "t"))]
    del sent[missing]
    assert not ledger(*sent).adds_up


def test_events_cut_by_their_retention_are_told_apart_from_errors() -> None:
    sent = [scored("t"), grouped("t"), trained(1, "t")]
    found = ledger(*sent, cut=frozenset({"events", "trajectories"}))
    assert (found.started, found.expired, found.trained, found.adds_up) == (0, 1, 1, True)
    assert not ledger(*sent).adds_up


def test_a_record_that_cannot_be_read_is_said() -> None:
    _, message = rejected("t")
    found = ledger(*through("t"), (REJECTED, Message(message.key, b"{", message.headers)))
    assert (found.unreadable, found.adds_up) == (1, False)


def test_only_so_many_conflicts_are_named() -> None:
    found = ledger(*(scored(f"t{number}") for number in range(150)))
    assert (len(found.conflicts), found.conflicting) == (100, 150)
    assert table(found.as_dict())[-1] == "  and 50 more"


def test_the_table_says_whether_it_adds_up() -> None:
    assert "It adds up: 8." in table(ledger(*CIRCLE).as_dict())
    assert any(line.startswith("IT DOES NOT ADD UP") for line in table(ledger(scored("t")).as_dict()))


@pytest.mark.kafka
async def test_the_log_of_a_broker_is_counted(kafka: str) -> None:
    async with open_producer(kafka) as producer:
        for topic, message in CIRCLE:
            await (await send(producer, topic, message))
    assert await read_ledger(kafka) == ledger(*CIRCLE)


@pytest.mark.kafka
def test_the_command_prints_it(kafka: str) -> None:
    shown = CliRunner().invoke(command, ["--kafka", kafka])
    assert shown.exit_code == 0, shown.output
    assert "It adds up" in shown.output
    as_json = CliRunner().invoke(command, ["--kafka", kafka, "--json"])
    assert json.loads(as_json.output)["adds_up"] is True
