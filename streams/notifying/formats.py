"""An alert as other systems take it: JSON for a webhook, Alertmanager's API, an e-mail, a line of a log. Pure.

{"time": "2026-11-24T10:00:00Z", "id": "…", "alert": {"kind": "monitor_talks", "episode": {"state": "opened"}}}
"""

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from typing import Any

from headrace.schemas.records.alert import Alert, EpisodeState

HOLD_MS = 7 * 24 * 3_600_000
"""Time after which Alertmanager takes an open episode for resolved if nothing more is said about it, milliseconds. It
is told again by the notifier while it is open, so this is for a notifier that is gone."""
PLAIN_HOLD_MS = 3_600_000
"""The same for an alert without an episode, which nobody resolves."""
MAX_SUBJECT = 150
"""Longest subject of an e-mail, in characters."""
_PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,200}")


@dataclass(frozen=True, slots=True)
class Notice:
    """An alert with what its record says."""

    id: str
    """``ce_id`` of the record: the same if the alert is delivered twice."""
    time_ms: int
    """Time of the record, Unix milliseconds."""
    alert: Alert
    """The alert."""


def iso(time_ms: int) -> str:
    """Returns Unix milliseconds as ISO 8601 in UTC."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def webhook(notice: Notice) -> dict[str, Any]:
    """Returns the body of a webhook's request."""
    return {"id": notice.id, "time": iso(notice.time_ms), "alert": notice.alert.model_dump(mode="json")}


def alertmanager(notice: Notice) -> dict[str, Any] | None:
    """Returns the alert for Alertmanager's ``POST /api/v2/alerts``; ``None`` for an acknowledgement, which it does not
    have. The labels identify an episode, so that its resolution is one of the same alert.
    """
    alert, episode = notice.alert, notice.alert.episode
    if episode is not None and episode.state is EpisodeState.ACKNOWLEDGED:
        return None
    labels = {"alertname": alert.kind, "severity": str(alert.severity), "run": alert.run, "component": alert.source}
    starts_ms, ends_ms = notice.time_ms, notice.time_ms + PLAIN_HOLD_MS
    annotations = {"summary": alert.message, "runbook": runbook_command(alert)}
    if episode is not None:
        labels |= {
            "episode": episode.id,
            "agent": episode.agent,
            "task_source": episode.task_source,
            "spec": episode.spec,
        }
        resolved = episode.state is EpisodeState.RESOLVED
        starts_ms, ends_ms = episode.since_ms, notice.time_ms + (0 if resolved else HOLD_MS)
        annotations["examples"] = " ".join(episode.examples)
    return {
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": {name: value for name, value in annotations.items() if value},
        "startsAt": iso(starts_ms),
        "endsAt": iso(max(starts_ms, ends_ms)),
    }


def runbook_command(alert: Alert) -> str:
    """Returns the command that prints the alert's runbook; empty if it has none."""
    return f"headrace runbook {alert.runbook}" if alert.runbook else ""


def email(notice: Notice, sender: str, recipients: tuple[str, ...]) -> EmailMessage:
    """Returns the alert as an e-mail; those of one episode are one thread."""
    alert, episode = notice.alert, notice.alert.episode
    message = EmailMessage()
    state = f"{episode.state}: " if episode else ""
    subject = f"[headrace] {alert.severity} {state}{episode.monitor if episode else alert.kind} {alert.run}".strip()
    message["Subject"] = " ".join(subject.split())[:MAX_SUBJECT]
    message["From"], message["To"] = sender, ", ".join(recipients)
    message["Message-ID"] = _message_id(notice.id)
    if episode is not None:
        message["References"] = _message_id(episode.id)
    lines = [alert.message, "", f"time: {iso(notice.time_ms)}", f"run: {alert.run}", f"source: {alert.source}"]
    if episode is not None:
        lines += [f"since: {iso(episode.since_ms)}", *(f"example: {id}" for id in episode.examples)]
    lines += [f"{name}: {value}" for name, value in alert.details.items()]
    if alert.runbook:
        lines += ["", f"How to find the cause: {runbook_command(alert)}"]
    message.set_content("\n".join(lines) + "\n")
    return message


def _message_id(id: str) -> str:
    """Returns an id as that of a message: headers refuse line ends, and some readers all but plain characters."""
    plain = id if _PLAIN_ID.fullmatch(id) else hashlib.sha256(id.encode(errors="surrogatepass")).hexdigest()
    return f"<{plain}@headrace>"


def log_line(notice: Notice) -> str:
    """Returns the alert as a line."""
    alert = notice.alert
    return f"{alert.severity} {alert.kind} {alert.run}: {alert.message}".replace("\n", " ")
