"""``headrace down``: stop a stack from another shell."""

import click

from headrace.deploy.terminal import print_line


@click.command("down")
@click.option("--data", type=click.Path(file_okay=False), help="Folder of the stack (HEADRACE_DATA).")
@click.option("--timeout", default=60.0, show_default=True, help="Seconds after which it is killed.")
def command(data: str | None, timeout: float) -> None:
    """Stop the stack that runs on a data folder; its data stays there."""
    import os
    import signal
    import time

    from headrace.deploy.configuration.settings import load_settings
    from headrace.deploy.errors import StackError
    from headrace.deploy.stack.state import is_locked, read_state

    folder = load_settings(data=data).data
    pid = read_state(folder).pid
    deadline = time.monotonic() + timeout
    try:
        os.kill(pid, signal.SIGTERM)
    except PermissionError as error:
        raise StackError(
            f"The stack on {folder} (process {pid}) belongs to another user, and only that user may stop it."
        ) from error
    except ProcessLookupError:  # It has already exited.
        pass
    while is_locked(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    if is_locked(folder):
        os.kill(pid, signal.SIGKILL)
        raise StackError(f"The stack on {folder} (process {pid}) did not stop within {timeout:g} s and was killed.")
    print_line(f"The stack on {folder} has stopped.")
