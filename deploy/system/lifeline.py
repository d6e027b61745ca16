"""A small process between a supervisor and a command: when the supervisor dies, it kills the command's process tree.

    python -I -S lifeline.py COMMAND [ARGUMENT ...]        (standard input: one end of a socket pair)

A parent-death signal reaches only one generation, and depends on the *thread* that forked. Therefore each command gets
a lifeline as its parent, which uses only the standard library (about 10 MB resident):

- it writes the command's process id to the socket, as a line;
- end of file on the socket means that the supervisor has died (``kill -9`` included) or wants to stop immediately: it
  sends SIGKILL to every descendant;
- it passes SIGTERM on to the command and waits until the command ends;
- when the command has ended, it kills the remaining descendants and exits with the command's status (128 + n for
  signal n).

On Linux it is a subreaper: it also finds descendants that started their own session and lost their parent. If the
lifeline itself is killed, the kernel kills the command. On other systems only the command's process group is killed.
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
    """Fork and execute ``argv`` in a session of its own with an empty standard input; returns its process id."""
    here = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        if LINUX:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != here:  # The parent died before the signal was set.
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
    """Returns the process ids of the descendants of ``root``, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
                # The name in parentheses may contain any character; the parent is the second field after it.
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    found, left = [], [root]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def _kill_tree(command: int) -> None:
    """Kill all descendants with SIGKILL until none is left, and reap them."""
    with contextlib.suppress(OSError):
        os.killpg(command, signal.SIGKILL)
    while True:
        for pid in _descendants(os.getpid()) if LINUX else ():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            # A process that is forked between the search and the kill is found in the next iteration.
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        select.select([], [], [], 0.01)


def _reap(command: int) -> int | None:
    """Reap all ended children; returns the command's exit status if it has ended."""
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
    """Run ``argv`` until it ends or the supervisor closes the socket; returns the exit status."""
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
