"""Alerts, as values and as records of the topic."""

from headrace.schemas.kafka.reading import KafkaRecord
from headrace.schemas.records.alert import Alert, Episode, EpisodeState, Severity
from headrace.schemas.topics import ALERTS
from headrace.schemas.wire import Message
from headrace.streams.notifying.formats import Notice
from headrace.streams.processors.watch import episode_message
from headrace.streams.raw import StoredRecord

TIME_MS = 1_700_000_000_000


def alert(state: EpisodeState = EpisodeState.OPENED, id: str = "e-1") -> Alert:
    episode = Episode(
        id=id,
        monitor="talks",
        state=state,
        agent="search",
        since_ms=TIME_MS - 60_000,
        examples=["t-1", "t-2"],
        by="ada" if state is EpisodeState.ACKNOWLEDGED else "",
    )
    return Alert(
        run="r",
        source="watch",
        kind="monitor_talks",
        severity=Severity.WARNING,
        message="More attempts talk.",
        details={"value": 0.25},
        episode=episode,
    )


def notice(state: EpisodeState = EpisodeState.OPENED, id: str = "n-1") -> Notice:
    return Notice(id, TIME_MS, alert(state))


def message(id: str, state: EpisodeState = EpisodeState.OPENED) -> Message:
    return episode_message(alert(state, id=id), TIME_MS)


def record(offset: int, id: str) -> KafkaRecord:
    made = message(id)
    return StoredRecord(ALERTS.name, 0, offset, TIME_MS, made.key, made.value, made.headers)  # type: ignore[return-value]
