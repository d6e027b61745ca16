"""An engine's stamp on tokens round-trips, and no other text is read as a stamp."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.bounds import MAX_COUNT
from headrace.schemas.stamp import RUN_NAME, Stamp, read_stamp, stamp_of, unverified_stamp

RUNS = st.from_regex(RUN_NAME, fullmatch=True)


@given(RUNS, st.integers(0, MAX_COUNT))
def test_a_stamp_round_trips(run: str, version: int) -> None:
    assert read_stamp(stamp_of(run, version)) == Stamp(run, version)


@given(RUNS)
def test_unverified_weights_have_a_run_and_no_version(run: str) -> None:
    assert read_stamp(unverified_stamp(run)) == Stamp(run, None)


@pytest.mark.parametrize(("text", "version"), [("0", 0), ("17", 17), ("unverified", None)])
def test_a_stamp_of_an_older_follower_names_no_run(text: str, version: int | None) -> None:
    assert read_stamp(text) == Stamp(None, version)


@pytest.mark.parametrize(
    "text",
    ["default", "", "-1", "1.0", "²", "/1", "run/", "run/x", "a/b/1", "../1", "run/1 ", "run/1\n", "rün/1", "9" * 5000],
)
def test_other_text_is_not_a_stamp(text: str) -> None:
    assert read_stamp(text) == Stamp()


def test_a_version_that_no_event_can_hold_is_unknown() -> None:
    assert read_stamp(stamp_of("run", MAX_COUNT + 1)) == Stamp("run", None)
