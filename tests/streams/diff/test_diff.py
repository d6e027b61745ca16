"""Differences made by another reward: none between equal sides, and every count adds up."""

from dataclasses import replace
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schemas.records.reward import Reward
from headrace.streams.diff.diff import Diff, Moves, as_json, diff, only_run, rows
from headrace.streams.diff.ranks import kendall, spearman
from headrace.streams.diff.side import PENDING, TRAINED, Attempt, DiffSide, group_states
from headrace.streams.grouping.groups import GroupChanges, GroupLimits, Groups
from tests.streams.attempts import START_MS, rewarded

TOTALS = st.one_of(st.none(), st.sampled_from([0.0, 0.25, 1.0]))


def side(name: str, rewards: list[Reward]) -> DiffSide:
    """The rewards, and their grouping decisions."""
    made = DiffSide(name)
    groups, changes = Groups(GroupLimits()), GroupChanges()
    for reward in rewards:
        made.add(reward)
        groups.add(reward, START_MS, changes)
    for decided in changes.outputs:
        made.add(decided.record)
    return made


def scored(*totals: float | None, size: int = 2) -> list[Reward]:
    """Attempts ``t0``, ``t1`` … of these rewards in groups of ``size``."""
    return [rewarded(f"t{number}", total, group=f"g{number // size}", size=size) for number, total in enumerate(totals)]


def sides(before: list[float | None], after: list[float | None], size: int = 2) -> tuple[DiffSide, DiffSide]:
    return side("live", scored(*before, size=size)), side("new", scored(*after, size=size))


def count(moves: Moves) -> int:
    return sum(moves.values())


@settings(max_examples=40, deadline=None)
@given(st.lists(TOTALS, max_size=24), st.integers(1, 4))
def test_a_side_does_not_differ_from_itself(totals: list[float | None], size: int) -> None:
    found = diff(*sides(totals, totals, size))
    assert found.is_empty
    assert (found.changed, found.flips, found.entering, found.leaving, found.movers) == (0, 0, {}, {}, ())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(TOTALS, TOTALS), max_size=24), st.integers(1, 4))
def test_counts_add_up(totals: list[tuple[float | None, float | None]], size: int) -> None:
    before, after = sides([old for old, _ in totals], [new for _, new in totals], size)
    found = diff(before, after)
    assert found.compared == len(totals)
    for moves in (found.labels, found.signs, found.fates):
        assert count(moves) == found.compared
    assert count(found.groups) == -(-len(totals) // size)
    both = [(old, new) for old, new in totals if old is not None and new is not None]
    assert len(found.points) == len(both) == (found.change.count if found.change else 0)
    assert found.changed == sum(old != new for old, new in both)
    for by in ("task", "agent", "version"):
        parts = rows(before, after, by)
        assert sum(row.compared for row in parts) == found.compared
        assert sum(row.flips for row in parts) == found.flips
        trained = sum(attempt.fate == TRAINED for attempt in after.attempts.values())
        assert sum(row.trained_after for row in parts) == trained


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(TOTALS, TOTALS), max_size=24), st.integers(1, 4))
def test_swapping_the_sides_inverts_the_differences(totals: list[tuple[float | None, float | None]], size: int) -> None:
    before, after = sides([old for old, _ in totals], [new for _, new in totals], size)
    there, back = diff(before, after), diff(after, before)
    for moves, undone in zip(
        (there.fates, there.groups, there.signs), (back.fates, back.groups, back.signs), strict=True
    ):
        assert dict(moves) == {(was, now): number for (now, was), number in undone.items()}
    assert (there.flips, there.reversed_pairs, there.changed) == (back.flips, back.reversed_pairs, back.changed)
    assert there.entering == back.leaving
    assert there.spearman == pytest.approx(back.spearman) if there.spearman is not None else back.spearman is None


def test_signs_flip_when_the_better_attempt_becomes_the_worse() -> None:
    found = diff(*sides([1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0]))
    assert found.signs == {("+", "+"): 1, ("+", "−"): 1, ("−", "+"): 1, ("−", "−"): 1}
    assert found.pairs == {("<", "<"): 1, ("<", ">"): 1}
    assert (found.flips, found.reversed_pairs, found.changed) == (2, 1, 2)
    assert [mover.trajectory_id for mover in found.movers] == ["t0", "t1"]


