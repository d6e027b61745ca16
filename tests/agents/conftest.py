"""Fixtures of the SDK without a broker."""

from collections.abc import Iterator

import pytest

from headrace.agents.encoding import Note
from headrace.agents.sdk import Headrace
from tests.agents.sdk_helpers import NOWHERE


@pytest.fixture
def headrace() -> Iterator[Headrace]:
    sdk = Headrace(NOWHERE, source="test", flush_deadline_s=0)
    yield sdk
    sdk.close()


@pytest.fixture
def notes(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> list[Note]:
    """Events that the host's thread puts into the queue, in order."""
    seen: list[Note] = []
    monkeypatch.setattr(headrace._sender, "put", lambda fields: seen.append(Note(*fields)))
    return seen
