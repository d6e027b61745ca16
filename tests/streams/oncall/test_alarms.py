"""Conditions open and resolve episodes, across restarts."""

import pytest

from headrace.schemas.records.alert import Alert, EpisodeState, Severity
from headrace.streams.oncall import alarms as alarms_module
from headrace.streams.oncall.alarms import Alarms
from headrace.streams.oncall.conditions import CONDITIONS, Found, Limits

LIMITS = Limits(lag_s=300, hold_s=60)


def states(alerts: list[Alert]) -> list[tuple[str, str]]:
    return [(each.kind, str(each.episode.state)) for each in alerts if each.episode]


def judged(alarms: Alarms, condition: str, *found: Found, at_s: float) -> list[Alert]:
    alerts = alarms.judge({condition: found}, round(1000 * at_s))
    for each in alerts:
        alarms.add(each)
    return alerts


def test_lag_must_last_and_is_resolved_below_half_of_the_limit() -> None:
    alarms = Alarms(LIMITS)
    assert judged(alarms, "lag", Found("sink", 310), at_s=0) == []
    assert judged(alarms, "lag", Found("sink", 290), at_s=30) == [], "it was below in between"
    assert judged(alarms, "lag", Found("sink", 320), at_s=40) == []
    (alert,) = judged(alarms, "lag", Found("sink", 400, details={"topic": "events"}), at_s=100)
    assert (alert.kind, alert.severity, alert.runbook) == ("oncall_lag", Severity.WARNING, "lag")
    assert alert.message == (
        "A consumer group is far behind: what it writes is late. lag of sink: 400 s, alarming from 300 on. "
        "`headrace topology --lag` helps; `headrace runbook lag` says how to find the cause."
    )
    assert alert.details == {"value": 400, "limit": 300, "subject": "sink", "topic": "events"}
    assert alert.episode is not None
    assert alert.episode.since_ms == 40_000
    assert alert.episode.strength == pytest.approx(4 / 3)
    assert judged(alarms, "lag", Found("sink", 200), at_s=115) == [], "still above half"
    (ended,) = judged(alarms, "lag", Found("sink", 100), at_s=130)
    assert ended.message == "Resolved: lag of sink: 100 s."
    assert ended.episode is not None
    assert (ended.episode.state, ended.episode.id) == (EpisodeState.RESOLVED, alert.episode.id)


def test_an_episode_is_reported_once_while_it_lasts() -> None:
    alarms = Alarms(LIMITS)
    found = [judged(alarms, "dead-letters", Found("events", 3), at_s=second) for second in range(5)]
    assert [len(each) for each in found] == [1, 0, 0, 0, 0]
    assert states(judged(alarms, "dead-letters", at_s=9)) == [("oncall_dead_letters", "resolved")]


def test_a_condition_that_could_not_be_measured_keeps_its_episodes() -> None:
    alarms = Alarms(LIMITS)
    judged(alarms, "ledger-mismatch", Found("", 1), at_s=0)
    (alert,) = judged(alarms, "ledger-mismatch", Found("", 1), at_s=61)
    assert alert.severity is Severity.CRITICAL
    assert judged(alarms, "lag", at_s=70) == []
    assert alarms.open == [alert]


def test_a_restarted_process_goes_on_with_the_episodes_in_the_log() -> None:
    first = Alarms(LIMITS)
    log = judged(first, "sdk-drops", Found("/agents/a", 5, details={"queue_full": 5}), at_s=0)
    second = Alarms(LIMITS)
    for alert in log:
        second.add(alert)
    assert judged(second, "sdk-drops", Found("/agents/a", 7), at_s=1) == []
    (ended,) = judged(second, "sdk-drops", at_s=2)
    assert ended.episode is not None
    assert log[0].episode is not None
    assert ended.episode.id == log[0].episode.id


def test_an_alert_that_is_read_after_its_episode_has_ended_opens_nothing() -> None:
    """A process folds its alerts when it has written them, and reads them later: another transaction may hide them."""
    alarms = Alarms(LIMITS)
    (opened,) = judged(alarms, "sdk-drops", Found("/agents/a", 5), at_s=0)
    (ended,) = judged(alarms, "sdk-drops", at_s=1)
    (again,) = judged(alarms, "sdk-drops", Found("/agents/a", 1), at_s=2)
    for read in (opened, ended):
        alarms.add(read)
        assert alarms.open == [again]
    assert judged(alarms, "sdk-drops", Found("/agents/a", 1), at_s=3) == []


def test_the_ended_episodes_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarms_module, "MAX_ENDED", 2)
    alarms, opened = Alarms(LIMITS), []
    for second in range(3):
        opened += judged(alarms, "sdk-drops", Found("/agents/a", 5), at_s=2 * second)
        judged(alarms, "sdk-drops", at_s=2 * second + 1)
    alarms.add(opened[1])
    assert alarms.open == []
    alarms.add(opened[0])
    assert alarms.open == opened[:1]


def test_runs_and_subjects_have_episodes_of_their_own() -> None:
    alarms = Alarms(Limits(steps_hold_s=1))
    values = (Found("r1", 4000, "r1"), Found("r2", 10, "r2"), Found("r3", 5000, "r3"))
    judged(alarms, "no-steps", *values, at_s=0)
    opened = judged(alarms, "no-steps", *values, at_s=2)
    assert sorted(each.run for each in opened) == ["r1", "r3"]
    assert len({each.episode.id for each in opened if each.episode}) == 2


def test_only_the_largest_subjects_are_judged() -> None:
    alarms = Alarms(LIMITS)
    found = [Found(f"/agents/{number:03}", number + 1) for number in range(150)]
    assert len(judged(alarms, "sdk-drops", *found, at_s=0)) == 100
    assert len(alarms.open) == 100
    assert len(judged(alarms, "sdk-drops", at_s=1)) == 100


def test_a_reason_that_is_called_like_a_figure_of_the_alert_does_not_open_it_again_and_again() -> None:
    alarms = Alarms(LIMITS)
    found = Found("/agents/a", 5, details={"subject": 2, "value": 2, "limit": 1})
    (opened,) = judged(alarms, "sdk-drops", found, at_s=0)
    assert opened.details == {"subject": "/agents/a", "value": 5, "limit": 1}
    assert [judged(alarms, "sdk-drops", found, at_s=second) for second in range(1, 4)] == [[], [], []]
    assert states(judged(alarms, "sdk-drops", at_s=4)) == [("oncall_sdk_drops", "resolved")]
    assert alarms.open == []


def test_a_subject_with_a_long_name_has_one_episode() -> None:
    alarms = Alarms(LIMITS)
    found = Found("/agents/" + "x" * 2000, 5)
    assert [len(judged(alarms, "sdk-drops", found, at_s=second)) for second in range(4)] == [1, 0, 0, 0]
    assert states(judged(alarms, "sdk-drops", at_s=4)) == [("oncall_sdk_drops", "resolved")]


def test_alerts_of_monitors_are_no_episodes_of_conditions() -> None:
    alarms = Alarms(LIMITS)
    alarms.add(Alert(run="r", source="trainer", kind="step_skipped", message="…"))
    assert alarms.open == []


@pytest.mark.parametrize("name", ["lag_s", "window_s", "contradictions"])
def test_a_limit_must_be_above_zero(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be above 0"):
        Limits(**{name: 0})


def test_every_condition_has_a_limit_and_a_name_of_its_own() -> None:
    assert len({condition.name for condition in CONDITIONS}) == len(CONDITIONS) == 7
    assert all(hasattr(Limits(), condition.limit) for condition in CONDITIONS)
