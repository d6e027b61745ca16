"""The fast reader of rewards and the model agree on every payload and all headers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.envelope import ID, SEQUENCE, SOURCE, SUBJECT, TIME, TRACEPARENT, TYPE
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Component, Reward
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.grouping.group_state import Candidate, candidate_of
from headrace.streams.raw import LogRecord, StoredRecord
from headrace.streams.scoring.score import reward_message
from headrace.streams.typed_reader import TypedReader
from headrace.streams.typed_record import typed
from tests.streams.attempts import attempt, rewarded, trajectory_message
from tests.streams.test_structs import anything, paths, put

REWARD = rewarded("a", 0.5, offset=7).model_copy(
    update={
        "cohort_key": "eu",
        "components": {"judge": Component(value=0.5, weight=1.0, details={"tone": 3.0})},
        "feedback": [Reference(partition=0, offset=3)],
    }
)
MESSAGE = reward_message(REWARD)
REWARDS = TypedReader(Reward)
TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def record(value: bytes | None = MESSAGE.value, **headers: bytes | None) -> StoredRecord:
    """The reward's record with another value, or other headers (``ce_id`` …)."""
    return StoredRecord("rewards", 0, 5, 1000, MESSAGE.key, value, list((dict(MESSAGE.headers) | headers).items()))


Seen = tuple[Candidate, tuple[object, ...]] | tuple[str, str]


def seen(reward: Reward, traceparent: str | None) -> Seen:
    """All fields that group uses of a reward."""
    names = ("run", "task_id", "group_id", "group_size", "cohort_key", "purpose", "role", "spec", "maximum", "ended_ms")
    return candidate_of(reward, traceparent), tuple(getattr(reward, name) for name in names)


def fast(arrived: LogRecord) -> Seen:
    try:
        return seen(*REWARDS.read(arrived))
    except UnreadableRecord as error:
        return error.error.value, str(error)


def by_model(arrived: LogRecord) -> Seen:
    try:
        envelope, reward = typed(arrived, Reward)
    except UnreadableRecord as error:
        return error.error.value, str(error)
    return seen(reward, envelope.traceparent)


def test_a_reward_as_score_writes_it_is_read_without_the_model() -> None:
    reward, traceparent = REWARDS.read(record(traceparent=TRACE))
    assert not isinstance(reward, Reward)
    assert seen(reward, traceparent) == seen(REWARD, TRACE.decode())


@st.composite
def values(draw: st.DrawFn) -> bytes:
    """The reward's payload with some values replaced, unknown fields, and sometimes broken bytes."""
    value = json.loads(MESSAGE.value)
    for _ in range(draw(st.integers(0, 2))):
        value = put(value, draw(st.sampled_from(sorted(paths(value), key=str))), draw(anything))
    if isinstance(value, dict):
        value |= draw(st.dictionaries(st.sampled_from(["colour", "total", "revision"]), anything, max_size=1))
    raw = json.dumps(value).encode()
    cut = draw(st.integers(0, 8 * len(raw)))
    return raw[:cut] + draw(st.sampled_from([b"", b"\xff", b","])) + raw[cut + 1 :] if cut < len(raw) else raw


@given(values())
def test_both_readers_agree_on_any_payload(value: bytes) -> None:
    assert fast(record(value)) == by_model(record(value))


HEADERS = st.sampled_from(
    [None, b"", b"x", b"\xff", "ü".encode(), b"3", TRACE, b"2025-11-13T02:13:20.000Z", b"2025-11-13"]
)


@given(st.dictionaries(st.sampled_from([ID, SEQUENCE, SOURCE, SUBJECT, TIME, TRACEPARENT, TYPE]), HEADERS, max_size=3))
def test_both_readers_agree_on_any_headers(headers: dict[str, bytes | None]) -> None:
    assert fast(record(**headers)) == by_model(record(**headers))


@pytest.mark.parametrize("missing", [ID, SOURCE, SUBJECT, TIME, TYPE])
def test_a_missing_header_is_named(missing: str) -> None:
    headers = [(name, value) for name, value in MESSAGE.headers if name != missing]
    with pytest.raises(UnreadableRecord, match=missing):
        REWARDS.read(StoredRecord("rewards", 0, 5, 1000, MESSAGE.key, MESSAGE.value, headers))


@pytest.mark.parametrize("value", [None, b"", b"{"])
def test_invalid_json_is_reported_as_such(value: bytes | None) -> None:
    assert fast(record(value)) == by_model(record(value))


def test_a_record_of_another_type_is_refused() -> None:
    foreign = trajectory_message(attempt("t"))
    with pytest.raises(UnreadableRecord, match="does not belong in rewards"):
        REWARDS.read(StoredRecord("rewards", 0, 5, 1000, foreign.key, foreign.value, foreign.headers))
