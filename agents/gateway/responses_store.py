"""Answers of the Responses API that clients may ask for again; in memory, bounded, the oldest are forgotten first."""

from collections import OrderedDict
from typing import Final

MAX_BYTES: Final = 64 * 1024 * 1024
"""Most bytes of all answers."""

MAX_DELETED: Final = 100_000
"""Deleted answers that are remembered as such."""


class ResponsesStore:
    """Stored answers, by tenant and id."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._stored: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._deleted: OrderedDict[tuple[str, str], None] = OrderedDict()

    def put(self, tenant: str, response_id: str, body: bytes) -> None:
        """Store an answer, unless it was deleted: a retry may receive it all the same."""
        if self.is_deleted(tenant, response_id):
            return
        self._bytes += len(body) - len(self._stored.pop((tenant, response_id), b""))
        self._stored[tenant, response_id] = body
        while self._bytes > self._max_bytes:
            self._bytes -= len(self._stored.popitem(last=False)[1])

    def get(self, tenant: str, response_id: str) -> bytes | None:
        """Return an answer; ``None`` if it is not known, or not any more."""
        return self._stored.get((tenant, response_id))

    def delete(self, tenant: str, response_id: str) -> bool:
        """Forget an answer; return whether it was known. It cannot be continued any more."""
        found = self._stored.pop((tenant, response_id), None)
        if found is None:
            return False
        self._bytes -= len(found)
        self._deleted[tenant, response_id] = None
        if len(self._deleted) > MAX_DELETED:
            self._deleted.popitem(last=False)
        return True

    def is_deleted(self, tenant: str, response_id: str) -> bool:
        """Return whether an answer was deleted."""
        return (tenant, response_id) in self._deleted
