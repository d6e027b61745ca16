"""The search service over HTTP."""

import aiohttp
import pytest

from headrace.agents.search.search_service import MAX_BYTES, search_service
from headrace.agents.search.tasks import make_task

TASK = make_task("search-heldout-000001")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("search-heldout-000001/search_corpus", b'{"words": ["zebra"]}', 400),
        ("search-heldout-000001/search_corpus", b'{"words": ["<task>"]}', 400),
        ("search-heldout-000001/search_corpus", b'{"words": "ada"}', 400),
        ("search-heldout-000001/search_corpus", b'{"words": [1]}', 400),
        ("search-heldout-000001/search_corpus", b"[", 400),
        ("search-heldout-000001/answer", b'{"words": ["c01"]}', 400),
        ("search-heldout-1/grep_corpus", b'{"words": ["ada"]}', 400),
        ("search-heldout-000001/grep_corpus", b'{"words": ["' + b"a" * MAX_BYTES + b'"]}', 413),
    ],
)
async def test_what_is_no_call_of_a_tool_is_refused(path: str, body: bytes, status: int) -> None:
    async with search_service() as url, aiohttp.ClientSession() as http, http.post(f"{url}/{path}", data=body) as found:
        assert found.status == status


async def test_each_tool_finds_what_it_finds_for_the_reference_agent() -> None:
    chunk = TASK.chain[0]
    expected = {
        ("search_corpus", chunk.triple.subject): TASK.index.search([chunk.triple.subject]),
        ("grep_corpus", chunk.triple.subject): TASK.index.grep(chunk.triple.subject),
        ("read_document", chunk.doc_id): TASK.corpus.document(chunk.doc_id),
    }
    async with search_service() as url, aiohttp.ClientSession() as http:
        for (tool, word), chunks in expected.items():
            async with http.post(f"{url}/{TASK.task_id}/{tool}", json={"words": [word]}) as found:
                assert await found.json() == [{"id": each.chunk_id, "text": " ".join(each.words)} for each in chunks]
            assert chunk in chunks
