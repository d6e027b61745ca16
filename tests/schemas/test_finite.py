"""No record holds a non-finite number: it is neither read nor written, and never silently replaced by null."""

import hashlib
import json
import math
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headrace.schemas.envelope import Envelope
from headrace.schemas.events import FeedbackGiven, ToolReturned, TrajectoryEnded
from headrace.schemas.finite import NotFinite, is_plainly_finite, refuse_not_finite
from headrace.schemas.model import Record
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.schemas.topics import MODELS
from headrace.schemas.wire import UnreadableRecord, decode_payload, encode

BAD = ["NaN", "Infinity", "-Infinity", "1e400", "-1E+400", "1e0400", "1" * 400, "1" * 400 + ".5", "9" * 230 + "e99"]
GOOD = [
    "1e308",
    "-1.7e308",
    "1e-400",
    "0e999",
    "1" * 300,
    "0." + "0" * 400 + "1",
    '"NaN"',
    '"1e999"',
    '"' + "1" * 500 + '"',
]


def placed(number: str) -> list[bytes]:
    return [text.replace("@", number).encode() for text in ("[@]", '{"a":@}', '{"a":{"b":[1,{"c": @ }]}}', "[1,@]")]


@pytest.mark.parametrize("number", BAD)
def test_a_non_finite_number_is_refused_anywhere(number: str) -> None:
    for value in placed(number):
        with pytest.raises(NotFinite, match="not a finite number"):
            refuse_not_finite(value)


@pytest.mark.parametrize("number", GOOD)
def test_finite_numbers_and_text_are_accepted(number: str) -> None:
    for value in placed(number):
        refuse_not_finite(value)


@given(st.recursive(st.floats() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=4)))
def test_it_agrees_with_a_walk_over_any_json(value: Any) -> None:
    def finite(each: Any) -> bool:
        return all(map(finite, each)) if isinstance(each, list) else isinstance(each, str) or math.isfinite(each)

    text = json.dumps([value]).encode()
    if finite(value):
        refuse_not_finite(text)
    else:
        with pytest.raises(NotFinite):
            refuse_not_finite(text)


def test_invalid_json_is_left_to_the_reader() -> None:
    for value in (b"", b"NaN", b"[NaN", b"\xff" + b"NaN", b"[" * 100_000 + b"1e400"):
        try:
            refuse_not_finite(value)
        except NotFinite:
            assert value in (b"NaN", b"[NaN")


def test_a_hash_needs_no_second_pass() -> None:
    digests = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(200)]
    assert any(re.search(r"\de\d{3}", digest) for digest in digests)
    assert all(is_plainly_finite(json.dumps({"prefix_sha256": digest}).encode()) for digest in digests)


def test_ordinary_tokens_need_no_second_pass() -> None:
    arrays = json.dumps({"ids": random.Random(1).randbytes(3000).hex(), "x": [1.5, -2, 10**18]}).encode()
    assert is_plainly_finite(json.dumps({"x": [1.5, -2, 10**18, 1e-9], "e": "3e5"}).encode())
    refuse_not_finite(arrays)


@pytest.mark.parametrize("number", BAD)
@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (ToolReturned, '"call_id":"c","tool":"t","result":{"a":[@]}'),
        (ToolReturned, '"call_id":"c","tool":"t","colour":@'),
        (TrajectoryEnded, '"answer":[@]'),
        (TrajectoryEnded, '"outcome":@'),
        (FeedbackGiven, '"signal":"s","value":@'),
        (FeedbackGiven, '"signal":"s","value":1,"delay_s":@'),
    ],
)
def test_a_payload_with_a_non_finite_number_is_unreadable(number: str, model: type[Record], fields: str) -> None:
    with pytest.raises(UnreadableRecord, match="finite") as caught:
        decode_payload(model.TYPE, f"{{{fields.replace('@', number)}}}".encode())
    assert caught.value.error is DeadLetterError.INVALID


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_non_finite_number_is_not_written(value: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        TrajectoryEnded(outcome=value)
    for payload in (
        ToolReturned(call_id="c", tool="t", result={"a": [value]}),
        TrajectoryEnded(outcome=1.0).model_copy(update={"outcome": value}),
    ):
        with pytest.raises(NotFinite):
            encode(payload, key="k", envelope=Envelope("i", payload.TYPE, "/s", 0, "k"))


def test_an_alert_about_a_non_finite_number_can_be_written() -> None:
    alert = Alert(run="r", source="s", kind="k", message="m", details={"value": math.nan, "more": [math.inf, 1.5]})
    assert alert.details == {"value": "nan", "more": ["inf", 1.5]}
    encode(alert, key="k", envelope=Envelope("i", alert.TYPE, "/s", 0, "k"))


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.__name__)
def test_every_model_refuses_non_finite_numbers(model: type[Record]) -> None:
    assert model.model_config["allow_inf_nan"] is False
    assert model.model_config["ser_json_inf_nan"] == "constants"
