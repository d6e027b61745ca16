"""Runs a stack from the command line: progress on the terminal, signals, and running in the background."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

from headrace.deploy.configuration.settings import PREFIX, Settings
from headrace.deploy.errors import StackError
from headrace.deploy.stack.folder_run import with_run_of_folder
from headrace.deploy.stack.stack import Stack, running_stack
from headrace.deploy.stack.state import State, is_locked, read_state
from headrace.deploy.stack.supervisor import StateChange
from headrace.deploy.system.data_folder import command_on, keep_files_private, make_folder
from headrace.deploy.terminal import print_error, print_line, print_redacted, print_text

_INTERRUPTED = 130
_POLL_S = 0.2
_ERROR = "\nError: "
"""The text with which click introduces an exception's message."""
_PROBLEMS = {State.FAILED, State.RESTARTING}


def print_change(change: StateChange) -> None:
    """Print a line about a part that is ready, starts with a message, or failed."""
    if change.state in _PROBLEMS:
        print_error(f"  {change.part:<11} {change.state}: {change.message}")
    elif change.state is State.STARTING and change.message:
        print_redacted(f"  {change.part:<11}            {change.message} …")
    elif change.state in {State.READY, State.EXTERNAL}:
        took = f"{change.seconds:6.1f} s" if change.state is State.READY else "external"
        print_redacted(f"  {change.part:<11} {took}   {change.message}".rstrip())


def run_in_foreground(settings: Settings, without: Collection[str]) -> None:
    """Start the stack and run it until SIGINT or SIGTERM; a second signal kills everything immediately.

    Exits with 130 if the signal arrives before the stack is ready. Raises :class:`StackError` if it does not start.
    """
    if not asyncio.run(_until_signalled(settings, without)):
        sys.exit(_INTERRUPTED)


async def _until_signalled(settings: Settings, without: Collection[str]) -> bool:
    """Run the stack until a signal; returns whether the stack was ready when the signal arrived."""
    was_up = False
    main = asyncio.current_task()
    assert main is not None
    stopping = False

    def on_signal() -> None:
        nonlocal stopping
        if stopping:
            os._exit(_INTERRUPTED)  # The lifelines detect the exit and kill every process tree.
        stopping = True
        print_line("Stopping (a second signal kills everything) …", err=True)
        main.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    settings, note = with_run_of_folder(settings)
    print_line(f"Starting headrace on {settings.data}")
    if note is not None:
        print_line(note)
    try:
        async with running_stack(settings, without, print_change, on_note=print_line) as stack:
            was_up = True
            _show_addresses(stack, settings.data)
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        print_line("Stopped.", err=True)
    return was_up


def _show_addresses(stack: Stack, data: Path) -> None:
    how_to_stop = "Ctrl-C" if sys.stdin.isatty() else f"SIGTERM or `{command_on('down', data)}`"
    print_line(
        f"The stack is up. {how_to_stop} stops it; `{command_on('status', data)}` shows its state from another shell."
    )
    for name, where in stack.addresses.items():
        print_redacted(f"  {name:<11} {where}")


def run_in_background(settings: Settings, without: Collection[str]) -> None:
    """Start ``headrace up`` in a session of its own and return once it is ready.

    Raises :class:`StackError` with the reason if it does not start.
    """
    if is_locked(settings.data):
        read_state(settings.data)
        status, down = command_on("status", settings.data), command_on("down", settings.data)
        raise StackError(f"A stack already runs on {settings.data}: `{status}` shows it, `{down}` stops it.")
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
            env=os.environ | _given(settings),
            start_new_session=True,
        )
    try:
        shown, why, ended = 0, "", False
        while not _is_up(settings, supervisor.pid):
            if ended:
                raise StackError(why or f"The stack did not start, and {log} has no error message.")
            time.sleep(_POLL_S)
            ended = supervisor.poll() is not None  # Checked before the log is read, which is then complete.
            shown, why = relay(log, shown)
        relay(log, shown)
    except KeyboardInterrupt:
        supervisor.terminate()
        supervisor.wait()
        raise
    print_line(
        f"The stack runs in the background as process {supervisor.pid}; `{command_on('down', settings.data)}` stops it."
    )


def _given(settings: Settings) -> dict[str, str]:
    """Returns the settings as environment variables, without the run if it is only the default: the stack then
    continues the last one of the folder."""
    environment = settings.environment()
    if "run" not in settings.model_fields_set:
        del environment[f"{PREFIX}RUN"]
    return environment


def relay(log: Path, shown: int) -> tuple[int, str]:
    """Print ``log`` from character ``shown`` up to an error; returns the new position and the error's text."""
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
    except StackError:  # The folder is locked, but the state is not written yet.
        return False
