"""Readiness by systemd's sd_notify protocol, so that a worker runs the same way in a stack and as a systemd unit.

A worker that is ready sends the datagram ``READY=1`` to the Unix socket in the variable NOTIFY_SOCKET.
"""

import asyncio
import os
import socket
import tempfile
from pathlib import Path
from types import TracebackType

NOTIFY_SOCKET = "NOTIFY_SOCKET"
READY = b"READY=1"


def notify_ready() -> None:
    """Signal to the supervisor that this process is ready; does nothing without NOTIFY_SOCKET."""
    address = os.environ.get(NOTIFY_SOCKET)
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        # A leading @ represents the zero byte of Linux's abstract socket names.
        sender.connect("\0" + address[1:] if address.startswith("@") else address)
        sender.sendall(READY)


class ReadySocket:
    """The supervisor's end: a socket for one start of a part."""

    def __init__(self) -> None:
        # The length of a Unix socket's path is limited: a path in the data folder may be too long.
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-")
        self.path = Path(self._folder.name, "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(self.path))

    def __enter__(self) -> "ReadySocket":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()
        self._folder.cleanup()

    @property
    def env(self) -> dict[str, str]:
        """The environment variable that the child needs."""
        return {NOTIFY_SOCKET: str(self.path)}

    async def ready(self) -> None:
        """Return once the child has signalled that it is ready."""
        while READY not in (await asyncio.get_running_loop().sock_recv(self._socket, 4096)).splitlines():
            continue
