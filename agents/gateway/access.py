"""Who sends a request: the tenant of its key, and the session that the key or the URL names.

A key comes as ``Authorization: Bearer …`` or ``x-api-key: …``, whichever the client's API prefers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.agents.gateway.capture import Tenant
from headrace.agents.gateway.client_errors import refused
from headrace.agents.gateway.framing.errors import ErrorKind
from headrace.agents.gateway.sealed import Sealer
from headrace.agents.gateway.session_grants import KEY_PREFIX, SessionGrant, is_foreign, open_key
from headrace.agents.gateway.session_identity import Arrival
from headrace.agents.gateway.tenants import MAX_KEY, Tenants


@dataclass(frozen=True, slots=True)
class Access:
    """A request that is admitted."""

    tenant: Tenant
    arrival: Arrival
    grant: SessionGrant | None
    """What the session's key says about it; ``None`` for a tenant's key."""


def access_of(
    headers: Mapping[str, str], url_session: str | None, tenants: Tenants, sealer: Sealer, now_s: float
) -> Access:
    """Return who sends a request. ``headers``: by lower-case name.

    Raises :class:`~headrace.agents.gateway.client_errors.CallRefused` for an unknown key, and for a session of another
    tenant.
    """
    key = _key_in(headers)
    grant: SessionGrant | None = None
    if key.startswith(KEY_PREFIX):
        grant = open_key(sealer, key, now_s)
        tenant = None if grant is None else tenants.named(grant.tenant)
        problem = "the session's key is forged or expired: open a session by POST /sessions"
    else:
        tenant = tenants.of_key(key) if len(key) <= MAX_KEY else None
        problem = (
            f"{'the API key is not known' if key else 'no API key was sent'}: send one of the gateway's keys "
            "(gateway.keys) as Authorization: Bearer or x-api-key"
        )
    if tenant is None:
        raise refused(ErrorKind.AUTHENTICATION, problem)
    if url_session is not None and (
        is_foreign(sealer, tenant.name, url_session) or (grant is not None and grant.session != url_session)
    ):
        raise refused(ErrorKind.PERMISSION, f"the session {url_session[:80]!r} does not belong to this key")
    session = None if grant is None else grant.session
    return Access(tenant, Arrival(headers, url_session, session), grant)


def _key_in(headers: Mapping[str, str]) -> str:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "").strip()
