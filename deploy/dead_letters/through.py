"""Runs a command of the user's on the value of a record: value on standard input → new value on standard output."""

import shlex
import subprocess
from collections.abc import Callable

from headrace.deploy.errors import StackError
from headrace.streams.dead_letters.repair import CannotRepair

TIMEOUT_S = 60
"""Longest run of the command for one record."""


def through(command: str) -> Callable[[bytes], bytes]:
    """Returns a function that runs ``command`` on a value; it is split like a shell's, and no shell runs it.

    The function raises :class:`CannotRepair` if the command fails on the value, and ``StackError`` if it cannot be
    started. Raises ``StackError`` for a command that cannot be split.
    """
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise StackError(f"--through {command!r}: {error}.") from error
    if not arguments:
        raise StackError("--through needs a command, such as 'jq -c .'.")

    def run(value: bytes) -> bytes:
        try:
            done = subprocess.run(arguments, input=value, capture_output=True, timeout=TIMEOUT_S, check=False)
        except OSError as error:
            raise StackError(f"--through {command!r} cannot be started: {error}.") from error
        except subprocess.TimeoutExpired as error:
            raise CannotRepair(f"{arguments[0]} took more than {TIMEOUT_S} s") from error
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise CannotRepair(f"{arguments[0]} failed ({done.returncode}){': ' + said[-1] if said else ''}")
        return done.stdout.removesuffix(b"\n")

    return run
