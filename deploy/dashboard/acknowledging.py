"""Acknowledges an alert of a monitor from the page: writes what `headrace watch ack` writes.

POST /api/watch/acknowledge   {"episode": "0f3ebc7e-…", "by": "ada"}   →   {"acknowledged_by": ["ada"]}
                              {…, "resume": true}  also resumes admission that the alert has paused

It is the only request that changes anything. It must come from the dashboard's own pages, or from no web page at all:
JSON, which other sites may not send unasked, and the browser's word about where it comes from.
"""

import asyncio
import json
import logging
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.deploy.dashboard.responses import answer, refusal
from headrace.deploy.dashboard.row_dicts import rows
from headrace.deploy.dashboard.source import Source, Unavailable
from headrace.deploy.errors import StackError
from headrace.deploy.watching.alerts import acknowledge
from headrace.deploy.watching.episodes import EpisodeStatus, episodes
from headrace.schemas.bounds import MAX_NAME
from headrace.schemas.records.alert import AdmissionOrder, Alert, Episode, EpisodeState

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

log = logging.getLogger(__name__)

PATH = "/api/watch/acknowledge"
MAX_BODY = 4096
"""Largest request, in bytes."""
MAX_BY = 200
"""Longest name of a person, in characters."""

_ALERTS = f"""
    SELECT run, part, kind, severity, message, details, episode, monitor, state, agent, task_source, spec,
           since_version, toUnixTimestamp64Milli(since) AS since_ms, strength, examples, acknowledged_by, admission,
           runbook
    FROM alerts FINAL WHERE episode = {{episode:String}} AND state != '{EpisodeState.ACKNOWLEDGED}'
    ORDER BY offset DESC LIMIT 1
"""
_SEEN = "SELECT acknowledged_by, pauses FROM episodes WHERE episode = {episode:String}"


class Acknowledging:
    """The handler of acknowledgements."""

    def __init__(self, source: Source, kafka: str | None) -> None:
        """``kafka``: bootstrap address (``host:port``); ``None`` if the dashboard does not know it."""
        self._source = source
        self._kafka = kafka

    def routes(self) -> list[Route]:
        """Returns the route."""
        return [Route(PATH, self.post, methods=["POST"])]

    async def post(self, request: Request) -> Response:
        """Write the acknowledgement, and answer with all names."""
        if (why := foreign(request.headers)) is not None:
            return refusal(why, 403)
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY:
                return refusal(f"An acknowledgement has at most {MAX_BODY:,} bytes.", 413)
        try:
            id, by, resume = acknowledged(body)
        except ValueError as error:
            return refusal(str(error), 400)
        if self._kafka is None:
            return refusal(
                "The dashboard does not know Kafka's address: set HEADRACE_KAFKA, or run "
                f"`headrace watch ack {id} --by NAME`.",
                503,
            )
        try:
            status, seen, pauses = await self._source.read(lambda client: _read(client, id))
            if status is None:
                return refusal(f"There is no alert {id!r} of a monitor.", 404)
            if resume and not pauses:
                return refusal("The alert does not pause admission, or somebody has resumed it.", 409)
            if by not in seen or resume:
                order = AdmissionOrder.RESUME if resume else AdmissionOrder.NONE
                await asyncio.to_thread(acknowledge, self._kafka, status, by, order)
                log.info("%s acknowledged the alert %s of %s", by, id, status.episode.monitor)
        except (Unavailable, StackError) as error:
            return refusal(str(error), 503)
        return answer({"acknowledged_by": list(dict.fromkeys([*seen, by]))})


def foreign(headers: Headers) -> str | None:
    """Returns why a request with these headers is refused because of where it comes from; ``None`` if it is not."""
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return "Acknowledge on the dashboard's own page: requests from other pages are refused."
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != headers.get("host"):
        return "Acknowledge on the dashboard's own page: requests from other sites are refused."
    if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return "An acknowledgement is JSON, with the content type application/json."
    return None


def acknowledged(body: bytes) -> tuple[str, str, bool]:
    """Returns the episode and the person of a request's body, and whether admission is resumed. Raises ``ValueError``
    that says what is wrong."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError("An acknowledgement is a JSON object with episode and by.") from error
    known = fields if isinstance(fields, dict) else {}
    id, by, resume = known.get("episode"), known.get("by"), known.get("resume", False)
    if not isinstance(id, str) or not 0 < len(id) <= MAX_NAME:
        raise ValueError(f"episode is an alert's id, of 1 to {MAX_NAME} characters.")
    if not isinstance(by, str) or not by.strip() or len(by) > MAX_BY or not by.isprintable():
        raise ValueError(f"by is the name of a person, of 1 to {MAX_BY} characters.")
    if not isinstance(resume, bool):
        raise ValueError("resume is true or false.")
    return id, by.strip(), resume


def _read(client: "Client", id: str) -> tuple[EpisodeStatus | None, list[str], bool]:
    """Returns an episode by its newest alert, who acknowledged it, and whether it pauses admission."""
    newest, seen = rows(client, _ALERTS, episode=id), rows(client, _SEEN, episode=id)
    if not newest:
        return None, [], False
    (row,) = newest
    episode = Episode(
        id=row["episode"],
        monitor=row["monitor"],
        state=EpisodeState(row["state"]),
        agent=row["agent"],
        task_source=row["task_source"],
        spec=row["spec"],
        since_version=row["since_version"],
        since_ms=row["since_ms"],
        strength=row["strength"],
        examples=row["examples"],
        by=row["acknowledged_by"],
        admission=AdmissionOrder(row["admission"] or AdmissionOrder.NONE),
    )
    details = json.loads(row["details"] or "{}")
    alert = Alert(
        run=row["run"],
        source=row["part"],
        kind=row["kind"],
        severity=row["severity"],
        message=row["message"],
        details=details,
        episode=episode,
        runbook=row["runbook"],
    )
    (status,) = episodes([alert])
    return status, list(seen[0]["acknowledged_by"]), bool(seen[0]["pauses"])
