"""What a restarted sampler knows by the log, and what it does with it."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.rollouts.journal import LABEL, MAX_SIZE, BegunGroup, Journal, Place, place_in
from headrace.agents.rollouts.restoration import Restoration, restoration
from headrace.schemas.envelope import Envelope
from headrace.schemas.events import EndStatus, ToolCalled, TrajectoryEnded, TrajectoryStarted
from headrace.schemas.model import Record
from headrace.streams.grouping.group_policy import MAX_GROUP_SIZE

NOW_MS = 1_700_000_000_000
SIZE = 4


def place(number: int = 7, member: int = 0, **fields: Any) -> Place:
    return Place(
        **{"sampler": "s0", "number": number, "epoch": 0, "member": member, "level": 1, "curriculum": 2} | fields
    )


def started(at: Place, group: str = "g", run: str = "r") -> TrajectoryStarted:
    return TrajectoryStarted(
        task_id=f"toy-{at.number}", group_id=group, group_size=SIZE, agent="toy", run=run, task={LABEL: at.label}
    )


def events_of(name: str, *facts: Record, time_ms: int = NOW_MS) -> list[tuple[Envelope, Record]]:
    return [
        (Envelope(f"{name}/{number}", fact.TYPE, "test", time_ms, name, number), fact)
        for number, fact in enumerate(facts)
    ]


def journal_of(*events: Iterable[tuple[Envelope, Record]], sampler: str = "s0") -> Journal:
    journal = Journal("r", sampler)
    for each in events:
        for envelope, fact in each:
            if journal.wants(envelope):
                journal.add(envelope, fact)
    return journal


CALLED = ToolCalled(call_id="c1", tool="look")
ENDED = TrajectoryEnded()
RESTARTED = TrajectoryEnded(status=EndStatus.RESTARTED)

DONE = events_of("t0", started(place(member=0)), CALLED, ENDED)
HALF = events_of("t1", started(place(member=1)), CALLED)
GONE = events_of("t2", started(place(member=2)), CALLED, RESTARTED)


def planned(group: BegunGroup, *, age_s: float = 1, restarts: bool = True) -> Restoration:
    return restoration(group, now_ms=NOW_MS + round(age_s * 1000), within_ms=300_000, restarts=restarts)


def test_a_group_knows_its_ended_running_and_missing_members() -> None:
    group = journal_of(DONE, HALF, GONE).groups["g"]
    assert (group.task_id, group.size, group.place.level) == ("toy-7", SIZE, 1)
    assert (group.ended, set(group.running), group.missing) == ({0}, {"t1"}, [2, 3])
    half = group.running["t1"]
    assert (half.known, half.is_whole, half.events[1]) == (2, True, CALLED)


def test_an_ended_member_is_not_made_again_a_half_done_one_goes_on_and_the_others_are_added() -> None:
    group = journal_of(DONE, HALF, GONE).groups["g"]
    assert planned(group) == Restoration(resume=(group.running["t1"],), add=(2, 3))


def test_attempts_that_the_gateway_records_are_members_as_they_are() -> None:
    assert planned(journal_of(DONE, HALF, GONE).groups["g"], restarts=False) == Restoration(add=(2, 3))


def test_a_group_that_may_be_closed_is_not_completed_but_its_attempts_are_ended() -> None:
    group = journal_of(DONE, HALF).groups["g"]
    assert planned(group, age_s=301) == Restoration(abandon=(group.running["t1"],))


def test_of_two_attempts_for_one_member_the_newest_goes_on() -> None:
    both = journal_of(HALF, events_of("t9", started(place(member=1)))).groups["g"]
    assert planned(both) == Restoration(resume=(both.running["t9"],), abandon=(both.running["t1"],), add=(0, 2, 3))
    ended = journal_of(HALF, events_of("t0", started(place(member=1)), ENDED)).groups["g"]
    assert planned(ended) == Restoration(abandon=(ended.running["t1"],), add=(0, 2, 3))


def test_a_finished_group_needs_nothing() -> None:
    all_done = [events_of(f"t{n}", started(place(member=n)), ENDED) for n in range(SIZE)]
    group = journal_of(*all_done).groups["g"]
    assert group.is_finished
    assert planned(group) == Restoration()


def test_a_missing_event_is_noticed() -> None:
    half = journal_of([HALF[0], *events_of("t1", CALLED, CALLED, CALLED)[2:]]).groups["g"].running["t1"]
    assert (half.known, half.is_whole) == (3, False)


def test_tasks_of_all_samplers_of_the_run_count_and_groups_of_this_one_alone() -> None:
    other = events_of("t5", started(place(8, sampler="s1"), "h"))
    foreign = events_of("t6", started(place(9), "i", run="another"))
    journal = journal_of(DONE, other, foreign)
    assert journal.attempted == {(0, 7), (0, 8)}
    assert set(journal.groups) == {"g"}


def test_the_level_is_that_of_the_newest_group() -> None:
    late = events_of("t8", started(place(3, curriculum=0), "later"), time_ms=NOW_MS + 5)
    assert journal_of(late, DONE).level == 0
    assert journal_of().level is None


def test_a_member_that_was_added_to_an_old_group_does_not_move_the_level_back() -> None:
    newest = events_of("t8", started(place(3, curriculum=1), "later"), time_ms=NOW_MS + 5)
    added = events_of("t9", started(place(member=3, curriculum=0)), time_ms=NOW_MS + 10_000)  # by a second sampler
    old = events_of("t0", started(place(member=0, curriculum=0)), ENDED)
    assert journal_of(old, newest, added).level == 1


def test_a_group_is_as_old_as_its_earliest_start_whatever_partition_is_read_first() -> None:
    late = events_of("t1", started(place(member=1)), time_ms=NOW_MS)
    early = events_of("t0", started(place(member=0)), time_ms=NOW_MS - 400_000)
    for read in ((late, early), (early, late)):
        group = journal_of(*read).groups["g"]
        assert group.began_ms == NOW_MS - 400_000
        assert len(planned(group).abandon) == 2


def test_a_repeated_start_of_an_attempt_that_was_replaced_begins_nothing() -> None:
    group = journal_of(GONE, GONE[:2]).groups["g"]
    assert (set(group.running), group.missing) == (set(), [0, 1, 2, 3])


def test_a_start_that_contradicts_the_group_makes_no_member_twice() -> None:
    for odd in (place(8, member=2), place(member=2, level=0), place(member=2, epoch=1)):
        for read in ((DONE, HALF, events_of("t7", started(odd))), (events_of("t7", started(odd)), DONE, HALF)):
            plan = planned(journal_of(*read).groups["g"])
            assert (plan.resume, plan.add, len(plan.abandon)) == ((), (), 2)
    resized = started(place(member=2)).model_copy(update={"group_size": 64})
    assert planned(journal_of(DONE, events_of("t7", resized)).groups["g"]).add == ()


def test_members_outside_of_the_group_and_groups_that_nobody_makes_are_ignored() -> None:
    ended = [events_of(f"t{member}", started(place(member=member)), ENDED) for member in (0, 1, 2, SIZE, 10**30)]
    group = journal_of(*ended).groups["g"]
    assert (group.is_finished, planned(group).add) == (False, (3,))
    huge = started(place()).model_copy(update={"group_size": 2**31 - 1})
    assert journal_of(events_of("t0", huge)).groups == {}
    assert MAX_SIZE == MAX_GROUP_SIZE


def test_a_group_of_a_clock_that_was_ahead_is_not_completed_for_ever() -> None:
    ahead = journal_of(events_of("t1", started(place(member=1)), time_ms=NOW_MS + 10**9)).groups["g"]
    assert (planned(ahead).add, len(planned(ahead).abandon)) == ((), 1)


@given(st.lists(st.sampled_from([DONE, HALF, GONE]), min_size=3, max_size=9))
def test_repeated_events_change_nothing(repeated: list[list[tuple[Envelope, Record]]]) -> None:
    once = journal_of(DONE, HALF, GONE).groups["g"]
    again = journal_of(DONE, HALF, GONE, *repeated).groups["g"]
    assert (again.ended, again.missing, set(again.running) - {"t2"}) == (once.ended, once.missing, set(once.running))


@pytest.mark.parametrize(
    "task",
    [
        {},
        {LABEL: 1},
        {LABEL: {"sampler": "s0"}},
        *({LABEL: place().label | odd} for odd in ({"number": "7"}, {"number": True}, {"member": -1}, {"level": -1})),
        *({LABEL: place().label | odd} for odd in ({"epoch": 1.0}, {"curriculum": False}, {"curriculum": -2})),
    ],
)
def test_starts_without_a_whole_place_are_no_rollouts(task: dict[str, Any]) -> None:
    assert place_in(task) is None
    assert place_in({LABEL: place().label}) == place()
