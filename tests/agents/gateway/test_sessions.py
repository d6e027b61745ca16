"""Which session ends when there are too many."""

from headrace.agents.gateway.session_identity import Source
from headrace.agents.gateway.sessions import InFlight, Session, SessionStore
from headrace.agents.gateway.terms import TenantPolicy, terms_of


def session(tenant: str, scope: str, *, busy: bool = False) -> Session:
    made = Session(tenant, scope, scope, Source.URL, terms_of(TenantPolicy(), tenant, scope), used_ms=0)
    if busy:
        made.in_flight["call"] = InFlight("call", b"", None, "trajectory", 1)
    return made


def test_a_tenant_with_many_sessions_loses_its_own_and_never_those_of_another():
    store = SessionStore(10)
    assert [store.put(session("small", f"s{number}")) for number in range(3)] == [None] * 3
    ended = [store.put(session("large", f"l{number}")) for number in range(50)]
    assert [each.scope for each in ended if each is not None] == [f"l{number}" for number in range(43)]
    assert len(store) == 10
    assert all(store.get("small", f"s{number}") for number in range(3))


def test_among_a_tenant_s_sessions_the_least_recently_used_ends_unless_a_call_is_in_flight():
    store = SessionStore(3)
    busy, used, unused = session("t", "busy", busy=True), session("t", "used"), session("t", "unused")
    for each in (busy, used, unused, used):
        assert store.put(each) is None
    assert store.put(session("t", "new")) is unused
    assert {each.scope for each in store.idle(1)} == {"used", "new"}


def test_if_every_session_of_the_largest_tenant_is_in_use_the_next_tenant_loses_one():
    store = SessionStore(3)
    for each in (session("large", "a", busy=True), session("large", "b", busy=True), session("small", "c")):
        store.put(each)
    ended = store.put(session("large", "d", busy=True))
    assert ended is not None
    assert ended.scope == "c"
    assert store.put(session("large", "e", busy=True)) is None
    assert len(store) == 4


def test_a_session_that_is_put_again_counts_once_and_a_removed_one_not_at_all():
    store = SessionStore(2)
    one = session("t", "one")
    assert [store.put(one), store.put(one), len(store)] == [None, None, 1]
    assert [store.remove("t", "one"), store.remove("t", "one"), len(store)] == [one, None, 0]
