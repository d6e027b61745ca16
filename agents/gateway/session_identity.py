"""The session of a request: by the first that holds of what clients send, with the source on record.

    x-claude-code-session-id: 0b1c…   x-claude-code-agent-id: a17   →  session 0b1c…, scope 0b1c…␟a17

A *scope* is one line of conversation within a session: the main agent, or one sub-agent. Everything is bounded; a value
that is empty, too long or not printable is treated as absent. A scope means something only together with its tenant.

Sources differ in what they promise. Most name a conversation. Some are only *hints*: a trace, a user's id or a cache
key may be shared by many conversations, or change within one. A hint loses against a conversation that the request
itself continues (an id that the gateway minted, or a known history), and a new conversation under a hint is a
trajectory of its own.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headrace.schemas.ids import SEPARATOR

MAX_SESSION = 160
"""Longest session id of a client, in characters: a scope of a session and an agent fits in an event's names."""

MAX_METADATA = 8_192
"""Longest header or body field that is parsed as JSON, in characters."""

_USER_ID = re.compile(r"_session_([0-9a-fA-F-]{8,64})\Z")
_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}\b")
_KNOWN_CLIENTS = (
    ("claude-cli/", "claude-code"),
    ("codex", "codex"),
    ("opencode/", "opencode"),
)


class Source(StrEnum):
    """What named the session, strongest first."""

    URL = "url"
    KEY = "key"
    CLAUDE_CODE = "claude_code"
    CODEX = "codex"
    OPENCODE = "opencode"
    SESSION_HEADER = "session_header"
    USER_ID_SESSION = "user_id_session"
    """The session that Claude Code writes into ``metadata.user_id``."""
    CACHE_KEY = "cache_key"
    """Codex's ``prompt_cache_key``, which is its conversation."""
    REFERENCE = "reference"
    """An id that the gateway minted: ``previous_response_id``, a tool call, a signature."""
    HISTORY = "history"
    """A history that the gateway knows."""
    TRACE = "trace"
    CACHE_KEY_HINT = "cache_key_hint"
    USER_ID = "user_id"
    INFERRED = "inferred"
    """Nothing: the request starts a session of its own."""

    @property
    def is_hint(self) -> bool:
        """Whether one value may stand for several conversations."""
        return self in (Source.TRACE, Source.CACHE_KEY_HINT, Source.USER_ID)


