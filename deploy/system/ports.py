"""Loopback ports: free ones are chosen once and remembered beside the data, so that addresses outlive a restart."""

import json
import random
import socket
from pathlib import Path

HOST = "127.0.0.1"
"""Everything that headrace starts listens here and nowhere else."""

_CHOICES = range(20_000, 32_768)
"""Below the kernel's ephemeral range: no outgoing connection takes a remembered port between two starts."""


def is_free(port: int) -> bool:
    """Whether nothing listens on ``port`` of the loopback interface."""
    with socket.socket() as probe:
        # As servers do: connections of a past server that linger in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port(taken: frozenset[int] = frozenset()) -> int:
    """A free port that is not in ``taken``. Raises ``OSError`` when a hundred tries found none."""
    for port in random.SystemRandom().sample(_CHOICES, 100):
        if port not in taken and is_free(port):
            return port
    raise OSError(f"no free port between {_CHOICES.start} and {_CHOICES.stop - 1}")


def metrics_url(port: int) -> str:
    """Where Prometheus is answered on ``port``."""
    return f"http://{HOST}:{port}/metrics"


def remembered_ports(file: Path, names: tuple[str, ...]) -> dict[str, int]:
    """A free port for each of ``names``: that of the last time where it is still free. Written back to ``file``."""
    known: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
    ports = dict(known)
    for name in names:
        if name not in ports or not is_free(ports[name]):
            ports[name] = free_port(frozenset(ports.values()))
    if ports != known:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(ports, indent=1) + "\n")
    return {name: ports[name] for name in names}
