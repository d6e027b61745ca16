"""Which tokens a hint is for, which hints are refused and why, and what a batch's hash covers."""

from dataclasses import replace

import pytest

from headrace.schemas.events import TrajectoryStarted
from headrace.schemas.records.reward import Hint, HintRefusal
from headrace.schemas.records.step import BatchRecipe
from headrace.schemas.records.trajectory import Segment, Trajectory, Turn
from headrace.trainer.batches.batch import AdmittedGroup, ResolvedMember, make_batch, select_sequences
from headrace.trainer.batches.turn_hints import REFUSALS
from headrace.trainer.learning.hint_passes import hinted_turns, pack_turns
from headrace.trainer.provenance.rebuild import RebuildResult, StepRecords, rebuild
from headrace.trainer.steps.step_record import make_step
from tests.trainer.builders import AT, admitted, member, segment, training_group, trajectory

PLACE = (0, 0)


def session(*segments: Segment, turns: list[Turn], tenant: str | None = None, name: str = "a") -> Trajectory:
    start = TrajectoryStarted(task_id="task", agent="search", run="run", tenant=tenant)
    return trajectory(name, *segments).model_copy(update={"turns": turns, "started": start})


def turn(sampled: int, in_segment: int | None = 0) -> Turn:
    return Turn(sampled_tokens=sampled, segment=in_segment)


def hinted(of: Trajectory, *hints: Hint) -> AdmittedGroup:
    return AdmittedGroup("g", AT, (ResolvedMember(member(of).model_copy(update={"hints": list(hints)}), of),))


def refusals(group: AdmittedGroup, *, most: int = 9, **limits: int) -> dict[str, int]:
    batch = make_batch([group], max_hinted_turns=most)
    kept = batch.advantages < 99
    found = hinted_turns(batch, kept, **({"vocabulary": 50, "longest": 99} | limits))
    return {reason.value: count for reason, count in found[1].items() if count}


# Two segments; the calls alternate between them.
TWO = session(segment("ccSScSSS"), segment("cScS"), turns=[turn(2, 0), turn(1, 1), turn(3, 0), turn(0, 1), turn(1, 1)])
HINT = Hint(turn=0, token_ids=[7, 8], source="rule")


@pytest.mark.parametrize(("number", "sampled"), [(0, (0, 2)), (1, (5, 6)), (2, (2, 5)), (4, (6, 7))])
def test_a_turn_is_found_in_its_segment_even_if_calls_alternate(number, sampled):
    batch = make_batch([hinted(TWO, HINT.model_copy(update={"turn": number}))], max_hinted_turns=9)
    assert (batch.hints.firsts.tolist(), batch.hints.lasts.tolist()) == ([sampled[0]], [sampled[1]])


def test_the_teacher_reads_context_hint_and_turn_and_nothing_later():
    group = hinted(session(segment("ccSSccSSc"), turns=[turn(2), turn(2)]), Hint(turn=1, token_ids=[7, 8], gap=1))
    batch = make_batch([group], max_hinted_turns=9)
    (found,), refused = hinted_turns(batch, batch.advantages < 99, vocabulary=50, longest=99)
    ids = batch.packed.token_ids.tolist()
    assert not any(refused.values())
    assert found.token_ids.tolist() == ids[:8]
    assert found.hinted_ids.tolist() == [*ids[:5], 7, 8, *ids[5:8]]
    student, teacher = pack_turns([found, found])
    assert student.token_ids[student.targets].tolist() == teacher.token_ids[teacher.targets].tolist() == ids[6:8] * 2
    assert teacher.position_ids.tolist() == [*range(10)] * 2
    assert teacher.cu_seqlens.tolist() == [0, 10, 20]
    assert student.targets.tolist() == [6, 7, 14, 15]


ONE = [turn(2), turn(1), turn(0)]


@pytest.mark.parametrize(
    ("reason", "hint", "limits"),
    [
        ("out_of_range", Hint(turn=3, token_ids=[1]), {}),
        ("out_of_range", Hint(turn=0, token_ids=[1], gap=3), {}),
        ("out_of_range", Hint(turn=1, token_ids=[1], gap=2), {}),  # it would go into turn 0
        ("masked", Hint(turn=2, token_ids=[1]), {}),
        ("other_tenant", Hint(turn=0, token_ids=[1], tenant="us"), {}),
        ("vocabulary", Hint(turn=0, token_ids=[50]), {}),
        ("too_long", Hint(turn=1, token_ids=[1, 2]), {"longest": 7}),
        ("too_many", Hint(turn=0, token_ids=[1]), {"most": 0}),
    ],
)
def test_a_hint_that_does_not_fit_is_refused_with_its_reason(reason, hint, limits):
    group = hinted(session(segment("ccSScSc"), turns=ONE), hint)
    if reason == "too_many":
        other = Hint(turn=1, token_ids=[1])
        assert refusals(hinted(group.members[0].trajectory, hint, other), most=1) == {reason: 1}
    else:
        assert refusals(group, **limits) == {reason: 1}


