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


def mail_to(address: str) -> Mail:
    host, _, port = address.rpartition(":")
    return Mail(host, int(port), "headrace@x", ("ada@x",))


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


@pytest.mark.parametrize("status", [302, 401, 404])
async def test_a_wrong_address_or_token_is_tried_again(status: int) -> None:
    async with http_server([status]) as server:
        with pytest.raises(NotDelivered, match=str(status)):
            await Http("webhook", f"{server.address}/hook").deliver(notice())


async def test_what_a_server_never_takes_is_refused() -> None:
    async with http_server([400]) as server:
        with pytest.raises(Refused, match="400"):
            await Http("webhook", f"{server.address}/hook").deliver(notice())


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


async def test_a_mail_that_is_never_taken_is_refused() -> None:
    async with smtp_server(["554 no"]) as server:
        with pytest.raises(Refused, match="554"):
            await mail_to(server.address).deliver(notice())


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
