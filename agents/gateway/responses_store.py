"""Answers of the Responses API that clients may ask for again; in memory, bounded
(:mod:`headrace.agents.gateway.tenant_cache`)."""

from collections import OrderedDict
from typing import Final

from headrace.agents.gateway.tenant_cache import TenantCache

MAX_BYTES: Final = 64 * 1024 * 1024
"""Most bytes of all answers."""

MAX_DELETED: Final = 100_000
"""Deleted answers that are remembered as such."""


class ResponsesStore:
    """Stored answers, by tenant and id. The oldest are forgotten first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._stored: TenantCache[str, bytes] = TenantCache(max_bytes)
        self._deleted: OrderedDict[tuple[str, str], None] = OrderedDict()

    def put(self, tenant: str, response_id: str, body: bytes) -> None:
        """Store an answer, unless it was deleted: a retry may receive it all the same."""
        if not self.is_deleted(tenant, response_id):
            self._stored.put(tenant, response_id, body, len(body))
            self._stored.make_room()

    def get(self, tenant: str, response_id: str) -> bytes | None:
        """Return an answer; ``None`` if it is not known, or not any more."""
        return self._stored.get(tenant, response_id)

    def delete(self, tenant: str, response_id: str) -> bool:
        """Forget an answer; return whether it was known. It cannot be continued any more."""
        if self._stored.pop(tenant, response_id) is None:
            return False
        self._deleted[tenant, response_id] = None
        if len(self._deleted) > MAX_DELETED:
            self._deleted.popitem(last=False)
        return True

    def is_deleted(self, tenant: str, response_id: str) -> bool:
        """Return whether an answer was deleted."""
        return (tenant, response_id) in self._deleted

    @property
    def bytes(self) -> int:
        """Bytes of all answers now."""
        return self._stored.bytes
