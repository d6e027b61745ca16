"""Alerts as other systems take them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.records.alert import Alert, EpisodeState
from headrace.streams.notifying.formats import Notice, alertmanager, email, log_line, webhook
from tests.streams.notifying.builders import TIME_MS, notice


def test_a_webhook_gets_the_whole_alert() -> None:
    body = webhook(notice())
    assert (body["id"], body["time"]) == ("n-1", "2023-11-14T22:13:20.000Z")
    assert body["alert"]["episode"]["examples"] == ["t-1", "t-2"]


def test_alertmanager_gets_an_episode_that_ends_when_it_is_resolved() -> None:
    opened, resolved = alertmanager(notice()), alertmanager(notice(EpisodeState.RESOLVED))
    assert opened is not None
    assert resolved is not None
    assert opened["labels"] == resolved["labels"] == {
        "alertname": "monitor_talks", "severity": "warning", "run": "r", "component": "watch",
        "episode": "e-1", "agent": "search",
    }  # fmt: skip
    assert opened["startsAt"] == resolved["startsAt"] == "2023-11-14T22:12:20.000Z"
    assert opened["endsAt"] == "2023-11-21T22:13:20.000Z"
    assert resolved["endsAt"] == "2023-11-14T22:13:20.000Z"
    assert alertmanager(notice(EpisodeState.ACKNOWLEDGED)) is None


def test_an_alert_without_an_episode_is_held_for_an_hour() -> None:
    plain = Notice("n", TIME_MS, Alert(run="", source="trainer", kind="disk_full", message="No space."))
    found = alertmanager(plain)
    assert found is not None
    assert (found["startsAt"], found["endsAt"]) == ("2023-11-14T22:13:20.000Z", "2023-11-14T23:13:20.000Z")
    assert "run" not in found["labels"]


def test_an_email_has_a_subject_a_thread_and_the_examples() -> None:
    mail = email(notice(), "headrace@x", ("ada@x", "bob@x"))
    assert mail["Subject"] == "[headrace] warning opened: talks r"
    assert (mail["To"], mail["Message-ID"], mail["References"]) == ("ada@x, bob@x", "<n-1@headrace>", "<e-1@headrace>")
    assert "example: t-1\n" in mail.get_content()
    assert "value: 0.25" in mail.get_content()


def test_a_subject_has_no_line_breaks() -> None:
    wild = Notice("n", TIME_MS, Alert(run="a\r\nBcc: x@y", source="s", kind="k", message="m"))
    assert email(wild, "a@x", ("b@x",))["Subject"] == "[headrace] warning k a Bcc: x@y"


def test_a_line_of_the_log_is_one_line() -> None:
    wild = Notice("n", TIME_MS, Alert(run="r", source="s", kind="k", message="one\ntwo"))
    assert log_line(wild) == "warning k r: one two"


def test_a_runbook_is_named_where_somebody_reads_the_alert() -> None:
    plain = Alert(run="", source="oncall", kind="oncall_lag", message="Late.", runbook="lag")
    found = alertmanager(Notice("n", TIME_MS, plain))
    assert found is not None
    assert found["annotations"]["runbook"] == "headrace runbook lag"
    mail = email(Notice("n", TIME_MS, plain), "headrace@x", ("ada@x",))
    assert mail.get_content().endswith("How to find the cause: headrace runbook lag\n")
    without = alertmanager(Notice("n", TIME_MS, plain.model_copy(update={"runbook": ""})))
    assert without is not None
    assert "runbook" not in without["annotations"]


@pytest.mark.parametrize("id", ["a\nBcc: eve@x", "a\r\n\r\nbody", "<[>", "", "\u202eid", "x" * 2000, "a b@c>"])
def test_ids_that_are_no_message_ids_make_a_mail_with_one_of_its_own(id: str) -> None:
    alert = notice().alert
    assert alert.episode is not None
    forged = alert.model_copy(update={"episode": alert.episode.model_copy(update={"id": id[:512]})})
    mail = email(Notice(id, TIME_MS, forged), "headrace@x", ("ada@x",))
    assert mail.keys() == email(notice(), "headrace@x", ("ada@x",)).keys()
    assert mail["Message-ID"] != email(notice(), "headrace@x", ("ada@x",))["Message-ID"]
    assert bytes(mail)


@given(st.text(), st.text(), st.text())
def test_whatever_an_alert_says_it_can_be_written(run: str, message: str, name: str) -> None:
    odd = notice().alert.model_copy(update={"run": run, "message": message, "details": {name: message}, "source": name})
    each = Notice(name, TIME_MS, odd)
    assert bytes(email(each, "headrace@x", ("ada@x",)))
    assert json.dumps([webhook(each), alertmanager(each)])
    assert "\n" not in log_line(each)
