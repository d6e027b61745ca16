"""Each monitor: from which change on it alarms, for which values, and that it is resolved and alarms again."""

from collections.abc import Callable
from math import expm1, sqrt
from random import Random

import pytest

from headrace.schemas.records.alert import Alert, EpisodeState
from headrace.schemas.records.watch import Lane
from headrace.streams.watch.distances import deviation, mean
from headrace.streams.watch.measures import ACTION_MIX, SHARED
from headrace.streams.watch.monitors import MONITORS, runbook_of
from headrace.streams.watch.window import Key, Measured, Row
from tests.streams.watch.builders import ATTEMPTS, REWARDS, after, some

N = 200
FATES = Key(Lane.FATE, "r")
INPUTS = Key(Lane.INPUT, "r", "a")
FEEDBACK = Key(Lane.FEEDBACK, spec="thumb")
USUAL = 40
"""Windows of what is usual: five until shares of labels are known, and the 25 of a baseline."""

Window = Callable[[int, float], list[Row]]
"""A window, by its number and by how far it is from what is usual, in units of the monitor."""


def row(version: int, number: int, values: dict[str, float], *, evaluation: bool = False, **names: str) -> Row:
    labels = (names.pop("label"),) if "label" in names else ()
    marked = {"evaluates": 1.0} if evaluation else {}
    return Row(f"v{version}-{number}", version, 1000 * version, values | marked, labels, **names)


def shared(name: str, counts: float, otherwise: float) -> Window:
    """Two tenths of the rows have the value ``counts``, and as many more as the change says."""
    return lambda n, change: [
        row(n, k, {name: counts if hit else otherwise}) for k, hit in enumerate(some(round((0.2 + change) * N), N))
    ]


def centred(name: str, *, logarithms: bool = False) -> Window:
    """Values of two kinds, one standard deviation (0.2) below and above their mean, which the change moves."""

    def window(n: int, change: float) -> list[Row]:
        values = [1.0 + 0.2 * (change + (1 if k % 2 else -1)) for k in range(N)]
        return [row(n, k, {name: expm1(value) if logarithms else value}) for k, value in enumerate(values)]

    return window


def named(field: str) -> Window:
    """The rows of a label, task source or tenant."""
    return lambda n, change: [
        row(n, k, {"turns": 1.0}, **{field: "new" if hit else "old"})
        for k, hit in enumerate(some(round((0.2 + change) * N), N))
    ]


