"""Ids that the gateway mints and clients send back: sealed references to a sampled answer.

    call_AUjC3mT0w5oAANzB0v6c3m1rQ0s4tQm9eXo     40 characters: the limit of OpenAI's API for a tool call's id
    └kind └ 8 bytes: call, 1: choice, 1: position, 16: HMAC-SHA256

The HMAC covers the kind, the tenant and a time window, so that an id of another tenant, of another kind or of an
expired window is like a forged one: :meth:`Sealer.open` returns ``None``. Several secrets allow rotation: the first
one seals, all of them open. An id contains no secret, and is a hint: what it refers to is compared with the request.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from headrace.schemas.bounds import MAX_NAME

MAC_BYTES = 16
"""Length of the authentication code: 128 bits."""

CALL_BYTES = 8
"""Length of the hash of a call's id."""

MIN_SECRET_BYTES = 16
"""Shortest secret."""

DEFAULT_TENANT = "default"
"""Tenant of everybody at a gateway without a file of keys."""

MAX_FEEDBACK_CHARACTERS = 8 * MAX_NAME
"""Longest feedback token: a trajectory and a tenant of the largest length take up to 4 bytes per character."""

MAX_SIGNED_CHARACTERS = 8_192
"""Longest signed text."""

_REFERENCE_BYTES = CALL_BYTES + 2
_REFERENCE_CHARACTERS = 35
_FEEDBACK_PREFIX = "fb_"
_ALPHABET = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


class Kind(StrEnum):
    """What an id stands for in the client's API; the value is its prefix."""

    CALL = "call_"
    TOOL_USE = "toolu_"
    RESPONSE = "resp_"
    MESSAGE = "msg_"
    REASONING = "rs_"
    SIGNATURE = "sig_"
    ENCRYPTED = "enc_"


