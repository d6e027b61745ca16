"""Sessions of the capture gateway, one for each attempt at a task over real text.

POST /sessions {"task_id": …, "agent": "search-text", "task": {"targets": […], …}, "group_id": …, "group_size": 8}
POST /sessions/ses_…/end {"status": "completed", "answer": {"chunk_ids": […], "retrieved": […], "tools": […]}}
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from headrace.agents.search.text.episode import Attempted
from headrace.agents.search.text.harness import HARNESS_VERSION
from headrace.agents.search.text.tasks import TextTask
from headrace.schemas.events import EndStatus

AGENT = "search-text"
"""Name of the agent in every ``trajectory.started``; it selects the reward."""


@dataclass(slots=True)
class Session:
    """An open session."""

    api_key: str
    """Key of the session: calls with it are its calls."""
    trajectory_id: str
    _attempted: list[Attempted] = field(default_factory=list)

    def ends(self, attempted: Attempted) -> None:
        """Give the result with which the session ends; without one it ends as failed."""
        self._attempted[:] = [attempted]

    @property
    def end(self) -> dict[str, Any]:
        """The body of the session's end."""
        if not self._attempted:
            return {"status": str(EndStatus.FAILED)}
        return {"status": str(self._attempted[0].status), "answer": self._attempted[0].as_answer()}


@dataclass(frozen=True, slots=True)
class Sessions:
    """Opens and ends sessions of a gateway."""

    http: aiohttp.ClientSession
    """Has the gateway's address, with a slash at the end, and a key of it in its headers."""

    @asynccontextmanager
    async def opened(self, task: TextTask, start: Mapping[str, Any]) -> AsyncIterator[Session]:
        """Open a session for ``task`` inside the block, and end it after it. ``start``: the group, if it has one.

        Raises :class:`aiohttp.ClientError`, also for an answer of the gateway that is not 2xx.
        """
        about = {"task_id": task.task_id, "agent": AGENT, "harness_version": HARNESS_VERSION, "task": task.facts}
        opened = await self._post("sessions", {**about, **start})
        session = Session(opened["api_key"], opened["trajectory"])
        try:
            yield session
        finally:
            await self._post(f"sessions/{opened['session']}/end", session.end)

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        async with self.http.post(path, json=body) as response:
            response.raise_for_status()
            answer: dict[str, Any] = await response.json()
            return answer
