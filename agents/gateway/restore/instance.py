"""Who a gateway is: an id in its folder, which no other process has at the same time.

    gateway-0.id   0190f2c0-7c1b-7e0a-…          →   ce_source /agents/gateway/0190f2c0-7c1b-7e0a-…

A gateway numbers the events of trajectories that it began, also before its last restart. Two processes with the same
folder, as during a rolling restart, have different ids, so no trajectory is numbered by two.
"""

import fcntl
import os
import re
from pathlib import Path
from typing import Final

from headrace.agents.gateway.restore.fold import SOURCES
from headrace.schemas.ids import uuid7
from headrace.schemas.operator_error import OperatorError

MAX_PROCESSES: Final = 64
"""Most processes that use one folder at the same time."""

_ID = re.compile(rb"[0-9a-f-]{36}")


class InstanceUnusable(OperatorError):
    """The gateway's id cannot be read or made."""


class Instance:
    """The id of this process, locked until :meth:`release`."""

    def __init__(self, id: str, fd: int) -> None:
        self.id = id
        """UUIDv7."""
        self._fd = fd

    @property
    def source(self) -> str:
        """CloudEvents source of its events."""
        return SOURCES + self.id

    def release(self) -> None:
        """Let another process have the id. The kernel does so, too, when this process ends."""
        os.close(self._fd)


def take_instance(folder: Path) -> Instance:
    """Return the first id of ``folder``, which exists, that no other process uses.

    Raises :class:`InstanceUnusable`.
    """
    for number in range(MAX_PROCESSES):
        path = folder / f"gateway-{number}.id"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InstanceUnusable(f"the gateway's id in {path} cannot be read or made: {error}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return Instance(_id_in(fd, path), fd)
        except BlockingIOError:
            os.close(fd)
        except OSError as error:
            os.close(fd)
            raise InstanceUnusable(f"the gateway's id in {path} cannot be locked or written: {error}") from error
        except BaseException:
            os.close(fd)
            raise
    raise InstanceUnusable(f"{MAX_PROCESSES} gateways use the folder {folder}: give this one another folder")


def _id_in(fd: int, path: Path) -> str:
    found = os.read(fd, 100)
    if not found:  # new, or its process was killed before it had an event
        found = uuid7().encode()
        os.pwrite(fd, found, 0)
        os.fsync(fd)
    if not _ID.fullmatch(found):
        raise InstanceUnusable(f"{path} is not the id of a gateway: remove it, and a new one is made")
    return found.decode()
