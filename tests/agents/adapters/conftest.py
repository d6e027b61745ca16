"""A scripted endpoint, and what the adapters queue."""

from collections.abc import Iterator

import pytest

from tests.agents.adapters.scripted import Endpoint, scripted_endpoint
from tests.agents.gateway.conftest import chat_model_dir, render_server

__all__ = ["chat_model_dir", "render_server"]


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with scripted_endpoint() as found:
        yield found