@dataclass(frozen=True, slots=True)
class Arrival:
    """What accompanies a request's body."""

    headers: Mapping[str, str]
    """Headers by lower-case name."""
    url_session: str | None = None
    """Session in the URL: ``/s/{session}/v1/…``."""
    key_session: str | None = None
    """Session to which the API key belongs."""

    @property
    def retry(self) -> int:
        """Number of earlier attempts of the client's SDK; 0 if it does not say."""
        text = self.headers.get("x-stainless-retry-count", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0

    @property
    def client(self) -> str | None:
        """Known client that sent the request; ``None`` for any other."""
        agent = self.headers.get("user-agent", "")[:200].lower()
        return next((client for start, client in _KNOWN_CLIENTS if agent.startswith(start)), None)


@dataclass(frozen=True, slots=True)
class SessionIdentity:
    """The session of a request."""

    session_id: str
    """The client's session; several scopes share it."""
    source: Source
    """What named it."""
    agent: str | None = None
    """Sub-agent within the session, if the client names one."""
    parent_scope: str | None = None
    """Scope that started this one, if the client names it."""
    window: int | None = None
    """Codex: number of the context window, which grows by one with each compaction."""

    @property
    def scope(self) -> str:
        """Line of conversation within the tenant."""
        return scope_of(self.session_id, self.agent)


def scope_of(session_id: str, agent: str | None) -> str:
    """Return the scope of an agent of a session; ``None`` is the main agent."""
    return session_id if agent is None else f"{session_id}{SEPARATOR}{agent}"


def identify(arrival: Arrival, body: Mapping[str, Any]) -> SessionIdentity | None:
    """Return the session that a request names; ``None`` if only its history can tell."""
    headers = arrival.headers
    native = _claude_code(headers) or _codex(headers) or _opencode(headers)
    for explicit, source in ((arrival.url_session, Source.URL), (arrival.key_session, Source.KEY)):
        if session := _clean(explicit):
            return _within(session, source, native)
    return native or _header(headers) or _body(arrival, body)


def _within(session: str, source: Source, native: SessionIdentity | None) -> SessionIdentity:
    """Return the identity of a request to ``session``, with the scopes that the client's own headers tell apart."""
    if native is None:
        return SessionIdentity(session, source)
    agent, parent = native.agent, None
    if native.agent is not None and native.parent_scope is not None:
        parent = native.parent_scope.partition(SEPARATOR)[2] or None
    elif native.parent_scope is not None:  # opencode: a sub-agent has a session of its own
        agent = native.session_id
    return SessionIdentity(
        session, source, agent, None if native.parent_scope is None else scope_of(session, parent), native.window
    )


def _claude_code(headers: Mapping[str, str]) -> SessionIdentity | None:
    session = _clean(headers.get("x-claude-code-session-id"))
    if session is None:
        return None
    agent = _clean(headers.get("x-claude-code-agent-id"))
    parent = scope_of(session, _clean(headers.get("x-claude-code-parent-agent-id"))) if agent else None
    return SessionIdentity(session, Source.CLAUDE_CODE, agent, parent)


def _codex(headers: Mapping[str, str]) -> SessionIdentity | None:
    metadata = _json(headers.get("x-codex-turn-metadata"))
    session = _clean(headers.get("session-id")) or _clean(metadata.get("session_id"))
    if session is None:
        return None
    thread = _clean(headers.get("thread-id")) or _clean(metadata.get("thread_id"))
    agent = thread if thread != session else None
    parent = _clean(headers.get("x-codex-parent-thread-id")) or _clean(metadata.get("parent_thread_id"))
    parent_scope = None
    if agent is not None and parent is not None:
        parent_scope = scope_of(session, parent if parent != session else None)
    return SessionIdentity(session, Source.CODEX, agent, parent_scope, _window(headers, metadata))


def _window(headers: Mapping[str, str], metadata: Mapping[str, Any]) -> int | None:
    number = metadata.get("window_number")
    if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
        return number
    window = headers.get("x-codex-window-id") or metadata.get("window_id")
    last = window.rpartition(":")[2] if isinstance(window, str) else ""
    return int(last) if last.isascii() and last.isdigit() and len(last) < 10 else None


def _opencode(headers: Mapping[str, str]) -> SessionIdentity | None:
    session = _clean(headers.get("x-opencode-session"))
    source = Source.OPENCODE
    if session is None:
        session, source = _clean(headers.get("x-session-id")), Source.SESSION_HEADER
    parent = _clean(headers.get("x-parent-session-id"))
    return None if session is None else SessionIdentity(session, source, parent_scope=parent)


def _header(headers: Mapping[str, str]) -> SessionIdentity | None:
    session = _clean(headers.get("x-session-affinity"))
    return None if session is None else SessionIdentity(session, Source.SESSION_HEADER)


def _body(arrival: Arrival, body: Mapping[str, Any]) -> SessionIdentity | None:
    metadata = body.get("metadata")
    user_id = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    if isinstance(user_id, str) and len(user_id) <= MAX_METADATA:
        found = _USER_ID.search(user_id)
        session = found[1] if found else _clean(_json(user_id).get("session_id"))
        if session is not None:
            return SessionIdentity(session, Source.USER_ID_SESSION)
    cache_key = _clean(body.get("prompt_cache_key"))
    if cache_key is not None and arrival.client == "codex":
        return SessionIdentity(cache_key, Source.CACHE_KEY)
    if trace := _TRACE.match(arrival.headers.get("traceparent", "")[:64]):
        return SessionIdentity(trace[1], Source.TRACE)
    if cache_key is not None:
        return SessionIdentity(cache_key, Source.CACHE_KEY_HINT)
    user = _clean(user_id)
    return None if user is None else SessionIdentity(user, Source.USER_ID)


def _clean(value: object) -> str | None:
    """Return ``value`` if it is a printable text of bounded length."""
    return value if isinstance(value, str) and 0 < len(value) <= MAX_SESSION and value.isprintable() else None


def _json(text: object) -> Mapping[str, Any]:
    """Return the JSON object in ``text``; an empty one for anything else."""
    if not isinstance(text, str) or not text.startswith("{") or len(text) > MAX_METADATA:
        return {}
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}
