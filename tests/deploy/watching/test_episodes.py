"""Episodes as `headrace watch` shows them."""

from dataclasses import replace

import pytest

from headrace.deploy.watching import episodes as episodes_module
from headrace.deploy.watching.episodes import (
    NoEpisode,
    NotAccepted,
    accepted_level,
    acknowledgement,
    episodes,
    explanation,
    named,
    pausing_besides,
    row,
)
from headrace.schemas.records.alert import AdmissionOrder, Alert, Episode, EpisodeState
from headrace.schemas.records.watch import Lane, LevelAccepted


def alert(
    id: str,
    state: EpisodeState,
    *,
    strength: float = 1.1,
    by: str = "",
    admission: AdmissionOrder = AdmissionOrder.NONE,
) -> Alert:
    episode = Episode(
        id=id,
        monitor="talks",
        state=state,
        agent="search",
        task_source="wiki",
        since_version=64,
        since_ms=1,
        strength=strength,
        examples=["t-1", "t-2", "t-3"],
        by=by,
        admission=admission,
    )
    details = {"lane": "attempt", "value": 0.1875, "expected": 0.05, "sd": 0.01}
    return Alert(
        run="r",
        source="watch",
        kind="monitor_talks",
        message="More attempts talk.",
        details=details,
        episode=episode,
        runbook="reward-hack",
    )


OPENED, ONGOING, SEEN, RESOLVED = (
    EpisodeState.OPENED,
    EpisodeState.ONGOING,
    EpisodeState.ACKNOWLEDGED,
    EpisodeState.RESOLVED,
)


def test_the_newest_alert_of_an_episode_applies_and_acknowledgements_are_kept() -> None:
    plain = Alert(run="r", source="trainer", kind="disk", message="full")
    first, second = episodes(
        [
            alert("aaa", OPENED),
            plain,
            alert("aaa", SEEN, by="ada"),
            alert("bbb", OPENED),
            alert("aaa", SEEN, by="ada"),
            alert("aaa", ONGOING, strength=1.9),
            alert("bbb", RESOLVED),
        ]
    )
    assert (first.episode.state, first.episode.strength, first.acknowledged_by) == (ONGOING, 1.9, ("ada",))
    assert (first.is_open, second.is_open) == (True, False)


def test_an_acknowledgement_is_an_alert_of_the_same_episode() -> None:
    (status,) = episodes([alert("aaa", OPENED)])
    seen = acknowledgement(status, "ada")
    assert seen.episode is not None
    assert (seen.episode.id, seen.episode.state, seen.episode.by) == ("aaa", SEEN, "ada")
    (after,) = episodes([alert("aaa", OPENED), seen])
    assert (after.newest, after.acknowledged_by) == (status.newest, ("ada",))


def test_an_episode_that_pauses_admission_does_so_until_it_is_resumed_or_resolved() -> None:
    pausing = alert("aaa", OPENED, admission=AdmissionOrder.PAUSE)
    (status,) = episodes([pausing])
    assert status.pauses
    assert "opened, admission paused" in row(status)
    (seen,) = episodes([pausing, acknowledgement(status, "ada")])
    assert seen.pauses, "an acknowledgement alone resumes nothing"
    (resumed,) = episodes(
        [pausing, acknowledgement(status, "ada"), acknowledgement(seen, "ada", AdmissionOrder.RESUME)]
    )
    assert (resumed.pauses, resumed.acknowledged_by, resumed.resumed_by) == (False, ("ada",), ("ada",))
    assert "opened, seen by ada, admission resumed by ada" in row(resumed)
    (resolved,) = episodes([pausing, alert("aaa", RESOLVED, admission=AdmissionOrder.PAUSE)])
    assert not resolved.pauses


def test_an_episode_is_named_by_its_id_or_the_beginning_of_it() -> None:
    known = episodes([alert("abc", OPENED), alert("0f3e7c01", OPENED), alert("0f3e7d02", OPENED)])
    assert named(known, "abc").episode.id == "abc"  # a whole id, however short
    assert named(known, "0f3e7c").episode.id == "0f3e7c01"
    with pytest.raises(NoEpisode, match="no alert 'none'"):
        named(known, "none")
    with pytest.raises(
        NoEpisode, match=r"several alerts: 0f3e7c01 \(talks, opened\), 0f3e7d02 .* with more characters"
    ):
        named(known, "0f3e")


@pytest.mark.parametrize("name", ["", "0", "0f3"])
def test_an_empty_or_short_name_does_not_name_the_only_alert(name: str) -> None:
    with pytest.raises(NoEpisode, match="give 4 characters"):
        named(episodes([alert("0f3e7c01", OPENED)]), name)


def test_of_equal_beginnings_an_open_alert_is_preferred_where_only_such_a_one_can_be_meant() -> None:
    known = episodes([alert("0f3e7c01", OPENED), alert("0f3e7d02", OPENED), alert("0f3e7c01", RESOLVED)])
    assert named(known, "0f3e", prefers_open=True).episode.id == "0f3e7d02"
    assert named(known, "0f3e7c", prefers_open=True).episode.id == "0f3e7c01"


