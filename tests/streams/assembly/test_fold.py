"""The fold matches a batch over the whole log, in any order, with duplicates, and across restarts."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schemas.envelope import ID, SEQUENCE, SUBJECT, TYPE
from headrace.schemas.events import TrajectoryEnded
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.records.group import Reason
from headrace.schemas.records.trajectory import Defect, Trajectory
from headrace.schemas.topics import DEAD_LETTERS
from headrace.streams.assembly.assemble import outputs_of
from headrace.streams.assembly.fold import PartitionFold
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.history import History, UnusableRecord
from headrace.streams.assembly.recovery import emitted_of
from headrace.streams.raw import StoredRecord
from headrace.streams.rewards.incomplete import hiding_defect
from tests.streams.builders import T0, event, facts, log, session, tick, ticks, with_header, without

HOUR = 3_600_000


def fold(records: Sequence[StoredRecord], limits: FoldLimits | None = None) -> list[History | UnusableRecord]:
    """All outcomes of the fold over ``records``, with offsets in order."""
    state = PartitionFold(limits or FoldLimits())
    return list(itertools.chain.from_iterable(state.arrive(record) for record in log(records)))


def closed(outcomes: Sequence[History | UnusableRecord]) -> list[History]:
    return [outcome for outcome in outcomes if isinstance(outcome, History)]


def dead(outcomes: Sequence[History | UnusableRecord]) -> list[tuple[DeadLetterError, str | None]]:
    return [(outcome.error.error, outcome.trajectory_id) for outcome in outcomes if isinstance(outcome, UnusableRecord)]


def trajectory(history: History) -> Trajectory:
    return Trajectory.model_validate_json(outputs_of(history)[0].message.value)


def only(records: Sequence[StoredRecord], limits: FoldLimits | None = None) -> Trajectory:
    """The one trajectory that ``records`` close."""
    (history,) = closed(fold(records, limits))
    return trajectory(history)


def essence(result: Trajectory) -> Trajectory:
    """The trajectory without the fields that depend on the order of arrival."""
    nowhere = result.first.model_copy(update={"offset": 0})
    return result.model_copy(update={"first": nowhere, "last": nowhere, "closed_offset": 0, "duplicates": 0})


class TestClosing:
    def test_a_trajectory_closes_with_its_end(self) -> None:
        records = session("s1", "ask", "tool", "answer")
        outcomes = [PartitionFold(FoldLimits()).arrive(record) for record in records[:-1]]
        assert not any(outcomes)
        result = only(records)
        assert (result.trajectory_id, result.events, result.missing, result.defects) == ("s1", 6, [], [])
        assert (result.first.offset, result.last.offset) == (0, 5)
        assert (result.started_ms, result.ended_ms) == (T0, T0 + 50)

    def test_an_early_end_waits_for_the_missing_events(self) -> None:
        records = session("s1", "ask", "answer")
        assert essence(only(records[::-1])) == essence(only(records))

    def test_an_end_with_a_gap_waits_for_the_grace_period_and_no_longer(self) -> None:
        records = session("s1", "ask", "tool", "answer")
        holed = [*records[:2], *records[3:]]
        grace = FoldLimits().hole_grace_ms
        assert not fold([*holed, *ticks(T0 + 50, T0 + 50 + grace - 1)])
        result = only([*holed, *ticks(T0 + 50, T0 + 50 + grace)])
        assert (result.missing, result.defects[0]) == ([2], Defect.MISSING_EVENTS)

    def test_a_late_event_within_the_grace_period_fills_the_gap(self) -> None:
        records = session("s1", "ask", "tool", "answer")
        late = replace(records[2], timestamp=T0 + 4000)
        assert only([*records[:2], *records[3:], late]).defects == []

    def test_without_an_end_it_closes_after_the_idle_timeout(self) -> None:
        records = session("s1", "ask", "tool", "answer")[:-1]
        idle = FoldLimits().idle_timeout_ms
        assert not fold([*records, *ticks(T0 + 40, T0 + 40 + idle - 1)])
        result = only([*records, *ticks(T0 + 40, T0 + 40 + idle)])
        assert (result.defects, result.status) == ([Defect.NO_END], None)

    def test_any_event_of_it_keeps_a_trajectory_open(self) -> None:
        limits = FoldLimits(idle_timeout_ms=1000)
        records = session("s1", "ask", "tool", "answer")
        slow = [replace(record, timestamp=T0 + 900 * number) for number, record in enumerate(records)]
        assert only(slow, limits).defects == []

    def test_an_outage_longer_than_the_timeouts_closes_nothing(self) -> None:
        """While Kafka is unavailable neither the agents nor the assembler, which writes ticks, can write."""
        records, other = session("s1", "ask", "tool", "answer"), session("s2", "ask", "answer", time_ms=T0 + HOUR)
        back = [replace(record, timestamp=T0 + HOUR + 9) for record in records[3:]]
        first, second = closed(fold([*records[:3], tick(T0 + HOUR), *other, *back]))
        assert (first.trajectory_id, second.trajectory_id) == ("s2", "s1")
        assert first.labels == second.labels == frozenset()

    def test_an_outage_longer_than_the_grace_period_does_not_close_a_gap(self) -> None:
        records = session("s1", "ask", "tool", "answer")
        late = replace(records[2], timestamp=T0 + HOUR + 5)
        assert only([*records[:2], *records[3:], tick(T0 + HOUR), late]).defects == []

    def test_an_outage_and_each_further_gap_count_for_a_tenth_of_the_timeout(self) -> None:
        record, idle = session("s1", "ask")[0], FoldLimits().idle_timeout_ms
        gaps = [tick(T0 + number * HOUR) for number in range(1, 11)]
        assert not fold([record, *gaps[:-1]])
        assert len(fold([record, *gaps])) == 1
        seconds = [tick(T0 + 1000 * number) for number in range(1, idle // 1000 + 1)]
        assert not fold([record, *seconds[:-1]])
        assert len(fold([record, *seconds])) == 1

    def test_an_event_after_the_timeout_is_late(self) -> None:
        records = session("s1", "ask", "answer")
        outcomes = fold([*records[:-1], *ticks(T0 + 20, T0 + HOUR), replace(records[-1], timestamp=T0 + HOUR)])
        assert [history.labels for history in closed(outcomes)] == [frozenset({Defect.NO_END})]
        assert dead(outcomes) == [(DeadLetterError.LATE, "s1")]

    def test_stream_time_of_the_fold_never_goes_back(self) -> None:
        records = session("s1", "ask", "answer")[:-1]
        state = PartitionFold(FoldLimits())
        for record in log([tick(T0 + HOUR), *records, tick(T0 + 2)]):
            assert state.arrive(record) == []
        assert state.stream_ms == T0 + HOUR
        assert state.deadline_ms == T0 + HOUR + FoldLimits().idle_timeout_ms

    def test_ticks_belong_to_no_trajectory_whatever_their_subject(self) -> None:
        misaddressed = with_header(tick(T0 + 5), SUBJECT, b"s1")
        records = session("s1", "ask", "answer")
        assert only([records[0], misaddressed, *records[1:]]).events == len(records)

    @pytest.mark.parametrize(
        ("value", "error"),
        [
            (b"\xff not JSON", DeadLetterError.BAD_JSON),
            (None, DeadLetterError.NULL_VALUE),
            (b"{}", DeadLetterError.INVALID),
        ],
    )
    def test_a_tick_that_cannot_be_read_is_a_dead_letter_and_still_time(
        self, value: bytes | None, error: DeadLetterError
    ) -> None:
        records = session("s1", "ask")[:-1]
        state = PartitionFold(FoldLimits())
        outcomes = [
            outcome
            for record in log([*records, replace(tick(T0 + HOUR), value=value)])
            for outcome in state.arrive(record)
        ]
        assert dead(outcomes) == [(error, None)]
        assert state.stream_ms == T0 + HOUR

    def test_events_beyond_the_end_are_late_in_any_order(self) -> None:
        records = session("s1", "ask", "answer")
        beyond = event("s1", 9, facts("ask")[1])
        for arrangement in ([*records, beyond], [*records[:-1], beyond, records[-1]]):
            outcomes = fold(arrangement)
            result = trajectory(closed(outcomes)[0])
            letters = [
                outgoing for outcome in outcomes for outgoing in outputs_of(outcome) if outgoing.topic is DEAD_LETTERS
            ]
            assert (result.missing, result.events) == ([], len(records))
            assert [b'"error":"late"' in letter.message.value for letter in letters] == [True]

    def test_of_two_ends_the_first_by_sequence_number_counts(self) -> None:
        records = session("s1", "ask", "answer")
        second = event("s1", 4, TrajectoryEnded(outcome=0.0))
        assert only([*records[:2], second, *records[2:]]).outcome == 1.0


class TestDuplicates:
    def test_a_duplicate_is_counted_and_dropped(self) -> None:
        records = session("s1", "ask", "answer")
        result = only([*records[:2], *records])
        assert (result.duplicates, result.events) == (2, 4)

    def test_a_whole_trajectory_sent_again_changes_nothing(self) -> None:
        records = session("s1", "ask", "answer")
        assert len(fold([*records, *records, *records])) == 1

    def test_events_missing_at_close_are_late_and_not_duplicates(self) -> None:
        records = session("s1", "ask", "tool", "answer")
        outcomes = fold([*records[:2], *records[3:], *ticks(T0, T0 + HOUR), *records])
        assert dead(outcomes) == [(DeadLetterError.LATE, "s1")]

    def test_a_closed_id_is_eventually_forgotten(self) -> None:
        limits = FoldLimits(remember=1, max_remembered=10)
        one, two = session("s1", "ask"), session("s2", "ask")
        assert len(closed(fold([*one, *two, *one], limits))) == 3

    def test_duplicates_do_not_delay_forgetting(self) -> None:
        limits = FoldLimits(remember=2, max_remembered=2)
        again, others = session("s1", "ask"), [session(f"o{number}", "ask") for number in range(50)]
        state = PartitionFold(limits)
        for record in log([*again, *itertools.chain.from_iterable([*other, again[0]] for other in others)]):
            state.arrive(record)
            assert state.remembered_count <= 2


class TestBounds:
    def test_beyond_max_open_the_oldest_is_closed_and_labelled(self) -> None:
        records = [session(name, "ask")[0] for name in ("s1", "s2", "s3")]
        (history,) = closed(fold(records, FoldLimits(max_open=2)))
        assert history.trajectory_id == "s1"
        assert history.labels == {Defect.OVERSIZE, Defect.NO_END}
        assert history.closed_offset == 3  # records after the one beyond the limit are late

    def test_beyond_the_memory_of_a_partition_the_oldest_is_closed_and_labelled(self) -> None:
        records = [session(name, "ask")[0] for name in ("s1", "s2", "s3", "s4")]
        histories = closed(fold(records, FoldLimits(max_open_bytes=4000)))
        assert [(history.trajectory_id, history.closed_offset) for history in histories] == [("s1", 3), ("s2", 4)]

    def test_beyond_the_memory_of_a_partition_the_largest_is_closed(self) -> None:
        small, large = session("small", "ask"), session("large", "ask", "tool", "ask", "tool", "ask")
        outcomes = fold([small[0], *large[:-1], *small[1:]], FoldLimits(max_open_bytes=7000))
        assert [history.trajectory_id for history in closed(outcomes)] == ["large", "small"]
        assert not closed(outcomes)[1].labels

    def test_beyond_max_open_the_longest_silent_is_closed(self) -> None:
        busy, flood = session("busy", "ask", "tool", "ask"), [session(f"f{number}", "ask")[0] for number in range(9)]
        mixed = itertools.chain.from_iterable(zip(busy, flood, strict=False))
        outcomes = fold([*mixed, *busy[len(flood) :]], FoldLimits(max_open=3))
        assert next(history for history in closed(outcomes) if history.trajectory_id == "busy").labels == set()

    def test_a_trajectory_that_grows_too_large_is_closed_and_labelled(self) -> None:
        outcomes = fold(session("s1", "ask", "tool", "answer"), FoldLimits(max_trajectory_bytes=3000))
        assert Defect.OVERSIZE in closed(outcomes)[0].labels
        assert {error for error, _ in dead(outcomes)} == {DeadLetterError.LATE}

    def test_a_trajectory_open_while_too_many_others_close_is_closed(self) -> None:
        limits = FoldLimits(remember=1, max_remembered=3)
        others = [session(f"s{number}", "ask") for number in range(4)]
        outcomes = fold([session("long", "ask")[0], *itertools.chain.from_iterable(others)], limits)
        assert [history.trajectory_id for history in closed(outcomes)] == ["s0", "s1", "s2", "s3", "long"]
        assert [history.closed_offset for history in closed(outcomes)] == [4, 7, 10, 13, 13]

    def test_an_absurd_sequence_number_makes_no_list_of_gaps(self) -> None:
        (record,) = session("s1", "ask")[1:2]
        outcomes = fold([with_header(record, SEQUENCE, b"9" * 17), *ticks(T0, T0 + HOUR)])
        assert dead(outcomes) == [(DeadLetterError.OVERSIZE, "s1")]
        assert not closed(outcomes)[0].missing

    def test_an_event_far_ahead_takes_constant_memory_for_its_gap(self) -> None:
        (far,) = session("s1", "ask")[1:2]
        state, records = PartitionFold(FoldLimits()), log([with_header(far, SEQUENCE, b"65535"), *ticks(T0, T0 + HOUR)])
        (history,) = [outcome for record in records for outcome in state.arrive(record)]
        assert isinstance(history, History)
        message = outputs_of(history)[0].message
        assert (len(message.value) < 4000, state.remembered_bytes < 1000) == (True, True)
        result = Trajectory.model_validate_json(message.value)
        assert (result.missing, result.missing_count, result.gaps) == (list(range(256)), 65_535, [(0, 65_535)])
        assert emitted_of(replace(records[0], value=message.value)).remembered == state._remembered[b"s1"]

    def test_a_trajectory_with_too_many_gaps_is_closed(self) -> None:
        every_other = [with_header(session("s1", "ask")[1], SEQUENCE, b"%d" % number) for number in range(0, 20, 2)]
        limits = FoldLimits(max_gaps=4)
        assert not closed(fold(every_other[:5], limits))
        (history,) = closed(fold(every_other[:6], limits))
        assert (history.labels >= {Defect.OVERSIZE}, trajectory(history).gaps[-1]) == (True, (9, 10))

    def test_repeating_an_event_of_a_closed_trajectory_closes_no_other_trajectory(self) -> None:
        limits = FoldLimits(remember=10, max_remembered=50)
        again, other = session("again", "ask"), session("other", "ask", "tool", "ask")
        between = [session(f"s{number}", "ask") for number in range(40)]
        noise = itertools.chain.from_iterable([*each, *again[:1] * 5] for each in between)
        outcomes = fold([*again, other[0], *noise, *other[1:]], limits)
        named = {history.trajectory_id: history for history in closed(outcomes) if history.trajectory_id != "again"}
        assert len(named) == 41
        assert not any(history.labels for history in named.values())

    @pytest.mark.parametrize("name", ["idle_timeout_ms", "max_open", "remember"])
    def test_a_limit_below_one_is_refused_by_name(self, name: str) -> None:
        with pytest.raises(ValueError, match=name):
            FoldLimits(**{name: 0})


def of_another_run(records: Sequence[StoredRecord]) -> list[StoredRecord]:
    """The same sequence numbers under other IDs."""
    return [with_header(record, ID, b"run-2-%d" % number) for number, record in enumerate(records)]


class TestTwoRunsUnderOneId:
    def test_another_id_for_a_sequence_number_is_a_dead_letter_and_labels_the_trajectory(self) -> None:
        one = session("s1", "ask", "tool", "answer")
        two = of_another_run(session("s1", "ask", "ask", start={"task_id": "another"}))
        outcomes = fold([*one[:2], *two])
        assert dead(outcomes) == [(DeadLetterError.CONFLICT, "s1")] * 2
        (history,) = closed(outcomes)
        result = trajectory(history)
        assert (result.defects[0], result.duplicates) == (Defect.CONFLICT, 0)
        assert result.started is not None
        assert result.started.task_id == "task"
        assert Reason(result.defects[0]) is Reason.CONFLICT
        assert hiding_defect(result) is Defect.CONFLICT

    def test_an_unreadable_event_also_takes_its_sequence_number(self) -> None:
        """Otherwise one run's start and the other run's tokens would form one clean trajectory."""
        one, two = session("s1", "ask", "answer"), of_another_run(session("s1", "ask", "answer"))
        cut = replace(one[0], value=b'{"task_id": "t')
        outcomes = fold([cut, one[1], two[0], *two[2:]])
        assert dead(outcomes) == [(DeadLetterError.BAD_JSON, "s1"), (DeadLetterError.CONFLICT, "s1")]
        assert closed(outcomes)[0].labels == {Defect.BAD_EVENT, Defect.CONFLICT}

    def test_a_second_unreadable_event_with_another_id_is_a_dead_letter(self) -> None:
        one = session("s1", "ask", "answer")
        cut = replace(one[1], value=b'{"model": "m')
        again, other = cut, with_header(cut, ID, b"of another run")
        outcomes = fold([one[0], cut, again, other, *one[2:]])
        assert dead(outcomes) == [(DeadLetterError.BAD_JSON, "s1")] * 2
        assert (closed(outcomes)[0].labels, closed(outcomes)[0].duplicates) == (
            {Defect.BAD_EVENT, Defect.CONFLICT}, 1,
        )  # fmt: skip

    def test_a_repaired_event_replaces_the_unreadable_one(self) -> None:
        one = session("s1", "ask", "answer")
        cut = replace(one[1], value=b'{"model": "m')
        nameless = with_header(one[1], ID, b"\xff")  # once repaired it has another ID
        for bad in (cut, nameless, without(one[1], ID)):
            assert only([one[0], bad, one[1], *one[2:]]).defects == []

    def test_the_same_id_and_sequence_number_is_a_duplicate(self) -> None:
        records = session("s1", "ask", "answer")
        assert only([*records[:2], *records]).defects == []

    def test_an_event_without_an_id_conflicts_with_none(self) -> None:
        records = session("s1", "ask", "answer")
        outcomes = fold([*records[:2], without(records[1], ID), *records[2:]])
        assert (dead(outcomes), closed(outcomes)[0].labels) == ([], set())

    def test_after_close_a_second_run_is_detected_by_its_first_event(self) -> None:
        one = session("s1", "ask", "answer")
        outcomes = fold([*one, *of_another_run(session("s1", "ask", "answer", "ask"))])
        assert dead(outcomes) == [(DeadLetterError.CONFLICT, "s1"), (DeadLetterError.LATE, "s1")]
        assert [history.labels for history in closed(outcomes)] == [set()]

    def test_a_start_that_is_sent_again_after_the_end_is_a_duplicate(self) -> None:
        one = session("s1", "ask", "answer")
        assert dead(fold([*one, *one])) == []


Spoil = Callable[[StoredRecord], StoredRecord]


class TestBadRecords:
    @pytest.mark.parametrize(
        ("spoil", "error", "named"),
        [
            (lambda record: replace(record, value=None), DeadLetterError.NULL_VALUE, "s1"),
            (lambda record: replace(record, value=b"x" * 2_000_000), DeadLetterError.OVERSIZE, "s1"),
            (lambda record: with_header(record, "h", b"x" * 2_000_000), DeadLetterError.OVERSIZE, "s1"),
            (lambda record: with_header(record, TYPE, b"com.example.x"), DeadLetterError.UNKNOWN_TYPE, "s1"),
            (lambda record: with_header(record, TYPE, b"\xff\xfe"), DeadLetterError.UNKNOWN_TYPE, "s1"),
            (lambda record: without(record, TYPE), DeadLetterError.BAD_HEADERS, "s1"),
            (lambda record: without(record, SEQUENCE), DeadLetterError.BAD_HEADERS, "s1"),
            (lambda record: with_header(record, SEQUENCE, b"-1"), DeadLetterError.BAD_HEADERS, "s1"),
            (lambda record: with_header(record, SEQUENCE, None), DeadLetterError.BAD_HEADERS, "s1"),
            (lambda record: without(record, SUBJECT), DeadLetterError.BAD_HEADERS, None),
            (lambda record: with_header(record, SUBJECT, b""), DeadLetterError.BAD_HEADERS, None),
            (lambda record: with_header(record, SUBJECT, b"\xff"), DeadLetterError.BAD_HEADERS, None),
            (lambda record: with_header(record, SUBJECT, b"x" * 600), DeadLetterError.BAD_HEADERS, None),
            (lambda record: replace(record, headers=[]), DeadLetterError.BAD_HEADERS, None),
        ],
    )
    def test_an_unreadable_event_is_a_dead_letter_immediately_and_the_others_continue(
        self, spoil: Spoil, error: DeadLetterError, named: str | None
    ) -> None:
        bad = session("s1", "ask", "tool", "answer")
        good = session("s2", "ask", "tool", "answer")
        outcomes = fold([*bad[:2], spoil(bad[2]), *bad[3:], *good, *ticks(T0, T0 + HOUR)])
        assert dead(outcomes) == [(error, named)]
        results = {history.trajectory_id: trajectory(history) for history in closed(outcomes)}
        assert results["s2"].defects == []
        label = Defect.OVERSIZE if error is DeadLetterError.OVERSIZE else Defect.BAD_EVENT
        assert (label if named else Defect.MISSING_EVENTS) in results["s1"].defects

    def test_an_unreadable_events_sequence_number_counts_as_taken(self) -> None:
        records = session("s1", "ask", "tool", "answer")
        result = only([*records[:2], replace(records[2], value=None), *records[3:]])
        assert (result.unreadable, result.missing, result.defects) == ([2], [], [Defect.BAD_EVENT])

    def test_a_repaired_event_takes_its_place_while_the_trajectory_is_open(self) -> None:
        records = session("s1", "ask", "tool", "answer")
        assert only([*records[:2], replace(records[2], value=None), *records[2:]]).defects == []

    def test_an_unreadable_end_still_ends(self) -> None:
        records = session("s1", "ask", "answer")
        result = only([*records[:-1], replace(records[-1], value=None)])
        assert (result.defects, result.status) == ([Defect.BAD_EVENT], None)

    def test_an_event_that_fails_only_when_decoded_is_a_dead_letter_at_close(self) -> None:
        records = session("s1", "ask", "tool", "answer")
        records[2] = replace(records[2], value=b'{"call_id": }')
        records[3] = replace(records[3], value=b'{"call_id": 7}')
        (history,) = closed(fold(records))
        first, *letters = outputs_of(history)
        result = Trajectory.model_validate_json(first.message.value)
        assert (result.unreadable, result.events, result.defects) == ([2, 3], 4, [Defect.BAD_EVENT])
        errors = [letter.message.value for letter in letters]
        assert [b"bad_json" in errors[0], b'"invalid"' in errors[1]] == [True] * 2

    @pytest.mark.parametrize(
        ("spoil", "error"),
        [
            (lambda record: replace(record, value=b'{"call_id": '), DeadLetterError.BAD_JSON),
            (lambda record: replace(record, value=b""), DeadLetterError.BAD_JSON),
            (lambda record: replace(record, value=b"[]"), DeadLetterError.INVALID),
            (lambda record: without(record, "ce_time"), DeadLetterError.BAD_HEADERS),
            (lambda record: without(record, "ce_id"), DeadLetterError.BAD_HEADERS),
            (lambda record: with_header(record, "ce_source", None), DeadLetterError.BAD_HEADERS),
            (lambda record: with_header(record, "ce_time", b"yesterday"), DeadLetterError.BAD_HEADERS),
        ],
    )
    def test_damage_visible_on_arrival_is_a_dead_letter_before_the_trajectory_closes(
        self, spoil: Spoil, error: DeadLetterError
    ) -> None:
        records = session("s1", "ask", "tool", "answer")
        outcomes = fold([*records[:2], spoil(records[2])])
        assert (dead(outcomes), closed(outcomes)) == ([(error, "s1")], [])
        result = only([*records[:2], spoil(records[2]), *records[3:]])
        assert (result.unreadable, result.events, result.defects) == ([2], 5, [Defect.BAD_EVENT])

    def test_an_object_surrounded_by_spaces_is_read(self) -> None:
        records = session("s1", "ask", "tool", "answer")
        records[2] = replace(records[2], value=b" " + (records[2].value or b"") + b"\n")
        assert only(records).defects == []


NAMES = ("a", "b", "c", "d")
STEPS = st.lists(st.sampled_from(["ask", "tool", "prune", "back"]), max_size=3)


@st.composite
def shuffled(draw: st.DrawFn) -> tuple[dict[str, list[StoredRecord]], list[StoredRecord]]:
    """Histories by id, and a log that holds each of their events once or more, in any order."""
    histories = {name: session(name, *draw(STEPS), time_ms=T0) for name in NAMES[: draw(st.integers(1, 4))]}
    records = [record for history in histories.values() for record in history]
    records += draw(st.lists(st.sampled_from(records), max_size=8))
    draw(st.randoms(use_true_random=False)).shuffle(records)
    return histories, records


@given(shuffled())
@settings(max_examples=200, deadline=None)
def test_any_interleaving_with_duplicates_gives_the_same_trajectories(
    case: tuple[dict[str, list[StoredRecord]], list[StoredRecord]],
) -> None:
    histories, records = case
    outcomes = fold(records)
    assert not dead(outcomes)
    results = {history.trajectory_id: essence(trajectory(history)) for history in closed(outcomes)}
    assert len(results) == len(closed(outcomes))
    assert results == {name: essence(only(history)) for name, history in histories.items()}
