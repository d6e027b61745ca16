"""Fusion by reciprocal ranks."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.retrieval.fusion import RRF_K, reciprocal_rank_fusion


def test_fusion_sums_reciprocal_ranks() -> None:
    # a: 1/61 + 1/63, b: 1/62 + 1/61, c: 1/63 + 1/62: worked by hand.
    assert reciprocal_rank_fusion([["a", "b", "c"], ["b", "c", "a"]]) == ["b", "a", "c"]
    assert RRF_K == 60


@given(st.lists(st.permutations(list("abcde")), min_size=1, max_size=3))
def test_fusion_keeps_every_id_once(rankings: list[list[str]]) -> None:
    assert sorted(reciprocal_rank_fusion(rankings)) == list("abcde")


def test_an_id_that_one_ranking_lacks_counts_for_the_other_only() -> None:
    assert reciprocal_rank_fusion([["a"], ["b", "a"], []]) == ["a", "b"]