def test_a_hint_of_the_trajectorys_own_tenant_is_used():
    of = session(segment("ccSS"), turns=[turn(2)], tenant="eu")
    assert refusals(hinted(of, Hint(turn=0, token_ids=[1], tenant="eu"))) == {}
    assert refusals(hinted(of, Hint(turn=0, token_ids=[1]))) == {"other_tenant": 1}


def test_a_second_hint_for_a_turn_is_refused():
    assert refusals(hinted(TWO, HINT, HINT)) == {"repeated": 1}


def test_masked_tokens_of_a_turn_are_left_out_and_a_turn_without_others_is_refused():
    group = hinted(session(segment("ccSSS"), turns=[turn(3)]), HINT)
    batch = make_batch([group], max_hinted_turns=9)
    kept = batch.advantages < 99
    kept[1] = False
    (found,), _ = hinted_turns(batch, kept, vocabulary=50, longest=99)
    assert found.targets.tolist() == [False, False, True, False, True]
    assert found.hinted_targets.tolist() == [False, False, False, False, True, False, True]
    kept[:] = False
    assert hinted_turns(batch, kept, vocabulary=50, longest=99)[1] == {HintRefusal.MASKED: 1}


def test_records_of_older_releases_locate_turns_of_a_single_segment_only():
    old = [turn(2, None), turn(1, None)]
    single = hinted(session(segment("ccSScS"), turns=old), HINT.model_copy(update={"turn": 1}))
    assert make_batch([single], max_hinted_turns=9).hints.firsts.tolist() == [2]
    assert refusals(hinted(session(segment("ccSS"), segment("cS"), turns=old), HINT)) == {"unlocated": 1}


def test_a_record_whose_turns_contradict_its_segments_is_refused():
    assert refusals(hinted(session(segment("ccSScS"), turns=[turn(3)]), HINT)) == {"unlocated": 1}


def test_hints_that_a_groups_record_had_no_room_for_are_counted():
    group = replace(hinted(TWO, HINT), hints_refused=3)
    assert refusals(group) == {"group_too_large": 3}


def test_hints_are_ignored_unless_the_recipe_allows_them():
    batch = make_batch([hinted(TWO, HINT)])
    assert len(batch.hints) == 0
    assert batch.sha256() == make_batch([admitted("g", TWO)]).sha256()
    assert make_batch([hinted(TWO, HINT)], max_hinted_turns=9).sha256() != batch.sha256()
    longer = Hint(turn=0, token_ids=[7, 9])
    assert (
        make_batch([hinted(TWO, longer)], max_hinted_turns=9).array_sha256()["hint_token_ids"]
        != make_batch([hinted(TWO, HINT)], max_hinted_turns=9).array_sha256()["hint_token_ids"]
    )


def test_a_selection_of_sequences_has_no_hints():
    batch = make_batch([hinted(TWO, HINT)], max_hinted_turns=9)
    assert len(select_sequences(batch, [1])[0].hints) == 0
    assert len(REFUSALS) == len(batch.hints.refused)


def test_a_step_with_hints_is_rebuilt_from_the_log():
    recipe, group = BatchRecipe(format=2, max_hinted_turns=4), hinted(TWO, HINT)
    batch = make_batch([group], max_hinted_turns=4)
    step = make_step(1, [group], batch, {}, run="run", config_sha256="c", recipe=recipe)
    record = training_group("g", [group.members[0].member])
    made = rebuild(step, StepRecords({PLACE: record}, {PLACE: TWO}))
    assert made.verdict is RebuildResult.MATCHES
    without = record.model_copy(update={"members": [group.members[0].member.model_copy(update={"hints": []})]})
    other = rebuild(step, StepRecords({PLACE: without}, {PLACE: TWO}))
    assert other.verdict is RebuildResult.DIFFERS
    assert "hint_token_ids" in other.differing
