"""A derived record continues its origin's trace, the same way every time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.trace import continued, parse_traceparent

AGENTS = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_derived_record_keeps_the_trace_and_has_a_span_of_its_own() -> None:
    before, after = parse_traceparent(AGENTS), parse_traceparent(continued(AGENTS, "record-1"))
    assert before is not None
    assert after is not None
    assert (after.trace_id, after.flags) == (before.trace_id, before.flags)
    assert after.span_id != before.span_id


def test_the_same_record_has_the_same_span_and_another_record_another() -> None:
    assert continued(AGENTS, "record-1") == continued(AGENTS, "record-1") != continued(AGENTS, "record-2")


@pytest.mark.parametrize("header", [None, "", "00-xyz", AGENTS.upper(), AGENTS.replace("00f067aa0ba902b7", "0" * 16)])
def test_an_invalid_trace_context_is_ignored(header: str | None) -> None:
    assert continued(header, "record-1") is None


@given(st.text())
def test_any_trace_header_is_read_or_ignored_without_raising(header: str) -> None:
    context = parse_traceparent(header)
    assert context is None or context.traceparent == header
