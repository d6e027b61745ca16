"""One memory for several tenants: bounded, and the largest tenant pays for its growth."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.gateway.tenant_cache import TenantCache

TENANTS = st.sampled_from(["acme", "bolt", "crew"])
KEYS = st.integers(0, 5)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), TENANTS, KEYS, st.integers(1, 40)),
        st.tuples(st.just("touch"), TENANTS, KEYS, st.just(0)),
        st.tuples(st.just("pop"), TENANTS, KEYS, st.just(0)),
    ),
    max_size=60,
)
MOST = 100


@given(OPERATIONS)
def test_it_forgets_what_the_largest_tenant_used_least_recently(operations: list[tuple[str, str, int, int]]) -> None:
    cache: TenantCache[int, int] = TenantCache(MOST)
    kept: list[tuple[str, int, int, int]] = []  # tenant, key, value, size: the least recently used first
    for value, (what, tenant, key, size) in enumerate(operations):
        known = next((entry for entry in kept if entry[:2] == (tenant, key)), None)
        if known is not None:
            kept.remove(known)
        if what == "put":
            assert cache.put(tenant, key, value, size) == (None if known is None else known[2])
            kept.append((tenant, key, value, size))
        elif what == "pop":
            assert cache.pop(tenant, key) == (None if known is None else known[2])
        elif known is not None:
            cache.touch(tenant, key)
            kept.append(known)
        forgotten = cache.make_room()
        for gone in forgotten:
            sums = {name: sum(entry[3] for entry in kept if entry[0] == name) for name, *_ in kept}
            entry = next(entry for entry in kept if entry[2] == gone)
            assert sums[entry[0]] == max(sums.values())
            assert entry == next(each for each in kept if each[0] == entry[0])
            assert sum(sums.values()) > MOST, "it forgot one more than it had to"
            kept.remove(entry)
        assert cache.bytes == sum(entry[3] for entry in kept) <= MOST
        assert len(cache) == len(kept)
        assert all(cache.get(name, key) == value for name, key, value, _ in kept)
        if (tenant, key) not in {entry[:2] for entry in kept}:
            assert cache.get(tenant, key) is None


def test_a_value_larger_than_the_memory_is_forgotten_at_once() -> None:
    cache: TenantCache[str, str] = TenantCache(10)
    assert cache.put("acme", "a", "small", 4) is None
    assert cache.put("bolt", "b", "large", 11) is None
    assert cache.make_room() == ["large"]
    assert (cache.get("acme", "a"), cache.get("bolt", "b")) == ("small", None)


def test_a_read_is_not_a_use() -> None:
    cache: TenantCache[str, str] = TenantCache(2)
    for key in "ab":
        cache.put("acme", key, key, 1)
    assert cache.get("acme", "a") == "a"
    cache.put("acme", "c", "c", 1)
    assert cache.make_room() == ["a"]
