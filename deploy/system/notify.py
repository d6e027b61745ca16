"""Readiness by systemd's sd_notify protocol: a worker runs the same under our supervisor and as a systemd unit.

A worker that serves sends the datagram ``READY=1`` to the Unix socket that NOTIFY_SOCKET names.
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
    """Tell whoever started this process that it serves; nothing where nobody asked."""
    address = os.environ.get(NOTIFY_SOCKET)
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        # A leading @ stands for the zero byte of Linux' abstract names.
        sender.connect("\0" + address[1:] if address.startswith("@") else address)
        sender.sendall(READY)


class ReadySocket:
    """The supervisor's end: a socket for one start of one part."""

    def __init__(self) -> None:
        # Unix socket paths are short: a data folder's may not fit.
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
        """What the child needs in its environment."""
        return {NOTIFY_SOCKET: str(self.path)}

    async def ready(self) -> None:
        """Return once the child said that it serves."""
        while READY not in (await asyncio.get_running_loop().sock_recv(self._socket, 4096)).splitlines():
            continue
