"""pytest, run repeatedly by forks of one process that has already imported the slow modules.

    python -m tests.mutation.forked

reads one JSON list of pytest's arguments per line, and answers each with {"code": …, "cpu_s": …, "output": FILE}.
Nothing of headrace is imported here: each fork reads the current tree. A fork may use ``CPU_LIMIT_S`` seconds of
processor time, which detects an endless mutant on a busy machine too; one that waits forever ends after ``LIMIT_S``.
"""

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path

CPU_LIMIT_S = 300
LIMIT_S = 1800
SLOW_TO_IMPORT = ("numpy", "pydantic", "pytest", "hypothesis", "msgspec", "aiokafka", "torch", "transformers")


def main() -> None:
    """Answer lines until the input ends."""
    for name in SLOW_TO_IMPORT:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            output = Path(folder) / "output"
            print(json.dumps(_answer(json.loads(line), output)), flush=True)


def _answer(arguments: list[str], output: Path) -> dict[str, object]:
    pid = os.fork()
    if pid == 0:
        _run(arguments, output)
    code, used = _wait(pid)
    return {"code": code, "cpu_s": used, "output": output.read_text(errors="replace")[-4000:]}


def _run(arguments: list[str], output: Path) -> None:
    """Run in the fork, as the leader of a process group, so that its child processes can be ended with it."""
    os.setsid()
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
    import pytest

    code = 1
    try:
        code = int(pytest.main(arguments))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(pid: int) -> tuple[int, float]:
    """The status of the fork (negative: the signal that ended it), and the CPU seconds of it and its children."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        ended, status, used = os.wait4(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
