"""The memory of closed trajectories: its count matches its content, and the oldest entry is evicted first."""

from array import array

from headrace.streams.assembly.remembered import Memory, Remembered


def closed(name: str, *, top: int = 3, gaps: int = 0) -> Remembered:
    return Remembered(name.encode(), top, array("i", range(2 * gaps)), None)


def test_empty_memory_and_forgotten_entries_count_no_bytes() -> None:
    memory = Memory(2, 10**9)
    assert memory.size == 0
    for each in (closed("a", gaps=50), closed("b"), closed("c", gaps=7)):
        memory.add(each)
    assert list(memory.known) == [b"b", b"c"]
    assert memory.size == closed("b").size + closed("c", gaps=7).size


def test_gaps_and_ids_are_counted_byte_by_byte() -> None:
    assert closed("a", gaps=50).size - closed("a").size == 50 * 2 * 4
    assert closed("abcde").size - closed("a").size == 4
    with_start = Remembered(b"a", 3, array("i"), b"0123456789")
    assert with_start.size - closed("a").size == 10


def test_beyond_its_byte_limit_the_oldest_are_forgotten_and_never_the_latest() -> None:
    memory = Memory(100, closed("a").size + closed("b").size)
    for name in "abc":
        memory.add(closed(name))
    assert list(memory.known) == [b"b", b"c"]
    memory.add(closed("huge", gaps=10_000))
    assert list(memory.known) == [b"huge"]
    memory.add(closed("d"))
    assert list(memory.known) == [b"d"]


def test_an_id_that_closed_again_is_not_forgotten_with_its_predecessor() -> None:
    memory = Memory(2, 10**9)
    for each in (closed("a", top=1), closed("a", top=9), closed("b")):
        memory.add(each)
    assert {name: each.top for name, each in memory.known.items()} == {b"a": 9, b"b": 3}
