"""What is counted of a call."""

from array import array

import pytest

from headrace.agents.gateway.call_metrics import Echo
from headrace.schemas.arrays import IntArray

SENT = array("i", [1, 2, 3])


@pytest.mark.parametrize(
    ("reported", "echo"),
    [
        (array("i", [1, 2, 3]), Echo.EQUAL),
        (array("i", [1, 2]), Echo.DIFFERENT),
        (array("i", [1, 2, 4]), Echo.DIFFERENT),
        (array("i"), Echo.DIFFERENT),
        (None, Echo.MISSING),
    ],
)
def test_the_prompt_that_an_engine_reports_is_compared_with_the_one_it_was_sent(
    reported: IntArray | None, echo: Echo
) -> None:
    assert Echo.of(SENT, reported) is echo
