"""A file is sent piece by piece; what its reader does not take in time is given up."""

import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import pytest

from headrace.deploy.dashboard.file_response import FileResponse

Message = MutableMapping[str, Any]


class Pieces:
    """Pieces of a file, and whether its source was closed."""

    def __init__(self, *rest: bytes | Exception) -> None:
        self.closed = False
        self._rest = rest

    async def __call__(self) -> AsyncGenerator[bytes, None]:
        try:
            for piece in self._rest:
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            self.closed = True


async def nothing() -> Message:
    return {"type": "http.disconnect"}


def sent_by(pieces: Pieces, sent: list[Message], *, stands_still_at: int = 10) -> None:
    async def send(message: Message) -> None:
        if len(sent) == stands_still_at:
            await asyncio.Event().wait()
        sent.append(message)

    response = FileResponse(b"a", pieces(), "text/csv", {"X-Of": "file"}, piece_s=0.05)
    asyncio.run(response({"type": "http"}, nothing, send))


def test_a_file_is_sent_in_its_pieces_and_ends() -> None:
    sent, pieces = list[Message](), Pieces(b"b", b"c")
    sent_by(pieces, sent)
    assert sent[0]["status"] == 200
    assert (b"x-of", b"file") in sent[0]["headers"]
    assert [(each["body"], each["more_body"]) for each in sent[1:]] == [
        (b"a", True), (b"b", True), (b"c", True), (b"", False),
    ]  # fmt: skip
    assert pieces.closed


def test_a_file_that_cannot_be_made_whole_has_no_end() -> None:
    sent, pieces = list[Message](), Pieces(b"b", OSError("the connection was closed"))
    with pytest.raises(OSError, match="closed"):
        sent_by(pieces, sent)
    assert all(each["more_body"] for each in sent[1:])
    assert pieces.closed


def test_a_reader_that_stands_still_does_not_keep_the_query() -> None:
    sent, pieces = list[Message](), Pieces(b"b", b"c")
    with pytest.raises(TimeoutError):
        sent_by(pieces, sent, stands_still_at=3)
    assert len(sent) == 3
    assert pieces.closed
