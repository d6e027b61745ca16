"""A side is folded from structs where that is certain to give the same result; otherwise the models decide."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.examples import EXAMPLES
from headrace.schemas.records.group import Rejection, TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.wire import UnreadableRecord, decode
from headrace.streams.diff.read import fold_record
from headrace.streams.diff.side import Attempt, DiffSide
from headrace.streams.raw import StoredRecord
from tests.streams.test_structs import anything, paths, put

TYPES = (Reward.TYPE, TrainingGroup.TYPE, Rejection.TYPE)


def stored(kind: str, value: bytes | None) -> StoredRecord:
    message = EXAMPLES[kind].message
    return StoredRecord(EXAMPLES[kind].topic.name, 0, 5, 1000, message.key, value, message.headers)


@st.composite
def records(draw: st.DrawFn) -> StoredRecord:
    """The three types, with other things in some places."""
    kind = draw(st.sampled_from(TYPES))
    value = json.loads(EXAMPLES[kind].message.value)
    for _ in range(draw(st.integers(0, 2))):
        value = put(value, draw(st.sampled_from(sorted(paths(value), key=str))), draw(anything))
    return stored(kind, json.dumps(value).encode())


def by_model(record: StoredRecord) -> dict[str, Attempt] | str:
    side = DiffSide("one")
    try:
        side.add(decode(record.headers, record.value)[1])
    except UnreadableRecord as error:
        return str(error)
    return side.attempts


def fast(record: StoredRecord) -> dict[str, Attempt] | str:
    side = DiffSide("one")
    try:
        fold_record(side, record)
    except UnreadableRecord as error:
        return str(error)
    return side.attempts


@given(records())
def test_structs_and_models_fold_the_same_side(record: StoredRecord) -> None:
    assert fast(record) == by_model(record)


@pytest.mark.parametrize("kind", TYPES)
def test_ordinary_records_are_read_without_the_model(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record = stored(kind, EXAMPLES[kind].message.value)
    expected = by_model(record)
    monkeypatch.setattr("headrace.streams.typed_reader.typed", None)
    assert fast(record) == expected
    assert expected or kind == Rejection.TYPE


def test_other_types_are_ignored() -> None:
    other = EXAMPLES["headrace.trajectory.started.v1"]
    record = StoredRecord("rewards", 0, 5, 1000, other.message.key, other.message.value, other.message.headers)
    assert fast(record) == {}
