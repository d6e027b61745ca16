"""Links that show one run, read-only, until they expire: a signed token is the first part of the path.

    /shared/eyJydW4.4fQ…/trainer      the trainer's page of the run in the token

Everybody who has the link sees the overview and the trainer's page of that run and nothing else: every request is
answered for that run whatever it asks for, panels that are not about a single run are empty, and other paths do not
exist.
"""

import base64
import binascii
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.deploy.dashboard.open_streams import OpenStreams

PREFIX = "/shared/"
"""Paths of shared pages."""

MAX_DAYS = 90
"""Longest life of a link."""
MAX_STREAMS = 32
"""Most shared pages that may be open at the same time, half of those that a page allows: people with a link cannot use
them up for those who run the stack."""
MAX_TOKEN = 8_000
"""Longest token in characters: a run's name may have 1000, of up to four bytes each."""

SHARED_PANELS: Mapping[str, frozenset[str]] = {
    "": frozenset(
        {
            *("runs", "totals", "reward", "held_out", "components", "sources", "reward_distribution", "groups"),
            *("lengths", "length_distribution", "tools", "fates", "staleness", "versions"),
        }
    ),
    "/trainer": frozenset({"runs", "now", "steps", "rejected"}),
}
"""Page → its panels whose rows are all of the chosen run. The rows of ``runs`` are filtered. Left out are
alerts, whose sentences name other things, lists of slices, which name tenants, and what is measured of all runs."""

_TOTALS_OF_ALL = ("dead_letters",)
"""Columns of ``totals`` that count all runs."""

_SPECIFICATIONS = "/api/panels"
_READ_PATHS = frozenset(
    f"{page}{path}" for page in SHARED_PANELS for path in ("", "/", "/api/snapshot", "/stream", _SPECIFICATIONS)
)
_OVER = b"event: expired\ndata: expired\n\n"
_NAME_OF_KEY = "share.key"
_KEY_BYTES = 32


class TokenProblem(StrEnum):
    """Why a token is refused."""

    FORGED = "This link is not valid: it was changed, or its key was replaced (headrace share --revoke-all)."
    EXPIRED = "This link has expired: ask for a new one (headrace share RUN)."


@dataclass(frozen=True, slots=True)
class Share:
    """What a token permits."""

    run: str
    """The only run that is shown."""
    expires: int
    """Unix time in seconds from which on it is refused."""


def key_file(data: Path) -> Path:
    """Returns the file of the key with which links to the dashboard on the data folder ``data`` are signed."""
    return data / "keys" / _NAME_OF_KEY


def read_key(file: Path) -> bytes | None:
    """Returns the key; ``None`` if no link was made yet, or the file holds no key."""
    try:
        key = file.read_bytes()
    except FileNotFoundError:
        return None
    return key if len(key) == _KEY_BYTES else None


def make_key(file: Path, *, replace: bool = False) -> bytes:
    """Returns the key in ``file``; creates it, readable by the owner only, if there is none, or if ``replace`` is
    set. Raises ``OSError``.
    """
    if not replace and (known := read_key(file)) is not None:
        return known
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = secrets.token_bytes(_KEY_BYTES)
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
        opened.write(key)
    partial.replace(file)
    return key


def sign(share: Share, key: bytes) -> str:
    """Returns the token of ``share``."""
    content = json.dumps([share.run, share.expires], separators=(",", ":")).encode()
    return f"{_text(content)}.{_text(_mac(content, key))}"


def open_token(token: str, key: bytes | None, now_s: float) -> Share | TokenProblem:
    """Returns what ``token`` permits at the time ``now_s``, or why it permits nothing."""
    if key is None or len(token) > MAX_TOKEN:
        return TokenProblem.FORGED
    try:
        content, mac = (_octets(part) for part in token.split("."))
    except (ValueError, binascii.Error):
        return TokenProblem.FORGED
    if not hmac.compare_digest(mac, _mac(content, key)):
        return TokenProblem.FORGED
    run, expires = json.loads(content)
    if not run:  # would mean all runs
        return TokenProblem.FORGED
    return Share(run, expires) if now_s < expires else TokenProblem.EXPIRED


