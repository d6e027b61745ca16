"""Entries of several tenants in one bounded memory.

If the entries are too large together, the tenant whose entries have the most bytes loses its least recently used one:
no tenant's entries are forgotten because another stores many.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class TenantCache(Generic[_Key, _Value]):
    """Values by tenant and key, with their sizes in bytes."""

    def __init__(self, max_bytes: int) -> None:
        """``max_bytes``: most bytes of all values together."""
        self.bytes = 0
        """Bytes of all values now."""
        self._max_bytes = max_bytes
        self._entries: dict[str, OrderedDict[_Key, tuple[_Value, int]]] = {}
        """Each tenant's values with their sizes, the least recently used first; no tenant without any."""
        self._bytes_of: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def __iter__(self) -> Iterator[_Value]:
        """Yield all values, each tenant's least recently used first."""
        return iter([value for own in self._entries.values() for value, _ in own.values()])

    def get(self, tenant: str, key: _Key) -> _Value | None:
        """Return a value; ``None`` if it is not known, or not any more. This does not count as a use."""
        own = self._entries.get(tenant)
        entry = None if own is None else own.get(key)
        return None if entry is None else entry[0]

    def touch(self, tenant: str, key: _Key) -> None:
        """Count as used now what is stored there."""
        self._entries[tenant].move_to_end(key)

    def put(self, tenant: str, key: _Key, value: _Value, size: int) -> _Value | None:
        """Store a value of ``size`` bytes, used now; return the former one of the same key.

        Nothing else is forgotten until :meth:`make_room`.
        """
        former = self.pop(tenant, key)
        self._entries.setdefault(tenant, OrderedDict())[key] = value, size
        self._bytes_of[tenant] += size
        self.bytes += size
        return former

    def make_room(self) -> list[_Value]:
        """Forget values until the others fit; return the forgotten ones, in this order."""
        forgotten: list[_Value] = []
        while self.bytes > self._max_bytes:
            largest = max(self._bytes_of, key=self._bytes_of.__getitem__)
            key, (value, _) = next(iter(self._entries[largest].items()))
            self.pop(largest, key)
            forgotten.append(value)
        return forgotten

    def pop(self, tenant: str, key: _Key) -> _Value | None:
        """Forget a value and return it."""
        own = self._entries.get(tenant)
        entry = None if own is None else own.pop(key, None)
        if own is None or entry is None:
            return None
        value, size = entry
        self.bytes -= size
        self._bytes_of[tenant] -= size
        if not own:
            del self._entries[tenant], self._bytes_of[tenant]
        return value
