"""A run that is compared with another one: what it takes over, what it sees at once, and what it does not invent."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import log1p
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from headrace.deploy.watching.plant import RULES as PLANT_RULES
from headrace.deploy.watching.plant import Plan, planted_steps
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.watch import Lane, Observation, Readings
from headrace.streams.processors.watch import restore_watch
from headrace.streams.rules import Rules
from headrace.streams.runtime.processor import Start
from headrace.streams.watch.baselines import BASELINE_WINDOWS, begun, has_samples
from headrace.streams.watch.judgement import WatchRules
from headrace.streams.watch.key_state import KeyState
from headrace.streams.watch.planted.drifts import PLANTED
from headrace.streams.watch.settings import WatchSettings
from headrace.streams.watch.watch import Watch, WatchChanges, watch
from headrace.streams.watch.window import LEAST
from headrace.streams.workers_config import WorkersConfig
from tests.streams.watch.builders import REWARDS, observed, some

PINNED = WatchRules({}, baselines={"b": "a"})


def attempts(run: str, windows: int, talks: int, *, difficulty: str = "", first: int = 0) -> Iterator[Observation]:
    """Windows of attempts of ``run``, of which ``talks`` in each talk, give or take one; all have 4 or 5 turns."""
    for version in range(first, first + windows):
        talking = talks + version % 3 - 1 if talks else 0
        for number in range(LEAST):
            values = {"talks": float(number < talking), "turns": 4.0 + (number + version) % 2}
            made = observed(f"{run}-{version}-{number}", version=version, **values)
            yield made.model_copy(update={"run": run, "difficulty": difficulty})


def windows(
    run: str,
    count: int,
    *,
    of: Lane = Lane.ATTEMPT,
    first: int = 0,
    labels: Sequence[str] = (),
    place: Mapping[str, str] = MappingProxyType({}),
    **columns: float | Sequence[float],
) -> Iterator[Observation]:
    """Windows of ``run`` that are all alike. A column is a value for all, or a sequence with one for each; ``place`` is
    another agent, task source, spec or difficulty."""
    for version in range(first, first + count):
        for number in range(LEAST):
            values = {name: each if isinstance(each, float) else each[number] for name, each in columns.items()}
            made = observed(f"{run}-{'-'.join(place.values())}-{version}-{number}", of=of, version=version, **values)
            yield made.model_copy(update={"run": run, "labels": list(labels), **place})


def readings_of(run: str, lane: Lane, known: Iterable[Observation]) -> list[Readings]:
    said, _ = watch(known, PINNED)
    return [each for each in said if (each.run, each.lane) == (run, lane)]


def of_run(run: str, said: Iterable[Any]) -> list[Any]:
    return [each for each in said if each.run == run and getattr(each, "lane", Lane.ATTEMPT) is Lane.ATTEMPT]


def second_run(
    rules: WatchRules, talks: int, *, learnt: int = BASELINE_WINDOWS + 5, difficulty: str = ""
) -> tuple[list[Readings], list[Alert]]:
    """What is said of a run ``b`` of five windows, after a run ``a`` of ``learnt`` windows in which 2 of 32 talk."""
    known = [*attempts("a", learnt, 2, difficulty=difficulty), *attempts("b", 6, talks, difficulty=difficulty)]
    readings, alerts = watch(known, rules)
    return of_run("b", readings), of_run("b", alerts)


def test_a_run_that_is_pinned_to_another_one_is_judged_from_its_first_window_on() -> None:
    readings, alerts = second_run(PINNED, talks=16)
    first = readings[0].readings["talks"]
    assert first.pinned == pytest.approx(2 / LEAST, abs=0.01)
    assert first.effect is not None
    assert first.effect > 10
    assert [(each.kind, each.details["window"]) for each in alerts] == [("monitor_talks", 0)]
    assert alerts[0].episode is not None
    assert alerts[0].episode.since_version == 0


def test_a_run_that_does_as_the_other_one_did_raises_nothing() -> None:
    readings, alerts = second_run(PINNED, talks=2)
    assert (len(readings), alerts) == (5, [])
    assert {each.readings["talks"].strength for each in readings} == {0.0}


def test_the_other_runs_later_change_is_not_taken_for_its_baseline() -> None:
    """It is pinned to what the other run did first, not to what it had learnt by its end."""
    known = [*attempts("a", 30, 2), *attempts("a", 60, 16, first=30), *attempts("b", 6, 2)]
    readings, alerts = watch(known, PINNED)
    assert of_run("b", alerts) == []
    pinned = [each.readings["talks"].pinned for each in (of_run("a", readings)[-1], *of_run("b", readings))]
    assert pinned[0] is not None
    assert set(pinned) == {pinned[0]}


@pytest.mark.parametrize(
    ("rules", "learnt"),
    [
        (WatchRules({}), BASELINE_WINDOWS + 5),
        (WatchRules({}, baselines={"b": "nobody"}), BASELINE_WINDOWS + 5),
        (WatchRules({}, baselines={"c": "a"}), BASELINE_WINDOWS + 5),
        (PINNED, BASELINE_WINDOWS),  # its last window is still open
    ],
    ids=["unset", "unknown", "another", "still learning"],
)
def test_without_a_baseline_of_another_run_a_run_learns_its_own(rules: WatchRules, learnt: int) -> None:
    readings, alerts = second_run(rules, talks=16, learnt=learnt)
    assert {each.readings["talks"].pinned for each in readings} == {None}
    assert alerts == []


def test_a_run_can_be_compared_with_another_one_as_soon_as_that_has_its_baseline() -> None:
    readings, _ = second_run(PINNED, talks=2, learnt=BASELINE_WINDOWS + 1)  # its last window is still open
    assert readings[0].readings["talks"].pinned is not None


def test_what_a_run_that_is_still_learning_has_learnt_already_is_not_taken_for_a_baseline() -> None:
    """Six windows are enough for evaluations, and ten of the other run are complete."""
    evaluated = [float(number % 2) for number in range(LEAST)]
    known = [
        each
        for run, count, total in (("a", 11, 0.75), ("b", 8, 0.25))
        for each in windows(run, count, of=Lane.REWARD, total=total, evaluates=evaluated)
    ]
    assert readings_of("a", Lane.REWARD, known)[-1].readings["heldout"].pinned == 0.75
    assert [each.readings["heldout"].pinned for each in readings_of("b", Lane.REWARD, known)] == [*[None] * 6, 0.25]


def test_all_runs_but_the_one_itself_may_be_pinned_to_one() -> None:
    rules = WatchRules({}, baselines={"*": "a", "c": "b"})
    assert [rules.baseline_for(run) for run in ("a", "b", "c", "")] == [None, "a", "b", None]
    assert [each.kind for each in second_run(rules, talks=16)[1]] == ["monitor_talks"]


def test_lengths_are_compared_at_equal_difficulty_with_those_of_the_other_run() -> None:
    readings, _ = second_run(PINNED, 2, difficulty="3")
    assert readings[0].readings["turns"].pinned is not None
    assert readings[0].readings["turns"].effect == pytest.approx(0.0, abs=0.5)


def test_lengths_are_judged_although_the_other_run_had_none_of_the_difficulties() -> None:
    known = [*attempts("a", 30, 2, difficulty="2"), *attempts("b", 40, 2, difficulty="3")]
    for number, each in enumerate(known):
        if each.run == "b" and each.version is not None and each.version >= 30:
            known[number] = each.model_copy(update={"values": {**each.values, "turns": 60.0}})
    readings, alerts = watch(known, PINNED)
    assert sum("turns" in each.readings for each in of_run("b", readings)) == 38
    assert "monitor_turns" in [each.kind for each in of_run("b", alerts)]


def test_what_follows_a_run_is_learnt_anew() -> None:
    readings, _ = second_run(PINNED, 2)
    assert "action_trigram" not in readings[0].readings


def test_a_second_run_is_compared_with_what_the_other_one_did_first_although_that_has_moved_on() -> None:
    known = [*attempts("a", 30, 2), *attempts("a", 60, 3, first=30), *attempts("b", 2, 2)]
    readings, _ = watch(known, PINNED)
    moved, second = (of_run(run, readings)[-1].readings["talks"] for run in "ab")
    assert moved.pinned is not None
    assert moved.expected is not None
    assert moved.expected > moved.pinned
    assert second.expected == second.pinned == moved.pinned


def test_the_first_window_of_a_second_run_has_no_window_before_it() -> None:
    readings, _ = second_run(PINNED, talks=2)
    assert readings[0].readings["talks"].change is None
    assert readings[1].readings["talks"].change is not None


@pytest.mark.parametrize("later", [0.0, 1.0])
def test_a_change_of_the_other_run_is_no_evidence_against_the_second_one(later: float) -> None:
    """The first run ends while its feedback depends on lengths in another way than before, in either direction."""
    tokens, half = [float(number % 2) for number in range(LEAST)], [float(number // 2 % 2) for number in range(LEAST)]
    usual = {"tokens": tokens, "feedback": half}
    changed = {"tokens": tokens, "feedback": [abs(later - each) for each in tokens]}
    known = [
        *windows("a", 30, of=Lane.REWARD, **usual),
        *windows("a", 5, of=Lane.REWARD, first=30, **changed),
        *windows("b", 3, of=Lane.REWARD, **usual),
    ]
    readings, alerts = watch(known, PINNED)
    assert readings[33].readings["response_bias"].strength > 1
    assert {each.readings["response_bias"].strength for each in readings if each.run == "b"} == {0.0}
    assert {each.run for each in alerts} == {"a"}


def test_an_alert_of_a_second_run_says_since_when_it_is_so_in_that_run() -> None:
    _, alerts = second_run(PINNED, talks=7)
    assert [(each.kind, each.details["window"]) for each in alerts] == [("monitor_talks", 2)]
    assert alerts[0].episode is not None
    assert alerts[0].episode.since_version == 0


def test_rewards_are_compared_one_by_one_with_those_of_the_other_run() -> None:
    totals = [number / LEAST for number in range(LEAST)]
    known = [
        *windows("a", 30, of=Lane.REWARD, total=totals),
        *windows("b", 3, of=Lane.REWARD, total=[0.5, *totals[1:-1], 0.5]),
    ]
    first, *_ = readings_of("b", Lane.REWARD, known)
    last = readings_of("a", Lane.REWARD, known)[-1].readings["reward_ks"]
    assert first.readings["reward_ks"].pinned == last.pinned is not None
    assert first.readings["reward_ks"].value > last.value


@pytest.mark.parametrize(("window", "taken"), [(54, False), (55, True)])
def test_a_sample_that_the_other_run_has_begun_anew_is_taken_over_once_it_is_complete(window: int, taken: bool) -> None:
    sample = {"total": [0.5] * 500}
    other = KeyState(REWARDS, window=window, samples=sample, sampled_from=30)
    state = begun(REWARDS._replace(run="b"), 0, other)
    assert state.samples == (sample if taken else {})
    assert has_samples(state) is taken
    assert has_samples(replace(state, window=BASELINE_WINDOWS))


def test_the_mix_of_actions_is_learnt_anew_however_long_that_takes() -> None:
    known = [*windows("a", 60, turns=4.0, labels=["x"]), *windows("b", 32, turns=4.0, labels=["y"])]
    readings = [each.readings.get("action_trigram") for each in readings_of("b", Lane.ATTEMPT, known)]
    assert [number for number, each in enumerate(readings) if each and each.pinned is not None] == [30]


def test_a_component_that_the_other_run_has_not_learnt_is_learnt_anew() -> None:
    """It has come late there, so its mean is of a few windows."""
    components = {"total": 1.0, "value:late": 0.5, "weight:late": 1.0}
    known = [
        *windows("a", 20, of=Lane.REWARD, total=1.0),
        *windows("a", 12, of=Lane.REWARD, first=20, **components),
        *windows("b", BASELINE_WINDOWS + 2, of=Lane.REWARD, **{**components, "value:late": 0.25}),
    ]
    readings = readings_of("b", Lane.REWARD, known)
    assert readings[0].readings["reward"].pinned == 1.0
    assert [each.readings["component:late"].pinned for each in readings] == [*[None] * BASELINE_WINDOWS, 0.25]


def earned(run: str, count: int, first: int, found: int, styled: int) -> list[Observation]:
    """Windows of rewards of ``run``: so many of 32 attempts are paid 1 for what they found, and for their style."""
    one, other = some(found, LEAST), some(styled, LEAST)
    total = [sum(each) for each in zip(one, other, strict=True)]
    parts = {"value:found": one, "weight:found": 1.0, "value:style": other, "weight:style": 1.0}
    return list(windows(run, count, of=Lane.REWARD, first=first, total=total, **parts))


def test_what_replaces_a_component_is_compared_with_what_the_other_run_was_paid_in_its_first_windows() -> None:
    """It has learnt since, and was paid more than the second run is."""
    first = [*earned("a", 30, 0, 20, 4), *(each for n in range(60) for each in earned("a", 1, 30 + n, 20, 4 + n // 3))]
    for found, styled in ((8, 16), (2, 12)):  # as much as before; two fifths of it
        alarmed = {each.kind for each in of_run("b", watch([*first, *earned("b", 20, 0, found, styled)], PINNED)[1])}
        assert "monitor_component:found" in alarmed
        assert ("monitor_reward" in alarmed) is (found == 2)


def test_a_baseline_may_be_handed_on_from_run_to_run() -> None:
    rules = WatchRules({}, baselines={"b": "a", "c": "b"})
    known = [*attempts("a", 30, 2), *attempts("b", 3, 16), *attempts("c", 3, 16)]
    readings, alerts = watch(known, rules)
    assert of_run("c", readings)[0].readings["talks"].pinned == of_run("a", readings)[-1].readings["talks"].pinned
    assert [each.details["window"] for each in of_run("c", alerts)] == [0]


@pytest.mark.parametrize("named", ["agent", "task_source", "spec"])
def test_a_second_run_is_compared_with_the_same_agent_task_source_and_reward_of_the_other_one(named: str) -> None:
    known = [
        each
        for run, count in (("a", 30), ("b", 2))
        for name, total in (("one", 0.25), ("other", 0.75))
        for each in windows(run, count, of=Lane.REWARD, place={named: name}, total=total)
    ]
    readings = readings_of("b", Lane.REWARD, known)
    assert {getattr(each, named): each.readings["reward"].pinned for each in readings} == {"one": 0.25, "other": 0.75}
    new = [*known[: 30 * LEAST], *windows("b", 2, of=Lane.REWARD, place={named: "new"}, total=0.25)]
    assert [each.readings["reward"].pinned for each in readings_of("b", Lane.REWARD, new)] == [None]


def test_prompts_of_other_difficulties_than_those_of_the_other_run_are_learnt_anew() -> None:
    known = [
        *windows("a", 30, place={"difficulty": "2"}, prompt_tokens=100.0),
        *windows("b", 6, place={"difficulty": "3"}, prompt_tokens=900.0),
    ]
    readings = [each.readings["prompt_tokens"] for each in readings_of("b", Lane.INPUT, known)]
    assert [each.value for each in readings] == [pytest.approx(log1p(900.0))] * 2


def test_lengths_that_the_other_run_has_not_learnt_are_learnt_anew_at_any_difficulty() -> None:
    """In one of the other run's windows nothing was known of its difficulty, so its baseline lacks one."""
    known = [
        *windows("a", BASELINE_WINDOWS - 1, place={"difficulty": "1"}, turns=4.0),
        *windows("a", 2, first=BASELINE_WINDOWS - 1, place={"difficulty": "2"}, turns=8.0),
        *windows("b", 3, place={"difficulty": "3"}, turns=6.0),
    ]
    assert "turns" not in readings_of("a", Lane.ATTEMPT, known)[BASELINE_WINDOWS - 1].readings
    readings = readings_of("b", Lane.ATTEMPT, known)
    assert [each.readings["turns"].value for each in readings] == [pytest.approx(log1p(6.0))] * 2


