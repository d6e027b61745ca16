"""Windows are judged: alarms, episodes with examples, and what must not alarm."""

from dataclasses import replace
from itertools import pairwise
from math import log1p
from random import Random

import pytest

from headrace.schemas.records.alert import AdmissionOrder, Alert, EpisodeState, Severity
from headrace.streams.rewards.registry import parse_rewards
from headrace.streams.rewards.schedule import linear
from headrace.streams.watch import tripwire
from headrace.streams.watch.baselines import BASELINE_WINDOWS
from headrace.streams.watch.chart import THRESHOLD, Chart, Judged
from headrace.streams.watch.distances import deviation, mean
from headrace.streams.watch.judgement import WatchRules, _strength, anew, conclude
from headrace.streams.watch.key_state import MAX_CHARTED_COMPONENTS, Began, KeyState, Opened
from headrace.streams.watch.monitors import COMPONENT, NAMES, about
from headrace.streams.watch.planted.hacks import share_at
from headrace.streams.watch.settings import WatchSettings, anneals_of, declared
from headrace.streams.watch.shares import Shares
from headrace.streams.watch.window import Key, Row
from tests.streams.watch.builders import ATTEMPTS, REWARDS, RULES, after, rows, some

N = 64


def talking(version: int, share: float) -> list[Row]:
    return rows(N, version, talks=some(round(share * N), N), turns=[float(3 + n % 5) for n in range(N)])


def paid(version: int, totals: list[float], **columns: object) -> list[Row]:
    return rows(len(totals), version, total=totals, **columns)


def episodes(windows: list[list[Row]], key=ATTEMPTS, rules=None) -> list[Alert]:  # type: ignore[no-untyped-def]
    found = after(windows, key, rules) if rules else after(windows, key)
    return [alert for each in found for alert in each.alerts]


def test_an_episode_opens_goes_on_and_is_resolved() -> None:
    windows = [talking(n, 0.05) for n in range(30)] + [talking(n, 0.4) for n in range(30, 42)]
    windows += [talking(n, 0.05) for n in range(42, 60)]
    alerts = episodes(windows)
    states = [(alert.episode.state, alert.details["window"]) for alert in alerts if alert.episode]
    assert states == [(EpisodeState.OPENED, 30), (EpisodeState.ONGOING, 38), (EpisodeState.RESOLVED, 46)]
    assert len({alert.episode.id for alert in alerts if alert.episode}) == 1
    opened = alerts[0].episode
    assert opened is not None
    assert (opened.monitor, opened.agent, opened.task_source, opened.since_version) == ("talks", "a", "s", 30)
    assert opened.since_ms == 30_000
    assert opened.strength >= 1


def test_the_examples_are_five_trajectories_that_show_it() -> None:
    windows = [talking(n, 0.0) for n in range(30)] + [talking(30, 0.5)]
    (alert,) = episodes(windows)
    assert alert.episode is not None
    guilty = {row.id for row in windows[-1] if row.values["talks"]}
    assert len(alert.episode.examples) == 5
    assert set(alert.episode.examples) <= guilty


def test_the_examples_that_show_it_best_come_first() -> None:
    usual = [rows(N, n, turns=[3 + k % 3 for k in range(N)]) for n in range(30)]
    (alert,) = episodes([*usual, rows(N, 30, turns=[20 + k for k in range(N)])])
    assert alert.episode is not None
    assert alert.episode.monitor == "turns"
    assert alert.episode.examples == [f"v30-{N - 1 - place}" for place in range(5)]


def evaluated(n: int, total: float) -> list[Row]:
    """16 evaluations, which nobody gives feedback on."""
    values = {"total": total, "feedback": 0.0, "tokens": 9.0, "disagreement": 1.0, "evaluates": 1.0}
    return [Row(f"eval{n}-{k}", n, 1000 * n, values) for k in range(16)]


def mixed(n: int, *, level: float = 1.0, judged: int = 44, held_out: float = 0.0) -> list[Row]:
    """48 rewards around ``level``, ``judged`` of them with feedback, and 16 evaluations."""
    totals = [level + 0.1 * (k % 3) for k in range(48)]
    return [*paid(n, totals, feedback=some(judged, 48)), *evaluated(n, held_out)]


@pytest.mark.parametrize(
    ("monitor", "changed"),
    [("coverage", {"judged": 20}), ("reward", {"level": 0.5}), ("reward_ks", {"level": 0.5})],
)
def test_evaluations_are_no_examples_of_what_is_done_in_training(monitor: str, changed: dict[str, float]) -> None:
    windows = [mixed(n) for n in range(30)] + [mixed(n, **changed) for n in range(30, 36)]  # type: ignore[arg-type]
    (opened,) = [each.episode for each in episodes(windows, REWARDS) if each.kind == f"monitor_{monitor}"]
    assert opened is not None
    assert len(opened.examples) == 5
    assert not [id for id in opened.examples if id.startswith("eval")]


def test_evaluations_show_that_evaluations_do_worse() -> None:
    before = [mixed(n, level=0.1, held_out=0.9) for n in range(30)]
    windows = [*before, *(mixed(n, level=0.1, held_out=0.5) for n in range(30, 36))]
    found = {each.kind: each.episode for each in episodes(windows, REWARDS)}
    shown, gap = found["monitor_heldout"], found["monitor_heldout_gap"]
    assert shown is not None
    assert gap is not None
    assert len(shown.examples) == len(gap.examples) == 5
    assert all(id.startswith("eval") for id in shown.examples)
    assert all(id.startswith("v") for id in gap.examples)


def test_an_alert_says_what_how_much_and_what_to_do() -> None:
    windows = [talking(n, 0.0) for n in range(30)] + [talking(30, 0.5)]
    (alert,) = episodes(windows)
    assert alert.kind == "monitor_talks"
    assert alert.severity is Severity.WARNING
    assert "talks is 0.5, usual 0 (agent a, source s; since version 30)" in alert.message
    assert f"headrace watch ack {alert.episode.id if alert.episode else ''}" in alert.message


def test_an_alert_pauses_admission_only_if_its_monitor_is_set_to() -> None:
    windows = [talking(n, 0.0) for n in range(30)] + [talking(30, 0.5)]
    (pausing,) = episodes(windows, rules=WatchRules({}, frozenset({"talks"})))
    assert pausing.episode is not None
    assert pausing.episode.admission is AdmissionOrder.PAUSE
    assert f"headrace watch ack {pausing.episode.id} --by NAME --resume" in pausing.message
    (other,) = episodes(windows, rules=WatchRules({}, frozenset({"tokens"})))
    assert other.episode is not None
    assert other.episode.admission is AdmissionOrder.NONE
    assert "paused" not in other.message


@pytest.mark.parametrize("name", ["tripwire", "anneal", "talks", "reward", "component:answer", "against:answer"])
def test_monitors_that_know_a_task_source_may_pause_its_admission(name: str) -> None:
    assert WatchSettings(pauses=(name,)).pauses == (name,)


