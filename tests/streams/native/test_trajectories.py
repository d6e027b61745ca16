"""A trajectory written by the extension module equals Python's for the same events, byte for byte."""

import json
import os
from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from headrace.schemas.arrays import encode_array
from headrace.schemas.bounds import MAX_COUNT, MAX_STEPS, MAX_TIME_MS
from headrace.schemas.envelope import TRACEPARENT
from headrace.schemas.events import (
    ContextPruned,
    ContextSummarized,
    EndStatus,
    EnvironmentForked,
    EnvironmentRestored,
    EnvironmentSnapshotted,
    ModelCalled,
    Purpose,
    Role,
    SnapshotKind,
    SubagentFinished,
    SubagentStarted,
    ToolCalled,
    ToolErrorClass,
    ToolReturned,
    ToolStatus,
    TrajectoryEnded,
    TrajectoryStarted,
    VersionSpan,
)
from headrace.schemas.model import Record
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.trajectory import Defect, Trajectory
from headrace.schemas.tokens import prefix_hash
from headrace.schemas.topics import EVENTS
from headrace.streams.assembly.arrival import arrival_of
from headrace.streams.assembly.assemble import _conclude, conclude
from headrace.streams.assembly.gaps import NO_GAPS
from headrace.streams.assembly.history import History
from headrace.streams.assembly.trajectory_writer import is_left_to_python, plainly_written
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.native.shapes import tables_of
from headrace.streams.raw import StoredRecord
from tests.streams.builders import T0, called, event, session, started, with_header
from tests.streams.native.built import needs_speedups
from tests.streams.test_structs import FACTS

pytestmark = needs_speedups


def history_of(records: Sequence[StoredRecord], **changes: Any) -> History:
    """A history of all ``records``."""
    first, last = (Reference(partition=3, offset=offset) for offset in (7, 7 + len(records)))
    arrivals = dict(enumerate(map(arrival_of, records)))
    made = History("s1", arrivals, {}, NO_GAPS, (), frozenset(), 2, first, last, T0, T0, T0, 99, b"id-0")
    return structs.replace(made, **changes)


words = st.sampled_from(
    ["", "a", "search", "ünï", "\u2028", '"', "back\\slash", "\n\t\x01\x7f", "c1", "c2", "日本", "😀"]
)
numbers = st.integers(-(10**18), 10**18) | st.floats(-1e11, 1e11) | st.sampled_from([0.1, 1e-3, 9.99e-4, 1 / 3, 2e-7])
leaves = st.none() | st.booleans() | numbers | words | st.text(max_size=4)
anything = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=8
)
objects = st.dictionaries(words, anything, max_size=3)
runs = st.sampled_from([None, "default", "ünï\n"])
seconds = st.none() | st.floats(0, 1e9) | st.sampled_from([0.0, 0.1, 0.25, 3.0])
ids = st.sampled_from(["c1", "c2", "ç"])

others: st.SearchStrategy[Record] = st.one_of(
    st.builds(TrajectoryStarted, task_id=words, agent=words, consent=st.booleans(), task=objects,
              run=st.sampled_from(["default", "ünï\n"]),
              role=st.sampled_from(Role), purpose=st.sampled_from(Purpose), group_size=st.none() | st.integers(1, 9)),
    st.builds(ToolCalled, call_id=ids, tool=words, arguments=objects,
              thinking_tokens=st.none() | st.integers(0, 9) | st.just(MAX_COUNT)),
    st.builds(ToolReturned, call_id=ids, tool=words, result=anything, latency_s=seconds,
              status=st.sampled_from(ToolStatus), error_class=st.none() | st.sampled_from(ToolErrorClass)),
    st.builds(ContextSummarized, summary=words, tokens_before=st.integers(0, 9), tokens_after=st.integers(0, 9)),
    st.builds(ContextPruned, pruned_ids=st.lists(words, max_size=3), tokens_before=st.just(2), tokens_after=st.just(1)),
    st.builds(SubagentStarted, name=words, sub_trajectory_id=words, stage=st.integers(0, 3)),
    st.builds(SubagentFinished, name=words, sub_trajectory_id=words, stage=st.integers(0, 2),
              steps=st.sampled_from([0, 1, 2, 5, MAX_STEPS]), status=st.sampled_from(EndStatus)),
    st.builds(EnvironmentSnapshotted, snapshot_id=ids, parent_id=st.none() | ids, sha256=st.none() | words,
              kind=st.sampled_from(SnapshotKind), provider=words, ms=st.floats(0, 1e6)),
    st.builds(EnvironmentForked, snapshot_id=ids, forks=st.integers(1, 9)),
    st.builds(EnvironmentRestored, snapshot_id=ids, source_trajectory_id=st.none() | words),
    st.builds(TrajectoryEnded, status=st.sampled_from(EndStatus), answer=anything,
              outcome=st.none() | st.floats(-2, 2)),
)  # fmt: skip

