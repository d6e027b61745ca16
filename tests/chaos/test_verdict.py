"""The verdict detects lost, doubled and changed records."""

from dataclasses import replace

import pytest

from headrace.schemas.topics import TRAJECTORIES
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.raw import Outgoing
from tests.chaos.verdict import Bytes, Comparison, batch, disagreements, of_topic
from tests.streams.builders import log, session

RECORDS = [
    Bytes(b"k%d" % number, b"v%d" % number, (("ce_id", b"id-%d" % number), ("ce_type", b"t")), 7) for number in range(4)
]


def compared(found: list[Bytes]) -> tuple[int, int, int, int, int]:
    seen = Comparison()
    seen.compare("here", RECORDS, found)
    assert seen.is_exact == (found == RECORDS)
    assert bool(seen.differences) == (found != RECORDS)
    return seen.lost, seen.doubled, seen.strange, seen.changed, seen.out_of_order


def test_equal_records_are_exact() -> None:
    assert compared(list(RECORDS)) == (0, 0, 0, 0, 0)


def test_each_kind_of_difference_is_counted_separately() -> None:
    a, b, c, d = RECORDS
    assert compared([a, b, d]) == (1, 0, 0, 0, 0)
    assert compared([a, b, c, d, b]) == (0, 1, 0, 0, 0)
    assert compared([a, b, c, d, a._replace(headers=(("ce_id", b"new"),))]) == (0, 0, 1, 0, 0)
    assert compared([a, c, b, d]) == (0, 0, 0, 0, 1)


@pytest.mark.parametrize("change", [{"key": b"x"}, {"value": b"x"}, {"timestamp_ms": 8}])
def test_a_changed_byte_is_a_difference(change: dict[str, object]) -> None:
    a, b, c, d = RECORDS
    assert compared([a, b, c._replace(**change), d]) == (0, 0, 0, 1, 0)  # type: ignore[arg-type]  # fields of Bytes


def test_fold_and_oracle_are_compared() -> None:
    events = log([*session("s1", "ask"), *session("s2", "tool")])
    made = batch(events, FoldLimits())
    assert list(disagreements(0, events, made, FoldLimits())) == []
    spoiled = [replace_value(each) for each in made]
    assert list(disagreements(0, events, spoiled, FoldLimits())) == [
        "events[0]: fold and oracle differ in 2 of 2 trajectories"
    ]
    assert "1 trajectories are open" in next(
        disagreements(0, events[:-1], batch(events[:-1], FoldLimits()), FoldLimits())
    )
    assert len(of_topic(TRAJECTORIES, made)) == 2


def replace_value(outgoing: Outgoing) -> Outgoing:
    return outgoing._replace(message=replace(outgoing.message, value=outgoing.message.value + b" "))
