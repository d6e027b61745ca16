from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.events import SamplingSpan, VersionSpan
from headrace.schemas.records.group import Reason, Stage
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Segment
from headrace.trainer.admission.admission import (
    AdmissionRules,
    admit,
    age_when_rejected,
    place_of,
    places_to_read,
    rejection,
)
from headrace.trainer.admission.bounds import AdmissionBounds
from tests.trainer.builders import AT, member, segment, training_group, trajectory

RULES = AdmissionRules(run="run", max_staleness=2, vocabulary_size=50, max_positions=10)


def fate(attempt, *, version=0, found=True, rules=RULES, **member_changes):
    """Returns the reason to reject a group of one trajectory; ``None`` if it is admitted."""
    only = member(attempt).model_copy(update=member_changes)
    group = training_group("g", [only])
    trajectories = {place_of(AT): attempt} if found else {}
    admitted, rejections = admit(group, AT, trajectories, rules, version)
    assert (admitted is None) == (len(rejections) == 1)
    return rejections[0].reason if rejections else None


def test_a_member_without_defects_is_admitted():
    assert fate(trajectory("t", segment("ccSS"))) is None


@pytest.mark.parametrize(("version", "reason"), [(6, None), (7, None), (8, Reason.STALE)])
def test_staleness_counts_from_the_oldest_token_to_the_policy_that_is_trained(version, reason):
    assert fate(trajectory("t", segment("ccSS", versions=[5, 6])), version=version) == reason


def test_a_stale_member_is_not_even_read():
    old = member(trajectory("t", segment("cS", versions=[0])), at=Reference(partition=1, offset=2))
    new = member(trajectory("u", segment("cS", versions=[9])), at=Reference(partition=3, offset=4))
    assert places_to_read(training_group("g", [old, new]), RULES, version=9) == [(3, 4)]


@pytest.mark.parametrize(
    ("attempt", "reason"),
    [
        (trajectory("t", segment("cS"), run="another"), Reason.OTHER_RUN),
        (trajectory("t", segment("cS").model_copy(update={"logprobs": None})), Reason.NO_LOGPROBS),
        (trajectory("t", segment("cS").model_copy(update={"version_spans": []})), Reason.UNKNOWN_VERSION),
        (trajectory("t", segment("cS").model_copy(update={"sampling_spans": []})), Reason.UNKNOWN_SAMPLING),
        (trajectory("t", segment("cSS", temperatures=[0.6, 1.3])), None),
        (trajectory("t", segment("cSS", temperatures=[0.0, 1.0])), Reason.GREEDY_SAMPLING),
        (trajectory("t", segment("SS")), Reason.BROKEN_PREFIX),
        (trajectory("t", segment("c" * 10 + "S")), Reason.TOO_LONG),
        (trajectory("t", segment("cccS", vocabulary=10_000)), None),
        (trajectory("t", segment("c" * 9 + "S", vocabulary=10_000)), Reason.VOCABULARY),
    ],
)
def test_untrainable_members_are_rejected_with_their_reason(attempt, reason):
    assert fate(attempt) == reason


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        (["run", "run"], None),
        ([None, None], None),  # from an older engine or agent
        ([None, "run"], None),
        (["another", "another"], Reason.OTHER_RUN),
        (["run", "another"], Reason.OTHER_RUN),
        (["another", "run"], Reason.OTHER_RUN),
        ([None, "another"], Reason.OTHER_RUN),
    ],
)
def test_tokens_of_another_runs_version_are_rejected_whatever_their_number(runs, reason):
    mixed = trajectory("t", segment("cSS", runs=runs, versions=[5, 5]))
    assert fate(mixed, version=5, oldest_version=5) == reason
    apart = trajectory("t", segment("cS", runs=runs[:1], versions=[5]), segment("ccS", runs=runs[1:], versions=[5]))
    assert fate(apart, version=5, oldest_version=5) == reason


@pytest.mark.parametrize("version", [0, 99])
def test_another_runs_version_is_rejected_as_other_run_and_not_as_stale_or_unknown(version):
    attempt = trajectory("t", segment("cSS", runs=["run", "another"], versions=[50, version]))
    assert fate(attempt, version=50) == Reason.OTHER_RUN


def test_a_trajectory_without_a_start_belongs_to_no_run():
    attempt = trajectory("t", segment("cS")).model_copy(update={"started": None})
    assert fate(attempt) == Reason.OTHER_RUN


@pytest.mark.parametrize("ends", [[(0, 2), (4, 5)], [(0, 4), (1, 5)], [(3, 5)], [(3, 0), (0, 5)], [(0, 0), (0, 5)]])
@pytest.mark.parametrize(
    ("field", "made", "reason"),
    [
        ("version_spans", partial(VersionSpan, version=0), Reason.UNKNOWN_VERSION),
        ("sampling_spans", partial(SamplingSpan, temperature=1.0), Reason.UNKNOWN_SAMPLING),
    ],
)
def test_spans_that_do_not_cover_the_tokens_are_rejected_without_an_error(ends, field, made, reason):
    whole = segment("ccSSSSS")
    broken = Segment.model_validate(whole.model_dump() | {field: [made(start=start, end=end) for start, end in ends]})
    assert fate(trajectory("t", broken)) == reason
    assert fate(trajectory("t", whole)) is None