def test_the_other_alerts_that_pause_a_source_are_those_of_its_run_agent_and_source() -> None:
    pause, resume = AdmissionOrder.PAUSE, AdmissionOrder.RESUME
    ours, same = alert("ours", OPENED, admission=pause), alert("same", OPENED, admission=pause)
    elsewhere = [alert("run", OPENED, admission=pause).model_copy(update={"run": "r2"})]
    for part in ({"agent": "coder"}, {"task_source": "code"}):
        other = alert(next(iter(part)), OPENED, admission=pause)
        assert other.episode is not None
        elsewhere.append(other.model_copy(update={"episode": other.episode.model_copy(update=part)}))
    resumed = [alert("seen", OPENED, admission=pause), alert("seen", SEEN, by="ada", admission=resume)]
    known = episodes([ours, same, alert("calm", OPENED), *resumed, *elsewhere])
    assert [each.episode.id for each in pausing_besides(known[0], known)] == ["same"]


def test_a_line_says_what_since_when_and_who_shows_it() -> None:
    (status,) = episodes([alert("0123456789", OPENED), alert("0123456789", SEEN, by="ada")])
    assert row(status) == (
        "01234567  opened, seen by ada  talks  0.188, usual 0.05  strength 1.1  since v64  r/search/wiki  "
        "runbook reward-hack  t-1 t-2 …"
    )
    about_a_group = status.newest.model_copy(update={"details": {"value": 400.0, "subject": "sink"}})
    (lag,) = episodes([about_a_group])
    assert "  400  strength 1.1  since v64  r/sink/search/wiki  " in row(lag)
    assert row(status, full=True).startswith("0123456789  ")
    assert row(status, full=True).endswith("t-1 t-2 t-3")


@pytest.mark.parametrize(
    ("details", "shown"),
    [
        ({"value": "nan"}, "  talks  nan  strength"),
        ({"value": 0.25, "expected": "inf"}, "  talks  0.25  strength"),
        ({"value": None, "expected": [1]}, "  talks  strength"),
        ({"value": 1e308}, "  talks  1e+308  strength"),
        ({"value": 0.25, "lane": ["attempt"]}, "  talks  0.25  strength"),
    ],
)
def test_figures_of_any_kind_are_shown_and_hide_no_other_alert(details: dict[str, object], shown: str) -> None:
    """The details of an alert may be anything that JSON has."""
    (status,) = episodes([alert("aaa", OPENED).model_copy(update={"details": details})])
    assert shown in row(status)
    longer = replace(status, episode=status.episode.model_copy(update={"monitor": "tokens"}))
    assert row(longer).startswith("aaa  opened  tokens  ")
    assert explanation(status)
    with pytest.raises(NotAccepted, match="no alert of a monitor"):
        accepted_level(status, "ada")


def test_below_the_line_stand_since_when_the_message_and_what_was_measured() -> None:
    (talks,) = episodes([alert("aaa", OPENED)])
    assert explanation(talks) == ["    since 1970-01-01 00:00:00 UTC, warning", "    More attempts talk."]
    measured = {"value": 400.0, "limit": 300.0, "subject": "sink", "topic": "events", "partition": 3}
    (lag,) = episodes([talks.newest.model_copy(update={"details": measured, "message": "It is far behind."})])
    assert explanation(lag)[1:] == ["    It is far behind.", "    topic: events", "    partition: 3"]


def test_of_too_many_alerts_the_oldest_resolved_ones_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An open alert is listed and can be acknowledged however many have come and gone since."""
    monkeypatch.setattr(episodes_module, "MAX_EPISODES", 3)
    passed = [alert(f"p{number}", state) for number in range(5) for state in (OPENED, RESOLVED)]
    known = [alert("old", OPENED), *passed, alert("new", OPENED)]
    assert [each.episode.id for each in episodes(known)] == ["old", "p4", "new"]
    many = [alert(f"o{number}", OPENED) for number in range(5)]
    assert [each.episode.id for each in episodes(many)] == ["o2", "o3", "o4"], "of open ones the oldest"


def test_a_level_is_accepted_of_an_open_alert_of_a_monitor() -> None:
    (status,) = episodes([alert("aaa", OPENED)])
    assert accepted_level(status, "ada") == LevelAccepted(
        episode="aaa", monitor="talks", lane=Lane.ATTEMPT, run="r", agent="search", task_source="wiki", by="ada"
    )


@pytest.mark.parametrize(
    ("changes", "details", "why"),
    [
        ({"state": RESOLVED}, {"lane": "attempt"}, "is resolved: there is nothing to accept"),
        ({"monitor": "lag"}, {"value": 120.0}, "is no alert of a monitor"),
    ],
)
def test_other_levels_are_not_accepted_and_the_error_says_why(
    changes: dict[str, object], details: dict[str, object], why: str
) -> None:
    plain = alert("aaa", OPENED)
    assert plain.episode is not None
    episode = plain.episode.model_copy(update=changes)
    (status,) = episodes([plain.model_copy(update={"episode": episode, "details": details})])
    with pytest.raises(NotAccepted, match=why):
        accepted_level(status, "ada")


def test_a_row_has_the_unit_of_what_is_measured_and_says_what_has_become_more_common() -> None:
    plain = alert("aaa", OPENED)
    assert plain.episode is not None
    for monitor, details, shown in (
        ("tokens", {"value": 6.24, "expected": 5.86}, "tokens  512, usual 350"),
        ("source_mix", {"value": 0.685, "expected": 0.003, "label": "web"}, "source_mix  0.685, usual 0.003 of web"),
    ):
        episode = plain.episode.model_copy(update={"monitor": monitor})
        (status,) = episodes([plain.model_copy(update={"episode": episode, "details": details})])
        assert shown in row(status)
