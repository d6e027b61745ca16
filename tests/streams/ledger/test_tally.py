"""The ledger adds up exactly if every trajectory has one fate, for any order and repetition of records."""

import random
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.deploy.commands.ledger import table
from headrace.schemas.events import TrajectoryStarted
from headrace.schemas.records.group import Reason, Rejection, Stage, TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.step import Step
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import EVENTS, REJECTED
from headrace.schemas.wire import Message, decode
from headrace.streams.assembly.fold import PartitionFold
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.ledger.tally import Ledger, LedgerTally
from tests.chaos.load import poison
from tests.streams.builders import session
from tests.streams.fates import (
    CIRCLE,
    Sent,
    assembled,
    grouped,
    rejected,
    scored,
    through,
    tick,
    trained,
)


def ledger(*sent: Sent, cut: frozenset[str] = frozenset()) -> Ledger:
    tally = LedgerTally()
    for topic, message in sent:
        headers: Mapping[str, bytes | None] = dict(message.headers)
        tally.add(topic.name, headers, message.value)
    return tally.ledger(cut=cut)


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
    assert ledger(tick(), (EVENTS, Message(b"k", b"{}", []))) == ledger()


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


@pytest.mark.parametrize("reason", Reason)
def test_a_trainers_rejection_is_one_fate_under_its_reason(reason: Reason) -> None:
    found = ledger(*through("t", grouped("t"), rejected("t", reason, Stage.ADMISSION)))
    assert (found.rejected_by, found.pending, found.adds_up) == ({"admission": {reason.value: 1}}, 0, True)


@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_a_missing_source_record_is_an_error(missing: int) -> None:
    sent = [*through("t", grouped("t"), trained(1, "t"))]
    del sent[missing]
    assert not ledger(*sent).adds_up


def test_events_expired_by_retention_are_not_errors() -> None:
    sent = [scored("t"), grouped("t"), trained(1, "t")]
    found = ledger(*sent, cut=frozenset({"events", "trajectories"}))
    assert (found.started, found.expired, found.trained, found.adds_up) == (0, 1, 1, True)
    assert not ledger(*sent).adds_up


def test_an_unreadable_record_is_reported() -> None:
    _, message = rejected("t")
    found = ledger(*through("t"), (REJECTED, Message(message.key, b"{", message.headers)))
    assert (found.unreadable, found.adds_up) == (1, False)


def test_a_bounded_number_of_conflicts_is_named() -> None:
    found = ledger(*(assembled(f"t{number}") for number in range(150)))
    assert (len(found.conflicts), found.conflicting) == (100, 150)
    assert table(found.as_dict())[-1] == "  and 50 more"


def test_the_table_states_whether_it_adds_up() -> None:
    assert "It adds up: 8." in table(ledger(*CIRCLE).as_dict())
    assert any(line.startswith("IT DOES NOT ADD UP") for line in table(ledger(scored("t")).as_dict()))


def test_a_revised_reward_is_no_second_fate() -> None:
    once = ledger(*through("t", grouped("t"), trained(1, "t")))
    assert ledger(*through("t", grouped("t"), trained(1, "t"), scored("t", revision=1))) == once


ANYTHING = st.sampled_from(
    [
        *CIRCLE,
        *(make(name) for name in ("flat", "trained") for make in (grouped, rejected)),
        trained(2, "flat"),
        trained(3, "trained"),
        rejected("flat", Reason.STALE, Stage.ADMISSION),
    ]
)


class Sets:
    """The same counts from sets that are compared at the end: slower and simpler."""

    def __init__(self, sent: list[Sent]) -> None:
        self.seen: set[str] = set()
        self.started: set[str] = set()
        self.assembled: set[str] = set()
        self.scored: set[str] = set()
        self.grouped: set[str] = set()
        self.steps: dict[str, set[str]] = {}
        self.rejections: dict[str, set[tuple[str, str]]] = {}
        for _, message in sent:
            envelope, payload = decode(message.headers, message.value)
            match payload:
                case Trajectory():
                    self.assembled.add(payload.trajectory_id)
                case Reward():
                    self.scored.add(payload.trajectory_id)
                case TrainingGroup():
                    self.grouped |= {member.trajectory_id for member in payload.members}
                case Rejection():
                    fate = (payload.stage.value, payload.reason.value)
                    self.rejections.setdefault(payload.trajectory_id, set()).add(fate)
                case Step():
                    for name in payload.groups[0].trajectory_ids:
                        self.steps.setdefault(name, set()).add(f"{payload.run}/{payload.step}")
                case _:
                    self.seen.add(envelope.subject)
                    self.started |= {envelope.subject} if isinstance(payload, TrajectoryStarted) else set()

    @property
    def is_sound(self) -> bool:
        """Whether every record has its cause and every trajectory at most one fate."""
        decided = self.steps.keys() | self.rejections.keys()
        admitted = {name for name, fates in self.rejections.items() if any(stage == "admission" for stage, _ in fates)}
        return (
            self.steps.keys() | admitted <= self.grouped
            and decided | self.grouped <= self.scored <= self.assembled <= self.seen
            and not self.steps.keys() & self.rejections.keys()
            and all(len(steps) == 1 for steps in self.steps.values())
            and all(len(fates) == 1 for fates in self.rejections.values())
        )


@given(st.lists(ANYTHING, max_size=40))
def test_incremental_counts_match_sets_compared_at_the_end(sent: list[Sent]) -> None:
    found, sets = ledger(*sent), Sets(sent)
    decided = sets.steps.keys() | sets.rejections.keys()
    assert (found.started, found.seen_without_start) == (len(sets.started), len(sets.seen - sets.started))
    assert (found.trained, found.rejected) == (len(sets.steps), len(sets.rejections))
    assert found.trained_by_step == Counter(step for steps in sets.steps.values() for step in steps)
    assert found.rejected_by == {
        stage: Counter(reason for fates in sets.rejections.values() for at, reason in fates if at == stage)
        for stage in {stage for fates in sets.rejections.values() for stage, _ in fates}
    }
    assert found.pending_by == {
        "open": len(sets.seen - sets.assembled - sets.scored - sets.grouped - decided),
        "unscored": len(sets.assembled - sets.scored - sets.grouped - decided),
        "ungrouped": len(sets.scored - sets.grouped - decided),
        "untrained": len(sets.grouped - decided),
    }
    assert found.adds_up == sets.is_sound


@pytest.mark.parametrize("seed", range(60))
def test_ledger_and_assembler_agree_on_which_records_name_a_trajectory(seed: int) -> None:
    spoiled = poison(session("t", "ask", "tool")[2], random.Random(seed), 100)
    fold = PartitionFold(FoldLimits())
    fold.arrive(spoiled)
    tally = LedgerTally()
    tally.add(EVENTS.name, dict(spoiled.headers), spoiled.value)
    assert len(tally.accounts) == fold.open_count


def test_a_start_that_cannot_be_read_is_a_start_without_a_task() -> None:
    tally = LedgerTally()
    broken = session("t")[0]
    tally.add(EVENTS.name, dict(broken.headers), b'{"task_id": "q", \xff')
    assert (tally.accounts["t"].task, tally.ledger().started) == (None, 1)
