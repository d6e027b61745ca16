"""Validators for the addresses in settings."""

from urllib.parse import urlsplit


def http_address(text: str) -> str:
    """Returns ``text`` if it is http[s]://host[:port]; raises ``ValueError`` otherwise."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError("which is not http://host:port") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not text.isprintable():
        raise ValueError("which is not http://host:port")
    return text


def store_address(text: str) -> str:
    """Returns ``text`` if it is the address of an object store; raises ``ValueError`` otherwise."""
    from headrace.schemas.objects.store_url import scheme_of

    scheme_of(text)
    return text
