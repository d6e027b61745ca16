"""Ends every process of a sandbox, and waits until they are gone, which is later than the end of the command.

bubblewrap reports the pid of the sandbox's first process. The kernel kills all others of its pid namespace with that
process and lets it end only after them, so a descriptor of it (a pidfd) becomes readable when nothing is left that
could write a file. It is killed here although bubblewrap asks the kernel to kill it with its parent: sandboxed code is
of the same user, so it can trace the first process and make it take that wish back.

    {"child-pid": 4711, "pid-namespace": 4026532182}
    {"exit-code": 0}
"""

import asyncio
import contextlib
import json
import os
import signal

from headrace.agents.sandbox.protocol import SandboxError

WAIT_S = 10.0
"""Seconds to wait. A process in an uninterruptible system call may take this long."""


class NamespaceEnd:
    """Reads bubblewrap's report (``--json-status-fd``) of one command."""

    def __init__(self) -> None:
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._text = b""
        self._pidfd: int | None = None
        self._has_begun = False
        self.first: tuple[int, int] | None = None
        """Pid of the sandbox's first process and the inode of its pid namespace; ``None`` before it has begun."""
        asyncio.get_running_loop().add_reader(self._read_fd, self._receive)

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(self._read_fd, 4096)
            self._text += chunk
            if not chunk:
                asyncio.get_running_loop().remove_reader(self._read_fd)
        line, newline, _ = self._text.partition(b"\n")
        if newline and not self._has_begun:
            self._has_begun = True
            first = json.loads(line)
            self.first = first["child-pid"], first["pid-namespace"]
            self._pidfd = descriptor_of(*self.first)

    @property
    def has_exit_code(self) -> bool:
        """Whether bubblewrap reported an exit code: not if it could not set up the sandbox, or was killed."""
        return b'"exit-code"' in self._text

    async def wait(self) -> None:
        """Kill all processes of the sandbox and return when they are gone. Raises :class:`SandboxError` if that takes
        too long."""
        self._receive()
        if self._pidfd is None:
            return
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(self._pidfd, gone.set)
        try:
            async with asyncio.timeout(WAIT_S):
                await gone.wait()
        except TimeoutError:
            raise SandboxError(f"a sandbox's processes did not end within {WAIT_S} s of being killed") from None
        finally:
            loop.remove_reader(self._pidfd)

    def close(self) -> None:
        """Close the descriptors."""
        asyncio.get_running_loop().remove_reader(self._read_fd)
        for descriptor in (self._read_fd, self.write_fd, self._pidfd):
            if descriptor is not None:
                os.close(descriptor)


def descriptor_of(pid: int, namespace: int) -> int | None:
    """Return a pidfd of the process ``pid``; ``None`` if it has ended. A process that has taken its number since is in
    another pid ``namespace``, the inode of which tells it apart."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        found = os.stat(f"/proc/{pid}/ns/pid").st_ino
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended, or is somebody else's
        found = None
    if found != namespace:
        os.close(descriptor)
        return None
    return descriptor