def test_spans_of_a_segment_that_is_not_trained_hide_no_old_tokens():
    forged = segment("cc").model_copy(update={"version_spans": [VersionSpan(version=0, start=1000, end=0)]})
    rules = replace(RULES, bounds=AdmissionBounds(stale_after=0, max_stale_share=0.5))
    old = segment("cSSS", versions=[0, 0, 1])
    assert fate(trajectory("t", old, forged), version=1, rules=rules) == Reason.STALE_TOKENS


def test_a_share_of_stale_tokens_equal_to_the_bound_is_allowed():
    attempt = trajectory("t", segment("c" + "S" * 22, versions=[0] * 15 + [1] * 7))
    rules = replace(RULES, max_positions=99, bounds=AdmissionBounds(stale_after=0, max_stale_share=15 / 22))
    assert fate(attempt, version=1, rules=rules) is None
    rules = replace(rules, bounds=AdmissionBounds(stale_after=0, max_stale_share=14 / 22))
    assert fate(attempt, version=1, rules=rules) == Reason.STALE_TOKENS


def test_an_unknown_age_is_reported_as_minus_one():
    gone = rejection(member(trajectory("t", segment("cS"))), Reason.UNRESOLVED, run="run", task_id=None, group_id="g")
    assert age_when_rejected(gone, 7) == 7
    assert age_when_rejected(gone.model_copy(update={"policy_version": None}), 7) == -1


def test_a_negative_token_id_is_outside_the_vocabulary():
    attempt = trajectory("t", segment("cS").model_copy(update={"token_ids": [-1, 3]}))
    assert fate(attempt) == Reason.VOCABULARY


def test_a_reference_to_another_trajectory_is_unresolved():
    attempt = trajectory("t", segment("cS"))
    assert fate(attempt, found=False) == Reason.UNRESOLVED
    assert fate(attempt, trajectory_id="another") == Reason.UNRESOLVED
    assert fate(attempt, sampled_tokens=2) == Reason.UNRESOLVED


def test_a_group_is_trained_with_its_remaining_members():
    fresh = trajectory("a", segment("cS", versions=[9]))
    stale = trajectory("b", segment("cS", versions=[1]))
    members = [member(stale, advantage=-0.5, reward=0.0), member(fresh, advantage=0.5)]
    group = training_group("g", members)
    admitted, (rejection,) = admit(group, AT, {place_of(AT): fresh}, RULES, version=9)
    assert [resolved.member.trajectory_id for resolved in admitted.members] == ["a"]
    assert admitted.members[0].member.advantage == 0.5
    assert (rejection.trajectory_id, rejection.reason, rejection.stage) == ("b", Reason.STALE, Stage.ADMISSION)
    assert (rejection.policy_version, rejection.reward, rejection.group_id, rejection.run) == (1, 0.0, "g", "run")


def test_members_are_ordered_by_id_whatever_the_groups_order():
    attempts = [trajectory(name, segment("cS")) for name in ("b", "a", "c")]
    group = training_group("g", [member(each, at=Reference(partition=0, offset=i)) for i, each in enumerate(attempts)])
    admitted, _ = admit(group, AT, {(0, i): each for i, each in enumerate(attempts)}, RULES, 0)
    assert [resolved.member.trajectory_id for resolved in admitted.members] == ["a", "b", "c"]


def test_the_deviation_of_rewards_is_of_the_whole_group_and_missing_for_one_member():
    attempts = [trajectory(name, segment("cS", versions=[version])) for name, version in (("t", 0), ("u", 9), ("v", 9))]
    places = [Reference(partition=0, offset=offset) for offset in range(3)]
    members = [member(a, reward=r, at=at) for a, r, at in zip(attempts, (0.0, 0.0, 1.0), places, strict=True)]
    found = dict(zip(map(place_of, places), attempts, strict=True))
    admitted, rejections = admit(training_group("g", members), AT, found, RULES, 9)
    assert (len(admitted.members), len(rejections)) == (2, 1)
    assert admitted.reward_std == pytest.approx(3**-0.5)
    alone, _ = admit(training_group("g", members[1:2]), AT, found, RULES, 9)
    assert alone.reward_std is None


def bounded(**bounds):
    return replace(RULES, max_staleness=10, bounds=AdmissionBounds(**bounds))


