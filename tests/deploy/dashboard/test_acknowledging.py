"""Acknowledging an alert from the page: who may, and that it writes what the command writes."""

import json

import httpx
import pytest
from starlette.datastructures import Headers

from headrace.deploy.dashboard.acknowledging import PATH, acknowledged, foreign
from headrace.deploy.watching.alerts import acknowledge, read_episodes
from headrace.deploy.watching.episodes import EpisodeStatus, episodes
from headrace.schemas.ids import derived_id
from headrace.schemas.records.alert import AdmissionOrder, Alert, Episode, EpisodeState
from headrace.streams.clickhouse.database import open_client
from headrace.streams.clickhouse.schema import ensure_tables
from tests.deploy.dashboard.served import served
from tests.deploy.dashboard.test_pages import browser_page, needs_chromium
from tests.streams.clickhouse.stored_log import StoredLog

JSON = "application/json"


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"content-type": JSON}, None),  # a program on this machine
        ({"content-type": f"{JSON}; charset=utf-8", "sec-fetch-site": "same-origin", "origin": "http://h:1"}, None),
        ({"content-type": JSON, "sec-fetch-site": "cross-site"}, "other pages"),
        ({"content-type": JSON, "sec-fetch-site": "same-site"}, "other pages"),
        ({"content-type": JSON, "sec-fetch-site": "none"}, "other pages"),
        ({"content-type": JSON, "origin": "http://evil.example"}, "other sites"),
        ({"content-type": JSON, "origin": "null"}, "other sites"),
        ({"content-type": "text/plain"}, "application/json"),
        ({}, "application/json"),
    ],
)
def test_only_the_dashboards_own_pages_and_programs_may_acknowledge(headers: dict[str, str], why: str | None) -> None:
    refused = foreign(Headers({"host": "h:1", **headers}))
    assert (refused is None) if why is None else (refused is not None and why in refused)


def test_a_request_names_the_episode_and_the_person() -> None:
    assert acknowledged(b'{"episode": "e-1", "by": " ada "}') == ("e-1", "ada", False)
    assert acknowledged(b'{"episode": "e-1", "by": "ada", "resume": true}') == ("e-1", "ada", True)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "JSON object"),
        (b"[]", "episode is"),
        (b'{"episode": "", "by": "ada"}', "episode is"),
        (b'{"episode": 7, "by": "ada"}', "episode is"),
        (b'{"episode": "e"}', "by is"),
        (b'{"episode": "e", "by": "  "}', "by is"),
        (b'{"episode": "e", "by": "a\\nb"}', "by is"),
        (json.dumps({"episode": "e", "by": "x" * 201}).encode(), "by is"),
        (b"[" * 4000, "JSON object"),
        (b'{"episode": "e", "by": "ada", "resume": 1}', "resume is"),
    ],
)
def test_other_requests_are_refused_with_what_is_wrong(body: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        acknowledged(body)


def opened(id: str, admission: AdmissionOrder = AdmissionOrder.NONE) -> Alert:
    episode = Episode(
        id=id, monitor="talks", state=EpisodeState.OPENED, agent="search", task_source="wiki", spec="",
        since_version=64, since_ms=1000, strength=1.25, examples=["t-1", "t-2"], admission=admission,
    )  # fmt: skip
    details = {"lane": "attempt", "window": 7, "value": 0.19}
    return Alert(run="r", source="watch", kind="monitor_talks", message="More talk.", details=details, episode=episode,
                 runbook="reward-hack")  # fmt: skip


def store(clickhouse: str, *alerts: Alert) -> None:
    client, log = open_client(clickhouse), StoredLog()
    ensure_tables(client)
    for number, alert in enumerate(alerts):
        log.add("alerts", "r", alert, id=derived_id("ack", alert.message, number, str(alert.episode)))
    log.write(client, f"acks {alerts[0].episode}")
    client.close()


@pytest.mark.clickhouse
def test_without_a_broker_the_page_says_what_to_run(clickhouse: str, clickhouse_reader: str) -> None:
    store(clickhouse, opened("lonely"))
    with served(clickhouse_reader) as url:
        answer = httpx.post(url + PATH, json={"episode": "lonely", "by": "ada"})
        assert answer.status_code == 503
        assert "headrace watch ack lonely --by NAME" in answer.json()["problem"]
        assert httpx.post(url + PATH, content=b"x" * 5000, headers={"content-type": JSON}).status_code == 413
        from_elsewhere = {"sec-fetch-site": "cross-site", "content-type": JSON}
        assert httpx.post(url + PATH, content=b"{}", headers=from_elsewhere).status_code == 403
        assert httpx.get(url + PATH).status_code == 405


@pytest.mark.kafka
@pytest.mark.clickhouse
def test_the_page_writes_what_the_command_writes(kafka: str, clickhouse: str, clickhouse_reader: str) -> None:
    by_page, by_command = (opened(id, AdmissionOrder.PAUSE) for id in ("by-page", "by-command"))
    store(clickhouse, by_page, opened("only-notifies"))
    (status,) = episodes([by_command])
    acknowledge(kafka, status, "ada", AdmissionOrder.RESUME)
    with served(clickhouse_reader, kafka=kafka) as url:
        answer = httpx.post(url + PATH, json={"episode": "by-page", "by": "ada", "resume": True}, timeout=60)
        assert answer.json() == {"acknowledged_by": ["ada"]}
        unknown = httpx.post(url + PATH, json={"episode": "nope", "by": "ada"})
        assert unknown.status_code == 404
        notifies = httpx.post(url + PATH, json={"episode": "only-notifies", "by": "ada", "resume": True})
        assert (notifies.status_code, "does not pause" in notifies.json()["problem"]) == (409, True)
    alerts = _acknowledgements(kafka)
    assert [each.episode and each.episode.id for each in alerts] == ["by-command", "by-page"]
    same = {"id": "by-command"}
    page = alerts[1].model_copy(update={"episode": alerts[1].episode and alerts[1].episode.model_copy(update=same)})
    assert page == alerts[0]
    assert read_episodes(kafka) == []  # the broker has no alert that they acknowledge
    known: list[EpisodeStatus] = episodes([by_page, alerts[1]])
    assert (known[0].acknowledged_by, known[0].resumed_by) == (("ada",), ("ada",))


@pytest.mark.kafka
@pytest.mark.clickhouse
@pytest.mark.browser
@needs_chromium
def test_a_click_acknowledges_and_the_name_is_shown_at_once(
    kafka: str, clickhouse: str, clickhouse_reader: str
) -> None:
    store(clickhouse, opened("clicked", AdmissionOrder.PAUSE))
    with served(clickhouse_reader, kafka=kafka) as url, browser_page() as (page, complaints):
        page.goto(f"{url}/watch")
        card = page.locator("article#clicked")
        assert "admits no trajectory" in card.inner_text()
        card.locator("input").fill("ada")
        card.locator("button", has_text="resume admission").click()
        card.locator("text=Acknowledged by ada.").wait_for()
        assert complaints == []
    newest = _acknowledgements(kafka)[-1].episode
    assert newest is not None
    assert (newest.id, newest.by, newest.admission) == ("clicked", "ada", AdmissionOrder.RESUME)


def _acknowledgements(kafka: str) -> list[Alert]:
    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.schemas.kafka.reading import read_to_end
    from headrace.schemas.topics import ALERTS
    from headrace.schemas.wire import decode

    async def read() -> list[Alert]:
        found = [decode(record.headers, record.value)[1] async for record in read_to_end(kafka, ALERTS)]
        return [each for each in found if isinstance(each, Alert)]

    return run_with_kafka(kafka, read)
