"""Deliveries to real servers that fail first."""

import logging
import socket
from collections.abc import Callable
from dataclasses import asdict
from email.message import EmailMessage
from typing import Any

import pytest

from headrace.schemas.records.alert import EpisodeState
from headrace.streams.notifying.delivery import Alertmanager, Http, Log, Mail, NotDelivered, Refused
from headrace.streams.notifying.formats import Notice, email, webhook
from headrace.streams.notifying.notifier import deliver, notice_of
from headrace.streams.raw import StoredRecord
from tests.streams.notifying.builders import notice, record
from tests.streams.notifying.servers import http_server, smtp_server


def mail_to(address: str, *recipients: str) -> Mail:
    host, _, port = address.rpartition(":")
    return Mail(host, int(port), "headrace@x", recipients or ("ada@x",))


def raises_for(id: str, write: Callable[..., EmailMessage]) -> Callable[..., EmailMessage]:
    """``write``, with a fault of the code for the alerts of one episode."""

    def faulty(notice: Notice, *rest: Any) -> EmailMessage:
        if notice.alert.episode is not None and notice.alert.episode.id == id:
            raise IndexError("string index out of range")
        return write(notice, *rest)

    return faulty


def unused() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


async def test_a_webhook_that_fails_gets_the_same_alert_again() -> None:
    async with http_server([500, 429]) as server:
        sink = Http("webhook", f"{server.address}/hook", token="secret")
        for _ in range(2):
            with pytest.raises(NotDelivered, match="status"):
                await sink.deliver(notice())
        await sink.deliver(notice())
    assert [body["id"] for body in server.bodies] == ["n-1"]
    assert server.headers[0]["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("status", [300, 302, 401, 404, 409, 500])
async def test_a_wrong_address_or_token_is_tried_again(status: int) -> None:
    async with http_server([status]) as server:
        with pytest.raises(NotDelivered, match=str(status)):
            await Http("webhook", f"{server.address}/hook").deliver(notice())


@pytest.mark.parametrize("status", [400, 413, 415, 422])
async def test_what_a_server_never_takes_is_refused(status: int) -> None:
    async with http_server([status]) as server:
        with pytest.raises(Refused, match=str(status)):
            await Http("webhook", f"{server.address}/hook").deliver(notice())


@pytest.mark.parametrize("status", [200, 202, 204])
async def test_a_status_of_success_is_a_delivery(status: int) -> None:
    async with http_server([status]) as server:
        await Http("webhook", f"{server.address}/hook").deliver(notice())
    assert server.attempts == 1


async def test_a_redirect_is_not_followed_with_the_token() -> None:
    async with http_server() as other, http_server([307], location=f"{other.address}/hook") as server:
        with pytest.raises(NotDelivered, match="307"):
            await Http("webhook", f"{server.address}/hook", token="secret").deliver(notice())
    assert (server.attempts, other.attempts) == (1, 0)


async def test_a_server_that_is_not_there_is_tried_again() -> None:
    with pytest.raises(NotDelivered):
        await Http("webhook", f"http://{unused()}/hook").deliver(notice())
    with pytest.raises(NotDelivered):
        await mail_to(unused()).deliver(notice())


async def test_alertmanager_is_sent_a_list_and_no_acknowledgements() -> None:
    async with http_server(path="/api/v2/alerts") as server:
        sink = Alertmanager(f"{server.address}/")
        await sink.deliver(notice())
        await sink.deliver(notice(EpisodeState.ACKNOWLEDGED))
    ((body,),) = server.bodies
    assert body["labels"]["alertname"] == "monitor_talks"


async def test_a_mail_server_that_fails_first_gets_the_mail_later() -> None:
    async with smtp_server(["451 try later"]) as server:
        sink = mail_to(server.address)
        with pytest.raises(NotDelivered, match="451"):
            await sink.deliver(notice())
        await sink.deliver(notice())
    (mail,) = server.bodies
    assert "Subject: [headrace] warning opened: talks r" in mail
    assert "example: t-1" in mail


@pytest.mark.parametrize(
    ("answers", "error"), [(["500 no"], Refused), (["554 no"], Refused), (["499 later"], NotDelivered)]
)
async def test_a_mail_that_is_never_taken_is_refused(answers: list[str], error: type[Exception]) -> None:
    async with smtp_server(answers) as server:
        with pytest.raises(error, match=answers[0][:3]):
            await mail_to(server.address).deliver(notice())


@pytest.mark.parametrize(
    ("recipients", "error"),
    [
        (["500 unknown", "550 unknown"], Refused),
        (["450 busy", "550 unknown"], NotDelivered),
        (["499 busy", "499 busy"], NotDelivered),
    ],
)
async def test_a_mail_is_refused_if_no_recipient_will_ever_get_it(
    recipients: list[str], error: type[Exception]
) -> None:
    async with smtp_server(recipients=recipients) as server:
        with pytest.raises(error, match="recipients refused"):
            await mail_to(server.address, "ada@x", "bob@x").deliver(notice())
    assert server.bodies == []


async def test_a_refused_recipient_beside_others_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with smtp_server(recipients=["250 ok", "550 unknown"]) as server:
        await mail_to(server.address, "ada@x", "bob@x").deliver(notice())
    assert len(server.bodies) == 1
    assert caplog.messages == ["the mail server refused some recipients: ['bob@x']"]


async def test_a_mail_that_everybody_gets_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with smtp_server() as server:
        await mail_to(server.address, "ada@x", "bob@x").deliver(notice())
    assert caplog.messages == []


async def test_the_log_gets_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await Log().deliver(notice())
    assert caplog.messages == ["warning monitor_talks r: More attempts talk."]


async def test_an_alert_that_cannot_be_written_is_refused_and_the_next_one_is_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.streams.notifying.delivery.email", raises_for("b", email))
    async with smtp_server() as server:
        assert await deliver([record(7, "a"), record(8, "b"), record(9, "c")], mail_to(server.address)) == (None, None)
    assert ["<a@" in mail or "<c@" in mail for mail in server.bodies] == [True, True]


@pytest.mark.parametrize("timestamp_ms", [-1, 2**62])
def test_an_alert_whose_timestamp_is_no_date_has_the_time_of_its_envelope(timestamp_ms: int) -> None:
    known: Any = record(7, "a")
    forged: Any = StoredRecord(**{**asdict(known), "timestamp": timestamp_ms})
    found = notice_of(forged)
    assert found is not None
    assert webhook(found)["time"] == "2023-11-14T22:13:20.000Z"


async def test_records_are_delivered_in_order_up_to_the_first_that_is_not_taken() -> None:
    async with http_server([200, 400, 503]) as server:
        sink = Http("webhook", f"{server.address}/hook")
        records = [record(7, "a"), record(8, "b"), record(9, "c"), record(10, "d")]
        first, error = await deliver(records, sink)
        assert (first, str(error)) == (9, "status 503")
        assert await deliver(records[2:], sink) == (None, None)
    assert [body["alert"]["episode"]["id"] for body in server.bodies] == ["a", "c", "d"]  # b was refused for good
