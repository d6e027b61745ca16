"""Kafka's bootstrap address, as users write it."""


def kafka_address(text: str) -> str:
    """Returns ``text`` if it is host:port[,host:port…]; raises ``ValueError`` otherwise."""
    for broker in text.split(","):
        host, _, port = broker.strip(" ").rpartition(":")
        in_brackets = host.startswith("[") and host.endswith("]")  # an IPv6 address
        bare = host[1:-1] if in_brackets else host
        invalid = not bare.isprintable() or any(each in bare for each in "/@[] ") or (":" in bare and not in_brackets)
        if not bare or invalid or not _is_port(port):
            raise ValueError("which is not host:port[,host:port…]")
    return text


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and 1 <= int(text) <= 65535
