"""Validates ``store_url``, the object store's only setting; credentials come from the environment."""

from urllib.parse import urlsplit

from headrace.schemas.redaction import holds_secret, redacted_address

_SCHEMES = ("file", "s3", "gs", "az")


def scheme_of(url: str) -> str:
    """Returns ``file``, ``s3``, ``gs`` or ``az``; raises ``ValueError`` for an address of another form."""
    try:
        parts = urlsplit(url)
    except ValueError:  # its message may contain a part of the password
        parts = urlsplit("")
    if parts.scheme not in _SCHEMES or not (parts.netloc or parts.scheme == "file"):
        raise ValueError(
            f"store_url {redacted_address(url)!r} has none of these forms: file:///folder, s3://bucket/prefix, gs://…, az://…"
        )
    if holds_secret(url) or redacted_address(url) != url:
        raise ValueError(
            f"store_url {redacted_address(url)} holds a password or key, which belongs in the environment: the address "
            "is part of every weights event"
        )
    return parts.scheme
