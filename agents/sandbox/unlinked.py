"""Bytes of files that a sandbox's processes hold open although they have removed them: they take disk without a name.

fd = os.open("f", os.O_RDWR | os.O_CREAT); os.unlink("f"); os.write(fd, bytes(2**20))
"""

import os
import stat
from collections.abc import Iterator

HOLDERS = ("fd", "map_files")
"""Folders of a process in /proc that name the files it has open and those it has mapped into memory."""


def unlinked_bytes(first: int, namespace: int, work: str) -> int:
    """Return the bytes of removed files of the file system at ``work`` that processes of the pid ``namespace`` hold;
    ``first``: pid of one that sees ``work``. Processes and files that vanish meanwhile count nothing."""
    try:
        device = os.stat(f"/proc/{first}/root{work}").st_dev
    except OSError:  # the sandbox is not set up yet, or has ended
        return 0
    found: dict[int, int] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{pid}/ns/pid").st_ino != namespace:
                continue
        except OSError:  # it has ended, or is somebody else's
            continue
        for status in _held(pid):
            if status.st_nlink == 0 and status.st_dev == device and stat.S_ISREG(status.st_mode):
                found[status.st_ino] = max(status.st_size, 512 * status.st_blocks)
    return sum(found.values())


def _held(pid: str) -> Iterator[os.stat_result]:
    for holder in HOLDERS:
        try:
            names = os.listdir(f"/proc/{pid}/{holder}")
        except OSError:  # it has ended; or the kernel shows mapped files to root only
            continue
        for name in names:
            try:
                yield os.stat(f"/proc/{pid}/{holder}/{name}")
            except OSError:  # it was closed meanwhile
                continue
