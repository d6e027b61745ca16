"""A resources server with the HTTP interface that NeMo Gym documents: sessions in cookies, tools, a verifier.

row: {"responses_create_params": {"input": …, "tools": [get_weather]}, "city": "Oslo", "expected": "cold"}
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from aiohttp import web

from tests.local_server import serving

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}


def row(question: str = "Is it cold in Oslo?", expected: str = "cold") -> dict[str, Any]:
    """A task."""
    params = {"input": [{"role": "user", "content": question}], "tools": [WEATHER], "temperature": 0.3}
    return {"responses_create_params": params, "expected": expected, "difficulty": 2}


class GymServer:
    """The server: a rollout is correct if it asked for the weather in its own session and says what is expected."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: dict[str, list[str]] = {}
        """Cities by session."""
        self.verified: list[dict[str, Any]] = []
        self.broken_verifier = False
        self.seeded: dict[str, Any] = {}
        """Answer of ``/seed_session``."""

    async def seed(self, request: web.Request) -> web.Response:
        assert "responses_create_params" in await request.json()
        response = web.json_response(self.seeded)
        session = uuid4().hex
        self.asked[session] = []
        response.set_cookie("session", session)
        return response

    async def get_weather(self, request: web.Request) -> web.Response:
        city = (await request.json()).get("city")
        if not isinstance(city, str):
            return web.json_response({"detail": "city is missing"}, status=422)
        self.asked[request.cookies["session"]].append(city)
        return web.json_response({"city": city, "weather": "cold"})

    async def verify(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.verified.append(body)
        if self.broken_verifier:
            return web.json_response({"detail": "cannot parse"}, status=500)
        said = [item for item in body["response"]["output"] if item["type"] == "message"]
        text = said[-1]["content"][0]["text"] if said else ""
        asked = self.asked[request.cookies["session"]]
        correct = body["expected"] in text
        return web.json_response({**body, "reward": float(correct and bool(asked)), "said_it": correct})


@asynccontextmanager
async def gym_server() -> AsyncIterator[GymServer]:
    """The server, running."""
    server, app = GymServer(), web.Application()
    app.router.add_post("/seed_session", server.seed)
    app.router.add_post("/get_weather", server.get_weather)
    app.router.add_post("/verify", server.verify)
    async with serving(app, shutdown_timeout=0.1) as server.url:
        yield server