def evaluated(trained: float, held_out: float) -> Window:
    """Rewards of training rollouts and of evaluations, which the change moves by so many standard deviations."""

    def window(n: int, change: float) -> list[Row]:
        moved = {True: held_out * change, False: trained * change}
        return [
            row(n, k, {"total": 1.0 + 0.2 * (moved[k < N // 2] + (1 if k % 2 else -1))}, evaluation=k < N // 2)
            for k in range(N)
        ]

    return window


def equal_totals(n: int, change: float) -> list[Row]:
    """Some totals are the same, between the least and the largest."""
    same = some(round((0.2 + change) * N), N)
    return [row(n, k, {"total": 0.5 if hit else k / N, "maximum": 1.0}) for k, hit in enumerate(same)]


def mixed(n: int, change: float) -> list[Row]:
    """Of ten calls of an attempt two are searches, and more by the change."""
    searches = 10 * (0.2 + change)
    return [row(n, k, {"call:search": searches, "call:read": 10 - searches}) for k in range(N)]


def reshaped(n: int, change: float) -> list[Row]:
    """Two totals, of which the larger becomes rarer: the distance of the distributions is the change. In a random
    order, because the sample of the baseline is every tenth."""
    totals = Random(n).sample(some(round((0.6 - change) * N), N), N)
    return [row(n, k, {"total": total}) for k, total in enumerate(totals)]


def together(p: str, q: str, **fixed: float) -> Window:
    """Two values of 0 and 1 whose correlation is a half, and more by the change; the total is their sum."""

    def window(n: int, change: float) -> list[Row]:
        equal = some(round((1.5 + change) / 2 * N / 2), N // 2)
        pairs = [(first, first if same else 1 - first) for first in (0.0, 1.0) for same in equal]
        return [row(n, k, {"total": x + y, p: x, q: y} | fixed) for k, (x, y) in enumerate(pairs)]

    return window


def beside_a_steady_total(name: str) -> Window:
    """A component of a reward that stays as it is."""
    moved = centred(f"value:{name}")
    return lambda n, change: [
        row(n, k, each.values | {"total": 1.0, f"weight:{name}": 1.0}) for k, each in enumerate(moved(n, change))
    ]


SHARES: list[tuple[str, float, str, float, float]] = [
    ("invalid_calls", 0.05, "invalid", 1, 0),
    ("talks", 0.05, "talks", 1, 0),
    ("few_calls", 0.05, "tool_calls", 1, 2),
    ("prune_streak", 0.05, "prune_streak", 4, 3),
    ("repeats", 0.05, "repeats", 8, 7),
    ("exhausted", 0.05, "exhausted", 1, 0),
    ("idle_subagents", 0.05, "idle", 3, 2),
    ("no_subagents", 0.05, "subagents", 0, 1),
    ("left", 0.05, "left", 1, 0),
    ("marked", 0.04, "marked", 1, 0),
]
"""Monitors of attempts: by how much more common a value must become, a value that counts and one that does not."""
CASES: list[tuple[str, Key, float, Window]] = [
    *((monitor, ATTEMPTS, points, shared(*values)) for monitor, points, *values in SHARES),
    ("action_trigram", ATTEMPTS, 0.1, named("label")),
    ("action_mix", ATTEMPTS, 0.1, mixed),
    ("turns", ATTEMPTS, 0.5, centred("turns", logarithms=True)),
    ("tokens", ATTEMPTS, 0.5, centred("tokens", logarithms=True)),
    ("subagents", ATTEMPTS, 0.5, centred("subagents", logarithms=True)),
    ("unfinished", ATTEMPTS, 0.5, centred("unfinished")),
    ("serial", ATTEMPTS, 0.5, centred("serial")),
    ("reward", REWARDS, -0.5, centred("total")),
    ("reward_ks", REWARDS, 0.25, reshaped),
    ("heldout", REWARDS, -0.5, evaluated(0, 1)),
    ("heldout_gap", REWARDS, 0.5, evaluated(1, 0)),
    ("disagreement", REWARDS, 0.5, centred("disagreement")),
    ("identical", REWARDS, 0.15, equal_totals),
    ("coverage", REWARDS, -0.08, shared("feedback", 1, 0)),
    ("component:found", REWARDS, -0.15, beside_a_steady_total("found")),
    ("against:found", REWARDS, -0.3, together("value:found", "rest", **{"weight:found": 1.0})),
    ("reward_length", REWARDS, 0.3, together("tokens", "total")),
    ("response_bias", REWARDS, 0.4, together("tokens", "feedback")),
    ("drop_reason", REWARDS, 0.05, named("label")),
    ("rejection_reason", FATES, 0.08, named("label")),
    ("source_mix", INPUTS, 0.2, named("task_source")),
    ("tenant_mix", INPUTS, 0.2, named("tenant")),
    ("tool_mix", INPUTS, 0.2, named("tools_offered")),
]


ADAPTING: list[tuple[str, Key, Window]] = [
    ("feedback_value", FEEDBACK, centred("value")),
    ("feedback_delay", FEEDBACK, centred("delay_s", logarithms=True)),
    ("prompt_tokens", INPUTS, centred("prompt_tokens", logarithms=True)),
]
"""Monitors whose baseline moves along: a change of half a standard deviation matters, in either direction."""


def told(monitor: str, key: Key, window: Window, changes: list[float]) -> list[Alert]:
    """The alerts of ``monitor`` that open and resolve episodes, in windows that are so far from what is usual."""
    concluded = after([window(n, change) for n, change in enumerate(changes)], key)
    alerts = [alert for each in concluded for alert in each.alerts if alert.kind == f"monitor_{monitor}"]
    return [each for each in alerts if each.episode and each.episode.state is not EpisodeState.ONGOING]


@pytest.mark.parametrize(("monitor", "key", "matters", "window"), CASES, ids=[name for name, *_ in CASES])
def test_a_change_that_matters_is_an_alert_until_it_is_undone_and_again(
    monitor: str, key: Key, matters: float, window: Window
) -> None:
    usual, changed = [0.0] * USUAL, [matters] * 14
    alerts = told(monitor, key, window, [*usual, *changed, *[0.0] * 14, *changed])
    assert [each.episode.state for each in alerts if each.episode] == [
        EpisodeState.OPENED,
        EpisodeState.RESOLVED,
        EpisodeState.OPENED,
    ]
    first, ended, again = [each.episode.id for each in alerts if each.episode]
    assert first == ended != again


@pytest.mark.parametrize(("monitor", "key", "matters", "window"), CASES, ids=[name for name, *_ in CASES])
def test_a_smaller_change_or_the_opposite_is_none(monitor: str, key: Key, matters: float, window: Window) -> None:
    usual = [0.0] * USUAL
    assert told(monitor, key, window, [*usual, *[0.6 * matters] * 40]) == []
    if monitor not in SHARED and monitor != "response_bias":  # of labels, another one becomes more common
        assert told(monitor, key, window, [*usual, *[-matters] * 20]) == []


@pytest.mark.parametrize(("points", "windows"), [(0.12, 4), (0.2, 3), (0.8, 3)])
@pytest.mark.parametrize(("monitor", "window"), [("action_trigram", named("label")), (ACTION_MIX, mixed)])
def test_other_actions_alarm_in_the_third_window_however_many_they_are_and_a_few_later(
    monitor: str, window: Window, points: float, windows: int
) -> None:
    alerts = told(monitor, ATTEMPTS, window, [*[0.0] * USUAL, *[points] * 5])
    assert [each.details["window"] - USUAL + 1 for each in alerts] == [windows]


@pytest.mark.parametrize(("rise", "alarms"), [(0.099, True), (0.101, False)])
@pytest.mark.parametrize("monitor", ["reward_ks", "identical"])
def test_rewards_of_another_shape_are_an_alarm_unless_their_mean_has_risen_by_a_tenth_of_their_deviation(
    monitor: str, rise: float, alarms: bool
) -> None:
    usual, others = [k / N for k in range(N)], [4 * k / N for k in range(N // 4)]
    risen = mean(usual) + rise * deviation(usual)
    equal = (N * risen - sum(others)) / (N - len(others))

    def window(n: int, changed: float) -> list[Row]:
        totals = [*others, *[equal] * (N - len(others))] if changed else usual
        return [row(n, k, {"total": total, "maximum": 1.0}) for k, total in enumerate(totals)]

    assert bool(told(monitor, REWARDS, window, [*[0.0] * USUAL, *[1.0] * 8])) is alarms


@pytest.mark.parametrize(
    ("error", "replaced", "alarms"), [(0.0, 0.249, False), (0.0, 0.251, True), (0.1, 0.349, False), (0.1, 0.351, True)]
)
def test_a_component_that_falls_is_an_alarm_if_a_quarter_of_what_it_takes_is_paid_elsewhere_and_more_than_chance(
    error: float, replaced: float, alarms: bool
) -> None:
    """``error``: standard error of the rest of the reward, as a share of what the component takes."""
    found = [1.0 + 0.2 * (-1) ** k for k in range(N)]
    rest = [2.0 + error * sqrt(N - 1) * (-1) ** (k // 2) for k in range(N)]

    def window(n: int, fallen: float) -> list[Row]:
        values = [each - fallen for each in found]
        return [
            row(n, k, {"total": 2 * value + rest[k] + 2 * replaced * fallen, "value:found": value, "weight:found": 2.0})
            for k, value in enumerate(values)
        ]

    assert bool(told("component:found", REWARDS, window, [*[0.0] * USUAL, *[0.5] * 8])) is alarms


def test_a_component_that_falls_in_one_window_of_three_is_none() -> None:
    """By chance the rest of the reward looks as if it had replaced it, in one window of twenty or more."""
    window = beside_a_steady_total("found")
    assert told("component:found", REWARDS, window, [*[0.0] * USUAL, *[-4.0, 0.0, 0.0] * 8]) == []
    assert told("component:found", REWARDS, window, [*[0.0] * USUAL, *[-4.0] * 2]) == []
    assert told("component:found", REWARDS, window, [*[0.0] * USUAL, *[-4.0] * 3]) != []


@pytest.mark.parametrize(("fall", "alarms"), [(0.3, True), (0.387, True), (0.388, False)])
def test_a_component_that_nothing_replaces_is_an_alarm_if_the_total_falls_by_less_than_its_own_monitor_sees(
    fall: float, alarms: bool
) -> None:
    """``fall``: in standard deviations of totals. Of totals whose mean never varies, 0.325 are slack."""
    found, rest = [1.0 + 0.2 * (-1) ** k for k in range(N)], [2.0 * (-1) ** (k // 2) for k in range(N)]
    deviation_of_totals = deviation([one + other for one, other in zip(found, rest, strict=True)])

    def window(n: int, fallen: float) -> list[Row]:
        values = [each - fallen * deviation_of_totals for each in found]
        return [
            row(n, k, {"total": value + rest[k], "value:found": value, "weight:found": 1.0})
            for k, value in enumerate(values)
        ]

    changes = [*[0.0] * USUAL, *[fall] * 40]
    assert bool(told("component:found", REWARDS, window, changes)) is alarms
    assert bool(told("reward", REWARDS, window, changes)) is (fall > 0.38)


@pytest.mark.parametrize(("monitor", "points", "name", "counts", "otherwise"), SHARES)
def test_examples_of_a_share_are_what_counts(
    monitor: str, points: float, name: str, counts: float, otherwise: float
) -> None:
    (found,) = [each for each in MONITORS[Lane.ATTEMPT] if each.name == monitor]
    assert found.guilt(row(1, 1, {name: counts}), Measured(points, N)) is not None
    assert found.guilt(row(1, 1, {name: otherwise}), Measured(points, N)) is None


@pytest.mark.parametrize(("monitor", "key", "window"), ADAPTING, ids=[name for name, *_ in ADAPTING])
def test_a_change_for_good_is_an_alert_until_it_is_usual_and_so_is_its_end(
    monitor: str, key: Key, window: Window
) -> None:
    opened, resolved = EpisodeState.OPENED, EpisodeState.RESOLVED
    for change in (0.7, -0.7):
        alerts = told(monitor, key, window, [*[0.0] * USUAL, *[change] * 80, *[0.0] * 80])
        assert [each.episode.state for each in alerts if each.episode] == [opened, resolved, opened, resolved]
    assert told(monitor, key, window, [*[0.0] * USUAL, *[0.4] * 80, *[0.0] * 80]) == []


@pytest.mark.parametrize(
    ("monitor", "runbook"),
    [
        ("reward", "reward-drop"),
        ("component:found", "reward-drop"),
        ("heldout", "heldout-regression"),
        ("heldout_gap", "heldout-regression"),
        ("prompt_tokens", "input-drift"),
        ("source_mix", "input-drift"),
        ("feedback_delay", "input-drift"),
        ("talks", "reward-hack"),
        ("disagreement", "reward-hack"),
        ("against:found", "reward-hack"),
        ("tripwire", "reward-hack"),
        ("anneal", "reward-hack"),
    ],
)
def test_an_alert_names_the_runbook_of_what_has_changed(monitor: str, runbook: str) -> None:
    assert runbook_of(monitor) == runbook
