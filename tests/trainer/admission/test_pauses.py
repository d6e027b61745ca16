"""Alerts that pause admission: which agents and task sources are not admitted, and what becomes of their groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.deploy.watching.episodes import episodes
from headrace.schemas.records.alert import AdmissionOrder, Alert, Episode, EpisodeState
from headrace.schemas.records.group import Reason
from headrace.trainer.admission import pauses as pauses_module
from headrace.trainer.admission.admission import AdmissionRules, admit, place_of
from headrace.trainer.admission.pauses import NOTHING_PAUSED, PausedSource, Pauses, source_of
from tests.trainer.builders import AT, member, segment, training_group, trajectory

NONE, PAUSE, RESUME = AdmissionOrder.NONE, AdmissionOrder.PAUSE, AdmissionOrder.RESUME
OPENED, ONGOING, SEEN, RESOLVED = (
    EpisodeState.OPENED,
    EpisodeState.ONGOING,
    EpisodeState.ACKNOWLEDGED,
    EpisodeState.RESOLVED,
)
TICKETS = PausedSource("search", "tickets")


def alert(
    state: EpisodeState,
    admission: AdmissionOrder = PAUSE,
    *,
    id: str = "e1",
    source: str = "tickets",
    run: str = "run",
) -> Alert:
    episode = Episode(
        id=id, monitor="marked", state=state, agent="search", task_source=source, since_ms=1, admission=admission
    )
    return Alert(run=run, source="watch", kind="monitor_marked", message="…", episode=episode)


def paused(*alerts: Alert) -> frozenset[PausedSource]:
    pauses = Pauses("run")
    for each in alerts:
        pauses.add(each)
    return pauses.paused


def test_an_episode_pauses_its_source_until_it_is_resolved() -> None:
    assert paused(alert(OPENED)) == {TICKETS}
    assert paused(alert(OPENED), alert(ONGOING)) == {TICKETS}
    assert paused(alert(OPENED), alert(RESOLVED)) == NOTHING_PAUSED


def test_a_monitor_that_only_notifies_pauses_nothing() -> None:
    assert paused(alert(OPENED, NONE)) == NOTHING_PAUSED
    assert paused(Alert(run="run", source="trainer", kind="disk_full", message="…")) == NOTHING_PAUSED


def test_alerts_of_other_runs_do_not_count() -> None:
    assert paused(alert(OPENED, run="other")) == NOTHING_PAUSED


def test_an_acknowledgement_alone_does_not_resume_admission() -> None:
    assert paused(alert(OPENED), alert(SEEN, NONE)) == {TICKETS}


def test_somebody_may_resume_admission_although_the_episode_goes_on() -> None:
    assert paused(alert(OPENED), alert(SEEN, RESUME)) == NOTHING_PAUSED
    assert paused(alert(OPENED), alert(SEEN, RESUME), alert(ONGOING)) == NOTHING_PAUSED
    assert paused(alert(OPENED), alert(SEEN, RESUME), alert(OPENED, id="e2")) == {TICKETS}, "another episode"


def test_an_episode_whose_monitor_no_longer_pauses_ends_the_pause() -> None:
    assert paused(alert(OPENED), alert(ONGOING, NONE)) == NOTHING_PAUSED


def test_who_resumed_admission_need_not_do_so_again_when_its_monitor_pauses_again() -> None:
    """`workers.watch_pauses` was changed twice while the episode was open. `headrace watch list` shows it as resumed,
    and refuses another --resume."""
    alerts = [alert(OPENED), alert(SEEN, RESUME), alert(ONGOING, NONE), alert(ONGOING)]
    assert paused(*alerts) == NOTHING_PAUSED
    (status,) = episodes(alerts)
    assert not status.pauses


def test_decisions_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses_module, "MAX_EPISODES", 2)
    decided = [alert(state, order, id=id) for id in "abc" for state, order in ((OPENED, PAUSE), (SEEN, RESUME))]
    gone = [alert(ONGOING, NONE, id=id) for id in "abc"]
    again = [alert(ONGOING, source=id, id=id) for id in "bc"]
    assert paused(*decided, *gone, *again) == NOTHING_PAUSED
    assert paused(*decided, *gone, alert(ONGOING, id="a")) == {TICKETS}


def test_a_source_is_paused_while_any_of_its_episodes_pauses_it() -> None:
    both = (alert(OPENED), alert(OPENED, id="e2"))
    assert paused(*both, alert(RESOLVED)) == {TICKETS}
    assert paused(*both, alert(RESOLVED), alert(RESOLVED, id="e2")) == NOTHING_PAUSED


@given(
    st.lists(
        st.builds(
            alert,
            st.sampled_from(EpisodeState),
            st.sampled_from(AdmissionOrder),
            id=st.sampled_from(["e1", "e2"]),
            source=st.sampled_from(["tickets", ""]),
        ),
        max_size=12,
    )
)
def test_an_alert_that_comes_twice_counts_once(alerts: list[Alert]) -> None:
    assert paused(*alerts) == paused(*(each for one in alerts for each in (one, one)))


def test_members_of_a_paused_source_are_rejected_and_others_are_trained() -> None:
    rules = AdmissionRules(run="run", max_staleness=0, vocabulary_size=50, max_positions=10)
    attempt = trajectory("t", segment("cS", versions=[0]))
    assert source_of(attempt) == PausedSource("search", "")
    group, found = training_group("g", [member(attempt)]), {place_of(AT): attempt}
    admitted, rejections = admit(group, AT, found, rules, 0, {PausedSource("search", "")})
    assert admitted is None
    assert [(each.trajectory_id, each.reason) for each in rejections] == [("t", Reason.ADMISSION_PAUSED)]
    admitted, rejections = admit(group, AT, found, rules, 0, {TICKETS})
    assert admitted is not None
    assert rejections == []


def test_a_trajectory_with_a_defect_keeps_the_reason_of_its_defect() -> None:
    rules = AdmissionRules(run="run", max_staleness=0, vocabulary_size=1, max_positions=10)
    attempt = trajectory("t", segment("cS", versions=[0]))
    group, found = training_group("g", [member(attempt)]), {place_of(AT): attempt}
    _, (rejection,) = admit(group, AT, found, rules, 0, {PausedSource("search", "")})
    assert rejection.reason is Reason.VOCABULARY
