"""Signatures of policy versions: only holders of a trusted key can make engines load weights.

The trainer signs each ``Weights`` record with an Ed25519 key (RFC 8032); a follower loads a version only if the
signature is by a key in its ``trust`` setting. The signed statement contains run, version, parent, and the hash of the
manifest, which in turn holds the hashes of the weights. So a single check, made before any request, covers the content,
and a signature of one version or run is not valid for another.
"""

import contextlib
import json
import os
import re
import stat
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from headrace.schemas.records.weights import Weights

_DOMAIN = b"headrace policy version v1\n"
"""Domain separation: the signature is not valid for any other kind of statement."""

_PUBLIC_KEY = re.compile(r"[0-9a-f]{64}")
_SIGNATURE = re.compile(r"[0-9a-f]{128}")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class SigningKeyError(ValueError):
    """The signing key cannot be read or created; the message names the remedy."""


class SigningKey:
    """A private key, and its public key, which followers trust."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
        """The public key: 64 hex digits, as in ``FollowerConfig.trust``."""

    def sign(self, pointer: Weights) -> Weights:
        """Returns ``pointer`` with the signature of its other fields."""
        return pointer.model_copy(
            update={"signature": self._private.sign(statement(pointer)).hex(), "signed_by": self.public}
        )


def statement(pointer: Weights) -> bytes:
    """Returns the signed bytes: everything that decides what an engine loads, and as which version of which run.

    The manifest's address is not included: a follower uses its configured store, and the manifest's hash is signed.
    """
    fields = ("run", "version", "parent", "kind", "sha256", "size", "step")
    values = {name: getattr(pointer, name) for name in fields}
    return _DOMAIN + json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def is_signed_by(pointer: Weights, public_key: str) -> bool:
    """Whether the signature of ``pointer`` is by ``public_key`` (64 hex digits)."""
    if not _PUBLIC_KEY.fullmatch(public_key) or not _SIGNATURE.fullmatch(pointer.signature):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(
            bytes.fromhex(pointer.signature), statement(pointer)
        )
    except (InvalidSignature, ValueError):  # ValueError: not a point of the curve
        return False
    return True


def require_public_key(key: str) -> None:
    """Raises ``ValueError`` if ``key`` is not a public key as printed by ``headrace keys``."""
    if not _PUBLIC_KEY.fullmatch(key):
        raise ValueError(f"trust: {key!r} is not a public key: 64 hex digits, as `headrace keys` prints them")


def load_or_create_key(file: Path) -> SigningKey:
    """Load the key in ``file`` (PEM, PKCS 8, unencrypted), which is created with mode 0600 if it does not exist.

    If several processes create it at the same time, one wins and all load its key. Raises :class:`SigningKeyError`.
    """
    try:
        if not file.exists():
            _create(file)
        return load_key(file)
    except OSError as error:
        raise SigningKeyError(
            f"signing_key {file} cannot be created: {error}; name a file in a private folder"
        ) from error


def load_key(file: Path) -> SigningKey:
    """Load the key in ``file``; raises :class:`SigningKeyError` if it is invalid, ``OSError`` if it cannot be read."""
    if stat.S_IMODE(file.stat().st_mode) & _OTHERS:
        raise SigningKeyError(
            f"signing_key {file} can be read or written by others, who could sign versions or put their own key there: "
            f"chmod 600 {file}; if one of them may have done so, remove it: a new one is created at the next start"
        )
    try:
        private = load_pem_private_key(file.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise SigningKeyError(f"signing_key {file} is not a private key without a password (PEM): {error}") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise SigningKeyError(f"signing_key {file} is not an Ed25519 key: `headrace keys --key FILE` creates one")
    return SigningKey(private)


def _create(file: Path) -> None:
    """Create a key atomically, without replacing an existing one."""
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = file.with_name(f".{file.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as made:
            made.write(pem)
            made.flush()
            os.fsync(made.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(partial, file)
    finally:
        partial.unlink(missing_ok=True)