_KINDS = {kind.value: kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to an answer of a call."""

    call: bytes
    """Hash of the call's id (:func:`call_hash`), 8 bytes."""
    choice: int = 0
    """Index of the answer, 0 to 255."""
    position: int = 0
    """Position of a tool call in the answer, 0 to 255; 0 for other kinds."""


@dataclass(frozen=True, slots=True)
class FeedbackTarget:
    """What a feedback token permits feedback on."""

    tenant: str
    trajectory_id: str


def call_hash(call_id: str) -> bytes:
    """Return the 8 bytes under which references name the call."""
    return hashlib.sha256(call_id.encode()).digest()[:CALL_BYTES]


class Sealer:
    """Seals and opens references and feedback tokens."""

    def __init__(self, secrets: Sequence[bytes], *, lifetime_s: int = 7 * 86_400) -> None:
        """``secrets``: at least one, each of 16 bytes or more; the first one seals, all of them open. ``lifetime_s``:
        how long a reference can be opened at least; after twice that time it cannot. Raises ``ValueError``."""
        if not secrets:
            raise ValueError("the gateway needs a secret for the ids that it mints: set at least one")
        if short := [len(secret) for secret in secrets if len(secret) < MIN_SECRET_BYTES]:
            raise ValueError(f"a secret of the gateway has {short[0]} bytes: at least {MIN_SECRET_BYTES} are needed")
        if lifetime_s < 1:
            raise ValueError(f"the lifetime of minted ids is {lifetime_s} s: expected at least 1 s")
        self._secrets = tuple(secrets)
        self._lifetime_s = lifetime_s

    def seal(self, kind: Kind, tenant: str, reference: Reference, now_s: float) -> str:
        """Return an id for ``reference``, which matches ``^[a-zA-Z0-9_-]+$``. ``now_s``: Unix seconds."""
        if len(reference.call) != CALL_BYTES or not (0 <= reference.choice < 256 and 0 <= reference.position < 256):
            raise ValueError(f"{reference} cannot be sealed: it needs 8 bytes and two numbers below 256")
        payload = reference.call + bytes((reference.choice, reference.position))
        mac = _mac(self._secrets[0], kind, tenant, int(now_s) // self._lifetime_s, payload)
        return kind + _text(payload + mac)

    def open(self, text: str, tenant: str, now_s: float) -> Reference | None:
        """Return what ``text`` refers to; ``None`` unless this gateway minted it for ``tenant`` in time."""
        prefix, _, rest = text.partition("_")
        kind = _KINDS.get(prefix + "_")
        if kind is None or len(rest) != _REFERENCE_CHARACTERS:
            return None
        raw = _bytes(rest)
        if raw is None:
            return None
        payload, mac = raw[:_REFERENCE_BYTES], raw[_REFERENCE_BYTES:]
        window = int(now_s) // self._lifetime_s
        found = False
        for secret in self._secrets:
            for then in (window, window - 1):
                found |= hmac.compare_digest(mac, _mac(secret, kind, tenant, then, payload))
        return Reference(payload[:CALL_BYTES], payload[-2], payload[-1]) if found else None

    def sign(self, prefix: str, payload: bytes, tenant: str) -> str:
        """Return a text of ``prefix`` and the readable, signed ``payload``, for ``tenant`` alone."""
        return prefix + _text(payload + _mac(self._secrets[0], prefix, tenant, 0, payload))

    def open_signed(self, prefix: str, text: str, tenant: str) -> bytes | None:
        """Return the payload of a text of :meth:`sign`; ``None`` for any other."""
        if not text.startswith(prefix) or len(text) > MAX_SIGNED_CHARACTERS:
            return None
        raw = _bytes(text.removeprefix(prefix))
        if raw is None or len(raw) < MAC_BYTES:
            return None
        payload, mac = raw[:-MAC_BYTES], raw[-MAC_BYTES:]
        found = False
        for secret in self._secrets:
            found |= hmac.compare_digest(mac, _mac(secret, prefix, tenant, 0, payload))
        return payload if found else None

    @property
    def salt(self) -> bytes:
        """32 bytes derived from the first secret: the salt of conversations' keys."""
        return hmac.digest(self._secrets[0], b"headrace conversations", "sha256")

    def mac(self, about: str, payload: bytes) -> bytes:
        """Return the authentication code of ``payload`` for ``about``, what it may be used for."""
        return _mac(self._secrets[0], "note", about, 0, payload)

    def is_mac(self, mac: bytes, about: str, payload: bytes) -> bool:
        """Return whether ``mac`` is what :meth:`mac` returns with one of the secrets."""
        found = False
        for secret in self._secrets:
            found |= hmac.compare_digest(mac, _mac(secret, "note", about, 0, payload))
        return found

    def feedback_token(self, target: FeedbackTarget, expires_s: int) -> str:
        """Return a token that permits feedback on a trajectory until ``expires_s`` (Unix seconds)."""
        tenant, trajectory = target.tenant.encode(), target.trajectory_id.encode()
        payload = expires_s.to_bytes(5, "big") + len(tenant).to_bytes(2, "big") + tenant + trajectory
        return _FEEDBACK_PREFIX + _text(payload + _mac(self._secrets[0], "feedback", "", 0, payload))

    def open_feedback(self, token: str, now_s: float) -> FeedbackTarget | None:
        """Return the target of ``token``; ``None`` if it is forged or expired."""
        if len(token) > MAX_FEEDBACK_CHARACTERS * 2 or not token.startswith(_FEEDBACK_PREFIX):
            return None
        raw = _bytes(token.removeprefix(_FEEDBACK_PREFIX))
        if raw is None or len(raw) < 7 + MAC_BYTES:
            return None
        payload, mac = raw[:-MAC_BYTES], raw[-MAC_BYTES:]
        found = False
        for secret in self._secrets:
            found |= hmac.compare_digest(mac, _mac(secret, "feedback", "", 0, payload))
        if not found or int.from_bytes(payload[:5], "big") <= now_s:
            return None
        end = 7 + int.from_bytes(payload[5:7], "big")
        return FeedbackTarget(payload[7:end].decode(), payload[end:].decode())


def _mac(secret: bytes, kind: str, tenant: str, window: int, payload: bytes) -> bytes:
    # The tenant's length comes first, so that no tenant can be chosen to look like another one with a payload.
    named = tenant.encode()
    message = b"%s\x00%d\x00%d\x00" % (kind.encode(), window, len(named)) + named + payload
    return hmac.digest(secret, message, "sha256")[:MAC_BYTES]


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes | None:
    """Return the decoded ``text``; ``None`` if :func:`_text` could not have written it."""
    try:
        encoded = text.encode("ascii")
        if not _ALPHABET.issuperset(encoded):
            return None
        raw = base64.urlsafe_b64decode(encoded + b"=" * (-len(encoded) % 4))
    except (UnicodeEncodeError, binascii.Error):
        return None
    return raw if _text(raw) == text else None
