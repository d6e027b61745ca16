"""An external server that does not answer as it should: what the error says."""

from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from headrace.deploy.configuration.settings import load_settings
from headrace.deploy.errors import StackError
from headrace.deploy.processes.external import answers_over_http


async def test_a_server_without_the_endpoint_is_named_with_its_status(tmp_path: Path) -> None:
    async with TestServer(web.Application()) as server:
        url = str(server.make_url("")).rstrip("/")
        with pytest.raises(StackError) as raised:
            await answers_over_http("vllm", "/health")(load_settings(data=tmp_path, vllm=url))
    assert str(raised.value) == (
        f"vllm at {url} (HEADRACE_VLLM) did not answer /health: it says 404 Not Found. Check the address and that the "
        "server runs, or unset the setting and the stack starts one."
    )
