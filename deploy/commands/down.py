"""``headrace down``: end a stack from another shell."""

import click

from headrace.deploy.terminal import tell


@click.command("down")
@click.option("--data", type=click.Path(file_okay=False), help="Folder of the stack (HEADRACE_DATA).")
@click.option("--timeout", default=60.0, show_default=True, help="Seconds until it is killed.")
def command(data: str | None, timeout: float) -> None:
    """End the stack that runs on a data folder; what it keeps stays there."""
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
            f"The stack on {folder} (process {pid}) is another user's, and only that user may end it."
        ) from error
    except ProcessLookupError:  # it has ended by itself
        pass
    while is_locked(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    if is_locked(folder):
        os.kill(pid, signal.SIGKILL)
        raise StackError(f"The stack on {folder} (process {pid}) did not end within {timeout:g} s and was killed.")
    tell(f"The stack on {folder} has ended.")
