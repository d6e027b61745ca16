"""A stack that a person started: progress on the terminal, signals, and the way into the background."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

from headrace.deploy.configuration.settings import Settings
from headrace.deploy.errors import StackError
from headrace.deploy.stack.stack import Stack, running_stack
from headrace.deploy.stack.state import State, is_locked, read_state
from headrace.deploy.stack.supervisor import StateChange
from headrace.deploy.system.data_folder import command_on, keep_files_private, make_folder
from headrace.deploy.terminal import print_error, print_line, print_redacted, print_text

_INTERRUPTED = 130
_POLL_S = 0.2
_ERROR = "\nError: "
"""How click begins what it shows of an exception."""
_PROBLEMS = {State.FAILED, State.RESTARTING}


def show(progress: StateChange) -> None:
    """One line a part, when there is something to say."""
    if progress.state in _PROBLEMS:
        print_error(f"  {progress.part:<11} {progress.state}: {progress.message}")
    elif progress.state is State.STARTING and progress.message:
        print_redacted(f"  {progress.part:<11}           {progress.message} …")
    elif progress.state in {State.READY, State.EXTERNAL}:
        took = f"{progress.seconds:5.1f} s" if progress.state is State.READY else "  yours"
        print_redacted(f"  {progress.part:<11} {took}   {progress.message}".rstrip())


def run_in_foreground(settings: Settings, without: Collection[str]) -> None:
    """Bring the stack up and keep it until SIGINT or SIGTERM; a second one ends everything at once.

    Exits with 130 where the signal came before it was up. Raises :class:`StackError` where it does not come up.
    """
    if not asyncio.run(_until_signalled(settings, without)):
        sys.exit(_INTERRUPTED)


async def _until_signalled(settings: Settings, without: Collection[str]) -> bool:
    """Whether the stack was up when the signal came."""
    was_up = False
    main = asyncio.current_task()
    assert main is not None
    asked = False

    def on_signal() -> None:
        nonlocal asked
        if asked:
            os._exit(_INTERRUPTED)  # The lifelines notice, and kill every tree.
        asked = True
        print_line("Stopping (once more: at once) …", err=True)
        main.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    print_line(f"Starting headrace on {settings.data}")
    try:
        async with running_stack(settings, without, show, on_note=print_line) as stack:
            was_up = True
            _show_addresses(stack, settings.data)
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        print_line("Stopped.", err=True)
    return was_up


def _show_addresses(stack: Stack, data: Path) -> None:
    how_to_end = "Ctrl-C" if sys.stdin.isatty() else f"SIGTERM, or `{command_on('down', data)}`,"
    print_line(f"Up. {how_to_end} ends it; `{command_on('status', data)}` shows it from another shell.")
    for name, where in stack.addresses.items():
        print_redacted(f"  {name:<11} {where}")


def run_in_background(settings: Settings, without: Collection[str]) -> None:
    """Start ``headrace up`` in a session of its own and return once it serves.

    Raises :class:`StackError` with the reason where it does not come up.
    """
    if is_locked(settings.data):
        read_state(settings.data)
        shows, ends = command_on("status", settings.data), command_on("down", settings.data)
        raise StackError(f"A stack runs on {settings.data} already: `{shows}` shows it, `{ends}` ends it.")
    keep_files_private()
    make_folder(settings.data)
    settings.logs.mkdir(exist_ok=True)
    log = settings.logs / "up.log"
    argv = [sys.executable, "-m", "headrace.deploy.cli", "up"]
    if without:
        argv += ["--without", ",".join(sorted(without))]
    with log.open("wb") as output:
        supervisor = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | settings.environment(),
            start_new_session=True,
        )
    try:
        shown, why, ended = 0, "", False
        while not _is_up(settings, supervisor.pid):
            if ended:
                raise StackError(why or f"The stack did not come up; {log} says no more.")
            time.sleep(_POLL_S)
            ended = supervisor.poll() is not None  # Asked before reading, so that nothing is written after.
            shown, why = relay(log, shown)
        relay(log, shown)
    except KeyboardInterrupt:
        supervisor.terminate()
        supervisor.wait()
        raise
    print_line(f"In the background as process {supervisor.pid}; `{command_on('down', settings.data)}` ends it.")


def relay(log: Path, shown: int) -> tuple[int, str]:
    """Show ``log`` from character ``shown`` up to an error; returns how far that was, and the error."""
    text = log.read_text(errors="replace")
    error = text.find(_ERROR)
    before_error = text if error < 0 else text[: error + 1]
    print_text(before_error[shown:])
    return len(before_error), "" if error < 0 else text[error + len(_ERROR) :].strip()


def _is_up(settings: Settings, pid: int) -> bool:
    if not is_locked(settings.data):
        return False
    try:
        state = read_state(settings.data)
        return state.ready and state.pid == pid
    except StackError:  # Locked, and nothing written yet.
        return False