class SharedRuns:
    """Answers requests below :data:`PREFIX` by the dashboard, restricted to the run of the token."""

    def __init__(self, app: ASGIApp, *, file: Path | None) -> None:
        """``file`` holds the key, which is read for each request, so that a replaced key ends all links at once;
        ``None``: nothing is shared.
        """
        self._app = app
        self._file = file
        self._streams = OpenStreams(MAX_STREAMS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if scope["type"] != "http" or not path.startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        token, slash, rest = path.removeprefix(PREFIX).partition("/")
        key = None if self._file is None else read_key(self._file)
        share = open_token(token, key, time.time())
        inner = slash + rest
        if isinstance(share, TokenProblem):
            await _refused(share.value, 403)(scope, receive, send)
        elif scope["method"] not in ("GET", "HEAD"):
            await _refused("A shared page can only be read.", 405)(scope, receive, send)
        elif inner not in _READ_PATHS:
            await _refused("A link shows the overview and the trainer's page of one run.", 404)(scope, receive, send)
        else:
            page = "/trainer" if inner.startswith("/trainer") else ""
            query = urlencode({"run": share.run}).encode()
            asked = {**scope, "path": inner if inner in ("/", "/trainer") else inner.rstrip("/") or "/"}
            asked |= {"raw_path": asked["path"].encode(), "query_string": query}
            if not inner.endswith("/stream"):
                await self._app(asked, receive, _Restricted(send, page, share, stream=False))
                return
            if self._streams.are_full:
                await _refused(f"{MAX_STREAMS} shared pages are already open: close one.", 503)(scope, receive, send)
                return
            with self._streams.one():
                await self._app(asked, receive, _Restricted(send, page, share, stream=True))


class _Restricted:
    """Sends an answer of the dashboard without what is not about the run."""

    def __init__(self, send: Send, page: str, share: Share, *, stream: bool) -> None:
        self._send = send
        self._page = page
        self._share = share
        self._stream = stream
        self._is_json = False
        self._start: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = {name.lower(): value for name, value in message["headers"]}
            self._is_json = headers.get(b"content-type", b"").startswith(b"application/json")
            if self._is_json:  # its length changes
                self._start = message
                return
        elif self._is_json and message["type"] == "http.response.body":
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_json()
            return
        elif self._stream and message["type"] == "http.response.body":
            body = message.get("body", b"")
            is_over = time.time() >= self._share.expires
            message = {**message, "body": _OVER if is_over and body else self._event(body)}
        await self._send(message)

    async def _send_json(self) -> None:
        assert self._start is not None
        if not self._body:  # the answer to HEAD
            await self._send(self._start)
            await self._send({"type": "http.response.body", "body": b""})
            return
        answer = json.loads(self._body)
        is_list = isinstance(answer, list)  # of specifications: queries without a result
        told = shown(answer, self._page) if is_list else restricted(answer, self._page, self._share.run)
        body = json.dumps(told).encode()
        headers = [each for each in self._start["headers"] if each[0].lower() != b"content-length"]
        await self._send({**self._start, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
        await self._send({"type": "http.response.body", "body": body})

    def _event(self, body: bytes) -> bytes:
        """Returns a server-sent event, which the dashboard sends in one piece, with the restricted snapshot."""
        if not body.startswith(b"data: "):
            return body
        snapshot = restricted(json.loads(body.removeprefix(b"data: ")), self._page, self._share.run)
        return b"data: " + json.dumps(snapshot, separators=(",", ":")).encode() + b"\n\n"


def shown(specifications: list[dict[str, Any]], page: str) -> list[dict[str, Any]]:
    """Returns those of the ``specifications`` of ``page`` whose panels are shared: a card of another would say that
    there is nothing, instead of that it is not shown.
    """
    kept = SHARED_PANELS[page]
    return [each for each in specifications if (each["source"] or each["name"]) in kept]


def restricted(answer: dict[str, Any], page: str, run: str) -> dict[str, Any]:
    """Returns ``answer`` of ``page``, a snapshot, with what is about ``run`` only; a problem without its sentence,
    which may name other runs.
    """
    if answer.get("problem"):
        return {"run": run, "problem": "The dashboard cannot show this run at the moment.", "panels": {}}
    kept = SHARED_PANELS[page]
    panels = {
        name: columns if name in kept else {column: [] for column in columns}
        for name, columns in answer.get("panels", {}).items()
    }
    if runs := panels.get("runs"):
        rows = [at for at, name in enumerate(runs["run"]) if name == run]
        panels["runs"] = {column: [values[at] for at in rows] for column, values in runs.items()}
        if "all_runs" in runs:  # how many runs there are
            panels["runs"]["all_runs"] = [1] * len(rows)
    if totals := panels.get("totals"):
        panels["totals"] = totals | {name: [0] * len(totals[name]) for name in _TOTALS_OF_ALL if name in totals}
    told: dict[str, Any] = {name: answer[name] for name in ("status", "partial") if name in answer}
    return {"run": run, "problem": None, "panels": panels, **told}


def _refused(problem: str, status: int) -> JSONResponse:
    return JSONResponse({"problem": problem}, status, {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"})


def _mac(content: bytes, key: bytes) -> bytes:
    return hmac.digest(key, b"headrace share 1\0" + content, hashlib.sha256)


def _text(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


def _octets(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
