"""Partitions merged in stream time: one order, however they are read."""

import random

from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.replay.order import StreamTimeOrder

SOURCES = st.lists(st.lists(st.integers(0, 20), max_size=12), min_size=1, max_size=4)


def merged(sources: list[list[int]], chance: random.Random) -> list[tuple[int, int, int]]:
    """(stream time, source, index in it), with the sources read in random portions."""
    order: StreamTimeOrder[int, int] = StreamTimeOrder(range(len(sources)))
    read = [0] * len(sources)
    found = list(order.ready())
    while order.starving:
        source = chance.choice(sorted(order.starving))
        items = list(enumerate(sources[source]))[read[source] : read[source] + chance.randrange(1, 4)]
        read[source] += len(items)
        order.offer(source, [(timestamp, index) for index, timestamp in items])
        if read[source] == len(sources[source]):
            order.end(source)
        found += order.ready()
    return found


@given(SOURCES, st.randoms(use_true_random=False))
def test_every_record_comes_once_in_stream_time_and_each_source_in_order(
    sources: list[list[int]], chance: random.Random
) -> None:
    found = merged(sources, chance)
    assert [time_ms for time_ms, _, _ in found] == sorted(time_ms for time_ms, _, _ in found)
    for source, timestamps in enumerate(sources):
        mine = [(time_ms, index) for time_ms, each, index in found if each == source]
        assert mine == [(max(timestamps[: index + 1]), index) for index in range(len(timestamps))]


@given(SOURCES, st.randoms(use_true_random=False))
def test_read_sizes_do_not_change_the_order(sources: list[list[int]], chance: random.Random) -> None:
    assert merged(sources, chance) == merged(sources, random.Random(0))


def test_no_record_is_released_while_a_source_may_be_earlier() -> None:
    order: StreamTimeOrder[str, str] = StreamTimeOrder(["a", "b"])
    order.offer("a", [(5, "late")])
    assert (list(order.ready()), order.starving) == ([], {"b"})
    order.offer("b", [(3, "early")])
    assert [item for _, _, item in order.ready()] == ["early"]
    assert order.starving == {"b"}
    order.end("b")
    assert [item for _, _, item in order.ready()] == ["late"]
