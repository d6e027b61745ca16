"""What the extension module takes from a trajectory for its reward equals the fields of the model."""

import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headrace.schemas.arrays import encode_array
from headrace.schemas.events import EndStatus
from headrace.schemas.records.trajectory import Defect, Trajectory
from headrace.streams.assembly.assemble import _conclude
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.native.shapes import NativeLag
from headrace.streams.scoring import trajectory_summary
from headrace.streams.scoring.trajectory_summary import make_reader, read_summary
from tests.streams.clickhouse.test_any_record import with_odd
from tests.streams.clickhouse.test_direct_columns import VALUES, odd_text
from tests.streams.clickhouse.test_rows import TRAJECTORY
from tests.streams.native.built import needs_speedups
from tests.streams.native.test_lag import beside_a_current_module
from tests.streams.native.test_trajectories import histories
from tests.streams.native.test_trajectory_columns import RICH, fields_of

pytestmark = needs_speedups

OWN = ("trajectory_id", "outcome", "defects", "versions", "sampled_tokens", "turn_count", "status", "ended_ms")


def summarized(payload: Trajectory | Mapping[str, Any] | bytes) -> bool:
    """Whether ``payload`` is not left to Python; asserts that its summary is right."""
    value = (
        payload if isinstance(payload, bytes) else
        payload.model_dump_json().encode() if isinstance(payload, Trajectory) else
        json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()
    )  # fmt: skip
    summary = read_summary(value)
    if summary is None:
        return False
    model = Trajectory.model_validate_json(value)
    for name in (*OWN, "continuations"):
        found, expected = getattr(summary, name), getattr(model, name)
        assert found == expected
        assert repr(found) == repr(expected)  # also the type: 1 is not 1.0, and a text no enum
    assert (summary.started is None) == (model.started is None)
    if summary.started is not None and model.started is not None:
        for name in type(model.started).model_fields:
            assert repr(getattr(summary.started, name)) == repr(getattr(model.started, name))
    return True


@beside_a_current_module
def test_trajectories_of_our_own_are_never_left_to_python() -> None:
    ended = RICH.model_copy(
        update={"started": None, "turns": [], "tools": {}, "segments": [], "outcome": None, "status": EndStatus.ABORTED}
    )
    continued = RICH.model_copy(update={"continuations": 2, "defects": list(Defect)})
    assert all(map(summarized, (RICH, TRAJECTORY, ended, continued)))


@given(histories())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_facts_have_the_summary_of_the_model(history: Any) -> None:
    trajectory, _ = _conclude(history)
    summarized(trajectory.message.value)


@given(st.data())
@settings(max_examples=250, deadline=None)
def test_odd_trajectories_have_the_summary_of_the_model_or_none(data: st.DataObject) -> None:
    def choose(values: Sequence[Any]) -> Any:
        return data.draw(st.sampled_from(list(values)))

    plain = RICH.model_dump_json().encode()
    odd = json.dumps(with_odd(fields_of(), choose), separators=(",", ":")).encode()
    payload = choose([odd_text(plain, choose), odd])
    try:
        Trajectory.model_validate_json(payload)
    except (ValidationError, ValueError):
        assert read_summary(payload) is None
    else:
        summarized(payload)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:20].decode(errors="replace"))
@pytest.mark.parametrize("path", ["answer", "result", "task", "outcome", "sampled_tokens", "status", "trajectory_id"])
def test_any_json_anywhere(path: str, value: bytes) -> None:
    fields = fields_of()
    place = {"result": fields["turns"][0]["tools"][0], "task": fields["started"]}.get(path, fields)
    place[path] = "@"
    payload = json.dumps(fields, separators=(",", ":")).encode().replace(b'"@"', value)
    try:
        Trajectory.model_validate_json(payload)
    except ValidationError:
        assert read_summary(payload) is None
    else:
        summarized(payload)


@pytest.mark.parametrize(
    "changes",
    [
        {"loss_mask": [0, 0, 1]}, {"loss_mask": [0, 0, 2, 1]}, {"logprobs": [-0.5]}, {"logprobs": [-0.5, 1.0]},
        {"token_ids": []}, {"version_spans": [{"version": 3, "start": 0, "end": 1}]},
        {"sampling_spans": [{"temperature": 1.0, "start": 0, "end": 3}]},
    ],
    ids=str,
)  # fmt: skip
def test_segments_that_disagree_are_left_to_the_model(changes: dict[str, Any]) -> None:
    codes = {"token_ids": "i", "loss_mask": "b", "logprobs": "f"}
    fields = fields_of()
    for name, value in changes.items():
        packed = encode_array(array(codes[name], value)) if name in codes else value
        fields["segments"][0][name] = packed
    assert not summarized(fields)


def test_versions_of_another_run_do_not_count() -> None:
    fields = fields_of()
    spans = [{"version": 9, "start": 0, "end": 1, "run": "another"}, {"version": 4, "start": 1, "end": 2, "run": None}]
    fields["segments"][0]["version_spans"] = spans
    assert summarized(fields)
    summary = read_summary(json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode())
    assert summary is not None
    assert summary.versions == [4]


def test_running_out_of_memory_is_not_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(text: str, typecode: str) -> Any:
        raise MemoryError

    monkeypatch.setattr(trajectory_summary, "decode_array", fails)
    monkeypatch.setattr(trajectory_summary, "_READER", make_reader(SPEEDUPS.TRAJECTORY_FIELDS)[0])
    segment = TRAJECTORY.segments[0].model_copy(
        update={"token_ids": array("i", range(300)), "loss_mask": array("b", [0] * 298 + [1, 1])}
    )
    with pytest.raises(MemoryError):
        read_summary(RICH.model_copy(update={"segments": [segment]}).model_dump_json().encode())


def test_arguments_of_another_type_are_refused() -> None:
    reader: Any
    reader, _ = make_reader(SPEEDUPS.TRAJECTORY_FIELDS)
    with pytest.raises(TypeError):
        reader.read("{}")
    with pytest.raises(LookupError, match="no field trajectory_id"):
        type(reader)(shape=[], decode_array=None, max_array_bytes=0, max_logprob=0)


@beside_a_current_module
@pytest.mark.parametrize("field", ["continuations", "turns.segment", "tools.seconds", "defects"])
def test_an_older_module_leaves_trajectories_with_a_new_field_to_python(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [each for each in SPEEDUPS.TRAJECTORY_FIELDS.split() if each.partition("=")[0] != field]
    reader, lag = make_reader(" ".join(known))
    assert lag
    monkeypatch.setattr(trajectory_summary, "_READER", reader)
    assert not summarized(RICH)


def test_without_the_module_every_trajectory_is_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectory_summary, "SPEEDUPS", None)
    reader, lag = make_reader(SPEEDUPS.TRAJECTORY_FIELDS)
    assert (reader, lag) == (None, NativeLag())
    monkeypatch.setattr(trajectory_summary, "_READER", reader)
    assert not summarized(RICH)
