"""The gateway's endpoints for sessions and feedback.

POST /sessions                      → session, URL, key, trajectory, feedback token
POST /sessions/{session}/end        ends it, with the program's answer, and an outcome if the environment knows one
POST /feedback/{token}              a person's feedback, also from a page in a browser (CORS)
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final
from urllib.parse import quote

from aiohttp import web

from headrace.agents.consent import UNRECORDED
from headrace.agents.gateway.access import Access
from headrace.agents.gateway.canonical import BadRequest
from headrace.agents.gateway.capture import Capture
from headrace.agents.gateway.client_errors import refused
from headrace.agents.gateway.config import GatewayConfig
from headrace.agents.gateway.framing.errors import ErrorKind
from headrace.agents.gateway.framing.json_bytes import encode
from headrace.agents.gateway.http import SESSION_IN_PATH, Handler, admit, json_body, json_response
from headrace.agents.gateway.journal import JournalFull
from headrace.agents.gateway.limits import Exceeded, Limiter, Rate, Unit
from headrace.agents.gateway.record import TrajectoryEvent
from headrace.agents.gateway.recorder import Recorder
from headrace.agents.gateway.sealed import FeedbackTarget, Sealer
from headrace.agents.gateway.session_grants import (
    EndRequest,
    FeedbackRequest,
    SessionGrant,
    SessionRequest,
    is_foreign,
    key_of,
    new_session,
    read_request,
)
from headrace.agents.gateway.session_identity import SessionIdentity, Source
from headrace.schemas.events import EndStatus, FeedbackGiven

CORS: Final = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "POST",
    "Access-Control-Allow-Headers": "Content-Type",
    "Access-Control-Max-Age": "86400",
}
"""Any page may send feedback: the token alone permits it, and no cookie is used."""

MAX_FEEDBACK_BYTES: Final = 16 * 1024
"""Largest feedback."""

FEEDBACKS_PER_S, FEEDBACK_BURST = 1.0, 20.0
"""Feedback on one trajectory: further ones are answered with 429."""


class SessionEndpoints:
    """Answers the requests."""

    def __init__(
        self,
        config: GatewayConfig,
        capture: Capture,
        recorder: Recorder,
        sealer: Sealer,
        limiter: Limiter,
        access: Callable[[web.Request], Access],
        is_masked: Callable[[str], bool],
        now_ms: Callable[[], int],
    ) -> None:
        """``access``: returns who sends a request, or refuses it. ``is_masked``: whether the messages of a tenant stay
        out of the log."""
        self._config = config
        self._capture = capture
        self._recorder = recorder
        self._sealer = sealer
        self._limiter = limiter
        self._feedback_limiter = Limiter({Unit.REQUESTS: Rate(FEEDBACKS_PER_S, FEEDBACK_BURST)})
        self._access = access
        self._is_masked = is_masked
        self._now_ms = now_ms

    def routes(self) -> list[tuple[str, str, Handler, Mapping[str, str]]]:
        """Return method, path, handler and headers of errors of each endpoint."""
        return [
            ("POST", "/sessions", self._open, {}),
            ("POST", f"/sessions/{SESSION_IN_PATH}/end", self._end, {}),
            ("POST", "/feedback/{token}", self._feedback, CORS),
            ("OPTIONS", "/feedback/{token}", self._preflight, CORS),
        ]

    async def _open(self, request: web.Request) -> web.StreamResponse:
        access = self._access(request)
        tenant = access.tenant
        if access.grant is not None:  # it would outlive its own end, and what its session says about training
            raise refused(ErrorKind.PERMISSION, "a session's key opens no other session: use a key of the gateway")
        body = await json_body(request, partial(admit, self._limiter, tenant.name))
        asked: SessionRequest = read_request(SessionRequest, body)
        address = (self._config.public_url or _address_in(request)).rstrip("/")
        now_ms = self._now_ms()
        session = asked.session or new_session(self._sealer, tenant.name, asked)
        if is_foreign(self._sealer, tenant.name, session):
            raise refused(ErrorKind.PERMISSION, f"the session {session!r} belongs to another key")
        expires_s = now_ms // 1000 + asked.lifetime_s
        key = key_of(
            self._sealer, SessionGrant(tenant=tenant.name, session=session, expires_s=expires_s, request=asked)
        )
        opened = self._capture.open(
            tenant,
            SessionIdentity(session, Source.URL),
            asked.task_info(self._config.run),
            now_ms=now_ms,
            consent=asked.consent,
        )
        if opened is None:
            raise refused(
                ErrorKind.INVALID_REQUEST, f"the session {session!r} is open already: end it, or choose another id"
            )
        trajectory_id, events = opened
        try:
            await self._recorder.record((tenant.name, session), events)
        except JournalFull:
            started = [event for event in events if event.trajectory_id == trajectory_id]
            if self._capture.is_unused(tenant.name, session) and self._recorder.withdraw(
                (tenant.name, session), started
            ):
                self._capture.forget(tenant.name, session)
            raise
        target = FeedbackTarget(tenant.name, trajectory_id)
        url = f"{address}/s/{quote(session, safe='')}"
        answer = {
            "session": session,
            "trajectory": trajectory_id,
            "base_url": f"{url}/v1",
            "anthropic_base_url": url,
            "api_key": key,
            "feedback_token": self._sealer.feedback_token(target, expires_s),
            "expires_at": expires_s,
        }
        return json_response(encode(answer), 201)

    async def _end(self, request: web.Request) -> web.StreamResponse:
        access = self._access(request)
        body = await json_body(request, partial(admit, self._limiter, access.tenant.name))
        asked: EndRequest = read_request(EndRequest, body)
        if access.grant is not None and asked.outcome is not None:  # the program that is judged holds it
            raise refused(ErrorKind.PERMISSION, "a session's key reports no outcome: use a key of the gateway")
        if access.grant is not None and asked.status is EndStatus.RESTARTED:  # it would escape its reward
            raise refused(
                ErrorKind.PERMISSION, "a session's key ends no attempt as restarted: use a key of the gateway"
            )
        check_may_end(access)
        tenant, session = access.tenant.name, request.match_info["session"]
        if not self._capture.is_open(tenant, session):
            raise refused(
                ErrorKind.NOT_FOUND,
                f"the session {session[:80]!r} is not open: it has ended, was idle for longer than gateway.idle_s "
                f"({self._config.idle_s:g} s), or was never opened",
            )
        events = self._capture.end(tenant, session, asked.status, asked.outcome, asked.answer)
        await self._recorder.record((tenant, session), events)
        return json_response(encode({"session": session, "ended": True}))

    async def _feedback(self, request: web.Request) -> web.StreamResponse:
        target = self._sealer.open_feedback(request.match_info["token"], self._now_ms() / 1000)
        if target is None:
            raise refused(
                ErrorKind.PERMISSION,
                "the feedback token is forged or expired, or of a gateway with another secret: POST /sessions returns "
                "one that is valid for lifetime_s",
            )
        _check_feedback(request.content_length or 0)
        admit(self._feedback_limiter, target.trajectory_id, 0, _too_much_feedback)
        asked: FeedbackRequest = read_request(FeedbackRequest, await json_body(request, _check_feedback))
        if target.trajectory_id.startswith(UNRECORDED):  # accepted, as its other events are, and not recorded
            return json_response(encode({"accepted": True}), 202, CORS)
        comment = None if self._is_masked(target.tenant) else asked.comment  # it may quote what was said
        fact = FeedbackGiven(signal=asked.signal, value=asked.value, comment=comment)
        event, place = TrajectoryEvent(target.trajectory_id, None, fact), (target.tenant, target.trajectory_id)
        try:
            await self._recorder.record(place, [event])
        except JournalFull:
            self._recorder.withdraw(place, [event])  # the client sends it again
            raise
        return json_response(encode({"accepted": True}), 202, CORS)

    async def _preflight(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=204, headers=CORS)


def check_may_end(access: Access) -> None:
    """Raise ``CallRefused`` if the program that acts may not end its session: an outcome of a member of a group would
    come too late then, and one that escapes its outcome is rewarded for failing."""
    if access.grant is not None and access.grant.request.group_id is not None:
        raise refused(
            ErrorKind.PERMISSION,
            "a session's key does not end a member of a group, which awaits its outcome: use a key of the gateway",
        )


def _check_feedback(size: int) -> None:
    """Raise ``CallRefused`` for feedback of too many bytes."""
    if size > MAX_FEEDBACK_BYTES:
        raise refused(ErrorKind.TOO_LARGE, f"feedback is larger than {MAX_FEEDBACK_BYTES:,} bytes")


def _too_much_feedback(exceeded: Exceeded) -> str:
    return (
        f"too much feedback on one trajectory: {FEEDBACK_BURST:g} at once, then {FEEDBACKS_PER_S:g} per second. Try "
        f"again in {exceeded.retry_after_s or 0:.1f} s"
    )


def _address_in(request: web.Request) -> str:
    """Return the gateway's address as the client wrote it."""
    try:
        return str(request.url.origin())
    except ValueError:
        raise BadRequest("Host", "is not the address of a server, and the gateway's public_url is unset") from None
