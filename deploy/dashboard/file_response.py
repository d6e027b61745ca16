"""Sends a file piece by piece, and gives up if its reader does not take a piece in time.

A file holds a query's result and a connection to ClickHouse until it is sent, so a reader that stands still must not
keep them.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

log = logging.getLogger(__name__)

PIECE_S = 60.0
"""Time limit for a reader to take a piece, in seconds."""


class FileResponse(Response):
    """An answer with a file whose first piece is known. Without its end the file is not whole: a failure after the
    first piece closes the connection, which every HTTP client reports.
    """

    def __init__(
        self,
        first: bytes,
        rest: AsyncGenerator[bytes, None],
        media_type: str,
        headers: Mapping[str, str],
        *,
        piece_s: float = PIECE_S,
    ) -> None:
        """``rest`` yields the pieces after ``first`` and is closed in any case."""
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.init_headers(headers)
        self._first = first
        self._rest = rest
        self._piece_s = piece_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file. Raises what making a piece raises, and ``TimeoutError`` if the reader stands still."""
        async with aclosing(self._rest) as rest:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._send(send, self._first)
            async for piece in rest:
                await self._send(send, piece)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, piece: bytes) -> None:
        try:
            async with asyncio.timeout(self._piece_s):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except TimeoutError:
            log.warning("A file was not taken for %g s and is given up", self._piece_s)
            raise