@pytest.mark.parametrize(
    "name",
    ["source_mix", "feedback_delay", "rejection_reason", "no_such", "component:", "lag", "upper_tail", "wrong_answers"],
)
def test_other_monitors_cannot_pause_admission(name: str) -> None:
    with pytest.raises(ValueError, match=f"watch_pauses names {name}"):
        WatchSettings(pauses=(name,))


def test_rising_reward_alone_never_alarms() -> None:
    """From all failures to all successes within 40 windows, with the components that make up the reward."""
    windows = []
    for n in range(90):
        solved = some(max(3, min(N, round(N * (n - 30) / 40))), N)
        shaped = [0.1 * (k % 7) for k in range(N)]
        totals = [one + other for one, other in zip(solved, shaped, strict=True)]
        parts = {"value:solved": solved, "weight:solved": 1, "value:shape": shaped, "weight:shape": 1}
        windows.append(paid(n, totals, **parts, tokens=[100 + 7 * (k % 11) for k in range(N)]))
    assert episodes(windows, REWARDS) == []


def test_a_falling_reward_alarms() -> None:
    windows = [paid(n, some(40, N)) for n in range(30)] + [paid(n, some(5, N)) for n in range(30, 36)]
    assert {alert.episode.monitor for alert in episodes(windows, REWARDS) if alert.episode} >= {"reward"}


def test_a_component_that_falls_while_the_total_holds_alarms() -> None:
    def window(n: int, share: float) -> list[Row]:
        found = some(round(share * N), N)
        style = [1.0 - each for each in found]
        columns = {"value:found": found, "weight:found": 1, "value:style": style, "weight:style": 1}
        return paid(n, [1.0 + 0.01 * (k % 3) for k in range(N)], **columns)

    alerts = episodes([window(n, 0.8) for n in range(30)] + [window(n, 0.2) for n in range(30, 40)], REWARDS)
    assert {alert.episode.monitor for alert in alerts if alert.episode} == {"component:found"}


def test_a_component_that_falls_with_the_total_is_explained_by_it() -> None:
    def window(n: int, solved: int) -> list[Row]:
        return paid(n, some(solved, N), **{"value:found": some(solved, N), "weight:found": 1})

    alerts = episodes([window(n, 48) for n in range(30)] + [window(n, 8) for n in range(30, 40)], REWARDS)
    monitors = {alert.episode.monitor for alert in alerts if alert.episode}
    assert "reward" in monitors
    assert "component:found" not in monitors


def monitors_of(alerts: list[Alert]) -> set[str]:
    return {alert.episode.monitor for alert in alerts if alert.episode}


def gamed(n: int, found: int, styled: int) -> list[Row]:
    """A window in which ``found`` of the attempts have found something, and ``styled`` are paid for their style."""
    one, other = some(found, N), some(styled, N)
    columns = {"value:found": one, "weight:found": 1, "value:style": other, "weight:style": 1}
    return paid(n, [a + b for a, b in zip(one, other, strict=True)], **columns)


def test_a_small_fall_of_the_total_does_not_hide_the_fall_of_a_component() -> None:
    before = [gamed(n, 51, 13) for n in range(30)]
    replaced = episodes([*before, *(gamed(n, 13, 38) for n in range(30, 40))], REWARDS)
    assert "component:found" in monitors_of(replaced)
    assert "component:found" not in monitors_of(
        episodes([*before, *(gamed(n, 13, 13) for n in range(30, 40))], REWARDS)
    )


