"""Fixtures of the SDK without a broker, and without a spool."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.agents.encoding import Note
from headrace.agents.sdk import Headrace
from headrace.agents.spool_folder import STATE_VARIABLE
from tests.agents.sdk_helpers import NOWHERE


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for the state of a user's programs: empty for each test, so that none adopts another's events."""
    folder = tmp_path / "state"
    monkeypatch.setenv(STATE_VARIABLE, str(folder))
    return folder


@pytest.fixture
def headrace() -> Iterator[Headrace]:
    sdk = Headrace(NOWHERE, source="test", flush_deadline_s=0, spool_bytes=0)
    yield sdk
    sdk.close()


@pytest.fixture
def notes(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> list[Note]:
    """Events that the host's thread puts into the queue, in order."""
    seen: list[Note] = []
    monkeypatch.setattr(headrace._sender, "put", lambda fields: seen.append(Note(*fields)))
    return seen
