"""An episode opens, is reported again at growing distances, and ends: the rule at its edges."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.records.alert import AdmissionOrder, EpisodeState
from headrace.schemas.records.watch import Lane, Reading
from headrace.streams.watch.episodes import ONGOING_FROM, RESOLVED_BELOW, EpisodeChange, Evidence, abandoned, turned
from headrace.streams.watch.key_state import Began, KeyState, Opened, decoded, key_entry
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


def orders(monitor_pauses: list[bool], opened: Opened) -> list[tuple[int, AdmissionOrder]]:
    """Window and order of each alert about windows from 3 on, in which the monitor pauses admission or does not."""
    found = list[tuple[int, AdmissionOrder]]()
    for window, pauses in enumerate(monitor_pauses, 3):
        order = AdmissionOrder.PAUSE if pauses else AdmissionOrder.NONE
        after, alerts = turned(change(window, opened, admission=order), reading(1.5), evidence(5))
        assert after is not None
        opened = after
        found += [(window, alert.episode.admission) for alert in alerts if alert.episode]
    return found


def test_an_open_alert_pauses_admission_from_the_first_window_in_which_its_monitor_may_and_no_longer() -> None:
    pause, none = AdmissionOrder.PAUSE, AdmissionOrder.NONE
    assert orders([False, True, True, True, False, False], OPENED) == [(4, pause), (7, none)]
    opened, _ = turned(change(2, admission=pause), reading(1.0), evidence(2))
    assert opened is not None
    assert orders([True, True, False], opened) == [(5, none)]


def test_an_open_episode_of_an_older_release_asked_for_nothing() -> None:
    """It is stored without the order; if its monitor pauses admission, the next alert repeats that."""
    stored = json.loads(key_entry(KeyState(KEY, episodes={"talks": OPENED}))[1])
    del stored["episodes"]["talks"][5:]
    read = decoded(b"k", json.dumps(stored).encode())
    assert isinstance(read, KeyState)
    assert read.episodes["talks"] == OPENED


def test_an_alert_leads_to_its_runbook() -> None:
    _, (alert,) = turned(change(), reading(1.0), evidence(5))
    assert "`headrace runbook reward-hack`" in alert.message
    assert "accepted" in turned(change(admission=AdmissionOrder.PAUSE), reading(1.0), evidence(5)).alerts[0].message
