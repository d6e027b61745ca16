"""A tiny process between a supervisor and a command: when the supervisor dies, the command's whole tree dies.

    python -I -S lifeline.py COMMAND [ARGUMENT ...]        (standard input: one end of a socket pair)

A parent-death signal alone reaches one generation, and follows the *thread* that forked. So each command gets this
parent of its own, which uses nothing but the standard library (about 10 MB resident):

- it tells the supervisor the command's process id, as a line on the socket;
- the socket's end of file says that the supervisor is gone (``kill -9`` included), or wants the end now: SIGKILL to
  every descendant;
- SIGTERM is passed to the command, whose own end is awaited;
- when the command ends, what it left behind is killed, and its status becomes ours (128 + n for signal n).

On Linux it is a subreaper: descendants that made sessions of their own and lost their parents come back to it and are
found. Should it be killed itself, the kernel kills the command. Elsewhere only the command's process group is killed.
"""

import contextlib
import os
import select
import signal
import sys

LINUX = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CANNOT_EXECUTE = 127


def _prctl(option: int, value: int) -> None:
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def _start(argv: list[str]) -> int:
    """Fork and execute ``argv`` in a session of its own, its standard input empty; returns its process id."""
    here = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        if LINUX:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != here:  # We died before the kernel was told.
                os._exit(_CANNOT_EXECUTE)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error}\n".encode())
    os._exit(_CANNOT_EXECUTE)


def _descendants(root: int) -> list[int]:
    """Process ids below ``root``, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
                # The name in parentheses may hold anything; the parent is the second field after it.
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    found, left = [], [root]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def _kill_tree(command: int) -> None:
    """SIGKILL everything below us until nothing is left; reaps all of it."""
    with contextlib.suppress(OSError):
        os.killpg(command, signal.SIGKILL)
    while True:
        for pid in _descendants(os.getpid()) if LINUX else ():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            # What is forked between the look and the kill is found in the next round.
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        select.select([], [], [], 0.01)


def _reap(command: int) -> int | None:
    """Reap whatever ended; the command's exit status once it did."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, wait_status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == command:
                code = os.waitstatus_to_exitcode(wait_status)
                status = code if code >= 0 else 128 - code
    return status


def main(argv: list[str]) -> int:
    """Run ``argv`` to its end, or to ours; returns the exit status."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    command = _start(argv)
    with contextlib.suppress(OSError):
        os.write(0, b"%d\n" % command)
    while True:
        readable, _, _ = select.select([0, woken], [], [])
        if woken in readable:
            if {signal.SIGTERM, signal.SIGINT} & set(os.read(woken, 512)):
                with contextlib.suppress(OSError):
                    os.kill(command, signal.SIGTERM)
            status = _reap(command)
            if status is not None:
                _kill_tree(command)
                return status
        if 0 in readable:
            try:
                alive = os.read(0, 512) != b""
            except OSError:
                alive = False
            if not alive:
                _kill_tree(command)
                return 128 + signal.SIGKILL


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
