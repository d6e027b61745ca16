"""Answers of the Responses API that clients may ask for again; in memory, bounded, the oldest are forgotten first.

If they are too large, the tenant whose answers have the most bytes loses its oldest one: no tenant's answers are
forgotten because another stores many.
"""

from collections import Counter, OrderedDict
from typing import Final

MAX_BYTES: Final = 64 * 1024 * 1024
"""Most bytes of all answers."""

MAX_DELETED: Final = 100_000
"""Deleted answers that are remembered as such."""


class ResponsesStore:
    """Stored answers, by tenant and id."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes: Counter[str] = Counter()
        """Of the answers of each tenant."""
        self._stored: dict[str, OrderedDict[str, bytes]] = {}
        self._deleted: OrderedDict[tuple[str, str], None] = OrderedDict()

    def put(self, tenant: str, response_id: str, body: bytes) -> None:
        """Store an answer, unless it was deleted: a retry may receive it all the same."""
        if self.is_deleted(tenant, response_id):
            return
        self._forget(tenant, response_id)
        self._stored.setdefault(tenant, OrderedDict())[response_id] = body
        self._bytes[tenant] += len(body)
        while self._bytes.total() > self._max_bytes:
            largest = max(self._bytes, key=self._bytes.__getitem__)
            self._forget(largest, next(iter(self._stored[largest])))

    def get(self, tenant: str, response_id: str) -> bytes | None:
        """Return an answer; ``None`` if it is not known, or not any more."""
        own = self._stored.get(tenant)
        return None if own is None else own.get(response_id)

    def delete(self, tenant: str, response_id: str) -> bool:
        """Forget an answer; return whether it was known. It cannot be continued any more."""
        if not self._forget(tenant, response_id):
            return False
        self._deleted[tenant, response_id] = None
        if len(self._deleted) > MAX_DELETED:
            self._deleted.popitem(last=False)
        return True

    def is_deleted(self, tenant: str, response_id: str) -> bool:
        """Return whether an answer was deleted."""
        return (tenant, response_id) in self._deleted

    def _forget(self, tenant: str, response_id: str) -> bool:
        """Forget an answer; return whether it was known."""
        own = self._stored.get(tenant, OrderedDict())
        found = own.pop(response_id, None)
        if found is None:
            return False
        self._bytes[tenant] -= len(found)
        if not own:
            del self._stored[tenant], self._bytes[tenant]
        return True
