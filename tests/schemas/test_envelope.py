"""Headers become an envelope and back; a malformed header is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.envelope import SEQUENCE, TIME, Envelope, EnvelopeError, Headers, from_headers, to_headers

envelopes = st.builds(
    Envelope,
    id=st.text(min_size=1),
    type=st.text(min_size=1),
    source=st.text(),
    time_ms=st.integers(0, 4_000_000_000_000),
    subject=st.text(min_size=1),
    sequence=st.none() | st.integers(0, 2**40),
    traceparent=st.none() | st.text(min_size=1),
)


@given(envelopes)
def test_an_envelope_survives_its_headers(envelope: Envelope) -> None:
    assert from_headers(to_headers(envelope)) == envelope


GOOD: Headers = to_headers(Envelope("i", "t", "s", 1_700_000_000_123, "subject", 3))


def without(name: str) -> Headers:
    return [(key, value) for key, value in GOOD if key != name]


@pytest.mark.parametrize("name", ["ce_id", "ce_type", "ce_source", "ce_time", "ce_subject"])
def test_a_missing_header_is_named(name: str) -> None:
    with pytest.raises(EnvelopeError, match=name):
        from_headers(without(name))


@pytest.mark.parametrize("value", [b"-1", b"1_0", b" 7", b"x", b""])
def test_a_sequence_is_a_plain_number(value: bytes) -> None:
    with pytest.raises(EnvelopeError, match=SEQUENCE):
        from_headers([*without(SEQUENCE), (SEQUENCE, value)])


@pytest.mark.parametrize("value", [b"yesterday", b"2026-11-21T11:00:00"])
def test_a_time_needs_a_zone(value: bytes) -> None:
    with pytest.raises(EnvelopeError, match=TIME):
        from_headers([*without(TIME), (TIME, value)])


def test_bytes_that_are_not_text_are_refused() -> None:
    with pytest.raises(EnvelopeError, match="UTF-8"):
        from_headers([*without("ce_id"), ("ce_id", b"\xff")])