def test_groups_enter_and_leave_the_filter_with_their_reasons() -> None:
    found = diff(*sides([0.0, 0.0, 1.0, 0.0, 1.0, 1.0], [0.5, 0.0, 1.0, 1.0, 1.0, 1.0]))
    assert found.entering == {"zero_variance_all_fail": 1}
    assert found.leaving == {"zero_variance_all_success": 1}
    assert found.groups[("zero_variance_all_success", "zero_variance_all_success")] == 1
    assert found.fates[("zero_variance_all_fail", TRAINED)] == 2
    assert found.signs[("—", "+")] == found.signs[("+", "—")] == 1


def test_a_lost_reward_is_reported_by_its_label() -> None:
    found = diff(*sides([1.0, 0.0], [None, 0.0]))
    assert found.labels == {("scored", "no_outcome"): 1, ("scored", "scored"): 1}
    assert found.rewards[0] is not None
    assert found.rewards[0].count == 1


def test_a_waiting_group_is_open() -> None:
    found = diff(*sides([1.0, 0.0], [1.0]))
    assert found.groups == {(TRAINED, PENDING): 1}
    assert (found.compared, found.only_before, found.leaving) == (1, 1, {PENDING: 1})
    assert not found.is_empty


def test_a_newer_revision_replaces_the_reward_and_an_older_one_does_not() -> None:
    first, second = rewarded("t", 0.0), rewarded("t", 1.0).model_copy(update={"revision": 1})
    for order in ((first, second), (second, first)):
        made = DiffSide("live")
        for reward in order:
            made.add(reward)
        assert made.attempts["t"].total == 1.0


def test_a_side_keeps_only_the_wanted_trajectories_and_run() -> None:
    made = DiffSide("live", frozenset({"t1"}))
    for reward in scored(1.0, 0.0):
        made.add(reward)
    assert set(made.attempts) == {"t1"}
    assert set(only_run(made, "r").attempts) == {"t1"}
    assert not only_run(made, "other").attempts


def test_a_groups_state_is_its_members_most_common_reason() -> None:
    made = side("live", scored(1.0, 1.0))
    made.attempts["t0"] = replace(made.attempts["t0"], fate="no_token_ids")
    assert group_states(made) == {"g0": "no_token_ids"}
    made.attempts["t1"].fate = PENDING
    assert group_states(made) == {"g0": PENDING}


def test_json_contains_moves_and_omits_points() -> None:
    shown = as_json(diff(*sides([1.0, 0.0], [0.0, 1.0])))
    assert shown["signs"] == {"+ > −": 1, "− > +": 1}
    assert (shown["flips"], shown["reversed_pairs"], shown["is_empty"]) == (2, 1, False)
    assert "points" not in shown


def test_sides_without_common_attempts_have_no_correlation() -> None:
    found = diff(DiffSide("live"), DiffSide("new"))
    assert isinstance(found, Diff)
    assert (found.compared, found.change, found.spearman) == (0, None, None)


VALUES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=30)


@given(VALUES)
def test_kendalls_tau_matches_counting_pairs(values: list[tuple[int, int]]) -> None:
    agree = tied_x = tied_y = 0
    for (x, y), (a, b) in combinations(values, 2):
        agree += ((x > a) - (x < a)) * ((y > b) - (y < b))
        tied_x, tied_y = tied_x + (x == a), tied_y + (y == b)
    pairs = len(values) * (len(values) - 1) // 2
    spread = ((pairs - tied_x) * (pairs - tied_y)) ** 0.5
    expected = agree / spread if spread else None
    assert kendall([x for x, _ in values], [y for _, y in values]) == (expected and pytest.approx(expected))


@given(VALUES)
def test_spearmans_rho_is_invariant_to_scale(values: list[tuple[int, int]]) -> None:
    xs, ys = [x for x, _ in values], [y for _, y in values]
    found = spearman(xs, ys)
    assert found is None or -1 <= found <= 1
    assert spearman([x**3 + 7 for x in xs], ys) == found


@pytest.mark.parametrize(("xs", "ys"), list(product(([1, 2, 3], [3, 2, 1]), repeat=2)))
def test_equal_order_gives_one_and_reversed_order_minus_one(xs: list[int], ys: list[int]) -> None:
    expected = 1.0 if xs == ys else -1.0
    assert (spearman(xs, ys), kendall(xs, ys)) == (pytest.approx(expected), pytest.approx(expected))


def test_versions_with_equal_changes_are_in_version_order() -> None:
    attempts = {
        f"t{version}": Attempt(spec="search@1", total=1.0, fate=TRAINED, version=version)
        for version in (10, 2, None, 1)
    }
    made = rows(DiffSide("live", attempts=attempts), DiffSide("new", attempts=attempts), "version")
    assert [row.key for row in made] == ["1", "2", "10", "unknown"]
