"""Only right integers pass; nothing that comes back from a sandbox raises."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.coder.grading import passed
from headrace.agents.coder.sandboxed_tests import MOST_BYTES, parse_outputs

EXPECTED = {"fee": (5, 8), "charge": (23, 30)}


@pytest.mark.parametrize(
    ("outputs", "right"),
    [
        ({"fee": (5, 8), "charge": (23, 30)}, {"fee", "charge"}),
        ({"fee": [5, 8], "charge": (23, 31)}, {"fee"}),
        ({"fee": (5,), "charge": (23, 30, 1)}, set()),
        ({"fee": (5, None)}, set()),
        ({"fee": (), "toll": (5, 8)}, set()),
        ({}, set()),
    ],
)
def test_a_function_passes_if_all_its_values_are_right(outputs: dict[str, Any], right: set[str]) -> None:
    assert passed(outputs, EXPECTED) == right


def test_results_are_read() -> None:
    assert parse_outputs(b'{"ran": "completed", "outputs": {"fee": [5, null]}}') == ({"fee": (5, None)}, None)
    assert parse_outputs(b'{"ran": "timed_out", "outputs": {}}') == ({}, "timed_out")


@pytest.mark.parametrize("value", ["5", 5.0, True, [5], 10**13, {"a": 1}])
def test_what_is_no_integer_is_no_value(value: object) -> None:
    text = json.dumps({"ran": "completed", "outputs": {"fee": [value]}}).encode()
    assert parse_outputs(text) == ({"fee": (None,)}, None)


def test_an_endless_result_is_not_read() -> None:
    assert parse_outputs(b" " * (MOST_BYTES + 1)) == ({}, "output_truncated")


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_result_raises(text: bytes) -> None:
    outputs, error = parse_outputs(text)
    assert outputs == {}
    assert error is not None


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda each: st.lists(each) | st.dictionaries(st.sampled_from(["ran", "outputs", "fee"]), each),
        max_leaves=8,
    )
)
def test_no_json_raises(value: object) -> None:
    outputs, _ = parse_outputs(json.dumps(value).encode())
    assert passed(outputs, EXPECTED) == set()
