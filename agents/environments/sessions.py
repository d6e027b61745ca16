"""Sessions at the capture gateway: one for each rollout, opened before it and ended with its outcome.

session = await sessions.open({"task_id": "9f3c…", "group_id": "019…", "group_size": 8, "agent": "environment"})
await sessions.end(session, {"status": "completed", "outcome": 1.0, "answer": {…}})
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote
from uuid import uuid4

import aiohttp
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from headrace.schemas.events import EndStatus
from headrace.schemas.redaction import redacted_address

AWAY_S = 60.0
"""Longest wait for a gateway that does not listen or cannot record: it may be restarting."""

REQUEST_S = 30.0
"""Longest wait for an answer."""

END_S = 10.0
"""Longest time to tell the gateway that a session was aborted, in seconds."""

NOT_CHECKED = "not-checked"
"""Key of a gateway that accepts every key."""

MAX_SHOWN = 500
"""Longest answer in an error message, in characters."""


class GatewayFailed(RuntimeError):
    """The gateway did not do what it was asked for; the message has its answer."""


class SessionLost(GatewayFailed):
    """The session is not open any more: the gateway ended it because it was idle, or knows nothing of it."""


class _Away(GatewayFailed):
    """Temporary."""


@dataclass(frozen=True, slots=True)
class Session:
    """An open session."""

    session: str
    """Its id."""
    trajectory_id: str
    """The trajectory of its main conversation."""
    base_url: str
    """Address of OpenAI's API for this session."""


class Sessions(Protocol):
    """Where rollouts find the policy: :class:`GatewaySessions`, or :class:`UnrecordedSessions`."""

    async def open(self, about: Mapping[str, Any]) -> Session:
        """Open a session; ``about``: fields of ``POST /sessions``. Raises :class:`GatewayFailed`."""
        ...

    async def end(self, session: Session, body: Mapping[str, Any]) -> None:
        """End a session. Raises :class:`GatewayFailed`."""
        ...


@dataclass(frozen=True, slots=True)
class UnrecordedSessions:
    """Rollouts at an endpoint of OpenAI's API without a gateway: nothing is recorded, so nothing can be trained."""

    base_url: str
    """The endpoint's address, with ``/v1``."""

    async def open(self, about: Mapping[str, Any]) -> Session:
        """Return a session without a trajectory."""
        name = uuid4().hex
        return Session(name, name, self.base_url.rstrip("/"))

    async def end(self, session: Session, body: Mapping[str, Any]) -> None:
        """Nothing is told."""


async def open_group(
    sessions: Sessions, about: Mapping[str, Any], size: int, abort: Callable[[Session], Awaitable[None]]
) -> list[Session]:
    """Open ``size`` sessions; if one of them cannot be opened, ``abort`` each of those before it."""
    members: list[Session] = []
    try:
        for _ in range(size):
            members.append(await sessions.open(about))  # noqa: PERF401 - those before a failure are kept
    except BaseException:
        for member in members:
            await abort(member)
        raise
    return members


async def abort_session(sessions: Sessions, session: Session, **more: Any) -> None:
    """End a session that has no result; what cannot be told ends by itself, as idle. ``more``: fields of its end."""
    with suppress(GatewayFailed, TimeoutError):
        async with asyncio.timeout(END_S):
            await sessions.end(session, {"status": EndStatus.ABORTED.value, **more})


class GatewaySessions:
    """Opens and ends sessions. Created by :func:`gateway_sessions`."""

    def __init__(self, http: aiohttp.ClientSession, gateway: str) -> None:
        self._http = http
        self._gateway = gateway.rstrip("/")

    async def open(self, about: Mapping[str, Any]) -> Session:
        """Open a session; ``about``: fields of ``POST /sessions``. Raises :class:`GatewayFailed`."""
        name = uuid4().hex  # verifiers makes a folder of this name
        opened = await self._retried("/sessions", {"session": name, **about})
        return Session(name, opened["trajectory"], f"{self._gateway}/s/{name}/v1")

    async def end(self, session: Session, body: Mapping[str, Any]) -> None:
        """End a session. Raises :class:`GatewayFailed`, or :class:`SessionLost` if there is none."""
        await self._retried(f"/sessions/{quote(session.session, safe='')}/end", body)

    async def _retried(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_Away),
            wait=wait_exponential_jitter(multiplier=0.1, max=5.0),
            stop=stop_after_delay(AWAY_S),
            reraise=True,
        )
        return await retrying(self._post, path, body)

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        where = f"the gateway at {redacted_address(self._gateway)}"
        try:
            async with self._http.post(self._gateway + path, json=body) as response:
                answer = await response.text()
                if response.ok:
                    found: dict[str, Any] = await response.json()
                    return found
                said = f"{where} answered {response.status} to {path}: {answer[:MAX_SHOWN]}"
                if response.status == 404 and path.endswith("/end"):
                    raise SessionLost(said)
                if response.status in (429, 502, 503):  # nothing was done: it is full, or starting
                    raise _Away(said)
                raise GatewayFailed(said)
        except aiohttp.ClientConnectorError as error:  # nothing was sent
            raise _Away(f"{where} does not listen: {error}") from error
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise GatewayFailed(f"{where} did not answer to {path}: {error!r}") from error


@asynccontextmanager
async def gateway_sessions(gateway: str, key: str | None = None) -> AsyncIterator[GatewaySessions]:
    """Sessions at ``gateway`` (its address, without ``/v1``), with a ``key`` if it checks keys."""
    timeout = aiohttp.ClientTimeout(total=REQUEST_S)
    headers = {"Authorization": f"Bearer {key or NOT_CHECKED}"}
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as http:
        yield GatewaySessions(http, gateway)
