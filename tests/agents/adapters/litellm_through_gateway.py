"""LiteLLM with the logger through the gateway at ``GATEWAY``; ``test_frameworks_through_gateway.py`` runs it in a
process of its own. What the adapter sends is compared here; the trajectory that it knows is written to ``REPORTS``.
"""

import os
from pathlib import Path

import pytest

from headrace.agents.adapters.gateway_session import GatewaySession
from headrace.agents.encoding import Note
from headrace.agents.sdk import Headrace
from tests.agents.adapters import calls_of_litellm as calls

logger = calls.logger

GATEWAY = {"model": "openai/policy", "api_base": f"{os.environ['GATEWAY']}/v1", "api_key": "any", "max_retries": 0}


def report(session: GatewaySession, notes: list[Note]) -> None:
    """Feedback is all that the adapter sends."""
    session.feedback("accepted", 1.0)
    assert session.trajectory_id is not None
    sent = [(note.model.TYPE, note.trajectory_id) for note in notes]
    assert sent == [("headrace.feedback.given.v1", session.trajectory_id)]
    (Path(os.environ["REPORTS"]) / session.session_id).write_text(session.trajectory_id)


@pytest.mark.parametrize("name", ["whole", "stream"])
async def test_asynchronous(name: str, headrace: Headrace, notes: list[Note]) -> None:
    with headrace.gateway_session(name) as session:
        assert (await calls.run_async(GATEWAY, "44", name == "stream")).strip() == calls.ANSWER
    report(session, notes)


def test_synchronous(headrace: Headrace, notes: list[Note]) -> None:
    with headrace.gateway_session("synchronous") as session:
        assert calls.run_sync(GATEWAY | {"extra_headers": session.headers}, "44").strip() == calls.ANSWER
    report(session, notes)
