"""Stored answers: bounded, apart by tenant, and gone once they are deleted."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.gateway import responses_store
from headrace.agents.gateway.responses_store import ResponsesStore


def test_answers_are_apart_by_tenant() -> None:
    store = ResponsesStore()
    store.put("a", "r", b"of a")
    assert (store.get("a", "r"), store.get("b", "r")) == (b"of a", None)
    assert not store.delete("b", "r")
    assert store.delete("a", "r")
    assert (store.get("a", "r"), store.is_deleted("a", "r"), store.is_deleted("b", "r")) == (None, True, False)
    assert not store.delete("a", "r")


def test_a_deleted_answer_is_not_stored_again() -> None:
    store = ResponsesStore()
    store.put("a", "r", b"1")
    store.delete("a", "r")
    store.put("a", "r", b"2")
    assert store.get("a", "r") is None


def test_deletions_are_bounded() -> None:
    store = ResponsesStore()
    for number in range(responses_store.MAX_DELETED + 1):
        store.put("a", str(number), b"x")
        store.delete("a", str(number))
    assert not store.is_deleted("a", "0")
    assert store.is_deleted("a", "1")


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.binary(max_size=60)), max_size=40))
def test_the_latest_answers_are_kept_within_the_limit(steps: list[tuple[bool, int, bytes]]) -> None:
    store, expected = ResponsesStore(100), dict[str, bytes]()
    deleted = set[str]()
    for puts, number, body in steps:
        name = str(number)
        if puts and name not in deleted:
            store.put("a", name, body)
            expected.pop(name, None)
            expected[name] = body
            while sum(map(len, expected.values())) > 100:
                del expected[next(iter(expected))]
        elif not puts:
            assert store.delete("a", name) == (name in expected)
            if expected.pop(name, None) is not None:
                deleted.add(name)
        assert {each: store.get("a", each) for each in expected} == expected
        assert store.bytes == sum(map(len, expected.values())) <= 100


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.binary(min_size=1, max_size=60)), max_size=40))
def test_a_tenant_within_its_share_loses_nothing(steps: list[tuple[str, int, bytes]]) -> None:
    store, put = ResponsesStore(180), dict[str, dict[str, bytes]]()
    for tenant, number, body in steps:
        store.put(tenant, str(number), body)
        put.setdefault(tenant, {})[str(number)] = body
        assert store.bytes <= 180
    for tenant, own in put.items():
        if len(put) == 3 and sum(map(len, own.values())) <= 60:
            assert {name: store.get(tenant, name) for name in own} == own
