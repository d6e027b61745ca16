import pytest

from headrace.schemas.records import Reason, Reference, Stage
from headrace.trainer.admission.admission import AdmissionRules, admit, place_of, places_to_read
from tests.trainer.builders import AT, member, segment, training_group, trajectory

RULES = AdmissionRules(run="run", max_staleness=2, vocabulary_size=50, max_positions=10)


def fate(attempt, *, version=0, found=True, **member_changes):
    """The reason with which a group of one trajectory is turned away; ``None`` where it is admitted."""
    only = member(attempt).model_copy(update=member_changes)
    group = training_group("g", [only])
    trajectories = {place_of(AT): attempt} if found else {}
    admitted, rejections = admit(group, AT, trajectories, RULES, version)
    assert (admitted is None) == (len(rejections) == 1)
    return rejections[0].reason if rejections else None


def test_a_sound_member_is_admitted():
    assert fate(trajectory("t", segment("ccSS"))) is None


@pytest.mark.parametrize(("version", "reason"), [(5, None), (7, None), (8, Reason.STALE)])
def test_staleness_counts_from_the_oldest_token_to_the_policy_that_is_trained(version, reason):
    assert fate(trajectory("t", segment("ccSS", versions=[5, 9])), version=version) == reason


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
        (trajectory("t", segment("SS")), Reason.BROKEN_PREFIX),
        (trajectory("t", segment("c" * 10 + "S")), Reason.TOO_LONG),
        (trajectory("t", segment("cccS", vocabulary=10_000)), None),
        (trajectory("t", segment("c" * 9 + "S", vocabulary=10_000)), Reason.VOCABULARY),
    ],
)
def test_what_cannot_be_trained_is_turned_away_with_its_reason(attempt, reason):
    assert fate(attempt) == reason


def test_a_negative_token_id_is_outside_the_vocabulary():
    attempt = trajectory("t", segment("cS").model_copy(update={"token_ids": [-1, 3]}))
    assert fate(attempt) == Reason.VOCABULARY


def test_a_reference_that_leads_elsewhere_is_unresolved():
    attempt = trajectory("t", segment("cS"))
    assert fate(attempt, found=False) == Reason.UNRESOLVED
    assert fate(attempt, trajectory_id="another") == Reason.UNRESOLVED
    assert fate(attempt, sampled_tokens=2) == Reason.UNRESOLVED


def test_a_group_goes_on_with_the_members_that_are_left():
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


def test_the_spread_of_rewards_is_of_the_whole_group_and_of_one_member_there_is_none():
    attempts = [trajectory(name, segment("cS", versions=[version])) for name, version in (("t", 0), ("u", 9), ("v", 9))]
    places = [Reference(partition=0, offset=offset) for offset in range(3)]
    members = [member(a, reward=r, at=at) for a, r, at in zip(attempts, (0.0, 0.0, 1.0), places, strict=True)]
    found = dict(zip(map(place_of, places), attempts, strict=True))
    admitted, rejections = admit(training_group("g", members), AT, found, RULES, 9)
    assert (len(admitted.members), len(rejections)) == (2, 1)
    assert admitted.reward_std == pytest.approx(3**-0.5)
    alone, _ = admit(training_group("g", members[1:2]), AT, found, RULES, 9)
    assert alone.reward_std is None
