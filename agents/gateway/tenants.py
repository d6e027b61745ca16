"""Who may use the gateway: API keys, each of a tenant with its settings.

    {"keys": [{"sha256": "9f86d0…", "tenant": "acme", "sample_rate": 0.1, "consent": true}]}

The file holds hashes of the keys: reading it does not permit using the gateway. Without a file every key is accepted,
as the tenant ``default``; that is for the loopback interface only.

A running gateway reads a changed file again, so that a key can be withdrawn at once. What a tenant's settings say is
decided when a session begins, so they change at the gateway's next start only.
"""

import asyncio
import hashlib
import json
import logging
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.agents.gateway.capture import Tenant
from headrace.agents.gateway.regular_file import read_regular
from headrace.agents.gateway.sealed import DEFAULT_TENANT
from headrace.agents.gateway.terms import TenantPolicy
from headrace.schemas.bounds import MAX_NAME
from headrace.schemas.events import Role
from headrace.schemas.operator_error import OperatorError

log = logging.getLogger(__name__)

DEFAULT = Tenant(DEFAULT_TENANT)
"""The tenant of all keys if none are configured."""

MAX_KEY = 4_096
"""Longest API key, in characters."""

KEYS_EVERY_S = 2.0
"""Interval at which the file of keys is looked at for a change."""
MAX_KEYS_BYTES = 16 * 1024 * 1024
"""Largest file of keys that is read: some 100,000 keys."""


class KeysUnusable(OperatorError):
    """The file of keys cannot be used."""


class _Key(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    tenant: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    consent: bool = True
    sample_rate: float = 1.0
    masked: bool = False
    subagent_role: Role = Role.FROZEN
    unmatched_root_role: Role = Role.FROZEN


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: tuple[_Key, ...]


class Tenants:
    """The tenants, by key and by name."""

    def __init__(self, by_key: dict[str, Tenant] | None) -> None:
        """``by_key``: tenants by the hexadecimal SHA-256 of their keys; ``None``: every key is accepted."""
        self._by_key = by_key
        self._by_name = {DEFAULT.name: DEFAULT} if by_key is None else {each.name: each for each in by_key.values()}
        self._seen = dict(self._by_name)  # with the settings that this process began with

    @property
    def is_open(self) -> bool:
        """Whether every key is accepted."""
        return self._by_key is None

    @property
    def has_keys(self) -> bool:
        """Whether at least one key is accepted."""
        return self._by_key is None or bool(self._by_key)

    def of_key(self, key: str) -> Tenant | None:
        """Return the tenant of an API key."""
        if self._by_key is None:
            return DEFAULT
        return self._by_key.get(hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest())

    def named(self, name: str) -> Tenant | None:
        """Return the tenant ``name``."""
        return self._by_name.get(name)

    def replace_keys(self, other: "Tenants") -> list[str]:
        """Accept the keys of ``other`` instead; returns the tenants whose settings differ there, which they keep here.

        Raises ``ValueError`` if one of both accepts every key.
        """
        if self._by_key is None or other._by_key is None:
            raise ValueError("a gateway without keys accepts every key until it ends")
        seen, found = self._seen, other._by_name
        changed = [name for name, tenant in found.items() if seen.setdefault(name, tenant).policy != tenant.policy]
        self._by_key = {key: seen[tenant.name] for key, tenant in other._by_key.items()}
        self._by_name = {name: seen[name] for name in found}
        return changed

    def is_masked(self, name: str) -> bool:
        """Return whether the messages of the tenant ``name`` stay out of the log: also when its keys are withdrawn, and
        when its settings are not known.
        """
        tenant = self._seen.get(name)
        return tenant is None or tenant.policy.masked


def read_tenants(path: Path | None) -> Tenants:
    """Return the tenants of the file ``path``; without one, every key is accepted.

    Raises :class:`KeysUnusable` if it cannot be read, has no key, or gives one tenant two settings or one key two
    tenants.
    """
    if path is None:
        return Tenants(None)
    found = _tenants_of(path, _content_of(path))
    if not found.has_keys:
        raise _unusable(path, ValueError("it has no key, so that every request would be refused"))
    return found


def _tenants_of(path: Path, content: bytes) -> Tenants:
    """Returns the tenants of ``content`` of the file ``path``."""
    try:
        found = _Keys.model_validate(json.loads(content))
        by_key: dict[str, Tenant] = {}
        by_name: dict[str, Tenant] = {}
        for key in found.keys:
            policy = TenantPolicy(**key.model_dump(exclude={"sha256", "tenant"}))
            tenant = by_name.setdefault(key.tenant, Tenant(key.tenant, policy))
            if tenant.policy != policy:
                raise ValueError(f"two keys of the tenant {key.tenant!r} have different settings")
            if (other := by_key.setdefault(key.sha256, tenant)) is not tenant:
                raise ValueError(f"the tenants {other.name!r} and {key.tenant!r} have the same key")
    except (ValueError, RecursionError) as error:
        raise _unusable(path, error) from error
    return Tenants(by_key)


async def follow_keys(path: Path, tenants: Tenants) -> None:
    """Keep the keys of ``tenants`` those of the file ``path``, until cancelled. While the file cannot be used, the keys
    that were read last stay. An empty list is no such file: it withdraws the last key.
    """
    seen: bytes | None = None
    problem = ""
    while True:
        await asyncio.sleep(KEYS_EVERY_S)
        try:
            # The content is compared: times of files are coarse, a renewed key has the size of the one before, and
            # neither tells that a file can be read again.
            content = await asyncio.to_thread(_content_of, path)
            problem = ""
            if content == seen:
                continue
            seen = content
            found = await asyncio.to_thread(_tenants_of, path, content)
        except KeysUnusable as error:
            if str(error) != problem:
                problem = str(error)
                log.error("%s. The keys that were read last stay in use", error)
            continue
        for name in tenants.replace_keys(found):
            log.warning("the settings of the tenant %r in %s change when the gateway starts again", name, path)
        if not tenants.has_keys:
            log.warning("the list of keys in %s is empty: every request is refused until it has one again", path)


def _content_of(path: Path) -> bytes:
    """Returns what is in the file ``path``. Raises :class:`KeysUnusable`."""
    try:
        return read_regular(path, MAX_KEYS_BYTES)
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: Exception) -> KeysUnusable:
    return KeysUnusable(
        f"the gateway's keys in {path} cannot be used: {_problem(error)}. Expected "
        '{"keys": [{"sha256": "<hash>", "tenant": "<name>"}]}; `printf %s KEY | sha256sum` prints a key\'s hash'
    )


def _problem(error: Exception) -> str:
    """Returns what is wrong with the file, in one line."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}"
