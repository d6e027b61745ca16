"""Waits until every process of a sandbox is gone, which is later than the end of the command that was killed.

bubblewrap reports the pid of the sandbox's first process. The kernel lets that process end only after all others of
its pid namespace, so a descriptor of it (a pidfd) becomes readable when nothing is left that could write a file.

    {"child-pid": 4711}
    {"exit-code": 0}
"""

import asyncio
import contextlib
import json
import os

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
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                self._pidfd = os.pidfd_open(json.loads(line)["child-pid"])

    @property
    def has_exit_code(self) -> bool:
        """Whether bubblewrap reported an exit code: not if it could not set up the sandbox, or was killed."""
        return b'"exit-code"' in self._text

    async def wait(self) -> None:
        """Return when all processes of the sandbox are gone. Raises :class:`SandboxError` if that takes too long."""
        self._receive()
        if self._pidfd is None:
            return
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
