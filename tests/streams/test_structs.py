"""Structs read what the pydantic models would read, byte for byte in the trajectory, or leave the payload to them."""

import base64
import json
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator

from headrace.schemas.arrays import FREE_INFLATION, MAX_BYTES
from headrace.schemas.events import (
    ContextPruned,
    ContextSummarized,
    ModelCalled,
    SubagentFinished,
    SubagentStarted,
    ToolCalled,
    ToolReturned,
    TrajectoryEnded,
    TrajectoryStarted,
)
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.model import Record
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Segment, Trajectory
from headrace.schemas.topics import EVENTS
from headrace.streams.assembly import event_decoder, trajectory_writer
from headrace.streams.assembly.arrival import arrival_of
from headrace.streams.assembly.assemble import conclude
from headrace.streams.assembly.event_decoder import read_event
from headrace.streams.assembly.gaps import NO_GAPS
from headrace.streams.assembly.history import History
from headrace.streams.structs import Doubt, StructReader, encode_struct, writing
from tests.schemas.test_finite import BAD
from tests.streams.builders import T0, called, event, started

# Together these contain every field and every kind of value.
FACTS: dict[str, Record] = {
    "started": TrajectoryStarted(task_id="t", agent="a", group_size=8, sample_rate=0.5, task={"targets": ["c1"]}),
    "called": called(
        [1, 2], [3, 4], messages=[{"role": "user", "content": "hé"}], hidden=["messages"], latency_s=0.25,
        finish_reason="stop", sampling={"temperature": 0, "top_p": 0.9, "seed": 7, "max_tokens": 9},
        usage={"prompt_tokens": 2, "completion_tokens": 2},
    ),
    "long": called(list(range(600)), [3, 4]),
    "tool": ToolCalled(call_id="c1", tool="search", arguments={"query": "ada", "limit": None, "deep": [[1.5, True]]}),
    "returned": ToolReturned(call_id="c1", tool="search", result={"text": "\u2028 found"}, latency_s=1e-7),
    "failed": ToolReturned(call_id="c2", tool="search", status="error", error_class="timeout", latency_s=3),
    "summarized": ContextSummarized(summary="so far", tokens_before=9, tokens_after=2),
    "pruned": ContextPruned(pruned_ids=["p1", "p2"], tokens_before=9, tokens_after=2),
    "assigned": SubagentStarted(name="a", sub_trajectory_id="s2", stage=1),
    "finished": SubagentFinished(name="a", sub_trajectory_id="s2", stage=1, status="failed", steps=4),
    "ended": TrajectoryEnded(status="aborted", answer={"text": "42"}, outcome=0.5, error="none"),
}  # fmt: skip
FACTS |= {
    name: example.payload
    for name, example in EXAMPLES.items()
    if example.topic is EVENTS and type(example.payload) not in set(map(type, FACTS.values()))
}


def outcome(name: str, value: bytes) -> list[Any]:
    """The record of a trajectory with this payload among good ones, and the payload's error."""
    facts = [started(), FACTS[name], called([7], [8]), TrajectoryEnded()]
    if name == "started":
        facts.pop(0)
    records = [event("s1", number, fact, offset=number) for number, fact in enumerate(facts)]
    place = facts.index(FACTS[name])
    records[place] = event("s1", place, FACTS[name], offset=place, value=value)
    where = Reference(partition=0, offset=0)
    arrivals = dict(enumerate(map(arrival_of, records)))
    history = History("s1", arrivals, {}, NO_GAPS, (), frozenset(), 0, where, where, T0, T0, T0, 9)
    trajectory, dead = conclude(history)
    return [trajectory, [(letter.record.offset, letter.error.error, str(letter.error)) for letter in dead]]


@contextmanager
def models_only() -> Iterator[None]:
    """Disable the readers: every payload and every trajectory goes through its pydantic model."""
    with patch.dict(event_decoder._READERS, clear=True), patch.object(trajectory_writer, "_WRITER", None):
        yield


def is_as_by_models(name: str, value: bytes) -> None:
    found = outcome(name, value)
    with models_only():
        assert found == outcome(name, value)


