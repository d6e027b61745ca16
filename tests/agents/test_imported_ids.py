"""The cached ids of imported events are restored exactly; events that retention deleted do not count."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.imported_ids import ImportedIds, id_digest
from headrace.schemas.kafka.fold_cache import UnusableFoldError

EVENTS = st.lists(
    st.tuples(st.sampled_from(["headrace/import/a", "headrace/import/ü\n"]), st.binary(max_size=40), st.integers(0, 2))
)


def ids_of(events: list[tuple[str, bytes, int]]) -> ImportedIds:
    """Add each event at its index as offset."""
    ids = ImportedIds()
    for offset, (source, event_id, partition) in enumerate(events):
        ids.add(source, event_id, partition, offset)
    return ids


@given(EVENTS, st.integers(0, 10), st.integers(0, 2), EVENTS)
def test_packing_and_unpacking_keeps_all_events(
    events: list[tuple[str, bytes, int]], begin: int, cut: int, later: list[tuple[str, bytes, int]]
) -> None:
    again = ImportedIds.unpacked(ids_of(events).packed())
    for offset, (source, event_id, partition) in enumerate(later, len(events)):
        again.add(source, event_id, partition, offset)
    for wanted in ("headrace/import/a", "headrace/import/ü\n", "headrace/import/b"):
        assert again.of(wanted, {cut: begin}) == {
            id_digest(event_id)
            for offset, (source, event_id, partition) in enumerate([*events, *later])
            if source == wanted and (partition != cut or offset >= begin)
        }


PACKED = ids_of([("headrace/import/a", b"x", 0), ("headrace/import/a", b"y", 1)]).packed()


@pytest.mark.parametrize(
    "packed", [b"", b"\n", b"{", PACKED[:-1], PACKED[:-20], b"[1]\n", json.dumps([["a", [[0, -1]]]]).encode() + b"\n"]
)
def test_other_bytes_are_refused(packed: bytes) -> None:
    with pytest.raises(UnusableFoldError, match="damaged"):
        ImportedIds.unpacked(packed)