tokens = (
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5)
    | st.integers(250, 300).map(lambda n: list(range(n)))
    | st.sampled_from([[], [1], [1, 2]])  # so that calls end with the same tokens
)
ways = st.sampled_from(["extend"] * 3 + ["fork"] * 3 + ["whole", "whole", "anew", "wrong"])


@st.composite
def calls(draw: st.DrawFn, ends: list[list[int]]) -> ModelCalled:
    """A model call that extends or forks, repeats whole, rewrites, or contradicts what earlier calls ended with."""
    fresh, sampled, way = draw(tokens), draw(tokens), draw(ways)
    held: list[int] = []
    if ends and way != "anew":
        held = draw(st.sampled_from(ends)) if way == "fork" else ends[-1]
    context_ids = [*held, *fresh] if way == "whole" else fresh
    before = array("i", [] if way == "whole" else [*held, 1] if way == "wrong" else held)
    named = {"prefix_length": len(before), "prefix_sha256": prefix_hash(before)} if before else {}
    ends.append([*held, *fresh, *sampled])
    cut = draw(st.integers(0, len(sampled)))
    spans = [
        VersionSpan(version=draw(st.sampled_from([None, 1, 2])), start=start, end=end, run=draw(runs))
        for start, end in ((0, cut), (cut, len(sampled)))
        if start < end
    ]
    return ModelCalled(
        model=draw(words),
        **named,
        context_ids=draw(st.sampled_from([array("i", context_ids)] * 9 + [None])),
        sampled_ids=array("i", sampled),
        logprobs=draw(st.sampled_from([array("f", [-0.5] * len(sampled))] * 4 + [None])),
        version_spans=draw(st.sampled_from([spans] * 4 + [[]])),
        sampling=draw(st.sampled_from(SAMPLINGS)),
        finish_reason=draw(st.none() | words),
        messages=draw(st.none() | st.lists(objects, max_size=2)),
        hidden=draw(st.sampled_from([[], [], ["messages"], ["logprobs"]])),
        latency_s=draw(seconds),
        call_id=draw(st.none() | words.filter(bool)),
        choice=draw(st.sampled_from([None, None, 0, 3])),
        delivered=draw(st.sampled_from([None, True, False])),
    )  # type: ignore[arg-type]


SAMPLINGS: list[dict[str, object]] = [
    *[{"temperature": 1.0}] * 4, {}, {"temperature": 0.7, "logprobs": "processed"}, {"temperature": 0.7},
    {"temperature": 1.3, "logprobs": "raw"}, {"temperature": 1.0, "logprobs": "raw"}, {"temperature": 0.0},
    {"temperature": 0.009999}, {"temperature": 0.01, "logprobs": "processed"}, {"top_p": 0.9},
    {"top_k": 3, "temperature": 0.7}, {"min_p": 0.1}, {"temperature": 1.0, "presence_penalty": -0.1},
    {"temperature": 1.0, "frequency_penalty": 0.5}, {"temperature": 1.0, "repetition_penalty": 1.1},
    {"temperature": 1.0, "min_tokens": 1}, {"temperature": 1.0, "altered_by": ["logit_bias"]},
    {"temperature": 1.0, "logit_bias": {"1": 1}}, {"temperature": 1.0, "logit_bias": None},
]  # fmt: skip


