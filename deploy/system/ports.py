"""Loopback ports: free ports are chosen once and stored in the data folder, so that addresses survive a restart."""

import json
import random
import socket
from pathlib import Path

HOST = "127.0.0.1"
"""The only address that processes of headrace listen on."""

_CHOICES = range(20_000, 32_768)
"""Below the kernel's ephemeral range, so that no outgoing connection takes a remembered port between two starts."""


def is_free(port: int) -> bool:
    """Whether nothing listens on ``port`` of the loopback interface."""
    with socket.socket() as probe:
        # As servers do: ignores connections of an earlier server that are still in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port(taken: frozenset[int] = frozenset()) -> int:
    """Returns a free port that is not in ``taken``. Raises ``OSError`` if a hundred tries find none."""
    for port in random.SystemRandom().sample(_CHOICES, 100):
        if port not in taken and is_free(port):
            return port
    raise OSError(f"no free port between {_CHOICES.start} and {_CHOICES.stop - 1}")


def free_ports(count: int) -> list[int]:
    """Returns ``count`` different free ports."""
    found: list[int] = []
    while len(found) < count:
        found.append(free_port(frozenset(found)))
    return found


def metrics_url(port: int) -> str:
    """Returns the Prometheus address on ``port``."""
    return f"http://{HOST}:{port}/metrics"


def remembered_ports(file: Path, names: tuple[str, ...]) -> dict[str, int]:
    """Returns a free port for each of ``names``: the remembered port if it is still free. Saves them in ``file``."""
    known: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
    ports = dict(known)
    for name in names:
        if name not in ports or not is_free(ports[name]):
            ports[name] = free_port(frozenset(ports.values()))
    if ports != known:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(ports, indent=1) + "\n")
    return {name: ports[name] for name in names}