def test_a_restart_between_changes_nothing() -> None:
    known = [*attempts("a", 30, 2), *attempts("b", 6, 16)]
    whole = watch(known, PINNED)
    for cut in (30 * LEAST + 1, 32 * LEAST):
        first, changes = Watch(PINNED), WatchChanges()
        for number in range(cut):
            first.add(known[number], number, changes)
        second = Watch(PINNED, first.entries())
        for number in range(cut, len(known)):
            second.add(known[number], number, changes)
        assert ([each for each, _ in changes.readings], [each for each, _ in changes.alerts]) == whole


def test_an_honest_second_run_raises_no_alarm_and_a_hacked_one_does_sooner() -> None:
    """Simulated runs with all their monitors; the second one has another seed."""
    rules = replace(PLANT_RULES, baselines={"second": "first"})

    def alarmed(hack: str | None, honest: int, steps: int, rules: WatchRules) -> list[Alert]:
        fold, changes = Watch(rules), WatchChanges()
        plans = (
            ("first", Plan(None, honest=30, steps=0)),
            ("second", Plan(hack and PLANTED[hack], honest, 20, steps, 7)),
        )
        for run, plan in plans:
            for step in planted_steps(plan, 0):
                for each in step.observations:
                    renamed = each.model_copy(
                        update={"run": each.run and run, "trajectory_id": f"{run}-{each.trajectory_id}"}
                    )
                    fold.add(renamed, step.time_ms, changes)
        return [alert for alert, _ in changes.alerts if alert.run == "second"]

    assert alarmed(None, 40, 0, rules) == []
    assert {each.kind for each in alarmed("search-once", 2, 12, rules)} >= {"monitor_few_calls"}
    assert alarmed("search-once", 2, 12, PLANT_RULES) == [], "it would still learn its own"


@pytest.mark.parametrize("wrong", [{"a": "a"}, {"a": ""}, {"": "a"}, {"a": "*"}])
def test_a_run_is_compared_with_another_one(wrong: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"watch_baselines is .*: name another run"):
        WorkersConfig("b:9092", tmp_path, watch_baselines=wrong)


def test_the_setting_reaches_the_processor(tmp_path: Path) -> None:
    config = WorkersConfig("b:9092", tmp_path, watch_baselines={"b": "a"})
    assert config.watch == WatchSettings(baselines={"b": "a"})
    operator, _ = restore_watch(Rules(watch=config.watch), Start())
    assert operator._fold._rules.baselines == {"b": "a"}
