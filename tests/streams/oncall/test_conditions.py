"""From what happened to the alert and back, for each condition, with the default limits: no servers.

Every cause comes twice, so each alert is raised, resolved, and raised again as another episode.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from headrace.schemas.events import SdkStatsReported
from headrace.schemas.records.alert import EpisodeState
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.streams.ledger.tally import LedgerTally
from headrace.streams.oncall.alarms import Alarms
from headrace.streams.oncall.conditions import CONDITIONS, Found, Limits
from headrace.streams.oncall.oncall import Checked, values_of
from headrace.streams.oncall.recent import Recent
from tests.streams.oncall.test_recent import budget, letter

OPENED, RESOLVED = EpisodeState.OPENED, EpisodeState.RESOLVED
LEDGER = LedgerTally().ledger()


def recent() -> Recent:
    return Recent(("r",), window_s=Limits().window_s)


@dataclass
class System:
    """What ``oncall`` knows, at times in seconds from a moment on."""

    recent: Recent = field(default_factory=recent)
    lags: list[Found] = field(default_factory=list)
    checked: Checked = field(default_factory=lambda: Checked(LEDGER, frozenset({"known"})))
    alarms: Alarms = field(default_factory=lambda: Alarms(Limits()))
    ids: list[str] = field(default_factory=list)

    def at(self, second: float) -> list[tuple[str, str, EpisodeState]]:
        """Condition, subject and state of the alerts of a measurement at that time."""
        self.checked.at_ms = ms(second)
        found = []
        for alert in self.alarms.judge(values_of(self.recent, self.lags, self.checked, ms(second)), ms(second)):
            self.alarms.add(alert)
            assert alert.episode is not None
            found.append((alert.episode.monitor, str(alert.details.get("subject", "")), alert.episode.state))
            self.ids.append(alert.episode.id)
        return found


def ms(second: float) -> int:
    return 1_700_000_000_000 + round(1000 * second)


Round = Callable[[System, float], Iterator[tuple[float, EpisodeState | None]]]
"""Brings about a cause and its end from a second on; yields when to measure, and the state that is to follow."""


def lag(system: System, start: float) -> Iterator[tuple[float, EpisodeState | None]]:
    for second, behind_s, state in (
        (0, 299.9, None), (60, 300.0, None), (119.9, 300.0, None), (120, 300.0, OPENED), (121, 150.0, None),
        (122, 149.9, RESOLVED),
    ):  # fmt: skip
        system.lags = [Found("sink", behind_s), Found("headrace-score", 299.9)]
        yield start + second, state


def dead_letters(system: System, start: float) -> Iterator[tuple[float, EpisodeState | None]]:
    yield start, None
    system.recent.add_dead_letter(letter("events", DeadLetterError.INVALID), ms(start))
    yield start, OPENED
    yield start + 599.9, None
    yield start + 600, RESOLVED


def no_steps(system: System, start: float) -> Iterator[tuple[float, EpisodeState | None]]:
    system.recent.add_budget(budget("r"), ms(start))
    system.recent.add_step("r", ms(start))
    for rollout in (800, 1600, 1799.9, 1800, 2099):
        system.recent.add_rollout("r", ms(start + rollout))
        yield start + rollout, None
    yield start + 2099.9, None  # 1,800 s, for 300 s less 1
    yield start + 2100, OPENED
    system.recent.add_step("r", ms(start + 2200))
    system.recent.add_rollout("r", ms(start + 2200))
    yield start + 2200, RESOLVED


def no_samplers(system: System, start: float) -> Iterator[tuple[float, EpisodeState | None]]:
    system.recent.add_budget(budget("r"), ms(start))
    system.recent.add_step("r", ms(start))
    yield start + 899.9, None
    system.recent.add_rollout("r", ms(start + 899.9))
    yield start + 1799, None
    yield start + 1799.9, OPENED
    system.recent.add_rollout("r", ms(start + 1800))
    system.recent.add_step("r", ms(start + 1800))
    yield start + 1801, RESOLVED


def drops(system: System, start: float) -> Iterator[tuple[float, EpisodeState | None]]:
    for second, dropped, state in ((0, 0, None), (10, 1, OPENED), (20, 1, None), (609.9, 1, None), (610, 1, RESOLVED)):
        stats = SdkStatsReported(dropped={"queue_full": dropped})
        system.recent.add_sdk_stats("/agents/a", stats, ms(start + second), follows=True)
        yield start + second, state


def feedback(system: System, start: float) -> Iterator[tuple[float, EpisodeState | None]]:
    for trajectory in ("known", "unknown"):
        system.recent.add_feedback(trajectory, ms(start))
    yield start + 119.9, None
    yield start + 120, OPENED
    yield start + 719.9, None
    yield start + 720, RESOLVED


def mismatch(system: System, start: float) -> Iterator[tuple[float, EpisodeState | None]]:
    for second, conflicting, state in (
        (0, 1, None), (59.9, 1, None), (59.95, 0, None), (60, 1, None), (119.9, 1, None), (120, 1, OPENED),
        (121, 1, None), (122, 0, RESOLVED),
    ):  # fmt: skip
        system.checked.ledger = replace(LEDGER, conflicting=conflicting, adds_up=not conflicting)
        yield start + second, state


ROUNDS: dict[str, tuple[str, Round]] = {
    "lag": ("sink", lag),
    "dead-letters": ("events", dead_letters),
    "no-steps": ("r", no_steps),
    "silent-samplers": ("r", no_samplers),
    "sdk-drops": ("/agents/a", drops),
    "lost-feedback": ("", feedback),
    "ledger-mismatch": ("", mismatch),
}


def test_every_condition_has_a_round() -> None:
    assert ROUNDS.keys() == {condition.name for condition in CONDITIONS}


@pytest.mark.parametrize("condition", ROUNDS)
def test_a_cause_is_an_alert_from_its_limit_on_until_it_is_over_and_again(condition: str) -> None:
    subject, caused = ROUNDS[condition]
    system = System()
    for start in (0.0, 10_000.0):
        for second, state in caused(system, start):
            expected = [] if state is None else [(condition, subject, state)]
            assert system.at(second) == expected, second
    first, ended, again, ended_again = system.ids
    assert first == ended != again == ended_again
