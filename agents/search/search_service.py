"""The search agent's tools as a service over HTTP, for programs that bring their own loop.

    POST /search-heldout-000001/search_corpus {"words": ["ada", "employer"]}
    [{"id": "c17", "text": "c17 d03 employer of ada is acme"}, …]

The address names the task, whose corpus is searched. The chunks come in order, best first for a search; what a program
has seen already, and what fits its context, is its own affair. Words that a tool does not take are answered with 400.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from headrace.agents.search import vocabulary as words
from headrace.agents.search.actions import Action, parse
from headrace.agents.search.corpus import Chunk
from headrace.agents.search.tasks import Task, make_task

HOST = "127.0.0.1"

MAX_BYTES = 4_096
"""Largest request."""


def found_by(task: Task, tool: str, arguments: Sequence[str]) -> list[Chunk] | None:
    """Return the chunks that ``tool`` finds for ``arguments``, best first; ``None`` if it is no call of a tool."""
    try:
        action = parse(words.encode_words((tool, *arguments, words.END)))
    except KeyError:
        return None
    if not isinstance(action, Action):
        return None
    match action.tool:
        case words.SEARCH:
            return task.index.search(action.arguments)
        case words.GREP:
            return task.index.grep(action.arguments[0])
        case words.READ:
            return list(task.corpus.document(action.arguments[0]))
        case _:
            return None


@asynccontextmanager
async def search_service() -> AsyncIterator[str]:
    """Serve inside the block, on the loopback interface; gives the address."""
    app = web.Application(client_max_size=MAX_BYTES)
    app.router.add_post("/{task}/{tool}", _answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, 0)
        await site.start()
        port = runner.addresses[0][1]
        yield f"http://{HOST}:{port}"
    finally:
        await runner.cleanup()


async def _answer(request: web.Request) -> web.Response:
    try:
        task = make_task(request.match_info["task"])
        arguments = _words(await request.json())
    except ValueError as error:  # also broken JSON
        raise web.HTTPBadRequest(text=str(error)) from None
    found = found_by(task, request.match_info["tool"], arguments)
    if found is None:
        raise web.HTTPBadRequest(text="not a call of one of the tools")
    return web.json_response([{"id": chunk.chunk_id, "text": " ".join(chunk.words)} for chunk in found])


def _words(body: Any) -> list[str]:
    arguments = body.get("words") if isinstance(body, dict) else None
    if not isinstance(arguments, list) or not all(isinstance(word, str) for word in arguments):
        raise ValueError('expected {"words": [...]}')
    return arguments
