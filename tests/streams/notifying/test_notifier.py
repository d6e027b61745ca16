"""The notifier: its settings, and that a dead sink loses nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition

from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.sending import send
from headrace.schemas.kafka.topic_creation import create_topics
from headrace.schemas.records.alert import EpisodeState
from headrace.schemas.topics import ALERTS
from headrace.streams.notifying.delivery import Alertmanager, NotDelivered
from headrace.streams.notifying.formats import Notice
from headrace.streams.notifying.notifier import NotifyConfig, fold_open, repeat_open, run_notifier, sinks_of
from tests.certificates import make_certificates
from tests.streams.notifying.builders import message, notice
from tests.streams.notifying.servers import http_server, smtp_server


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "no sink"),
        ({"webhook": "ftp://x"}, "must begin with http"),
        ({"smtp": "mail:25"}, "must name a recipient"),
        ({"smtp": "mail", "mail_to": ("a@x",)}, "host:port"),
        ({"smtp": "mail:25", "mail_to": ("a@x",), "smtp_user": "me"}, "belong together"),
        ({"webhook": "http://x", "token_file": Path("/nowhere")}, "not a file"),
        ({"log": True, "retry_most_s": 0.0}, "above 0"),
        ({"log": True, "repeat_s": 0.0}, "repeat_s must be above 0"),
        ({"log": True, "repeat_s": 604_800.0}, "at most a day"),
        ({"smtp": "m:25", "mail_to": ("a@x",), "smtp_ca_file": Path("/nowhere")}, "smtp_ca_file names .* not a file"),
        ({"smtp": "m:25", "mail_to": ("a@x",), "smtp_ca_file": Path(__file__)}, "smtp_ca_file needs smtp_starttls"),
        (
            {"smtp": "m:25", "mail_to": ("a@x",), "smtp_ca_file": Path(__file__), "smtp_starttls": True},
            "smtp_ca_file .* holds no certificate",
        ),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        NotifyConfig("k:1", **settings)


def test_a_password_is_not_sent_unencrypted(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("x\n")
    known: dict[str, Any] = {"smtp": "mail:25", "mail_to": ("a@x",), "smtp_user": "me"}
    known["smtp_password_file"] = tmp_path / "password"
    with pytest.raises(ValueError, match="smtp_starttls"):
        NotifyConfig("k:1", **known)
    (sink,) = sinks_of(NotifyConfig("k:1", **known, smtp_starttls=True))
    assert sink.name == "mail"


async def test_a_login_goes_to_a_server_with_a_known_certificate_over_tls(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    (tmp_path / "password").write_text("of the account\n")
    async with smtp_server(certificate=made.broker) as server:
        known: dict[str, Any] = {"smtp": server.address, "mail_to": ("a@x",), "smtp_starttls": True}
        known |= {"smtp_user": "me", "smtp_password_file": tmp_path / "password"}
        (unknown_authority,) = sinks_of(NotifyConfig("k:1", **known))
        with pytest.raises(NotDelivered, match=r"certificate.*smtp_ca_file"):
            await unknown_authority.deliver(notice())
        assert server.logins == []
        (sink,) = sinks_of(NotifyConfig("k:1", **known, smtp_ca_file=made.ca))
        await sink.deliver(notice())
    assert server.logins == ["\0me\0of the account"]
    assert len(server.bodies) == 1


async def test_a_mail_server_that_wants_tls_gets_no_mail_without(tmp_path: Path) -> None:
    async with smtp_server(certificate=make_certificates(tmp_path).broker) as server:
        (sink,) = sinks_of(NotifyConfig("k:1", smtp=server.address, mail_to=("a@x",)))
        with pytest.raises(NotDelivered, match="530"):
            await sink.deliver(notice())
    assert server.bodies == []


def test_each_setting_makes_its_sink() -> None:
    config = NotifyConfig("k:1", webhook="http://x", alertmanager="http://y", smtp="m:25", mail_to=("a@x",), log=True)
    assert [sink.name for sink in sinks_of(config)] == ["webhook", "alertmanager", "mail", "log"]


@asynccontextmanager
async def running(config: NotifyConfig) -> AsyncIterator[None]:
    stop, ready = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(run_notifier(config, stop=stop, ready=ready.set))
    try:
        await asyncio.wait_for(ready.wait(), 60)
        yield
    finally:
        stop.set()
        await asyncio.wait_for(task, 60)


async def until(holds: Any) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110  # the servers have no event to wait for
            await asyncio.sleep(0.05)


@pytest.mark.kafka
async def test_a_dead_sink_loses_nothing_and_does_not_hold_up_the_others(kafka: str) -> None:
    """The webhook fails while mails are delivered; what it did not take it gets from the next process, once each."""

    def ids(bodies: list[Any]) -> list[str]:
        return [body["alert"]["episode"]["id"] for body in bodies if body["alert"]["episode"]["id"].startswith("dead")]

    async def write(*names: str) -> None:
        async with open_producer(kafka) as producer:
            for name in names:
                await (await send(producer, ALERTS, message(name)))

    await create_topics(kafka, [ALERTS])
    async with smtp_server() as mails:
        async with http_server([503] * 1000) as dead:
            config = NotifyConfig(
                kafka,
                webhook=f"{dead.address}/hook",
                smtp=mails.address,
                mail_to=("ada@x",),
                from_beginning=True,
                retry_most_s=0.2,
            )
            async with running(config):
                await write("dead-1", "dead-2", "dead-3")
                await until(lambda: sum("<dead-" in mail for mail in mails.bodies) == 3 and dead.attempts > 3)
        assert dead.bodies == []
        async with http_server([500, 500]) as alive:
            config = NotifyConfig(kafka, webhook=f"{alive.address}/hook", from_beginning=True, retry_most_s=0.2)
            async with running(config):
                await write("dead-4")
                await until(lambda: len(ids(alive.bodies)) == 4)
        assert ids(alive.bodies) == ["dead-1", "dead-2", "dead-3", "dead-4"]
        async with http_server() as later:
            async with running(NotifyConfig(kafka, webhook=f"{later.address}/hook", from_beginning=True)):
                await write("dead-5")
                await until(lambda: ids(later.bodies))
            assert ids(later.bodies) == ["dead-5"]


def test_the_newest_notice_of_each_open_episode_is_kept() -> None:
    opened: dict[str, Notice] = {}
    states = (EpisodeState.OPENED, EpisodeState.ONGOING, EpisodeState.ACKNOWLEDGED)
    for number, state in enumerate(states):
        fold_open(opened, notice(state, id=f"n-{number}"))
    assert {name: each.id for name, each in opened.items()} == {"e-1": "n-1"}
    fold_open(opened, None)
    fold_open(opened, notice(EpisodeState.RESOLVED))
    assert opened == {}


class _Committed:
    """A consumer that has a partition, and has committed."""

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition(ALERTS.name, 0)}

    async def committed(self, _: TopicPartition) -> int:
        return 5


async def test_while_kafka_is_away_nothing_is_repeated_and_other_sinks_continue() -> None:
    """As an exception it would end the process, and with it all sinks."""
    consumer: Any = _Committed()
    fault = await repeat_open("127.0.0.1:1", consumer, Alertmanager("http://127.0.0.1:1"))
    assert isinstance(fault, NotDelivered)
    assert "Kafka does not tell which episodes are open" in str(fault)


@pytest.mark.kafka
async def test_alertmanager_is_told_again_which_episodes_are_open(kafka: str) -> None:
    """Also by the next process, at once, and also after requests that failed."""

    def ids(bodies: list[Any]) -> list[str]:
        return [
            each["labels"]["episode"] for body in bodies for each in body if each["labels"]["episode"][:4] == "kept"
        ]

    async def write(name: str, state: EpisodeState) -> None:
        async with open_producer(kafka) as producer:
            await (await send(producer, ALERTS, message(name, state)))

    await create_topics(kafka, [ALERTS])
    async with http_server([503], path="/api/v2/alerts") as server:
        config = NotifyConfig(kafka, alertmanager=server.address, from_beginning=True, retry_most_s=0.2, repeat_s=0.2)
        async with running(config):
            await write("kept-1", EpisodeState.OPENED)
            await write("kept-2", EpisodeState.OPENED)
            await until(lambda: ids(server.bodies).count("kept-2") > 2)
            await write("kept-2", EpisodeState.RESOLVED)
            await write("kept-3", EpisodeState.OPENED)
            await until(lambda: ids(server.bodies).count("kept-3") > 2)
        after = ids(server.bodies)[ids(server.bodies).index("kept-3") :]
        assert {*after} == {"kept-1", "kept-3"}, "the second one is resolved"
    async with http_server(path="/api/v2/alerts") as server:
        async with running(NotifyConfig(kafka, alertmanager=server.address)):
            await until(lambda: server.bodies)
        assert ids(server.bodies) == ["kept-1", "kept-3"]
