"""Shares of labels, and which has risen."""

import pytest

from headrace.streams.watch.shares import LEARNT_FROM, MAX_LABELS, Shares, followed, risen, shares_of


def test_a_label_counts_once_per_trajectory() -> None:
    assert shares_of([["a", "a"], ["b"], ["a", "b"], []]) == {"a": 0.5, "b": 0.5}


def test_the_label_that_rose_most_is_found_also_if_it_is_new() -> None:
    usual = Shares(30, {"a": 0.6, "b": 0.1})
    assert risen(usual, {"a": 0.7, "b": 0.25, "c": 0.1}) == ("b", pytest.approx(0.15))
    assert risen(usual, {"a": 0.6, "c": 0.3}) == ("c", 0.3)
    assert risen(usual, {"a": 0.1}) == ("", 0.0)
    assert risen(Shares(), shares_of([["b", "a"]])) == ("a", 1.0)  # of several the first by name


def test_shares_are_the_mean_of_the_first_windows_and_then_follow_slowly() -> None:
    shares = Shares()
    for now in ({"a": 0.2}, {"a": 0.4}, {}):
        shares = followed(shares, now)
    assert shares.share["a"] == pytest.approx(0.2)
    assert followed(shares, {"b": 0.4}).share == {"a": pytest.approx(0.15), "b": pytest.approx(0.1)}
    for _ in range(22):
        shares = followed(shares, {"a": 0.2})
    assert followed(shares, {"a": 1.0}).share["a"] == pytest.approx(0.208)
    assert followed(shares, {"a": 1.0}, frozen=True) == shares


def test_the_commonest_labels_are_kept() -> None:
    shares = followed(Shares(), {f"l{number:03}": number / 1000 for number in range(300)})
    assert len(shares.share) == MAX_LABELS
    assert min(shares.share.values()) == pytest.approx((300 - MAX_LABELS) / 1000)


def learning(before: float, after: float, windows: int = LEARNT_FROM, *, level: float = 0.2) -> Shares:
    """The usual share of a label that is ``before`` in the first twelve windows and ``after`` in the others."""
    shares = Shares()
    for number in range(windows):
        shares = followed(shares, {"a": before if number < 12 else after, "b": 0.5}, level=level)
    return shares


def test_shares_that_are_level_are_the_mean_of_both_halves() -> None:
    shares = learning(0.3, 0.45)
    assert shares == Shares(LEARNT_FROM, {"a": pytest.approx(0.378), "b": pytest.approx(0.5)})
    assert learning(0.3, 0.45, 24).earlier == {"a": pytest.approx(0.3), "b": 0.5}


@pytest.mark.parametrize(("before", "after"), [(0.2, 0.45), (0.45, 0.2), (0.0, 0.25), (0.25, 0.0)])
def test_shares_that_have_moved_are_learnt_again_from_the_second_half(before: float, after: float) -> None:
    shares = learning(before, after)
    assert (shares.windows, shares.share) == (12, {"a": pytest.approx(after, abs=1e-9), "b": pytest.approx(0.5)})
    assert shares.earlier == shares.share
    assert learning(before, after, LEARNT_FROM + 12).windows == 24
    assert learning(before, after, LEARNT_FROM + 13) == Shares(
        LEARNT_FROM, {"a": pytest.approx(after, abs=1e-9), "b": pytest.approx(0.5)}
    )


def test_shares_that_were_half_learnt_without_their_first_half_are_not_compared() -> None:
    shares = Shares(20, {"a": 0.1})
    for _ in range(5):
        shares = followed(shares, {"a": 0.9}, level=0.2)
    assert (shares.windows, shares.earlier) == (LEARNT_FROM, {})


def test_a_label_that_comes_in_the_second_half_has_moved_from_nothing() -> None:
    shares = Shares()
    for number in range(LEARNT_FROM):
        shares = followed(shares, {"a": 0.5} if number < 12 else {"a": 0.5, "new": 0.25}, level=0.2)
    assert (shares.windows, shares.share) == (12, {"a": pytest.approx(0.5), "new": pytest.approx(0.25)})


def test_where_there_are_no_labels_nothing_has_moved() -> None:
    shares = Shares()
    for _ in range(LEARNT_FROM + 1):
        shares = followed(shares, {}, level=0.05)
    assert shares == Shares(LEARNT_FROM + 1)
