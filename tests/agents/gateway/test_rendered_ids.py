"""Renders as JSON: the same lists and the same differences as with numbers."""

import json
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.gateway.engine_errors import EngineAnswerInvalid
from headrace.agents.gateway.rendered_ids import RenderedIds

IDS = st.lists(st.sampled_from([0, 1, 2, 11, 12, 111, 2**31 - 1]), min_size=1, max_size=6)
"""Few different ones, of which some begin with others, so that beginnings are often alike."""


@given(IDS, st.booleans())
def test_a_list_is_the_same_with_and_without_spaces(ids: list[int], has_spaces: bool) -> None:
    found = RenderedIds(json.dumps(ids, separators=(", ", ":") if has_spaces else (",", ":")).encode())
    assert (len(found), found.token_ids, found.json) == (
        len(ids),
        array("i", ids),
        RenderedIds.of(array("i", ids)).json,
    )


@given(IDS, IDS, st.integers(0, 3))
def test_what_follows_is_the_difference_of_the_numbers(before: list[int], after: list[int], end: int) -> None:
    left_out = array("i", before[len(before) - end :] if end else [])
    for whole in (after, before[: len(before) - len(left_out)] + after):
        known = before[: len(before) - len(left_out)]
        expected = array("i", whole[len(known) :]) if known and whole[: len(known)] == known else None
        assert RenderedIds.of(array("i", whole)).after(RenderedIds.of(array("i", before)), left_out) == expected


def test_another_end_is_no_difference() -> None:
    whole, before = (RenderedIds.of(array("i", ids)) for ids in ([1, 12, 3, 4], [1, 12]))
    assert whole.after(before, array("i", [12])) == array("i", [12, 3, 4])
    assert whole.after(before, array("i", [2])) is None
    assert RenderedIds(b"[11]").after(RenderedIds(b"[1]"), array("i")) is None


@pytest.mark.parametrize("text", ["", "[", "[]", "[ ]", "[1, -1]", '[ "1"]', "7", "null", "{}", "[1", "]1["])
def test_another_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        RenderedIds(text.encode())


@pytest.mark.parametrize(
    "text", ["[1,2147483648]", "[1,01]", "[1,]", "[1,,2]", '[1,"2"]', "[1,2.5]", "[1,-1]", "[1,[2]]"]
)
def test_a_number_that_is_no_token_is_refused_where_it_is_used(text: str) -> None:
    found = RenderedIds(text.encode())
    with pytest.raises(EngineAnswerInvalid, match="a prompt that cannot be used"):
        assert found.token_ids
    with pytest.raises(EngineAnswerInvalid, match="a prompt that cannot be used"):
        found.after(RenderedIds(b"[1]"), array("i"))
