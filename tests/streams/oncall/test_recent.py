"""What happened lately: dead letters, dropped events, feedback, steps and rollouts."""

from base64 import b64encode
from typing import Any

import pytest

from headrace.schemas.events import SdkStatsReported
from headrace.schemas.records.alert import Alert, Episode, EpisodeState
from headrace.schemas.records.dead_letter import DeadLetter, DeadLetterError
from headrace.schemas.records.step import Budget
from headrace.streams.oncall.alarms import opened, resolved
from headrace.streams.oncall.conditions import NO_STEPS, Found
from headrace.streams.oncall.oncall import lags_that_count
from headrace.streams.oncall.recent import FEEDBACK_WAIT_MS, MOST, Recent

MINUTE = 60_000


def recent(*runs: str) -> Recent:
    return Recent(runs, window_s=600)


def letter(topic: str, error: DeadLetterError, producer: str = "/agents/shop") -> DeadLetter:
    source = b64encode(producer.encode()).decode()
    return DeadLetter(
        topic=topic, partition=0, offset=1, error=error, message="…", key=None, value=None,
        headers=[("ce_source", source)], timestamp_ms=1,
    )  # fmt: skip


def budget(run: str, groups: int = 8) -> Budget:
    return Budget(run=run, version=0, groups_per_step=4, max_steps_ahead=1, max_groups=groups)


def test_dead_letters_are_counted_by_topic_for_a_window_with_their_causes() -> None:
    fold = recent()
    fold.add_dead_letter(letter("events", DeadLetterError.INVALID), 0)
    for minute in (5, 6):
        fold.add_dead_letter(letter("events", DeadLetterError.BAD_JSON, "/by-hand"), minute * MINUTE)
    fold.add_dead_letter(letter("rewards", DeadLetterError.RAISED), 6 * MINUTE)
    found = {each.subject: each for each in fold.dead_letters(9 * MINUTE)}
    assert {subject: each.value for subject, each in found.items()} == {"events": 3, "rewards": 1}
    assert found["events"].details == {
        "cause bad_json from /by-hand": 2,
        "cause invalid from /agents/shop": 1,
        "newest": "events[0]@1: …",
    }
    assert [each.value for each in fold.dead_letters(11 * MINUTE)] == [2, 1]
    assert fold.dead_letters(30 * MINUTE) == []


def test_dropped_events_are_those_since_the_report_before() -> None:
    fold = recent()
    fold.add_sdk_stats("/a", SdkStatsReported(dropped={"queue_full": 100}), 0, follows=False)
    assert fold.sdk_drops(MINUTE) == [], "they may be from long ago"
    fold.add_sdk_stats("/a", SdkStatsReported(dropped={"queue_full": 103, "spool_full": 1}), MINUTE, follows=True)
    assert fold.sdk_drops(MINUTE) == [Found("/a", 4, details={"queue_full": 3, "spool_full": 1})]
    fold.add_sdk_stats("/a", SdkStatsReported(dropped={"queue_full": 2}), 2 * MINUTE, follows=True)
    assert fold.sdk_drops(2 * MINUTE)[0].value == 6, "it has started again"
    fold.add_sdk_stats("/new", SdkStatsReported(dropped={"queue_full": 9}), 2 * MINUTE, follows=True)
    assert {each.subject: each.value for each in fold.sdk_drops(2 * MINUTE)} == {"/a": 6, "/new": 9}
    assert fold.sdk_drops(20 * MINUTE) == []


def test_a_count_below_zero_hides_no_dropped_events() -> None:
    fold = recent()
    fold.add_sdk_stats("/a", SdkStatsReported(dropped={"queue_full": 5, "forged": -5}), 0, follows=True)
    assert fold.sdk_drops(0) == [Found("/a", 5, details={"queue_full": 5})]


def test_feedback_is_lost_if_nobody_knows_its_trajectory_after_a_while() -> None:
    fold = recent()
    fold.add_feedback("known", 0)
    fold.add_feedback("unknown", 0)
    assert fold.lost_feedback(MINUTE, {"known"}) == [], "its events may still come"
    (found,) = fold.lost_feedback(FEEDBACK_WAIT_MS, {"known"})
    assert (found.value, found.details) == (1, {"trajectory": "unknown"})
    assert fold.lost_feedback(FEEDBACK_WAIT_MS, {"known", "unknown"}) == []
    assert fold.lost_feedback(60 * MINUTE, ()) == []


