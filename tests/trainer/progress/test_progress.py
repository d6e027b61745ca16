"""Progress as the loop records it, and the watchers' output."""

import io
import logging

import pytest
from rich.console import Console

from headrace.trainer.progress.lines import REMIND_S, Lines, compact, warnings
from headrace.trainer.progress.pace import Phase
from headrace.trainer.progress.panel import LivePanel, render, sparkline
from headrace.trainer.progress.progress import Progress

METRICS = {
    "reward_mean": 0.643, "loss": -0.0123, "mismatch_kl": 1.2e-6, "effective_sample_size": 0.98, "staleness_p95": 1.0,
    "tokens_per_second": 5321.0, "seconds_wait": 8.0, "seconds_train": 4.0, "entropy": 1.25,
}  # fmt: skip


STEP = (Phase.WAITING, Phase.TRAINING, Phase.SAVING, Phase.PUBLISHING)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def run_step(progress, clock, step, *, seconds=(8.0, 4.0, 1.0, 2.0), metrics=METRICS):
    """A step whose phases take ``seconds``."""
    for phase, taken in zip(STEP, seconds, strict=True):
        progress.enter(phase)
        if phase == Phase.WAITING:
            progress.gathered(16)
        clock.now += taken
    progress.stepped(step, metrics)


def test_each_phase_is_timed_and_a_new_step_begins_with_no_groups(clock):
    progress = Progress(clock=clock)
    progress.begin(3, 16)
    run_step(progress, clock, 4)
    assert (progress.version, progress.steps, progress.wanted) == (4, 1, 16)
    assert [*progress.pace.usual_s.values()] == [8.0, 4.0, 1.0, 2.0]
    progress.enter(Phase.WAITING)
    assert [progress.newest_s[phase] for phase in STEP] == [8.0, 4.0, 1.0, 2.0]
    assert (progress.groups, progress.since_s) == (0, 0.0)
    clock.now += 2
    progress.gathered(4)
    assert progress.next_weights_s == pytest.approx(2 / 4 * 12 + 7)


def test_a_retried_step_has_the_seconds_of_all_its_attempts(clock):
    progress = Progress(clock=clock)
    clock.now += 60  # loading the model is no part of a step
    progress.begin(0, 16)
    for phase, taken in zip((*STEP[:3], *STEP[1:]), (8.0, 4.0, 1.0, 5.0, 3.0, 2.0), strict=True):
        progress.enter(phase)
        clock.now += taken
    assert progress.since_step_s == 23.0
    progress.stepped(1, METRICS)
    assert [progress.newest_s[phase] for phase in STEP] == [8.0, 9.0, 4.0, 2.0]
    assert progress.since_step_s == 0.0


def test_a_failing_watcher_is_reported_once_and_stops_no_other(clock, caplog):
    calls = []

    class Broken:
        def changed(self, progress):
            calls.append("changed")
            raise OSError("terminal is gone")

        def stepped(self, step, metrics):
            calls.append("stepped")

    class Counting(Broken):
        steps = 0

        def changed(self, progress):
            pass

        def stepped(self, step, metrics):
            self.steps += 1

    counting = Counting()
    progress = Progress([Broken(), counting], clock=clock)
    run_step(progress, clock, 1)
    run_step(progress, clock, 2)
    assert calls == ["changed"]
    assert counting.steps == 2
    assert "terminal is gone" in caplog.text


def test_a_step_is_a_line_with_its_metrics_and_times(clock, caplog):
    caplog.set_level(logging.INFO, "headrace.trainer")
    run_step(Progress([Lines()], clock=clock), clock, 42)
    assert caplog.messages == [
        "step 42: reward 0.643, loss -0.0123, mismatch KL 1.2e-06, ESS 0.98, staleness p95 1, tokens/s 5.32k; "
        "8.00 s wait + 4.00 s train; next weights in about 15.0 s"
    ]


def test_a_long_wait_is_logged_at_intervals(clock, caplog):
    caplog.set_level(logging.INFO, "headrace.trainer")
    progress = Progress([Lines()], clock=clock)
    progress.begin(7, 16)
    progress.enter(Phase.WAITING)
    for _ in range(65):
        clock.now += 1
        progress.gathered(11)
    assert caplog.messages == [
        f"waiting for groups: 11 of 16 after {REMIND_S * times:.0f} s, policy version 7" for times in (1, 2)
    ]


def test_a_value_beyond_its_threshold_is_a_warning(clock, caplog):
    assert warnings({"effective_sample_size": 0.21, "kl_k3": 0.01, "loss": 7.0}) == {
        "effective_sample_size": "effective_sample_size 0.21 (below 0.3)"
    }
    progress = Progress([Lines()], clock=clock)
    for step, chi2 in enumerate((3.5, 4.5, 0.5, 2.5), 1):  # logged when it begins, and when it begins again
        run_step(progress, clock, step, metrics=METRICS | {"chi2": chi2})
    assert [line for line in caplog.messages if "chi2" in line] == [
        "step 1: chi2 3.5 (above 1)",
        "step 4: chi2 2.5 (above 1)",
    ]


@pytest.mark.parametrize(
    ("value", "shown"), [(0.643123, "0.643"), (5321.0, "5.32k"), (1.2e-6, "1.2e-06"), (3e9, "3G"), (0.0, "0")]
)
def test_numbers_are_short(value, shown):
    assert compact(value) == shown


def drawn(progress):
    console = Console(width=100, file=io.StringIO())
    console.print(render(progress, [0.1, 0.5, float("nan"), 0.9], "run r"))
    return console.file.getvalue()


def test_the_panel_shows_missing_groups_and_the_bottleneck(clock):
    progress = Progress(clock=clock)
    progress.begin(0, 16)
    progress.enter(Phase.WAITING)
    progress.gathered(3)
    assert "3 of 16 groups" in drawn(progress)
    assert "next weights: not known yet" in drawn(progress)
    run_step(progress, clock, 1, metrics=METRICS | {"effective_sample_size": 0.1})
    progress.enter(Phase.TRAINING)
    shown = drawn(progress)
    for said in ("reward 0.643", "tokens/s 5.32k", "version 1, training", "next weights in about 7 s", "starved: 53 %",
                 "warning: effective_sample_size 0.1 (below 0.3)", "▁▅ █"):  # fmt: skip
        assert said in shown


def test_the_panel_shows_an_outage_and_its_duration(clock):
    progress = Progress(clock=clock)
    progress.outage_lasts("Kafka is unavailable", 30.0)
    clock.now += 12.0
    assert "waiting for 42 s: Kafka is unavailable" in drawn(progress)
    progress.outage_ended()
    assert "unavailable" not in drawn(progress)


def test_the_panel_is_drawn_on_a_terminal(clock):
    console = Console(width=100, force_terminal=True, file=io.StringIO())
    with LivePanel(console, "run r") as panel:
        progress = Progress([panel], clock=clock)
        run_step(progress, clock, 1)
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([float("nan")]) == ""
    assert "tokens/s" in console.file.getvalue()
