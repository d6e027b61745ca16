"""The address of an HTTP server, as users write it."""

from urllib.parse import urlsplit


def http_address(text: str) -> str:
    """Returns ``text`` if it is http[s]://host[:port], perhaps with a path; raises ``ValueError`` otherwise."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError("which is not http://host:port") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not text.isprintable():
        raise ValueError("which is not http://host:port")
    return text
