"""Which session ends when there are too many."""

from headrace.agents.gateway.sealed import Reference
from headrace.agents.gateway.session_identity import Source
from headrace.agents.gateway.sessions import MAX_LOOKED_AT, MAX_OPEN_TOOLS, InFlight, OpenTool, Session, SessionStore
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


def test_a_tenant_that_holds_its_oldest_sessions_in_use_ends_no_other_tenants():
    store = SessionStore(2 * MAX_LOOKED_AT + 10)
    small = [session("small", f"s{number}") for number in range(10)]
    busy = [session("large", f"b{number}", busy=True) for number in range(MAX_LOOKED_AT)]
    idle = [session("large", f"i{number}") for number in range(MAX_LOOKED_AT)]
    for each in (*small, *busy, *idle):
        assert store.put(each) is None
    assert store.put(session("large", "new")) is None, "nothing is found among those that may be looked at"
    assert store.put(session("large", "newer")) is idle[0]
    assert all(store.get("small", each.scope) is each for each in small)


def test_the_work_of_a_call_is_bounded_however_many_tenants_have_only_sessions_in_use():
    looked_at = 0

    class Counted(dict[str, InFlight]):
        def __bool__(self) -> bool:
            nonlocal looked_at
            looked_at += 1
            return True

    store = SessionStore(40 * MAX_LOOKED_AT // 2)
    for number in range(20 * MAX_LOOKED_AT):
        each = session(f"t{number % 40}", f"s{number}")
        each.in_flight = Counted()
        assert store.put(each) is None
    assert store.put(session("t0", "new")) is None
    assert looked_at <= MAX_LOOKED_AT


def test_of_too_many_open_tool_calls_the_oldest_are_forgotten():
    one = session("t", "s")
    for number in range(MAX_OPEN_TOOLS + 3):
        one.note_tool(OpenTool(f"call-{number}", "bash", "trajectory", 0, Reference(b"answer")))
    assert list(one.open_tools) == [f"call-{number}" for number in range(3, MAX_OPEN_TOOLS + 3)]


def test_a_session_that_is_put_again_counts_once_and_a_removed_one_not_at_all():
    store = SessionStore(2)
    one = session("t", "one")
    assert [store.put(one), store.put(one), len(store)] == [None, None, 1]
    assert [store.remove("t", "one"), store.remove("t", "one"), len(store)] == [one, None, 0]
