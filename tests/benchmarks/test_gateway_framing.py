"""The program that measures framing runs, and each delta that it measures is an event."""

import pytest

from headrace.agents.gateway.answer import Delta
from tests.benchmarks import bench_gateway_framing


def test_every_api_has_a_row_for_each_kind_of_delta_that_it_can_express() -> None:
    rows = [(api, kind) for api, kind, _, _ in bench_gateway_framing.rows(8, rounds=1)]
    assert len(set(rows)) == len(rows) == 10


@pytest.mark.parametrize("api", bench_gateway_framing.FRAMERS)
def test_each_delta_is_an_event(api: str) -> None:
    deltas: list[Delta] = bench_gateway_framing.streams(8)["text"]
    framer = bench_gateway_framing.FRAMERS[api]()
    events = bench_gateway_framing.events_of(framer.begin() + b"".join(framer.delta(delta) for delta in deltas))
    assert len([event for _, event in events if "日本" in str(event)]) == 2
