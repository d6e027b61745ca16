"""Stream time of trajectories and feedback: never ahead of unread records."""

from headrace.streams.runtime.stream_time import IDLE_GRACE_S, PartitionTime

BOTH = ("trajectories", "feedback")


def clock(**newest: int) -> PartitionTime:
    made = PartitionTime(BOTH)
    for topic, time_ms in newest.items():
        made.see(topic, time_ms)
    return made


def test_stream_time_follows_the_slower_topic() -> None:
    assert clock(trajectories=5_000, feedback=2_000).passed_ms({}) == 2_000


def test_an_unread_topic_holds_stream_time_back() -> None:
    assert clock(trajectories=5_000).passed_ms({}) == 0


def test_a_drained_and_silent_topic_does_not_hold_stream_time_back() -> None:
    assert clock(trajectories=5_000).passed_ms({"feedback": IDLE_GRACE_S}) == 0
    assert clock(trajectories=5_000).passed_ms({"feedback": IDLE_GRACE_S + 1}) == 5_000


def test_while_both_topics_are_silent_stream_time_follows_the_wall_clock_with_a_grace() -> None:
    silent = {"trajectories": IDLE_GRACE_S + 3, "feedback": IDLE_GRACE_S + 60}
    assert clock(trajectories=5_000, feedback=1_000).passed_ms(silent) == 8_000


def test_after_a_restart_stream_time_resumes_from_the_stored_time() -> None:
    silent = dict.fromkeys(BOTH, IDLE_GRACE_S + 1)
    assert PartitionTime(BOTH, known_ms=7_000).passed_ms(silent) == 8_000


def test_stream_time_never_goes_back() -> None:
    made = clock(trajectories=5_000)
    assert made.passed_ms({"feedback": 60.0}) == 5_000
    made.see("feedback", 100)
    assert made.passed_ms({}) == 5_000