def test_a_run_makes_no_steps_since_its_last_one_however_often_its_trainer_starts() -> None:
    fold = recent("r")
    fold.add_budget(budget("r"), 0)
    assert fold.step_ages(MINUTE) == [Found("r", 60, "r")]
    fold.add_step("r", 2 * MINUTE)
    fold.add_budget(budget("r"), 9 * MINUTE)
    assert fold.step_ages(10 * MINUTE) == [Found("r", 480, "r")]


def test_a_restarted_process_knows_from_the_open_alert_since_when_a_run_has_no_steps() -> None:
    before = opened(NO_STEPS, Found("r", 700, "r"), limit=600, since_ms=20 * MINUTE)
    fold = recent("r")
    fold.add_alert(before)
    fold.add_budget(budget("r"), 25 * MINUTE)  # the earlier ones are compacted
    assert fold.step_ages(30 * MINUTE) == [Found("r", 20 * 60, "r")]
    fold.add_alert(resolved(NO_STEPS, before, 0.0))
    assert fold.step_ages(30 * MINUTE) == [Found("r", 5 * 60, "r")]
    assert fold.open_monitors == {}


@pytest.mark.parametrize("other", [{"source": "watch"}, {"run": "another"}, {"details": {"limit": "600"}}])
def test_other_alerts_do_not_say_since_when_a_run_has_no_steps(other: dict[str, Any]) -> None:
    fold = recent("r")
    fold.add_alert(opened(NO_STEPS, Found("r", 700, "r"), limit=600, since_ms=20 * MINUTE).model_copy(update=other))
    fold.add_budget(budget("r"), 25 * MINUTE)
    assert fold.step_ages(30 * MINUTE) == [Found("r", 5 * 60, "r")]


def test_a_finished_run_and_other_runs_need_no_steps_and_no_rollouts() -> None:
    fold = recent("r")
    fold.add_budget(budget("other"), 0)
    assert (fold.step_ages(9 * MINUTE), fold.rollout_ages(9 * MINUTE)) == ([], [])
    fold.add_budget(budget("r"), 0)
    fold.add_budget(budget("r", 0), MINUTE)
    assert (fold.step_ages(9 * MINUTE), fold.rollout_ages(9 * MINUTE)) == ([], [])


def test_samplers_are_silent_since_the_last_rollout_or_step() -> None:
    fold = recent("r")
    fold.add_budget(budget("r"), 0)
    fold.add_rollout("r", 2 * MINUTE)
    fold.add_rollout("other", 5 * MINUTE)
    assert fold.rollout_ages(5 * MINUTE) == [Found("r", 180, "r")]
    fold.add_budget(budget("r"), 4 * MINUTE)
    assert fold.rollout_ages(5 * MINUTE) == [Found("r", 60, "r")]


def alert(id: str, state: EpisodeState, monitor: str = "reward") -> Alert:
    episode = Episode(id=id, monitor=monitor, state=state, since_ms=1)
    return Alert(run="r", source="watch", kind=f"monitor_{monitor}", message="…", episode=episode)


def test_open_alerts_of_monitors_are_counted() -> None:
    fold = recent()
    for each in (
        alert("a", EpisodeState.OPENED),
        alert("a", EpisodeState.ACKNOWLEDGED),
        alert("a", EpisodeState.ONGOING),
        alert("b", EpisodeState.OPENED),
        alert("b", EpisodeState.RESOLVED),
        alert("c", EpisodeState.OPENED, "tripwire"),
    ):
        fold.add_alert(each)
    assert fold.open_monitors == {"reward": 1, "tripwire": 1}


def test_memory_is_bounded() -> None:
    fold = recent()
    for number in range(MOST + 10):
        fold.add_feedback(str(number), 0)
        fold.add_sdk_stats(f"/{number}", SdkStatsReported(dropped={"queue_full": 1}), 0, follows=True)
    assert fold.lost_feedback(FEEDBACK_WAIT_MS, ())[0].value == MOST
    assert len(fold.sdk_drops(0)) <= MOST


def test_a_trainer_is_behind_only_while_its_run_must_continue() -> None:
    """A finished run leaves groups that nobody trains any more, so its trainer's group is behind for ever."""
    fold = Recent(("r",), window_s=600)
    behind = [Found("headrace-trainer-r", 400.0), Found("headrace-trainer-former", 400.0), Found("sink", 400.0)]
    fold.add_budget(budget("r"), 0)
    assert [each.subject for each in lags_that_count(behind, fold.unfinished)] == ["headrace-trainer-r", "sink"]
    fold.add_budget(budget("r", groups=0), MINUTE)
    assert [each.subject for each in lags_that_count(behind, fold.unfinished)] == ["sink"]
