"""Where trajectories belong: what waits for one, what is forgotten, and how it is stored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.records.watch import Lane
from headrace.streams.watch import places
from headrace.streams.watch.key_state import digest
from headrace.streams.watch.places import About, Place, Places, decoded, place_entry
from headrace.streams.watch.window import Key, Row

THUMB = Key(Lane.FEEDBACK, spec="thumb")
PLACE = Place("r", "search", "hotpot", 7)


def about(id: str, part: str = "", key: Key = THUMB, version: int | None = None) -> About:
    return About(digest(id, ""), key, digest(id, part), Row(id, version, 1, {"value": 1.0}))


def test_what_is_known_counts_at_once_with_the_version_of_its_trajectory() -> None:
    known, stored = Places(), dict[bytes, bytes | None]()
    assert known.found(digest("t", ""), PLACE, stored) == []
    (counted,) = known.placed(about("t", "f"), stored)
    assert counted.key == Key(Lane.FEEDBACK, "r", "search", "hotpot", "thumb")
    assert (counted.row.version, counted.row.values) == (7, {"value": 1.0})
    (rejected,) = known.placed(about("t", key=Key(Lane.FATE, "other"), version=3), stored)
    assert (rejected.key, rejected.row.version) == (Key(Lane.FATE, "other", "search", "hotpot"), 3)


def test_what_is_not_known_waits_and_then_counts_in_order() -> None:
    known, stored = Places(), dict[bytes, bytes | None]()
    rows = [about("t", "f1"), about("u", "f1"), about("t", "f2")]
    assert [known.placed(each, stored) for each in rows] == [[], [], []]
    assert [known.waits(each) for each in rows] == [True] * 3
    assert not known.waits(about("t", "f3"))
    found = known.found(digest("t", ""), PLACE, stored)
    assert [each.identity for each in found] == [digest("t", "f1"), digest("t", "f2")]
    assert [known.waits(each) for each in rows] == [False, True, False]
    assert known.found(digest("t", ""), PLACE, stored) == []


def test_the_oldest_place_is_forgotten_and_what_waits_longest_counts_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "MAX_PLACES", 2)
    monkeypatch.setattr(places, "MAX_WAITING", 1)
    known, stored = Places(), dict[bytes, bytes | None]()
    for id in ("a", "b", "a", "c"):
        known.found(digest(id, ""), PLACE, stored)
    assert known.placed(about("a"), stored) == []
    assert known.placed(about("x"), stored) == [about("a")]
    assert known.placed(about("b"), stored) != []
    assert [name for name, value in stored.items() if value is None] == [
        place_entry(places.StoredPlace(0, digest("a", ""), PLACE))[0],
        place_entry(places.StoredWaiting(0, about("a")))[0],
    ]


def test_the_stored_state_in_any_order_is_the_state() -> None:
    known, stored = Places(), dict[bytes, bytes | None]()
    for id in ("c", "a", "b"):
        known.found(digest(id, ""), PLACE, stored)
        known.placed(about(f"unknown-{id}"), stored)
    entries = [decoded(name, value) for name, value in sorted(stored.items()) if value is not None]
    restored = Places(each for each in entries if isinstance(each, places.StoredPlace | places.StoredWaiting))
    assert restored.entries() == known.entries()
    assert {place_entry(each) for each in restored.entries()} == set(stored.items())
    later = [each.placed(about("z"), {}) or each.entries()[-1].number for each in (known, restored)]
    assert later[0] == later[1]


def test_stored_state_is_found_under_its_names() -> None:
    """The names are digests: with others, the state of a running system would be lost."""
    name, value = place_entry(places.StoredPlace(4, digest("t", ""), PLACE))
    assert name == b"p2add4cf717a361d9"
    assert value == b'[4,"2add4cf717a361d9",["r","search","hotpot",7]]'
    name, value = place_entry(places.StoredWaiting(5, about("t", "f")))
    assert name == f"w{digest('feedback', '', '', '', 'thumb')}{digest('t', 'f')}".encode()
    assert decoded(name, value) == places.StoredWaiting(5, about("t", "f"))


PARTS = st.lists(st.text("a\x1e\x1f", max_size=4), min_size=1, max_size=4)


@given(PARTS, PARTS)
def test_other_parts_have_another_digest(parts: list[str], others: list[str]) -> None:
    assert (digest(*parts) == digest(*others)) is (parts == others)


def test_separators_within_a_part_do_not_make_two_keys_one() -> None:
    assert digest("search\x1fhotpot", "") != digest("search", "hotpot\x1f")
