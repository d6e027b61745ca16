"""Parents that wait for their continuations: restarts change nothing, and what is kept is bounded."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.events import Purpose
from headrace.schemas.records.group import Reason, Rejection
from headrace.schemas.records.reward import Reward
from headrace.streams.grouping.continuations import MAX_CONTINUATIONS, Continued, continued_key
from headrace.streams.grouping.group_policy import parse_policies
from headrace.streams.grouping.group_state import Entry, Key, decoded, to_record
from headrace.streams.grouping.groups import GroupChanges, GroupLimits, Groups
from tests.streams.attempts import rewarded

LIMITS = GroupLimits(timeout_ms=1000, remember_ms=5000, max_continued=9)
ONCE = parse_policies({"*": {"forked_prefix": "once"}})


def parent(name: str, size: int, continuations: int = 2) -> Reward:
    return rewarded(name, None, group="parents", size=size).model_copy(update={"continuations": continuations})


def child(name: str, of: str, total: float | None, **fields: object) -> Reward:
    link = {"parent_trajectory_id": of, "fork_group_id": "parents"} | fields
    return rewarded(name, total, group=f"of {of}", size=2).model_copy(update=link)


def fold(arrivals: list[tuple[Reward, int]], *, restart: bool) -> tuple[list[object], Groups]:
    """All decisions; with ``restart``, a new process begins from the stored state before each reward."""
    stored: dict[Key, Entry] = {}
    groups, decisions = Groups(LIMITS, policies=ONCE), []
    for reward, time_ms in arrivals:
        if restart:
            records = [to_record(key, entry) for key, entry in stored.items()]
            groups = Groups(LIMITS, [decoded(key, value) for key, value in records if value], policies=ONCE)
        changes = GroupChanges()
        groups.add(reward, time_ms, changes)
        for key, entry in changes.stored.items():
            stored.pop(key, None)
            if entry is not None:
                stored[key] = entry
        decisions += changes.outputs
    return decisions, groups


@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[Reward, int]]:
    rewards = [parent("p0", 2), parent("p1", 2)]
    for name in ("p0", "p1"):
        rewards += [child(f"{name}.{n}", name, draw(st.sampled_from([None, 0.0, 0.5, 1.0]))) for n in range(2)]
    order = draw(st.permutations([*rewards, draw(st.sampled_from(rewards))]))  # one arrives twice
    times = sorted(draw(st.lists(st.integers(0, 3000), min_size=len(order), max_size=len(order))))
    return list(zip(order, times, strict=True))


@given(arrivals())
def test_a_restart_before_any_reward_changes_no_decision(history: list[tuple[Reward, int]]) -> None:
    assert fold(history, restart=True)[0] == fold(history, restart=False)[0]


@given(arrivals())
def test_a_decided_parent_leaves_no_state(history: list[tuple[Reward, int]]) -> None:
    decisions, groups = fold([*history, (rewarded("later", group="x", size=2), 20_000)], restart=False)
    assert groups._families.oldest_ms is None
    assert not groups._families._waiting
    fates = {each.record.trajectory_id for each in decisions if isinstance(each.record, Rejection)}  # type: ignore[attr-defined]
    members = {one.trajectory_id for each in decisions for one in getattr(each.record, "members", ())}  # type: ignore[attr-defined]
    assert {"p0", "p1"} <= fates | members


def test_parents_that_never_arrive_are_bounded_in_number() -> None:
    history = [(child(f"c{n}", f"p{n // 2}", 1.0), 0) for n in range(40)]
    for restart in (False, True):
        _, groups = fold(history, restart=restart)
        assert [family[2] for family in groups._families._continued] == ["p16", "p17", "p18", "p19"]


def test_continuations_of_one_parent_are_bounded_and_an_older_revision_changes_nothing() -> None:
    entry = Continued(("r", "s@1", "p"))
    for number in range(MAX_CONTINUATIONS + 5):
        entry = entry.hearing(f"t{number}", 0, 1.0, number)
    assert len(entry.totals) == MAX_CONTINUATIONS
    revised = entry.hearing("t0", 2, 0.0, 9000)
    assert revised.hearing("t0", 1, 1.0, 9001) is revised
    assert revised.totals["t0"] == (2, 0.0)
    assert continued_key(entry.family) == ("continued", "r", "s@1", "p")


def test_a_revision_of_a_parents_own_reward_does_not_replace_the_mean() -> None:
    again = parent("p0", 2).model_copy(update={"revision": 1, "total": 9.0})
    history = [(parent("p0", 2), 0), (child("a", "p0", 1.0), 1), (child("b", "p0", 0.0), 2), (again, 3)]
    decisions, _ = fold([*history, (rewarded("q", 0.0, group="parents", size=2), 4)], restart=False)
    rewards = {one.trajectory_id: one.reward for each in decisions for one in getattr(each.record, "members", ())}  # type: ignore[attr-defined]
    assert rewards == {"a": 1.0, "b": 0.0, "p0": 0.5, "q": 0.0}


def test_evaluations_never_count_for_a_parent() -> None:
    evaluated = child("a", "p0", 1.0, purpose=Purpose.EVALUATE)
    decisions, _ = fold([(parent("p0", 1, 1), 0), (evaluated, 1), (rewarded("later", group="x"), 9000)], restart=False)
    reasons = {each.record.trajectory_id: each.record.reason for each in decisions}  # type: ignore[attr-defined]
    assert reasons == {"a": Reason.EVALUATION, "p0": Reason.UNSCORED}
