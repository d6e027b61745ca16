"""Feedback tokens of the SDK: the gateway's own code accepts them, for one trajectory and for a time."""

import time
from collections.abc import Iterator

import pytest

from headrace.agents.gateway.sealed import FeedbackTarget, Sealer
from headrace.agents.identifier import BadIdentifier
from headrace.agents.masking.settings import Masking
from headrace.agents.sdk import Headrace
from tests.agents.sdk_helpers import NOWHERE

SECRET = "the gateway's secret"


@pytest.fixture
def sdk() -> Iterator[Headrace]:
    sdk = Headrace(NOWHERE, source="test", flush_deadline_s=0, spool_bytes=0, feedback_secret=SECRET)
    yield sdk
    sdk.close()


def test_the_gateway_accepts_a_token_until_it_expires(sdk: Headrace) -> None:
    gateway, now = Sealer([b"another secret of it", SECRET.encode()]), time.time()
    token = sdk.create_feedback_token("t1", expires_in_s=60, tenant="acme")
    assert gateway.open_feedback(token, now) == FeedbackTarget("acme", "t1")
    assert gateway.open_feedback(token, now + 58) is not None
    assert gateway.open_feedback(token, now + 70) is None


def test_a_token_of_another_gateway_or_changed_is_refused(sdk: Headrace) -> None:
    token, now = sdk.create_feedback_token("t1", expires_in_s=60), time.time()
    assert Sealer([b"a different secret"]).open_feedback(token, now) is None
    gateway = Sealer([SECRET.encode()])
    for at in range(len(token)):
        changed = token[:at] + ("B" if token[at] != "B" else "C") + token[at + 1 :]
        assert gateway.open_feedback(changed, now) is None
    assert gateway.open(token, "", now) is None, "it is no reference to an answer"


def test_a_token_is_not_made_without_a_secret_or_for_what_is_not_valid(sdk: Headrace) -> None:
    with pytest.raises(BadIdentifier, match="trajectory_id"):
        sdk.create_feedback_token("", expires_in_s=60)
    for seconds in (0, -1, 1e12, float("nan")):
        with pytest.raises(ValueError, match="expires_in_s"):
            sdk.create_feedback_token("t1", expires_in_s=seconds)
    with pytest.raises(ValueError, match="secret"):
        Headrace(NOWHERE, source="test", feedback_secret="short")
    other = Headrace(NOWHERE, source="test", flush_deadline_s=0, spool_bytes=0)
    with pytest.raises(ValueError, match="feedback_secret"):
        other.create_feedback_token("t1", expires_in_s=60)
    other.close()


def test_a_token_names_the_trajectory_as_its_events_do() -> None:
    masking = Masking(key=b"k" * 16)
    sdk = Headrace(NOWHERE, source="test", spool_bytes=0, feedback_secret=SECRET, masking=masking)
    token = sdk.create_feedback_token("ada@mill.example", expires_in_s=60)
    target = Sealer([SECRET.encode()]).open_feedback(token, time.time())
    sdk.close()
    assert target is not None
    assert target.trajectory_id.startswith("masked-")
