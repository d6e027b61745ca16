"""What a ``store_url`` may be: the object store's one setting; credentials come from the environment."""

from urllib.parse import urlsplit

from headrace.schemas.redaction import holds_secret, redacted_address

_SCHEMES = ("file", "s3", "gs", "az")


def scheme_of(url: str) -> str:
    """``file``, ``s3``, ``gs`` or ``az``; raises ``ValueError`` for an address of another form."""
    try:
        parts = urlsplit(url)
    except ValueError:  # whose message may hold a part of the password
        parts = urlsplit("")
    if parts.scheme not in _SCHEMES or not (parts.netloc or parts.scheme == "file"):
        raise ValueError(
            f"store_url {redacted_address(url)!r} is not of this form: file:///folder, s3://bucket/prefix, gs://…, az://…"
        )
    if holds_secret(url) or redacted_address(url) != url:
        raise ValueError(
            f"store_url {redacted_address(url)} holds a password or key, which belongs in the environment: the address "
            "stands in every event of weights"
        )
    return parts.scheme
