"""Log time of trajectories and feedback: never ahead of what waits to be read."""

from headrace.streams.runtime.stream_time import IDLE_GRACE_S, PartitionTime

BOTH = ("trajectories", "feedback")


def clock(**newest: int) -> PartitionTime:
    made = PartitionTime(BOTH)
    for topic, time_ms in newest.items():
        made.see(topic, time_ms)
    return made


def test_it_goes_with_the_slower_topic() -> None:
    assert clock(trajectories=5_000, feedback=2_000).passed_ms({}) == 2_000


def test_a_topic_of_which_nothing_was_read_yet_holds_it_back() -> None:
    assert clock(trajectories=5_000).passed_ms({}) == 0


def test_a_topic_that_was_read_to_its_end_and_is_silent_does_not() -> None:
    assert clock(trajectories=5_000).passed_ms({"feedback": IDLE_GRACE_S}) == 0
    assert clock(trajectories=5_000).passed_ms({"feedback": IDLE_GRACE_S + 1}) == 5_000


def test_where_both_are_silent_time_goes_on_as_fast_as_the_wall_clock_and_the_grace_behind() -> None:
    silent = {"trajectories": IDLE_GRACE_S + 3, "feedback": IDLE_GRACE_S + 60}
    assert clock(trajectories=5_000, feedback=1_000).passed_ms(silent) == 8_000


def test_after_a_restart_silence_goes_on_from_what_is_remembered() -> None:
    silent = dict.fromkeys(BOTH, IDLE_GRACE_S + 1)
    assert PartitionTime(BOTH, known_ms=7_000).passed_ms(silent) == 8_000


def test_it_never_goes_back() -> None:
    made = clock(trajectories=5_000)
    assert made.passed_ms({"feedback": 60.0}) == 5_000
    made.see("feedback", 100)
    assert made.passed_ms({}) == 5_000