traces = st.sampled_from(
    [b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01", b"00-" + b"0" * 32 + b"-" + b"b" * 16 + b"-01", b"00-xyz", b"\xff"]
)


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Any facts in any order."""
    ends: list[list[int]] = []
    facts: list[Record] = [started()] if draw(st.integers(0, 4)) else []
    count = draw(st.integers(0, 8))
    facts += [draw(calls(ends) if draw(st.booleans()) else others) for _ in range(count)]
    records = [event("s1", number, fact, time_ms=T0 + draw(st.integers(-5, 5))) for number, fact in enumerate(facts)]
    records = [
        with_header(record, TRACEPARENT, draw(traces)) if draw(st.integers(0, 3)) == 0 else record for record in records
    ]
    return history_of(
        records,
        trajectory_id=draw(st.sampled_from(["s1", "s1", 'an "id"', "ï"])),
        closed_ms=draw(st.just(T0) | st.integers(-5, 253402300799999)),
    )


@given(histories())
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_facts_give_the_same_bytes(history: History) -> None:
    written = plainly_written(history)
    trajectory, dead = _conclude(history)
    assert conclude(history)[0] == trajectory
    if written is not None:
        assert (written, []) == (trajectory.message, dead)


@pytest.mark.parametrize("name", sorted(set(FACTS) - {"failed", "returned"}))
def test_events_of_our_own_sdk_are_never_doubted(name: str) -> None:
    history = history_of([event("s1", 0, FACTS[name])])
    lags = is_left_to_python(history) and not os.environ.get("CI")
    assert (plainly_written(history) is None) == lags


def test_a_whole_session_is_not_doubted() -> None:
    history = history_of(session("s1", "ask", "tool", "ask", "back", "ask", "prune", "ask"))
    assert plainly_written(history) is not None
    assert conclude(history) == _conclude(history)


@pytest.mark.parametrize(
    "argument",
    [
        b"1.50", b"1e3", b"1.5e3", b"0.00001", b"12345678901.5", b"0.12345678901234567891", b"-0", b"-0.0", b"01",
        b"9.000000000000001", b"999999999.9999997",  # not the shortest for their doubles
        b"1.", b".5", b"-", b"1" * 19, b'{"a":1,"a":2}', b'{"a": 1}', b"[1, 2]", b"[1,]", b"{,}", b"nul", b"NaN",
        b"Infinity",
        b'"\\u00e9"', b'"\\u0009"', b'"\\u001F"', b'"\\/"', b'"\\x"', b'"\x01"', b'"\x1f"', b'"open', b'"\xc0\x80"',
        b'"\xe0\x80\x80"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\xe2\x82"', b'"\x80"',
        b"[" * 150 + b"]" * 150,
    ],
)  # fmt: skip
def test_values_that_python_would_write_differently_are_doubted(argument: bytes) -> None:
    assert not is_plain(argument)


@pytest.mark.parametrize(
    "argument",
    [
        b"1.5", b"0.001", b"1234567890.25", b"9.00000000000001", b'" "',
        b"0.1", b"0.30000000000000004", b"0", b"-1", b"9" * 18, b"[]", b"{}",
        b"[[1],{}]", b'{"a":1,"b":[true,false,null]}', b'"\\u001f\\n\\""', b'"\x7f"', '"é€😀\u2028"'.encode(),
        b'"' + b"x" * 1000 + b'"',
        b"[" * 140 + b"]" * 140,
    ],
)  # fmt: skip
def test_values_that_python_would_write_unchanged_are_not_doubted(argument: bytes) -> None:
    assert is_plain(argument)


def is_plain(argument: bytes) -> bool:
    """Whether a tool call with ``argument`` is written without doubt; its bytes must then equal Python's."""
    value = b'{"call_id":"c1","tool":"t","arguments":{"a":' + argument + b"}}"
    history = history_of([event("s1", 0, started()), event("s1", 1, FACTS["tool"], value=value)])
    written = plainly_written(history)
    assert written is None or written == _conclude(history)[0].message
    return written is not None


@pytest.mark.parametrize(
    "value",
    [
        b'{"call_id":"c1","tool":"t"} x',
        b'{"call_id":"c1"}',
        b'{"call_id":"c1","tool":"t","tool":"t"}',
        b"",
        b"[]",
        b"{",
    ],
)
def test_a_payload_that_is_not_one_whole_object_is_doubted(value: bytes) -> None:
    history = history_of([event("s1", 0, started()), event("s1", 1, FACTS["tool"], value=value)])
    assert plainly_written(history) is None


def used(call_id: str) -> ToolCalled:
    return ToolCalled(call_id=call_id, tool="t")


def gave(call_id: str, result: object, **fields: Any) -> ToolReturned:
    return ToolReturned(call_id=call_id, tool="t", result=result, **fields)


def finished(stage: int, steps: int) -> SubagentFinished:
    return SubagentFinished(name="a", sub_trajectory_id="s2", stage=stage, steps=steps)


@pytest.mark.parametrize(
    "facts",
    [
        [used("c1"), gave("c1", 1), gave("c1", 2), used("c1"), gave("c1", 3)],
        [used("c1"), used("c2"), used("c1"), gave("c1", 1), gave("c2", 2), gave("c1", 3), gave("c1", 4)],
        [gave("c1", 1, status="error"), used("c1"), gave("c1", 2, status="error", error_class="timeout")],
        [gave("c1", 1, latency_s=0.1), gave("c1", 2, latency_s=0.2), gave("c1", 3, latency_s=1e9)],
        [finished(0, 5), finished(0, 7), finished(0, 6), finished(2, 1), finished(1, 0)],
        [started(task={"a": 1}), started(task={"a": 2}), TrajectoryEnded(answer=1), TrajectoryEnded(answer=2)],
        [called([1], [2], logprobs=None), called([3], [4], after=[1, 2]), called([1, 2, 3, 4, 5], [6])],
        [called([1], [2]), called([3], [4], after=[1, 9]), called([1], [2])],
        [
            called([1], [2]),
            called([3], [4], after=[1, 2]),
            called([5], [6], after=[1, 2]),
            called([7], [8], after=[1, 2]),
        ],
        [called([1], [2]), called([8], [9]), called([3], [4], after=[1, 2]), called([7], [6], after=[8, 9])],
        [called([1], [2]), called([1], [2]), *(called([n], [n], after=[1, 2]) for n in (7, 8, 9))],
        [called([1], [2]), called([1, 2], [3]), called([], [3], after=[1, 2]), called([4], [5], after=[1, 2, 3])],
        [called([], [9]), called([], [], after=[9]), called([], [], after=[9]), called([1], [2], after=[9])],
        [called([1], None), called(None, [2]), called([], [])],
        [called([1], None)],
    ],
    ids=str,
)
def test_repeated_and_crossed_calls_are_paired_alike(facts: list[Record]) -> None:
    history = history_of([event("s1", number, fact) for number, fact in enumerate(facts)])
    written = plainly_written(history)
    assert written is not None
    assert written == _conclude(history)[0].message


@pytest.mark.parametrize(
    "fields",
    [
        '"sampling":{"top_p":0.0}', '"sampling":{"top_p":1.5}', '"prefix_length":-1', '"prefix_length":1',
        '"logprobs":"AADAfw==","sampled_ids":"BQAAAA=="', '"logprobs":"AACAfw==","sampled_ids":"BQAAAA=="',
        '"logprobs":"AACAvw==","sampled_ids":"BQAAAAYAAAA="', '"sampled_ids":"B*AAAA=="', '"sampled_ids":"B=AAAA=="',
        '"sampled_ids":"BQAAAA==","version_spans":[{"version":1,"start":0,"end":2}]', '"sampled_ids":"BQAAAA="',
        '"sampled_ids":"BQAAAAY="', '"sampled_ids":"zstd:AAAA"', '"finish_reason":1', '"hidden":["a",1]',
    ],
)  # fmt: skip
def test_a_call_that_the_model_refuses_is_doubted(fields: str) -> None:
    value = f'{{"model":"m",{fields}}}'.encode()
    history = history_of([event("s1", 0, started()), event("s1", 1, FACTS["called"], value=value)])
    assert plainly_written(history) is None
    assert len(conclude(history)[1]) == 1


@pytest.mark.parametrize(
    ("fields", "labelled"),
    [
        ({"sampling": {"temperature": 1.0, "logit_bias": {"2": 100}}}, True),
        ({"sampling": {"temperature": 1.0, "typical_p": 0.5}, "of_the_future": 1}, True),
        ({"sampling": {"temperature": 1.0, "logit_bias": None}}, False),
        ({"of_the_future": 1}, False),
    ],
    ids=str,
)
def test_an_unknown_sampling_parameter_is_a_label_for_every_reader(fields: dict[str, Any], labelled: bool) -> None:
    value = json.dumps(called([1], [2]).model_dump(mode="json") | fields).encode()
    records = [event("s1", 0, started()), event("s1", 1, FACTS["called"], value=value)]
    history = history_of([*records, event("s1", 2, TrajectoryEnded())])
    written, trajectory = plainly_written(history), conclude(history)[0]
    assert Trajectory.model_validate_json(trajectory.message.value).defects == (
        [Defect.UNKNOWN_SAMPLING] if labelled else []
    )
    assert trajectory == _conclude(history)[0]
    assert written in (None, trajectory.message)


@pytest.mark.parametrize("runs", [["r"], ["r", None], ["s"], ["r", "s"], ["s", "r"], ["s", "t", "r"], [None, "s"]])
@pytest.mark.parametrize("has_start", [True, False])
def test_other_runs_are_labelled_alike(runs: list[str | None], has_start: bool) -> None:
    spans = [VersionSpan(version=1, start=n, end=n + 1, run=run) for n, run in enumerate(runs)]
    start: list[Record] = [started(run="r")] if has_start else []
    facts = [*start, called([1], [2] * len(runs), version_spans=spans)]
    history = history_of([event("s1", number, fact) for number, fact in enumerate(facts)])
    written = plainly_written(history)
    assert written is not None
    assert written == _conclude(history)[0].message
    labelled = Defect.OTHER_RUN in Trajectory.model_validate_json(written.value).defects
    assert labelled == (has_start and not set(runs) <= {"r", None})


def test_the_first_valid_trace_counts() -> None:
    traces = [b"00-xyz", *(b"00-%032d-%016d-01" % (number, number) for number in (0, 7, 8))]
    records = session("s1", "ask", "tool")
    records[:4] = [with_header(record, TRACEPARENT, trace) for record, trace in zip(records[:4], traces, strict=True)]
    history = history_of(records)
    written = plainly_written(history)
    assert written is not None
    assert written == _conclude(history)[0].message
    assert Trajectory.model_validate_json(written.value).traceparent == traces[2].decode()


def test_a_probability_above_one_is_doubted_and_makes_a_labelled_trajectory_and_a_dead_letter() -> None:
    good = called([1, 2], [3, 4])
    value = good.model_dump_json().replace(
        encode_array(array("f", [-0.5, -0.5])), encode_array(array("f", [-0.5, 5.0]))
    )
    record = event("s1", 1, good, value=value.encode())
    history = history_of([event("s1", 0, started()), record])
    assert plainly_written(history) is None
    trajectory, dead = conclude(history)
    assert b"bad_event" in trajectory.message.value
    assert len(dead) == 1


@pytest.mark.parametrize("time_ms", [-5, MAX_TIME_MS])
def test_an_event_whose_time_is_out_of_bounds_is_doubted(time_ms: int) -> None:
    history = history_of([event("s1", 0, started(), time_ms=time_ms), event("s1", 1, TrajectoryEnded())])
    assert plainly_written(history) is None
    _, dead = _conclude(history)
    assert [each.error.error for each in dead] == [DeadLetterError.BAD_TIME]


def test_a_year_beyond_9999_is_doubted() -> None:
    history = history_of([event("s1", 0, started())], closed_ms=253402300800000)
    assert plainly_written(history) is None


def test_a_trajectory_beyond_the_largest_record_is_written_without_its_bulk() -> None:
    parts = [ToolCalled(call_id=f"c{n}", tool="t", arguments={"text": "x" * 900_000}) for n in range(28)]
    history = history_of([event("s1", n, fact) for n, fact in enumerate([started(), *parts])])
    assert plainly_written(history) is None
    assert conclude(history) == _conclude(history)


def test_a_module_built_for_other_records_is_refused_at_construction() -> None:
    shapes, _ = tables_of(EVENTS.models, SPEEDUPS.EVENT_FIELDS)
    with pytest.raises(LookupError, match="other fields"):
        SPEEDUPS.TrajectoryWriter(
            shapes=shapes, fields=["trajectory_id", "colour"], defects=[], array_type=array, encode_array=str,
            decode_array=array, compress_from=1, max_array_bytes=1, sha1=bytes, sha256=bytes, max_tokens=1,
            least_temperature=0.01, max_logprob=0, max_record_bytes=1, id_prefix=b"", headers=[],
        )  # fmt: skip
