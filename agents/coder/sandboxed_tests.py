"""Runs the tests of an episode in its sandbox: the functions are called there, the verdict is made here.

    outputs, error = await run_in_sandbox(sandbox, test_run, repository.texts())      # {"charge": [23, 30]}, None

What comes back was written next to untrusted code, so it is checked like any input: no shape of it raises.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from headrace.agents.coder.grading import Outputs, as_output
from headrace.agents.coder.harness import TestRun
from headrace.agents.sandbox.protocol import Outcome, Sandbox, SandboxError

SECONDS = 5.0
"""Longest time for the functions of one run; the grammar's take a millisecond."""
STARTUP_SECONDS = 10.0
"""Further time for the interpreter to start, on a busy machine."""
MOST_BYTES = 1 << 20
"""Largest result that is read."""


def program() -> str:
    """Return the text of ``sandbox_program.py``."""
    return files("headrace.agents.coder").joinpath("sandbox_program.py").read_text(encoding="utf-8")


def command(python: str = "python3") -> list[str]:
    """Return the command that runs a job: isolated from user settings (-I), without site (-S) and bytecode (-B)."""
    return [python, "-I", "-S", "-B", "-c", program()]


def job(run: TestRun, texts: Mapping[str, bytes] | None = None) -> bytes:
    """Return the job of ``run`` as JSON. ``texts``: files to run instead of those in the work folder."""
    sources = {path: text.decode() for path, text in (texts or {}).items()}
    values = {"folder": ".", "files": sources, "calls": run.calls, "inputs": list(run.inputs), "seconds": SECONDS}
    return json.dumps(values).encode()


def parse_outputs(text: bytes) -> tuple[Outputs, str | None]:
    """Return the outputs in ``text``, and why they are incomplete (``timed_out`` …) or ``None``.

    A value that is no integer becomes ``None``, and anything else that is not as agreed is ``unreadable``.
    """
    if len(text) > MOST_BYTES:
        return {}, "output_truncated"
    try:
        value: Any = json.loads(text)
        found = {
            str(name): tuple(as_output(item) for item in values)
            for name, values in value["outputs"].items()
            if isinstance(values, list)
        }
        ran = str(value["ran"])[:40]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}, "unreadable"
    return found, None if ran == Outcome.COMPLETED else ran


async def run_in_sandbox(
    sandbox: Sandbox, run: TestRun, texts: Mapping[str, bytes] | None = None, *, python: str = "python3"
) -> tuple[Outputs, str | None]:
    """Return the outputs of ``run`` in ``sandbox``, and why they are incomplete or ``None``. ``texts``: files to run
    instead of those in the work folder, which candidate code may have changed in an earlier run.

    The policy's doing (time, memory, a dead process) is a label; only a sandbox that cannot run anything raises
    ``SandboxError``.
    """
    done = await sandbox.execute(command(python), stdin=job(run, texts), timeout_s=SECONDS + STARTUP_SECONDS)
    if done.outcome is not Outcome.COMPLETED:
        return {}, str(done.outcome)
    if done.exit_code in (126, 127):
        raise SandboxError(f"{python} cannot be started in the sandbox ({done.stderr[:200]!r}): install Python there")
    if done.exit_code != 0:  # the candidate killed the program, for example
        return {}, f"exit_code_{done.exit_code}"
    return parse_outputs(done.stdout)
