"""Sessions that a program opens by ``POST /sessions``: what it may say about them, and the key that carries it.

    POST /sessions {"task_id": "issue-17", "group_id": "g-1", "group_size": 8}
    → {"session": "ses_…", "api_key": "hrs_…", "trajectory": "019…", "feedback_token": "fb_…"}

The key is signed and contains everything, so that any gateway with the same secret accepts it. Session ids are signed
for their tenant: another tenant that uses one is refused.
"""

import secrets
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.agents.gateway.canonical import BadRequest, canonical_json
from headrace.agents.gateway.record import TaskInfo
from headrace.agents.gateway.sealed import Sealer
from headrace.agents.gateway.session_identity import MAX_SESSION
from headrace.schemas.bounds import MAX_NAME
from headrace.schemas.events import EndStatus, Purpose
from headrace.schemas.finite import NotFinite, RewardValue, refuse_not_finite

MAX_TASK_BYTES = 2_048
"""Largest ``task`` of a session, as JSON: it is part of a key, which is sent in a header."""

MAX_ANSWER_BYTES = 64 * 1024
"""Largest ``answer`` of an ended session, as JSON."""

MAX_KEY = 8_000
"""Longest key of a session, in characters: servers and proxies accept headers of up to 8 KiB."""

MAX_LIFETIME_S = 30 * 86_400
"""Longest lifetime of a session's key and feedback token, in seconds."""

SESSION_PREFIX, KEY_PREFIX = "ses_", "hrs_"

_RANDOM_BYTES = 12
_WITHDRAWN, _EVALUATION = b"-", b"e"

_Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SessionRequest(_Request):
    """The body of ``POST /sessions``; fields as in ``TrajectoryStarted``."""

    session: Annotated[str, Field(min_length=1, max_length=MAX_SESSION)] | None = None
    """Id of the caller's choice; by default the gateway makes one."""
    task_id: _Name | None = None
    agent: _Name | None = None
    group_id: _Name | None = None
    group_size: Annotated[int, Field(ge=1, le=65_535)] | None = None
    cohort_key: _Name | None = None
    harness_version: Annotated[str, Field(max_length=MAX_NAME)] = ""
    purpose: Annotated[Purpose, Field(strict=False)] = Purpose.TRAIN
    task: dict[str, Any] = {}
    consent: bool | None = None
    """Whether it may be trained on; it can only withdraw the tenant's consent."""
    lifetime_s: Annotated[int, Field(ge=1, le=MAX_LIFETIME_S)] = 86_400
    """How long the key and the feedback token are valid, in seconds."""

    def task_info(self, run: str) -> TaskInfo:
        """Return what is recorded of the session's task."""
        return TaskInfo(
            task_id=self.task_id,
            agent=self.agent,
            group_id=self.group_id,
            group_size=self.group_size,
            cohort_key=self.cohort_key,
            harness_version=self.harness_version,
            run=run,
            purpose=self.purpose,
            task=self.task,
        )


class EndRequest(_Request):
    """The body of ``POST /sessions/{session}/end``."""

    status: Annotated[EndStatus, Field(strict=False)] = EndStatus.COMPLETED
    outcome: RewardValue | None = None
    """Reward of the main trajectory, if the environment knows it."""
    answer: Any = None
    """What the program made of the main trajectory, as JSON; ``None``: the text of its last answer."""


class FeedbackRequest(_Request):
    """The body of ``POST /feedback/{token}``."""

    signal: _Name = "score"
    """Kind of feedback: score, accepted, rejected …"""
    value: RewardValue
    comment: Annotated[str, Field(max_length=4_096)] | None = None


class SessionGrant(BaseModel):
    """What the key of a session contains."""

    model_config = ConfigDict(frozen=True)

    tenant: str
    session: str
    expires_s: int
    """Unix time in seconds."""
    request: SessionRequest


def read_request(kind: type[_Request], body: Any) -> Any:
    """Return ``body``, decoded JSON, as a ``kind``. Raises :class:`BadRequest`."""
    try:
        found = kind.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        message = str(first["msg"])
        if first["type"] == "extra_forbidden":
            *names, last = kind.model_fields
            message = f"is not a field of this request: expected {', '.join(names)} or {last}"
        raise BadRequest(".".join(map(str, first["loc"])) or "body", message) from None
    if isinstance(found, SessionRequest):
        if found.session is not None and not found.session.isprintable():
            raise BadRequest("session", "has characters that cannot be printed")
        if found.session in (".", ".."):  # clients leave it out of /s/../v1
            raise BadRequest("session", "is no part of a path")
        _check_json("task", found.task, MAX_TASK_BYTES)
    if isinstance(found, EndRequest):
        _check_json("answer", found.answer, MAX_ANSWER_BYTES)
    return found


def _check_json(name: str, value: Any, at_most: int) -> None:
    """Raise :class:`BadRequest` for JSON that an event cannot hold: too large or deep, or with numbers that no double
    can hold."""
    text = canonical_json(value, name).encode()
    if len(text) > at_most:
        raise BadRequest(name, f"is larger than {at_most:,} bytes of JSON: send a reference instead")
    try:
        refuse_not_finite(text)
    except NotFinite as error:
        raise BadRequest(name, str(error)) from None


def new_session(sealer: Sealer, tenant: str, asked: SessionRequest | None = None) -> str:
    """Return a session id for ``tenant``. It tells what must not be trained on, because it may be used after the
    session has ended, and at another gateway."""
    restrictions = b""
    if asked is not None:
        restrictions += _WITHDRAWN * (asked.consent is False) + _EVALUATION * (asked.purpose is Purpose.EVALUATE)
    return sealer.sign(SESSION_PREFIX, secrets.token_bytes(_RANDOM_BYTES) + restrictions, tenant)


def restrictions_of(sealer: Sealer, tenant: str, session: str) -> tuple[bool, bool]:
    """Return whether ``session`` is an id of :func:`new_session` for ``tenant`` that withdraws the consent, and whether
    it is one of an evaluation."""
    payload = sealer.open_signed(SESSION_PREFIX, session, tenant) or b""
    restrictions = payload[_RANDOM_BYTES:]
    return _WITHDRAWN in restrictions, _EVALUATION in restrictions


def is_foreign(sealer: Sealer, tenant: str, session: str) -> bool:
    """Return whether ``session`` is an id that a gateway made, but not for ``tenant``."""
    return session.startswith(SESSION_PREFIX) and sealer.open_signed(SESSION_PREFIX, session, tenant) is None


def key_of(sealer: Sealer, grant: SessionGrant) -> str:
    """Return the API key that carries ``grant``. Raises :class:`BadRequest` if it is too long for a header."""
    key = sealer.sign(KEY_PREFIX, grant.model_dump_json(exclude_defaults=True).encode(), "")
    if len(key) > MAX_KEY:
        raise BadRequest("body", f"makes a key of {len(key):,} characters, at most {MAX_KEY:,} fit a header: say less")
    return key


def open_key(sealer: Sealer, key: str, now_s: float) -> SessionGrant | None:
    """Return the grant of ``key``; ``None`` if it is forged or expired."""
    payload = sealer.open_signed(KEY_PREFIX, key, "")
    if payload is None:
        return None
    grant = SessionGrant.model_validate_json(payload)
    return grant if grant.expires_s > now_s else None
