"""Calls of the policy by an adapter that plays the agent itself, over OpenAI's APIs.

calls = PolicyCalls(http, seat)
await calls.post("chat/completions", {"messages": […]})     → the answer's body
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from headrace.agents.environments.environment import Seat

AWAY_S = 120.0
"""Longest time of attempts at one call while the gateway or the engine is away, in seconds."""

TEMPORARY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Status codes after which a call is sent again."""

REFUSED = frozenset({400, 413, 422})
"""Status codes of a request that is refused as such: as a rule its conversation has outgrown the context."""

MAX_SHOWN = 500
"""Longest answer in an error message, in characters."""


class PolicyAway(RuntimeError):
    """The policy gave no answer; the message has what was said."""


class PolicyRefused(RuntimeError):
    """The engine or the gateway refuses this conversation; the message has the reason."""


class _Temporary(PolicyAway):
    """It is sent again, as a marked retry, so that nothing is sampled twice."""


@dataclass(frozen=True, slots=True)
class PolicyCalls:
    """Calls of one rollout."""

    http: aiohttp.ClientSession
    seat: Seat
    key: str

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer's body. Raises :class:`PolicyRefused` or :class:`PolicyAway`."""
        attempts = 0

        async def send() -> dict[str, Any]:
            nonlocal attempts
            attempts += 1
            return await self._post(path, body, attempts - 1)

        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_Temporary),
            wait=wait_exponential_jitter(multiplier=0.2, max=10.0),
            stop=stop_after_delay(AWAY_S),
            reraise=True,
        )
        return await retrying(send)

    async def _post(self, path: str, body: Mapping[str, Any], retry: int) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.key}"}
        if retry:
            headers["x-stainless-retry-count"] = str(retry)
        try:
            async with self.http.post(
                f"{self.seat.base_url}/{path}",
                json={"model": self.seat.model, **self.seat.sampling, **body},
                headers=headers,
            ) as response:
                if response.ok:
                    answer: dict[str, Any] = await response.json()
                    return answer
                said = f"{response.status} {(await response.text())[:MAX_SHOWN]}"
                if response.status in REFUSED:
                    raise PolicyRefused(said)
                raise (_Temporary if response.status in TEMPORARY else PolicyAway)(said)
        except asyncio.CancelledError:
            raise
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise _Temporary(repr(error)) from error