integers = st.sampled_from([0, 1, -1, 2, 7, 2**31, 2**53 + 1, 2**63, 2**64, 10**30])
floats = st.sampled_from(
    [0.0, -0.0, 1.0, 1.5, -2.0, 0.1, 1e9, 1e10, 1e15, 1e16, 1.7e308, 5e-324, float("inf"), float("nan")]
)
texts = st.sampled_from(["", "5", "1.0", "true", "no", "ok", "OK", "timeout", "frozen", "null", "AAAA", "AAA=", "A"])
arrays = st.sampled_from(["BQAAAAYAAAA=", "AADAfw==", "zstd:AAAA", "zstd:", "BQAAAAYAAAA==", "BQAA\nAAYAAAA=", "é"])
leaves = (
    st.none() | st.booleans() | integers | floats | texts | arrays | st.text(max_size=5) | st.integers() | st.floats()
)
anything = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, held in inner:
        yield from paths(held, (*path, key))


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """``value`` with something else at a place."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(copy[path[0]], path[1:], new)
    return copy


@st.composite
def payloads(draw: st.DrawFn) -> tuple[str, bytes]:
    """Payloads with wrong values, missing, unknown and doubled fields, and broken bytes; some are untouched."""
    name = draw(st.sampled_from(sorted(FACTS)))
    value = json.loads(FACTS[name].model_dump_json())
    for _ in range(draw(st.integers(0, 2))):
        value = put(value, draw(st.sampled_from(sorted(paths(value), key=str))), draw(anything))
    if isinstance(value, dict):
        for key in draw(st.lists(st.sampled_from(sorted(value) or ["x"]), max_size=1)):
            value.pop(key, None)
        value |= draw(st.dictionaries(st.sampled_from(["colour", "TYPE", "call_id", "model"]), anything, max_size=1))
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
    if draw(st.booleans()) and text.endswith("}") and len(text) > 2:
        key = draw(st.sampled_from(["call_id", "tool", "status", "latency_s", "model", "tokens_before", "new"]))
        text = f"{text[:-1]}, {json.dumps(key)}: {json.dumps(draw(anything))}}}"
    raw = text.encode("utf-8", "surrogatepass")
    scar = st.sampled_from(
        [b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\\udc00", b"\x00", b"1e400", b"-", b"0", b",", b'"']
    )
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(raw)))
        raw = raw[:at] + draw(scar) + raw[at + draw(st.integers(0, 2)) :]
    return name, raw


@given(payloads())
@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(("tool", b'{"call_id":"c","tool":"t","colour":"\xff"}'))
@example(("tool", b'{"call_id":"c","tool":"t","colour":"\\ud800"}'))
@example(("tool", b'{"call_id":"c","tool":"t","colour":1e400}'))
@example(("returned", b'{"call_id":"c","tool":"t","result":1e16}'))
@example(("returned", b'{"call_id":"c","tool":"t","latency_s":1e300}'))
@example(("returned", b'{"call_id":"c","tool":"t","result":' + b"[" * 199 + b"]" * 199 + b"}"))
@example(("returned", b'{"call_id":"c","tool":"t","result":' + b"[" * 5000 + b"]" * 5000 + b"}"))
@example(("returned", b'{"call_id":"c","tool":"t","result":' + b"9" * 5000 + b"}"))
@example(("ended", b'{"outcome":' + b"9" * 400 + b"}"))
@example(("ended", b'{"status":"completed","status":"aborted"}'))
@example(
    ("called", b'{"model":"m","version_spans":[{"version":1,"start":0,"end":1,"by":"x"}],"sampled_ids":"BQAAAA=="}')
)
@example(("started", b'{"task_id":"t","agent":"a","region":"eu","sample_rate":1}'))
def test_structs_give_the_result_of_the_models_for_any_payload(case: tuple[str, bytes]) -> None:
    is_as_by_models(*case)


@pytest.mark.parametrize("name", sorted(FACTS))
def test_records_of_our_own_sdk_are_read_without_the_models(name: str) -> None:
    read = read_event(arrival_of(event("s1", 0, FACTS[name])))
    assert read.plain
    assert not isinstance(read.fact, BaseModel)
    assert type(FACTS[name]).model_validate(read.fact, from_attributes=True) == FACTS[name]


@pytest.mark.parametrize("name", sorted(set(FACTS) - {"started"}))
def test_an_unknown_field_does_not_need_the_model(name: str) -> None:
    value = json.dumps(json.loads(FACTS[name].model_dump_json()) | {"colour": ["blue"]}).encode()
    read = read_event(arrival_of(event("s1", 0, FACTS[name], value=value)))
    assert read.plain
    assert not isinstance(read.fact, BaseModel)


def test_an_unknown_field_of_the_start_is_kept() -> None:
    value = b'{"task_id": "t", "agent": "a", "region": {"name": "eu"}}'
    trajectory, _ = outcome("started", value)
    assert b'"region":{"name":"eu"}' in trajectory.message.value


def test_every_type_of_the_topic_has_a_reader() -> None:
    assert set(event_decoder._READERS) == {model.TYPE.encode() for model in EVENTS.models}


def test_a_struct_has_the_class_attributes_of_its_model() -> None:
    call = StructReader(ModelCalled).read(b'{"model": "m", "sampling": {"top_p": 0.5}, "sampled_ids": "BQAAAAYAAAA="}')
    assert call.TYPE == ModelCalled.TYPE
    assert call.sampling.truncates
    assert call.sampled_ids == array("i", [5, 6])
    with pytest.raises(Doubt, match="prefix_sha256 is required"):
        StructReader(ModelCalled).read(b'{"model": "m", "prefix_length": 3}')


def test_structs_write_the_bytes_of_the_models() -> None:
    fields: dict[str, Any] = {
        "trajectory_id": "s1", "started": started(), "started_ms": 1, "ended_ms": 2,
        "first": Reference(partition=0, offset=1), "last": Reference(partition=0, offset=2),
    }  # fmt: skip
    tokens: dict[str, Any] = {
        "token_ids": array("i", [1, 2]),
        "loss_mask": array("b", [0, 1]),
        "logprobs": None,
        "version_spans": [],
    }
    struct = writing(Trajectory)(**fields, segments=[writing(Segment)(**tokens)])
    model = Trajectory(**fields, segments=[Segment(**tokens)])
    assert encode_struct(struct) == model.model_dump_json().encode()


def test_a_model_without_a_possible_struct_is_refused_at_definition() -> None:
    class Checked(BaseModel):
        name: str

        @field_validator("name")
        @classmethod
        def lower(cls, name: str) -> str:
            return name.lower()

    class Paired(BaseModel):
        pair: tuple[int, int]

    for model, why in ((Checked, "field validators"), (Paired, "not supported")):
        with pytest.raises(TypeError, match=why):
            StructReader(model)


@pytest.mark.parametrize("number", [*BAD, "1e308", "9" * 308, "123456789012345678901"])
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("returned", '"call_id":"c1","tool":"search","result":{"a":[@]}'),
        ("tool", '"call_id":"c1","tool":"search","arguments":{"a":@}'),
        ("tool", '"call_id":"c1","tool":"search","colour":@'),
        ("ended", '"answer":[@]'),
        ("ended", '"outcome":@'),
        ("started", '"task_id":"t","agent":"a","task":{"a":@}'),
    ],
)
def test_a_non_finite_number_is_refused_by_every_reader(name: str, fields: str, number: str) -> None:
    value = f"{{{fields.replace('@', number)}}}".encode()
    is_as_by_models(name, value)
    if number in BAD:
        _, dead = outcome(name, value)
        assert [error for _, error, _ in dead] == [DeadLetterError.INVALID]


@pytest.mark.parametrize("field", ["context_ids", "sampled_ids", "logprobs"])
@pytest.mark.parametrize("size", [FREE_INFLATION["i"], FREE_INFLATION["i"] + 4_000, MAX_BYTES])
def test_every_reader_bounds_decompressed_arrays_equally(field: str, size: int) -> None:
    fields = json.loads(FACTS["called"].model_dump_json()) | {"logprobs": None, "version_spans": []}
    packed = base64.b64encode(zstandard.ZstdCompressor(level=19).compress(bytes(size))).decode()
    fields |= {"sampled_ids": f"zstd:{packed}"} if field == "logprobs" else {}
    value = json.dumps(fields | {field: f"zstd:{packed}"}, separators=(",", ":")).encode()
    is_as_by_models("called", value)
    assert bool(outcome("called", value)[1]) == (size > FREE_INFLATION["i"])
