"""An episode opens, is reported again at growing distances, and ends: the rule at its edges."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.records.alert import EpisodeState
from headrace.schemas.records.watch import Lane, Reading
from headrace.streams.watch.episodes import ONGOING_FROM, RESOLVED_BELOW, EpisodeChange, Evidence, abandoned, turned
from headrace.streams.watch.key_state import Began, Opened
from headrace.streams.watch.window import Key

KEY = Key(next(iter(Lane)), run="r", agent="a", task_source="s", spec="spec@1")
HISTORY = [Began(window, version=10 + window, time_ms=1_000 * window) for window in range(3, 8)]
OPENED = Opened("id", 2, 12, 2_000, ("t1",))


def change(window: int = 7, opened: Opened | None = None, **other: Any) -> EpisodeChange:
    return EpisodeChange(KEY, "talks", window, 1_000 * window, HISTORY, opened, **other)


def reading(strength: float) -> Reading:
    return Reading(value=1.0, trajectories=64, strength=strength)


def evidence(since: int) -> Evidence:
    return Evidence(since, lambda: ("t1", "t2"))


@pytest.mark.parametrize(("strength", "opens"), [(0.999, False), (1.0, True), (1.5, True)])
def test_it_opens_from_strength_one_on(strength: float, opens: bool) -> None:
    opened, alerts = turned(change(), reading(strength), evidence(5))
    assert (opened is not None) is opens
    assert [alert.episode.state for alert in alerts if alert.episode] == [EpisodeState.OPENED] * opens


@pytest.mark.parametrize(("since", "window"), [(1, 3), (3, 3), (5, 5), (7, 7), (9, 7)])
def test_it_began_in_the_window_of_its_evidence_or_in_the_next_that_is_known(since: int, window: int) -> None:
    opened, (alert,) = turned(change(), reading(1.0), evidence(since))
    assert opened is not None
    assert (opened.window, opened.since_version, opened.since_ms) == (7, 10 + window, 1_000 * window)
    assert alert.episode is not None
    assert (alert.episode.since_version, alert.episode.since_ms) == (10 + window, 1_000 * window)


@pytest.mark.parametrize(("strength", "ends"), [(RESOLVED_BELOW - 0.001, True), (RESOLVED_BELOW, False), (0.9, False)])
def test_it_ends_below_half_of_what_opens_one(strength: float, ends: bool) -> None:
    opened, alerts = turned(change(opened=OPENED), reading(strength), evidence(5))
    assert opened == (None if ends else OPENED)
    assert [alert.episode.state for alert in alerts if alert.episode] == [EpisodeState.RESOLVED] * ends


@given(st.integers(1, 2_000))
def test_it_is_reported_again_after_eight_windows_and_then_after_twice_as_many(lasted: int) -> None:
    _, alerts = turned(change(window=OPENED.window + lasted, opened=OPENED), reading(0.7), evidence(5))
    expected = lasted in {ONGOING_FROM * 2**n for n in range(12)}
    assert [alert.episode.state for alert in alerts if alert.episode] == [EpisodeState.ONGOING] * expected


def test_an_abandoned_one_ends_with_what_opened_it() -> None:
    alert = abandoned(KEY, "talks", OPENED, 40)
    assert alert.episode is not None
    assert (alert.episode.id, alert.episode.state, alert.details["window"]) == ("id", EpisodeState.RESOLVED, 40)
    assert list(alert.episode.examples) == ["t1"]