@pytest.mark.parametrize(
    ("share", "version", "reason"),
    [
        (0.5, 3, None),  # of versions 1, 2, 3, 3: one is more than one version old
        (0.25, 3, None),
        (0.2, 3, Reason.STALE_TOKENS),
        (0.5, 4, None),
        (0.4, 4, Reason.STALE_TOKENS),
        (0.99, 5, Reason.STALE_TOKENS),
        (1.0, 9, None),
    ],
)
def test_stale_tokens_are_allowed_up_to_their_share(share, version, reason):
    attempt = trajectory("t", segment("cSS", versions=[1, 2]), segment("cSS", versions=[3, 3]))
    assert fate(attempt, version=version, rules=bounded(max_stale_share=share)) == reason


def test_the_age_of_the_tokens_counts_and_not_that_in_the_groups_record():
    attempt = trajectory("t", segment("cSS", versions=[1, 9]))
    assert fate(attempt, version=9, oldest_version=9) == Reason.STALE


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        ({"max_segment_tokens": 6}, None),
        ({"max_segment_tokens": 5}, None),
        ({"max_segment_tokens": 4}, Reason.TOO_LONG),
        ({"max_trajectory_tokens": 8}, None),
        ({"max_trajectory_tokens": 7}, None),  # a segment without a sampled token is not trained
        ({"max_trajectory_tokens": 6}, Reason.TOO_LONG),
        ({"max_group_tokens": 8}, None),
        ({"max_group_tokens": 7}, None),
        ({"max_group_tokens": 6}, Reason.GROUP_TOO_LONG),
    ],
)
def test_lengths_are_bounded_by_segment_trajectory_and_group(bounds, reason):
    attempt = trajectory("t", segment("cccSS"), segment("cc"), segment("cS"))
    assert fate(attempt, rules=bounded(**bounds)) == reason


def test_each_member_of_a_too_long_group_is_rejected_once():
    attempts = [trajectory(name, segment("ccSS", versions=[v, v])) for name, v in (("a", 20), ("b", 20), ("c", 1))]
    group, found = group_of(attempts)
    admitted, rejections = admit(group, AT, found, bounded(max_group_tokens=7), 20)
    assert admitted is None
    assert {each.trajectory_id: each.reason for each in rejections} == {
        "a": Reason.GROUP_TOO_LONG,
        "b": Reason.GROUP_TOO_LONG,
        "c": Reason.STALE,
    }
    assert len(rejections) == 3


@pytest.mark.parametrize(
    "settings", [{"stale_after": -1}, {"max_stale_share": 1.1}, {"max_group_tokens": 0}, {"max_segment_tokens": -5}]
)
def test_invalid_bounds_are_refused_by_name(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        AdmissionBounds(**settings)


@pytest.mark.parametrize("name", ["max_segment_tokens", "max_trajectory_tokens", "max_group_tokens"])
def test_the_smallest_valid_bounds_are_accepted(name):
    assert getattr(AdmissionBounds(stale_after=0, max_stale_share=0.0, **{name: 1}), name) == 1


def test_tokens_of_a_version_that_the_run_has_not_made_are_of_an_unknown_version():
    attempt = trajectory("t", segment("cSS", versions=[4, 57]))
    assert fate(attempt, version=5) == Reason.UNKNOWN_VERSION
    assert fate(attempt, version=57, rules=replace(RULES, max_staleness=99)) is None


VERSIONS = st.lists(st.integers(0, 6), min_size=1, max_size=4)


@given(
    st.lists(VERSIONS, min_size=1, max_size=4),
    st.integers(6, 9),
    st.integers(0, 4),
    st.integers(0, 5),
    st.integers(0, 4),
    st.sampled_from([0.0, 0.3, 0.5, 1.0]),
)
def test_a_prefetched_group_is_judged_by_the_version_that_is_trained(
    versions, version, waited, max_staleness, stale_after, share
):
    rules = replace(RULES, max_staleness=max_staleness, bounds=AdmissionBounds(stale_after, share))
    group, found = group_of(
        [trajectory(f"t{i}", segment("c" + "S" * len(each), versions=each)) for i, each in enumerate(versions)]
    )
    early = {place: found[place] for place in places_to_read(group, rules, version)}
    late = {place: found[place] for place in places_to_read(group, rules, version + waited)}
    decided, rejections = admit(group, AT, early, rules, version + waited)
    assert (decided, rejections) == admit(group, AT, late, rules, version + waited)
    assert (decided, rejections) == admit(group, AT, found, rules, version + waited)
    decided_ids = [each.trajectory_id for each in rejections] + ids(decided)
    assert sorted(decided_ids) == [f"t{i}" for i in range(len(versions))]


def ids(group):
    return [resolved.member.trajectory_id for resolved in group.members] if group else []


def group_of(attempts):
    """Returns a group of ``attempts``, and their places."""
    places = [Reference(partition=0, offset=offset) for offset in range(len(attempts))]
    members = [member(each, at=at) for each, at in zip(attempts, places, strict=True)]
    return training_group("g", members), dict(zip(map(place_of, places), attempts, strict=True))