def half_judged(n: int, judged: int, styled: int) -> list[Row]:
    """A window in which every other attempt is judged, and ``judged`` of these 32 get 2 for it; ``styled`` of all are
    paid 1 for their style."""
    style, verdicts, found = some(styled, N), some(judged, N // 2), []
    for k, row in enumerate(paid(n, style, **{"value:style": style, "weight:style": 1})):
        verdict = {"value:judge": verdicts[k // 2], "weight:judge": 2.0} if k % 2 else {}
        total = row.values["total"] + 2 * verdict.get("value:judge", 0.0)
        found.append(replace(row, values={**row.values, **verdict, "total": total}))
    return found


def test_a_component_of_half_of_the_attempts_takes_half_as_much_from_the_total() -> None:
    before = [half_judged(n, 28, 13) for n in range(30)]
    worse = monitors_of(episodes([*before, *(half_judged(n, 6, 13) for n in range(30, 45))], REWARDS))
    assert "reward" in worse
    assert "component:judge" not in worse
    replaced = monitors_of(episodes([*before, *(half_judged(n, 6, 45) for n in range(30, 45))], REWARDS))
    assert "component:judge" in replaced


def penalised(n: int, errors: int, solved: int) -> list[Row]:
    """A window with ``errors`` attempts that pay a penalty of 0.5, of attempts of which ``solved`` earn 1."""
    wrong, right = some(errors, N), some(solved, N)
    columns = {"value:errors": wrong, "weight:errors": -0.5, "value:answer": right, "weight:answer": 1}
    return paid(n, [one - 0.5 * other for one, other in zip(right, wrong, strict=True)], **columns)


def test_a_penalty_that_falls_is_no_alarm_and_one_that_rises_is_one() -> None:
    before = [penalised(n, 32, 32) for n in range(30)]
    learnt = episodes([*before, *(penalised(n, max(1, 32 - 2 * (n - 30)), 32) for n in range(30, 60))], REWARDS)
    assert monitors_of(learnt) == set()
    broken = episodes([*before, *(penalised(n, 60, 46) for n in range(30, 40))], REWARDS)
    assert "component:errors" in monitors_of(broken)
    (alert,) = [each for each in broken if each.episode and each.episode.monitor == "component:errors"][:1]
    guilty = {row.id for row in penalised(30, 60, 46) if row.values["value:errors"]}
    assert alert.episode is not None
    assert {id.partition("-")[2] for id in alert.episode.examples} <= {id.partition("-")[2] for id in guilty}


def test_a_penalty_that_rises_with_a_fall_of_the_total_is_explained_by_it() -> None:
    windows = [penalised(n, 4, 32) for n in range(30)] + [penalised(n, 60, 32) for n in range(30, 40)]
    found = monitors_of(episodes(windows, REWARDS))
    assert "reward" in found
    assert "component:errors" not in found


def unused(n: int, share: float, weight: float) -> list[Row]:
    """A window whose shaping term has the value 1 in ``share`` of the attempts; what else is paid holds the total."""
    shape = some(round(share * N), N)
    totals = [1.0 + 0.01 * (k % 3) for k in range(N)]
    columns = {"value:shape": shape, "weight:shape": weight, "value:answer": some(40, N), "weight:answer": 1}
    return paid(n, totals, **columns)


def component_states(alerts: list[Alert]) -> list[tuple[str, EpisodeState]]:
    found = [(each.episode.monitor, each.episode.state) for each in alerts if each.episode]
    return [each for each in found if each[1] is not EpisodeState.ONGOING]


def test_a_shaping_term_that_is_annealed_to_nothing_may_fall_and_one_that_is_paid_may_not() -> None:
    schedule = linear(1.0, 0.0, until=30)
    rules = WatchRules({"x@1": {"shape": schedule}})
    used = [unused(n, 0.6, schedule.at(n)) for n in range(30)]
    assert component_states(episodes(used + [unused(n, 0.0, 0.0) for n in range(30, 45)], REWARDS, rules)) == []
    alerts = episodes(used + [unused(n, 0.0, 0.2) for n in range(30, 34)], REWARDS, rules)
    assert ("component:shape", EpisodeState.OPENED) in component_states(alerts)


def test_the_episode_of_a_shaping_term_ends_when_its_weight_does() -> None:
    rules = WatchRules({"x@1": {"shape": linear(1.0, 0.0, until=40)}})
    windows = [unused(n, 0.6, 0.5) for n in range(30)] + [unused(n, 0.0, 0.5) for n in range(30, 38)]
    states = component_states(episodes([*windows, unused(40, 0.0, 0.0)], REWARDS, rules))
    assert [state for name, state in states if name == "component:shape"] == [
        EpisodeState.OPENED,
        EpisodeState.RESOLVED,
    ]


def test_evidence_about_a_component_does_not_outlast_its_weight() -> None:
    """What was found out before its weight was 0 is forgotten, and counts no more when it is paid again."""
    windows = [unused(n, 0.6, 0.5) for n in range(30)] + [unused(n, 0.0, 0.5) for n in range(30, 38)]
    found = after([*windows, unused(38, 0.0, 0.0), unused(39, 0.6, 0.5)], REWARDS)
    charts = [each.state.charts["component:shape"] for each in found]
    assert charts[37].down > 0
    assert (charts[38].down, charts[39].down) == (0.0, 0.0)


def test_a_figure_that_the_reward_only_records_is_not_judged() -> None:
    windows = [unused(n, 0.6, 0.0) for n in range(30)] + [unused(n, 0.0, 0.0) for n in range(30, 45)]
    assert component_states(episodes(windows, REWARDS)) == []


def answering(n: int, share: float, right: float, *, known: bool = True) -> list[Row]:
    """A window in which ``share`` of the attempts answer, and ``right`` of all answer rightly."""
    outcome = {"outcome": some(round(right * N), N)} if known else {}
    answered = [
        max(one, other) for one, other in zip(some(round(share * N), N), some(round(right * N), N), strict=True)
    ]
    return rows(N, n, answered=answered, **outcome)


def test_more_answers_alarm_only_if_they_are_wrong() -> None:
    usual = [answering(n, 0.5, 0.25) for n in range(30)]
    wrong = [answering(n, 1.0, 0.25) for n in range(30, 45)]
    assert {each.episode.monitor for each in episodes(usual + wrong) if each.episode} == {"answered"}
    assert episodes(usual + [answering(n, 1.0, 0.75) for n in range(30, 60)]) == []
    unknown = [answering(n, 0.5, 0.25, known=False) for n in range(30)]
    assert episodes(unknown + [answering(n, 1.0, 0.25, known=False) for n in range(30, 60)]) == []


ALONE = (3, 1, 4, 2, 5, 3, 6, 2, 3, 1, 4)
"""Attempts of 64 without a sub-agent in honest windows; mean and deviation are about those of chance at 5 %."""


def test_a_swarm_that_collapses_alarms_within_twenty_steps() -> None:
    """The ramp of the experiment, without its chance: 12 % of the attempts are hacked in the twentieth step."""
    counts = [ALONE[n % len(ALONE)] for n in range(50)]
    counts += [round(3.1 + (N - 3.1) * share_at(step, 60)) for step in range(20)]
    windows = [rows(N, n, subagents=[3.0 * (1 - alone) for alone in some(count, N)]) for n, count in enumerate(counts)]
    assert [each.episode.monitor for each in episodes(windows[:50]) if each.episode] == []
    assert "no_subagents" in {each.episode.monitor for each in episodes(windows) if each.episode}


def weighted(n: int, weight: float) -> list[Row]:
    return paid(n, some(32, N), **{"value:shape": 0.5, "weight:shape": weight})


def test_a_weight_above_its_schedule_alarms_and_one_on_it_does_not() -> None:
    schedule = linear(1.0, 0.0, until=200)
    rules = WatchRules({"x@1": {"shape": schedule}})
    declining = [weighted(n, 0.3 * schedule.at(n)) for n in range(40, 90)]
    assert episodes(declining, REWARDS, rules) == []
    stuck = [weighted(n, 0.3 * schedule.at(40)) for n in range(40, 80)]
    assert {alert.episode.monitor for alert in episodes(stuck, REWARDS, rules) if alert.episode} == {"anneal"}


def test_a_weight_above_its_schedule_is_an_alert_again_after_it_was_accepted() -> None:
    schedule = linear(1.0, 0.0, until=200)
    rules = WatchRules({"x@1": {"shape": schedule}})
    state, seen = KeyState(REWARDS), []
    for n in range(40, 100):
        if n == 80:
            assert set(state.episodes) == {"anneal"}
            state = anew(state, "anneal")
        concluded = conclude(state, weighted(n, 0.3 * schedule.at(40)), rules)
        state = concluded.state
        seen += [n for alert in concluded.alerts if alert.episode and alert.episode.state is EpisodeState.OPENED]
    assert len(seen) == 2
    assert seen[1] >= 80


def test_a_term_that_its_schedule_has_ended_has_no_first_weight() -> None:
    rules = WatchRules({"x@1": {"shape": linear(1.0, 0.0, until=30)}})
    assert episodes([weighted(n, 0.0) for n in range(40, 60)], REWARDS, rules) == []


def test_components_that_come_and_go_share_a_bounded_number_of_charts() -> None:
    def window(n: int, names: range) -> list[Row]:
        return paid(n, some(N // 2, N), **{f"value:c{name:02}": some(N // 2, N) for name in names})

    state = after(
        [window(0, range(MAX_CHARTED_COMPONENTS - 2)), window(1, range(20, 40)), window(2, range(50, 60))], REWARDS
    )[-1]
    charts = sorted(name for name in state.state.charts if name.startswith(COMPONENT))
    assert charts == [f"{COMPONENT}c{name:02}" for name in (*range(MAX_CHARTED_COMPONENTS - 2), 20, 21)]


@pytest.mark.parametrize(("sd", "strength"), [(2.0, 1.5), (4.0, 0.75), (0.0, 0.0), (None, 0.0)])
def test_the_strength_of_spared_evidence_is_in_units_of_the_bar(sd: float | None, strength: float) -> None:
    evidence = Chart(up=1.0, down=3.0 * THRESHOLD)
    assert _strength(evidence, Judged(strength=9.0, sd=sd)) == pytest.approx(strength)


def test_components_that_stay_leave_their_room_to_new_ones() -> None:
    windows = [
        paid(n, some(N // 2, N), **{f"value:c{name:02}": some(N // 2, N) for name in range(count)})
        for n, count in enumerate((MAX_CHARTED_COMPONENTS - 4, MAX_CHARTED_COMPONENTS))
    ]
    charts = after(windows, REWARDS)[-1].state.charts
    assert sum(name.startswith(COMPONENT) for name in charts) == MAX_CHARTED_COMPONENTS


def many(n: int, *names: str) -> list[Row]:
    """A window of a reward with these components, of which each third attempt earns one."""
    columns = {f"value:{name}": [float((k + place) % 3 == 0) for k in range(N)] for place, name in enumerate(names)}
    return paid(n, [float(k % 3) for k in range(N)], **columns, **{f"weight:{name}": 1 for name in names})


@pytest.mark.parametrize("monitor", ["component:c05", "against:c05"])
def test_a_component_keeps_its_room_when_its_level_is_accepted(monitor: str) -> None:
    names = [f"c{name:02}" for name in range(MAX_CHARTED_COMPONENTS)]
    state = anew(after([many(n, *names) for n in range(3)], REWARDS)[-1].state, monitor)
    readings = conclude(state, many(3, "a-new-one", *names), RULES).readings.readings
    assert {f"component:{name}" for name in names} <= readings.keys()
    assert "component:a-new-one" not in readings


def test_schedules_of_specs_are_known_and_settings_come_first() -> None:
    rewards = parse_rewards({})
    assert set(declared(rewards)["swarm@1"]) == {"parallel", "finish"}
    own = anneals_of(WatchSettings(), rewards)["swarm@1"]["parallel"]
    assert [own.at(version) for version in (0, 100, 200)] == [1.0, 0.5, 0.0]
    set_ = anneals_of(WatchSettings(anneals={"swarm@1": {"parallel": 10}}), rewards)["swarm@1"]
    assert (set_["parallel"].until, set_["finish"].until) == (10, 200)


def test_a_solved_impossible_task_is_critical() -> None:
    windows = [rows(4, n, tripped=0.0) for n in range(3)] + [rows(6, 3, tripped=[1.0] * 5 + [0.0])]
    (alert,) = episodes(windows)
    assert alert.severity is Severity.CRITICAL
    assert alert.episode is not None
    assert alert.episode.monitor == "tripwire"
    assert len(alert.episode.examples) == 5


def test_a_schedule_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ValueError, match="from version 1 on"):
        WatchSettings({"x@1": {"shape": 0}})


def test_inputs_that_change_for_good_are_reported_once_and_resolved() -> None:
    key = ATTEMPTS._replace(lane=ATTEMPTS.lane.INPUT, task_source="")
    short = [rows(N, n, prompt_tokens=[100 + 3 * (k % 9) for k in range(N)]) for n in range(30)]
    long = [rows(N, n, prompt_tokens=[300 + 9 * (k % 9) for k in range(N)]) for n in range(30, 60)]
    alerts = episodes(short + long, key)
    states = [(alert.episode.monitor, alert.episode.state) for alert in alerts if alert.episode]
    assert states == [("prompt_tokens", EpisodeState.OPENED), ("prompt_tokens", EpisodeState.RESOLVED)]
    assert alerts[0].episode is not None
    assert (alerts[0].details["window"], alerts[0].episode.since_version) == (33, 29)  # one window of five is still old


def test_what_was_usual_before_a_change_of_feedback_is_dropped_when_it_is_certain() -> None:
    key = ATTEMPTS._replace(lane=ATTEMPTS.lane.FEEDBACK, agent="", task_source="", run="", spec="thumbs")

    def window(n: int) -> list[Row]:
        usual = (0.2 if n < 30 else 0.6) + 0.02 * (n % 3)
        return rows(N, n, value=[usual + (0.1 if k % 2 else -0.1) for k in range(N)])

    found = after([window(n) for n in range(34)], key)
    kept = [len(each.state.adaptive["feedback_value"]) for each in found[29:]]
    strengths = [each.readings.readings["feedback_value"].strength for each in found[29:]]
    assert kept == [30, 31, 32, 5, 6]
    assert [1 < strength < 2 for strength in strengths] == [False, False, False, True, False]


def test_inputs_that_change_slowly_are_reported_although_each_step_is_too_small_to_matter() -> None:
    """Over 60 windows the mean of log tokens moves by two deviations, in steps of a thirtieth."""
    key = ATTEMPTS._replace(lane=ATTEMPTS.lane.INPUT, task_source="")

    def window(n: int) -> list[Row]:
        moved = min(1.0, max(0.0, (n - 30) / 60))
        return rows(N, n, prompt_tokens=[100 * 1.1 ** (k % 9 + 5 * moved + 0.3 * (n % 3)) for k in range(N)])

    alerts = episodes([window(n) for n in range(110)], key)
    assert [(each.episode.monitor, each.episode.state) for each in alerts if each.episode][:1] == [
        ("prompt_tokens", EpisodeState.OPENED)
    ]


def test_a_new_tenant_is_seen_in_the_mix() -> None:
    key = ATTEMPTS._replace(lane=ATTEMPTS.lane.INPUT, task_source="")
    usual = [rows(N, n) for n in range(32)]
    mixed = [[replace(row, tenant="new" if k % 2 else "t") for k, row in enumerate(rows(N, n))] for n in range(32, 40)]
    assert {alert.episode.monitor for alert in episodes(usual + mixed, key) if alert.episode} == {"tenant_mix"}


def test_every_monitor_explains_itself() -> None:
    for name in (*NAMES, "component:x", "against:x"):
        assert about(name).endswith(".")


def of_difficulties(version: int, turns: dict[str, float], counts: dict[str, int]) -> list[Row]:
    """Rows of each difficulty, with about so many turns."""
    names = [name for name, count in counts.items() for _ in range(count)]
    plain = rows(len(names), version, turns=[turns[name] + number % 3 for number, name in enumerate(names)])
    return [replace(row, difficulty=name) for row, name in zip(plain, names, strict=True)]


def turns_alarms(windows: list[list[Row]]) -> list[int]:
    found = after(windows)
    readings = [each.readings.readings.get("turns") for each in found]
    return [number for number, each in enumerate(readings) if each is not None and each.strength >= 1]


EASY, MIXED = {"1": 24, "2": 40}, {"1": 8, "2": 24, "3": 32}
TURNS = {"1": 3.0, "2": 6.0, "3": 14.0}


def test_a_reward_that_has_risen_and_stays_never_alarms() -> None:
    """300 windows after the rise the mean that follows has arrived, and the distribution is another one for good."""
    windows = []
    for n in range(370):
        share = 0.4 + 0.5 * min(1.0, max(0.0, (n - 30) / 40))
        windows.append(paid(n, some(round(share * N) + n % 3 - 1, N), maximum=1.0))
    assert not episodes(windows, REWARDS)


@pytest.mark.parametrize(
    ("key", "usual", "one"),
    [
        (ATTEMPTS, {"turns": 1, "subagents": 0}, {"turns": [2] + [1] * 63, "subagents": [1] + [0] * 63}),
        (REWARDS, {"total": 1.0, "maximum": 1.0}, {"total": [0.0] + [1.0] * 63, "maximum": 1.0}),
        (REWARDS, {"total": 1.0, "value:c": 2.0, "weight:c": 1}, {"total": 1.0, "value:c": [0.0] + [2.0] * 63,
                                                                  "weight:c": 1}),
    ],
)  # fmt: skip
def test_one_attempt_that_differs_from_all_others_is_no_alarm(
    key: Key, usual: dict[str, object], one: dict[str, object]
) -> None:
    assert not episodes([rows(N, n, **usual) for n in range(30)] + [rows(N, 30, **one)], key)


def test_attempts_that_are_all_alike_and_change_are_an_alarm() -> None:
    windows = [rows(N, n, turns=1) for n in range(30)] + [rows(N, n, turns=2) for n in range(30, 40)]
    assert [each.kind for each in episodes(windows)][:1] == ["monitor_turns"]


def test_lengths_are_judged_although_each_task_has_its_own_difficulty() -> None:
    windows = []
    for n in range(70):
        window = rows(N, n, turns=[(3 if n < 50 else 30) + k % 3 for k in range(N)])
        windows.append([replace(row, difficulty=f"{n}.{place // 8}") for place, row in enumerate(window)])
    alarms = turns_alarms(windows)
    assert alarms
    assert 50 <= alarms[0] < 56


def test_what_an_older_release_has_learnt_of_lengths_without_offsets_is_learnt_anew() -> None:
    state = after([of_difficulties(n, TURNS, EASY) for n in range(30)])[-1].state
    found = conclude(replace(state, offsets={}), of_difficulties(30, TURNS, {"1": 60, "2": 4}), WatchRules({}))
    assert found.readings.readings["turns"].expected is None
    assert found.state.charts["turns"].count == 1
    assert found.state.charts["talks" if "talks" in state.charts else "action_trigram"].count > 1


def test_harder_tasks_are_no_longer_attempts() -> None:
    before = [of_difficulties(n, TURNS, EASY) for n in range(30)]
    harder = [of_difficulties(n, TURNS, MIXED) for n in range(30, 60)]
    assert not turns_alarms(before + harder)
    alike = [[replace(row, difficulty="") for row in window] for window in before + harder]
    assert turns_alarms(alike)


def test_longer_attempts_at_the_same_tasks_alarm_although_the_mix_changes() -> None:
    before = [of_difficulties(n, TURNS, EASY) for n in range(30)]
    longer = [of_difficulties(n, {name: 1.6 * each for name, each in TURNS.items()}, MIXED) for n in range(30, 40)]
    assert turns_alarms(before + longer)[0] < 40


def test_a_window_with_new_difficulties_only_is_not_judged_and_the_next_ones_are() -> None:
    windows = [of_difficulties(n, TURNS, EASY) for n in range(30)] + [
        of_difficulties(n, TURNS, {"3": 64}) for n in range(30, 60)
    ]
    found = [each.readings.readings for each in after(windows)]
    assert "turns" not in found[30]
    assert "tokens" not in found[30]
    assert found[31]["turns"].value == pytest.approx(found[29]["turns"].value, abs=0.02)
    assert not turns_alarms(windows)


def test_a_policy_that_has_learnt_before_a_new_difficulty_came_is_judged_by_what_it_does_since() -> None:
    """The first attempts took twice as long, at difficulties that go; the new one was never attempted like that."""
    young = [of_difficulties(n, {name: 2 * each for name, each in TURNS.items()}, EASY) for n in range(4)]
    windows = young + [of_difficulties(n, TURNS, EASY) for n in range(4, 30)]
    windows += [of_difficulties(n, TURNS, MIXED) for n in range(30, 36)]
    windows += [of_difficulties(n, TURNS, {"3": 64}) for n in range(36, 80)]
    found = [each.readings.readings["turns"].value for each in after(windows)]
    assert found[79] == pytest.approx(found[29], abs=0.05)
    assert not turns_alarms(windows)


def test_a_policy_that_has_learnt_is_judged_by_what_it_does_since_at_new_difficulties_alone() -> None:
    """Its first attempts took twice as long, so the mean of the baseline is not what it did last."""
    windows = [of_difficulties(n, {name: 2 * each for name, each in TURNS.items()}, EASY) for n in range(8)]
    windows += [of_difficulties(n, TURNS, EASY) for n in range(8, 30)]
    windows += [of_difficulties(n, TURNS, {"3": 64}) for n in range(30, 33)]
    found = [each.readings.readings.get("turns") for each in after(windows)]
    values = [None if each is None else each.value for each in found[29:]]
    assert values == [pytest.approx(values[0]), None, pytest.approx(values[0]), pytest.approx(values[0])]


def test_prompts_of_new_difficulties_alone_continue_where_the_last_ones_were() -> None:
    key = ATTEMPTS._replace(lane=ATTEMPTS.lane.INPUT, task_source="")

    def window(n: int, difficulty: str, tokens: float) -> list[Row]:
        return [replace(row, difficulty=difficulty) for row in rows(N, n, prompt_tokens=tokens)]

    windows = [window(n, "1", 100) for n in range(10)] + [window(10, "1", 120)]
    found = after([*windows, *(window(n, "2", 900) for n in range(11, 14))], key)
    readings = [each.readings.readings.get("prompt_tokens") for each in found[10:]]
    values = [None if each is None else each.value for each in readings]
    assert values == [pytest.approx(log1p(120)), None, pytest.approx(log1p(120)), pytest.approx(log1p(120))]


def test_few_lengths_in_the_first_window_set_no_offsets() -> None:
    """They have no value that an offset could be compared with."""
    plain = rows(N, 0, turns=4)
    first = [replace(row, values=row.values if number < 10 else {}, difficulty="1") for number, row in enumerate(plain)]
    _, second = after([first, of_difficulties(1, TURNS, EASY)])
    (same,) = after([of_difficulties(1, TURNS, EASY)])
    assert second.readings.readings["turns"] == same.readings.readings["turns"]


def test_the_mix_of_difficulties_is_a_reading() -> None:
    windows = [of_difficulties(n, TURNS, EASY) for n in range(30)] + [of_difficulties(30, TURNS, MIXED)]
    mix = after(windows)[-1].readings.readings["difficulty_mix"]
    assert mix.value == pytest.approx(0.5, abs=1e-6)
    assert mix.strength == 0


@pytest.mark.parametrize(("growth", "alarms"), [(1.04, False), (1.2, True)])
def test_prompts_that_hardly_vary_may_differ_by_a_word(growth: float, alarms: bool) -> None:
    def prompts(n: int, factor: float) -> list[Row]:
        return rows(N, n, prompt_tokens=[factor * (200 + k % 3) for k in range(N)])

    windows = [prompts(n, 1.0) for n in range(40)] + [prompts(n, growth) for n in range(40, 80)]
    assert bool(episodes(windows, ATTEMPTS._replace(lane=ATTEMPTS.lane.INPUT, task_source=""))) is alarms


def acting(version: int, share: float, *, attempts: int = N) -> list[Row]:
    """A window in which ``share`` of the attempts search twice before they answer, and the others once."""
    twice = some(round(share * attempts), attempts)
    labels = {1.0: ("^>search>search", "search>search>answer"), 0.0: ("^>search>answer",)}
    return [replace(row, labels=labels[each]) for row, each in zip(rows(attempts, version), twice, strict=True)]


def test_a_sequence_of_actions_that_becomes_common_alarms() -> None:
    windows = [acting(n, 0.2) for n in range(30)] + [acting(n, 0.5) for n in range(30, 36)]
    (alert,) = episodes(windows)
    assert alert.episode is not None
    assert (alert.episode.monitor, alert.episode.since_version) == ("action_trigram", 30)


def learning(n: int) -> float:
    """Share of attempts that search twice, of a policy that learns to within its first 20 windows."""
    return 0.1 + 0.4 * min(n, 20) / 20


def trigrams_judged(windows: list[list[Row]]) -> dict[int, float]:
    """Strength by window, of the windows that are judged."""
    found = {n: each.readings.readings.get("action_trigram") for n, each in enumerate(after(windows))}
    return {n: reading.strength for n, reading in found.items() if reading is not None and reading.sd is not None}


def test_a_young_policy_that_is_still_learning_is_not_judged() -> None:
    """As in a demo of 60 steps: it does something else in the first windows, then once more."""
    windows = [acting(n, learning(n) + 0.4 * min(max(n - 30, 0), 15) / 15) for n in range(60)]
    judged = trigrams_judged(windows)
    assert min(judged) == 50
    assert max(judged.values()) < 1


def test_a_policy_that_has_learnt_is_judged_by_what_it_does_since() -> None:
    usual = [acting(n, learning(n)) for n in range(80)]
    judged = trigrams_judged(usual + [acting(n, 0.9) for n in range(80, 86)])
    assert (min(judged), max(judged[n] for n in range(50, 80)), judged[85] > 1) == (50, 0.0, True)


def accepted(windows: list[list[Row]], monitor: str, at: int) -> list[Alert]:
    """The alerts about ``windows`` of rewards since the level of ``monitor`` was accepted, before window ``at``."""
    state, alerts = KeyState(REWARDS), list[Alert]()
    for n, window in enumerate(windows):
        if n == at:
            assert monitor in state.episodes
            state, alerts = anew(state, monitor), []
        concluded = conclude(state, window, RULES)
        state, alerts = concluded.state, alerts + concluded.alerts
    return alerts


def earning(n: int, found: int, asked: int = 32, styled: int = 0) -> list[Row]:
    """A window in which ``found``, ``asked`` and ``styled`` of the attempts are paid for one thing each."""
    parts = {"found": some(found, N), "asked": some(asked, N), "style": some(styled, N)}
    values = {f"value:{name}": each for name, each in parts.items()} | {f"weight:{name}": 1 for name in parts}
    return paid(n, [sum(each) for each in zip(*parts.values(), strict=True)], **values)


def test_a_component_that_fell_with_an_accepted_reward_is_no_alarm_and_one_that_falls_later_is_one() -> None:
    windows = [earning(n, 48) for n in range(30)] + [earning(n, 16) for n in range(30, 70)]
    assert monitors_of(accepted(windows, "reward", 40)) == {"reward_ks"}
    replaced = [earning(n, 16, asked=4, styled=28) for n in range(70, 80)]
    assert "component:asked" in monitors_of(accepted([*windows, *replaced], "reward", 40))


def test_a_component_that_has_not_moved_keeps_what_is_usual_when_the_reward_is_accepted() -> None:
    """The means of `asked` vary, so the last one is often farther from the usual one than half of the slack."""
    windows = [earning(n, 48, asked=32 + (4 if n % 2 else -4)) for n in range(30)]
    windows += [earning(n, 16, asked=32 + (4 if n % 2 else -4)) for n in range(30, 41)]
    replaced = [earning(n, 16, asked=4, styled=28) for n in range(41, 46)]
    assert "component:asked" in monitors_of(accepted([*windows, *replaced], "reward", 41))


def opened(windows: list[list[Row]], monitor: str) -> list[int]:
    """The windows that open an episode of ``monitor``."""
    return [
        alert.details["window"]
        for alert in episodes(windows, REWARDS)
        if alert.episode and alert.episode.monitor == monitor and alert.episode.state is EpisodeState.OPENED
    ]


def test_what_was_learnt_for_long_and_is_lost_again_is_a_fall_from_there_and_not_from_the_baseline() -> None:
    learnt = [*(earning(n, 16) for n in range(30)), *(earning(n, 48) for n in range(30, 230))]
    assert monitors_of(episodes([*learnt, *(earning(n, 16) for n in range(230, 260))], REWARDS)) == {"reward"}


def test_an_earlier_fall_of_the_reward_does_not_explain_a_component_that_is_replaced_later() -> None:
    lost = [*(earning(n, 48) for n in range(30)), *(earning(n, 0) for n in range(30, 45))]
    replaced = [earning(n, 0, asked=0, styled=32) for n in range(45, 60)]
    assert opened([*lost, *replaced], "reward") == [31]
    assert opened([*lost, *replaced], "component:asked") == [47]


def test_nor_does_it_after_the_level_of_the_component_alone_was_accepted() -> None:
    styled = [*(earning(n, 48, 56) for n in range(30)), *(earning(n, 48, 32, styled=24) for n in range(30, 36))]
    lost = [*styled, *(earning(n, 0, 32, styled=24) for n in range(36, 75))]
    alerts = accepted([*lost, *(earning(n, 0, 0, styled=56) for n in range(75, 90))], "component:asked", 40)
    first = next(each for each in alerts if each.episode and each.episode.monitor == "component:asked")
    assert first.details["window"] == 77


def test_what_is_said_of_a_component_that_nothing_replaces_does_not_change_later() -> None:
    """Beside a part of the reward that varies more. A fall of the total by less than 0.39 of its deviation is not seen
    by the reward's own chart."""

    def window(n: int, solved: int) -> list[Row]:
        found, other = some(solved, N), [1.8 * (k % 8) / 7 for k in range(N)]
        columns = {"value:found": found, "weight:found": 1, "value:other": other, "weight:other": 1}
        return paid(n, [one + each for one, each in zip(found, other, strict=True)], **columns)

    seen = {
        solved: opened(
            [*(window(n, 52) for n in range(30)), *(window(n, solved) for n in range(30, 150))], "component:found"
        )
        for solved in range(34, 50, 2)
    }
    assert [solved for solved, at in seen.items() if at] == [34, 36, 38, 40, 42, 44, 46, 48]
    assert all(30 <= first < 40 for at in seen.values() for first in at), seen


@pytest.mark.parametrize("seed", range(5))
def test_chance_in_the_rest_of_the_reward_does_not_add_up_to_an_alarm_about_a_component(seed: int) -> None:
    random = Random(seed)

    def window(n: int, share: float, bonus: float) -> list[Row]:
        found = [float(random.random() < share) for _ in range(N)]
        other = [random.gauss(1.0 + bonus, 0.5) for _ in range(N)]
        columns = {"value:found": found, "weight:found": 1, "value:other": other, "weight:other": 1}
        return paid(n, [one + each for one, each in zip(found, other, strict=True)], **columns)

    usual = [window(n, 0.8, 0.0) for n in range(30)]
    lost = [window(n, 0.4, 0.0) for n in range(30, 230)]
    assert opened([*usual, *lost], "component:found") == []
    (alarm,) = opened([*usual, *(window(n, 0.4, 0.4) for n in range(30, 60))], "component:found")
    assert alarm < 50


@pytest.mark.parametrize("seed", range(3))
def test_tasks_of_a_window_that_are_alike_do_not_add_up_either(seed: int) -> None:
    """Eight attempts at each of eight prompts, of which some are paid better."""
    random = Random(seed)

    def window(n: int, loss: float) -> list[Row]:
        bases = [random.gauss(1.0, 0.4) for _ in range(8)]
        found = [random.gauss(1.0 - loss, 0.3) for _ in range(N)]
        other = [random.gauss(bases[k // 8], 0.4) for k in range(N)]
        columns = {"value:found": found, "weight:found": 1, "value:other": other, "weight:other": 1}
        made = paid(n, [one + each for one, each in zip(found, other, strict=True)], **columns)
        return [replace(row, group=f"g{n}-{k // 8}") for k, row in enumerate(made)]

    windows = [*(window(n, 0.0) for n in range(30)), *(window(n, 0.6) for n in range(30, 130))]
    assert opened(windows, "component:found") == []
    assert opened(windows, "reward") != []


@pytest.mark.parametrize("errors", [0, 1, 3])
def test_a_penalty_that_is_seldom_paid_is_no_alarm_and_one_that_is_often_paid_is(errors: int) -> None:
    """``errors``: attempts with one in the windows of the baseline, which have 1600."""
    usual = [penalised(n, int(n % 10 == 5 and n // 10 < errors), 32) for n in range(30)]
    seldom = [penalised(n, int(n % 9 == 0), 32) for n in range(30, 120)]
    assert opened([*usual, *seldom], "component:errors") == []
    assert opened([*usual, *seldom, *(penalised(n, 8, 32) for n in range(120, 130))], "component:errors") != []


def test_a_component_that_falls_after_the_rest_has_risen_is_an_alarm_if_the_reward_is_not_low() -> None:
    before = [earning(n, 48, styled=0) for n in range(30)]
    risen = [earning(n, 48, styled=min(60, 3 * (n - 30))) for n in range(30, 60)]
    fallen = [earning(n, 8, styled=60) for n in range(60, 80)]
    assert opened([*before, *risen, *fallen], "reward") == []
    assert opened([*before, *risen, *fallen], "component:found") == [62]


def test_components_that_fell_with_an_accepted_reward_are_compared_with_what_they_were_then() -> None:
    fell = [*(earning(n, 48, 48, 8) for n in range(30)), *(earning(n, 24, 24, 8) for n in range(30, 80))]
    swapped = [earning(n, 4, 44, 8) for n in range(80, 90)]
    alerts = accepted([*fell, *swapped], "reward", 40)
    assert {each for each in monitors_of(alerts) if each.startswith("component")} == {"component:found"}


def test_a_component_that_falls_while_an_accepted_reward_is_learnt_is_an_alarm() -> None:
    """The reward's own monitor judges nothing for 25 windows."""
    fell = [*(earning(n, 48, 48, 8) for n in range(30)), *(earning(n, 48, 16, 8) for n in range(30, 45))]
    alerts = accepted([*fell, *(earning(n, 16, 16, 8) for n in range(45, 60))], "reward", 40)
    assert {each for each in monitors_of(alerts) if each.startswith("component")} == {"component:found"}


@pytest.mark.parametrize("huge", [1e4, 1e15])
def test_one_huge_reward_explains_no_later_fall_of_a_component(huge: float) -> None:
    windows = [earning(n, 48, styled=8) for n in range(40)]
    one, *others = windows[35]
    values = one.values | {"value:style": huge, "total": one.values["total"] - one.values["value:style"] + huge}
    windows[35] = [replace(one, values=values), *others]
    replaced = [earning(n, 24, styled=32) for n in range(40, 50)]
    assert opened([*windows, *replaced], "component:found") == [42]


def test_what_was_paid_beside_a_component_is_not_learnt_while_that_has_fallen() -> None:
    """State of a release that did not remember it: a third of what the component takes is replaced."""
    usual = after([earning(n, 48, styled=8) for n in range(30)], REWARDS)[-1].state
    state, seen = replace(usual, rests={}), set[str]()
    for n in range(30, 40):
        concluded = conclude(state, earning(n, 0, styled=24), RULES)
        state, seen = concluded.state, seen | monitors_of(concluded.alerts)
    assert "component:found" in seen
    assert "found" not in state.rests


def test_an_alert_of_a_component_does_not_end_with_that_of_the_reward() -> None:
    before = [earning(n, 48, asked=48) for n in range(30)] + [
        earning(n, 48, asked=16, styled=32) for n in range(30, 36)
    ]
    alerts = accepted([*before, *(earning(n, 0, asked=16) for n in range(36, 50))], "reward", 40)
    assert [each for each in component_states(alerts) if each[0] == "component:asked"] == []


@pytest.mark.parametrize("monitor", ["reward_length", "prompt_tokens", "drop_reason", "reward_ks"])
def test_nothing_but_what_the_monitor_itself_has_learnt_is_forgotten(monitor: str) -> None:
    names = ("reward_length", "prompt_tokens", "drop_reason", "reward_ks", "component:found")
    opened = Opened("e", 3, 3, 3, ())
    state = KeyState(
        REWARDS,
        window=40,
        charts={name: Chart(count=25) for name in names},
        adaptive={name: [1.0] for name in names},
        shares={name: Shares(25, {"x": 0.5}) for name in names},
        samples={"total": [0.5]},
        episodes=dict.fromkeys(names, opened),
    )
    after, others = anew(state, monitor), {name for name in names if name != monitor}
    for kept in (after.charts, after.adaptive, after.shares, after.episodes):
        assert kept.keys() == others
    assert after.samples == ({} if monitor == "reward_ks" else state.samples)


def spread(n: int, low: float, width: float) -> list[Row]:
    return paid(n, [low + width * (k * 37 % N) / N for k in range(N)])


def test_an_accepted_distribution_of_rewards_is_what_later_ones_are_compared_with() -> None:
    """No total is in the range of the first baseline any more."""
    windows = [spread(n, 5.0, 1.0) for n in range(30)] + [spread(n, 3.0, 1.0) for n in range(30, 70)]
    assert monitors_of(accepted(windows, "reward_ks", 40)) == {"reward"}
    bimodal = [paid(n, [3.0 + k % 2 for k in range(N)]) for n in range(70, 76)]
    assert "reward_ks" in monitors_of(accepted([*windows, *bimodal], "reward_ks", 40))
    samples = [each.state.samples["total"] for each in after(windows, REWARDS)]
    assert samples[25] == samples[-1]


def test_readings_say_which_versions_and_times_a_window_has() -> None:
    unknown = [replace(row, id=f"u{row.id}", version=None) for row in rows(20, 3, turns=3)]
    one = conclude(KeyState(ATTEMPTS, 9_500), [*rows(20, 9, turns=3), *unknown, *rows(20, 7, turns=3)], WatchRules({}))
    found = one.readings
    assert (found.window, found.trajectories, found.first_version, found.last_version) == (0, 60, 7, 9)
    assert (found.since_ms, found.until_ms) == (3_000, 9_019)
    assert (one.state.window, one.state.history) == (1, [Began(0, 7, 3_000)])
    assert one.state.touched_ms == 9_500
    two = conclude(one.state, [replace(row, time_ms=9_600) for row in unknown], WatchRules({}))
    assert (two.readings.window, two.readings.first_version, two.readings.last_version) == (1, None, None)
    assert (two.state.history, two.state.touched_ms) == ([Began(0, 7, 3_000), Began(1, None, 9_600)], 9_600)


def test_a_reading_compares_its_value_with_the_baseline_and_with_the_window_before() -> None:
    windows = [talking(n, 0.25 if n % 2 else 0.5) for n in range(BASELINE_WINDOWS)]
    windows += [talking(25, 0.5), talking(26, 0.25)]
    *_, learning, before, last = (each.readings.readings["talks"] for each in after(windows))
    assert (learning.value, learning.pinned, learning.sd, learning.effect, learning.change) == (0.5, *[None] * 4)
    baseline = [0.25 if n % 2 else 0.5 for n in range(BASELINE_WINDOWS)]
    assert (last.pinned, last.sd) == (pytest.approx(mean(baseline)), pytest.approx(deviation(baseline)))
    assert last.effect == pytest.approx((0.25 - mean(baseline)) / deviation(baseline))
    assert last.change == pytest.approx(-0.25 / deviation(baseline))
    assert last.expected == pytest.approx(mean(baseline) + 0.01 * (0.5 - mean(baseline)))
    assert (before.change, last.trajectories) == (0.0, N)


def test_a_reading_of_an_input_compares_its_value_with_the_window_of_values() -> None:
    key = ATTEMPTS._replace(lane=ATTEMPTS.lane.FEEDBACK, agent="", task_source="", run="", spec="thumbs")
    values = [0.2, 0.4, 0.9]
    first, _, third = (
        each.readings.readings["feedback_value"]
        for each in after([rows(N, n, value=[value] * N) for n, value in enumerate(values)], key)
    )
    assert (first.value, first.expected, first.sd, first.change) == (pytest.approx(0.2), None, None, None)
    assert third.expected == pytest.approx(0.3)
    assert third.sd == pytest.approx(deviation(values))
    assert third.change == pytest.approx(0.5 / deviation(values))


def test_usual_shares_stay_where_a_change_is_suspected() -> None:
    found = after([acting(n, 0.25) for n in range(30)] + [acting(n, 0.34375) for n in range(30, 36)])
    strengths = [each.readings.readings["action_trigram"].strength for each in found[30:]]
    usual = [each.state.shares["action_trigram"].share["^>search>search"] for each in found[29:]]
    moved = [one != other for one, other in pairwise(usual)]
    assert moved == [strength <= 0.25 for strength in strengths]
    assert moved[:2] == [True, False]


def test_the_sample_of_the_baseline_is_thinned_evenly() -> None:
    def totals(count: int) -> list[float]:
        states = after(
            [paid(n, [n + k / 1000 for k in reversed(range(count))]) for n in range(BASELINE_WINDOWS + 3)], REWARDS
        )
        return states[-1].state.samples["total"]

    assert totals(20) == [n + k / 1000 for n in range(BASELINE_WINDOWS) for k in range(20)]
    assert totals(21) == [n + k / 1000 for n in range(BASELINE_WINDOWS) for k in range(1, 21, 2)]
    assert totals(64) == [n + k / 1000 for n in range(BASELINE_WINDOWS) for k in range(2, 64, 4)]


def test_the_examples_of_a_weight_are_of_the_newest_version() -> None:
    rules = WatchRules({"x@1": {"shape": linear(1.0, 0.0, until=10)}})
    first, stuck = weighted(0, 0.3), [*weighted(9, 0.3)[:40], *[replace(row, version=None) for row in weighted(8, 0.3)]]
    (alert,) = episodes([first, [*stuck, *weighted(10, 0.3)[:3]]], REWARDS, rules)
    assert alert.episode is not None
    assert alert.episode.examples == ["v10-0", "v10-1", "v10-2", "v9-0", "v9-1"]


def test_few_weights_are_not_judged() -> None:
    rules = WatchRules({"x@1": {"shape": linear(1.0, 0.0, until=10)}})

    def alarms(count: int) -> list[Alert]:
        late = [*weighted(9, 0.3)[:count], *paid(9, [0.5] * N)[count:]]
        return episodes([weighted(0, 0.3), late], REWARDS, rules)

    assert (len(alarms(3)), len(alarms(4))) == (0, 1)


def test_tripwires_are_not_judged_where_no_task_source_is_known() -> None:
    window = rows(N, 1, tripped=1.0, value=0.5)
    for lane in (ATTEMPTS.lane.FATE, ATTEMPTS.lane.INPUT, ATTEMPTS.lane.FEEDBACK):
        assert "tripwire" not in after([window], ATTEMPTS._replace(lane=lane))[0].readings.readings
    assert after([window], REWARDS)[0].readings.readings["tripwire"].value == 1.0


def test_failures_at_tasks_that_cannot_be_solved_are_evidence_of_honesty() -> None:
    (concluded,) = after([rows(10, 1, tripped=[1.0, *[0.0] * 9])])
    assert concluded.state.tripwire == pytest.approx(tripwire.evidence(0.0, 1, 9))


def test_a_window_without_rewards_adds_nothing_to_the_sample_of_the_baseline() -> None:
    (concluded,) = after([rows(N, 1, tokens=3)], REWARDS)
    assert concluded.state.samples["total"] == []


def test_values_that_are_not_finite_are_left_out() -> None:
    window = rows(N, 1, talks=[float("inf"), *[0.0] * (N - 1)], tokens=[float("inf"), *[1.0] * (N - 1)])
    readings = after([window])[0].readings.readings
    assert "tokens" not in readings
    assert readings["talks"].value == pytest.approx(1 / N)
    inputs = ATTEMPTS._replace(lane=ATTEMPTS.lane.INPUT, task_source="")
    endless = [replace(row, values={"prompt_tokens": float("inf")}) for row in window]
    assert "prompt_tokens" not in after([endless], inputs)[0].readings.readings
