"""The extension module and Python parse a record alike."""

import hashlib
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.schemas.envelope import ID, SEQUENCE, SOURCE, SUBJECT, TIME, TRACEPARENT, TYPE
from headrace.streams.assembly.arrival import Arrival, PlainArrival, arrival_of, plain_arrival_of
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.raw import StoredRecord
from tests.streams.builders import T0, event, started, with_header
from tests.streams.native.built import needs_speedups

pytestmark = needs_speedups

FIELDS = [name for name in PlainArrival.__struct_fields__ if name != "packed_headers"] + ["names_trajectory"]


def attributes(arrival: Arrival) -> dict[str, object]:
    """All attributes of an arrival; headers unchanged."""
    return {name: getattr(arrival, name) for name in FIELDS} | {"headers": [tuple(pair) for pair in arrival.headers]}


names = st.sampled_from([ID, TYPE, SOURCE, TIME, SUBJECT, SEQUENCE, TRACEPARENT, "content-type", "é", "", "a\0b"])
TIMES = [
    b"2026-11-21T11:24:24.512Z", b"2024-02-29T00:00:00.000Z", b"2023-02-29T00:00:00.000Z",
    b"1900-02-29T00:00:00.000Z",
    b"0000-01-01T00:00:00.000Z", b"0001-01-01T00:00:00.000Z", b"9999-12-31T23:59:59.999Z",
    b"2026-11-21T24:00:00.000Z", b"2026-11-21T23:59:60.000Z", b"2026-13-01T00:00:00.000Z",
    b"2026-00-01T00:00:00.000Z", b"2026-11-31T00:00:00.000Z", b"2026-11-21T11:24:24Z",
    b"2026-11-21 11:24:24.512Z", b"2026-11-21T11:24:24.512Z\n", b"2026-11-21T11:24:24.51\xb2Z", b"",
]  # fmt: skip
times = st.sampled_from(TIMES)
numbers = st.sampled_from(
    [b"0", b"7", b"007", b"1023", b"1024", b"9" * 18, b"9" * 19, b"-1", b" 7", b"1_0", b"\xb2", b""]
)
values = st.none() | times | numbers | st.binary(max_size=8) | st.just(b"s" * 513) | st.just(b"\xc3\xa9")
headers = st.lists(st.tuples(names, values), max_size=12)


@given(headers | headers.map(lambda pairs: [*pairs, *((f"h{n % 40}", b"%d" % n) for n in range(50))]), st.data())
@example([("ce_id", b"1")] * 40, None)
def test_module_and_python_agree_on_any_headers(
    pairs: list[tuple[str, bytes | None]], data: st.DataObject | None
) -> None:
    whole = data is None or data.draw(st.booleans(), "beside a whole envelope")
    key, value = (b"", None) if data is None else data.draw(st.tuples(values, values))
    record = event("s1", 0, started())
    record = replace(record, key=key, value=value, headers=[*record.headers, *pairs] if whole else pairs)
    assert attributes(arrival_of(record)) == attributes(plain_arrival_of(record))


@pytest.mark.parametrize("time", TIMES)
def test_module_and_python_agree_on_nonexistent_times(time: bytes) -> None:
    record = with_header(event("s1", 0, started()), TIME, time)
    assert attributes(arrival_of(record)) == attributes(plain_arrival_of(record))


@given(st.datetimes(datetime(1970, 1, 1), datetime(2199, 12, 31)))
def test_module_and_python_agree_on_any_time_in_our_format(moment: object) -> None:
    text = f"{moment:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + ".042Z"
    record = event("s1", 0, started())
    record = replace(record, headers=[*record.headers, (TIME, text.encode())])
    assert attributes(arrival_of(record)) == attributes(plain_arrival_of(record))
    assert arrival_of(record).time_ms is not None


@given(st.datetimes())
def test_a_time_out_of_bounds_is_not_read(moment: datetime) -> None:
    text = f"{moment:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + ".042Z"
    record = with_header(event("s1", 0, started()), TIME, text.encode())
    assert attributes(arrival_of(record)) == attributes(plain_arrival_of(record))
    assert (arrival_of(record).time_ms is None) == (not 1970 <= moment.year < 2200)


@pytest.mark.parametrize("name", [ID, TYPE, SOURCE, SUBJECT, TRACEPARENT])
def test_an_attribute_that_is_too_long_leaves_the_arrival_without_a_time(name: str) -> None:
    for length, plain in ((2048, True), (2049, False)):
        record = with_header(event("s1", 0, started()), name, b"x" * length)
        assert attributes(arrival_of(record)) == attributes(plain_arrival_of(record))
        assert (arrival_of(record).time_ms is not None) == plain


def test_an_arrival_is_parsed_once() -> None:
    for arrival in (arrival_of(event("s1", 0, started())), plain_arrival_of(event("s1", 0, started()))):
        assert arrival_of(arrival) is arrival


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"value": "text"}, "value must be bytes"),
        ({"headers": [("a", 1)]}, "header's value"),
        ({"headers": [1]}, "pair"),
    ],
)
def test_arguments_that_are_not_a_record_are_refused(wrong: dict[str, object], why: str) -> None:
    record = {"topic": "t", "partition": 0, "offset": 0, "timestamp": T0, "key": None, "value": None, "headers": []}
    with pytest.raises(TypeError, match=why):
        SPEEDUPS.Arrival(**record | wrong)  # type: ignore[arg-type]


def test_it_was_built_from_the_current_sources() -> None:
    root = Path(__file__).parents[3]
    folders = (root / "streams" / "native", root / "schemas" / "native")
    sources = [path for folder in folders for path in sorted(folder.rglob("*.?pp"))]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    assert digest == SPEEDUPS.SOURCES, "the sources have changed since: `make native`"


def test_a_stored_record_has_what_an_arrival_needs() -> None:
    assert isinstance(arrival_of(StoredRecord("t", 0, 0, T0, None, None, ())), SPEEDUPS.Arrival)
