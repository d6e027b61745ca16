"""The program that runs a candidate's functions inside a sandbox. It needs only the standard library.

    stdin    {"folder": ".", "files": {}, "calls": {"billing.py": ["charge"]}, "inputs": [3, 4], "seconds": 5}
    stdout   {"ran": "completed", "outputs": {"charge": [23, 30]}}

It is passed to the interpreter as text (``python3 -I -S -B -c TEXT``), so there is no file of it that could be edited.
Candidate code runs in a forked child only: the parent stays clean, and with ``--serve`` it forks one child for each
line that it reads. The child reports values; which are right is decided outside, from numbers that never come here.
"""

import contextlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from typing import Any

MOST_BYTES = 1 << 20
MEMORY = 256 << 20


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Return the results of ``job``; the whole child and what it started is gone afterwards."""
    folder = job["folder"]
    made = None
    if job.get("files"):
        folder = made = tempfile.mkdtemp()
        for path, text in job["files"].items():
            with open(os.path.join(folder, path), "w") as file:
                file.write(text)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            os.setpgid(0, 0)
            _run_candidate(folder, job, writing)
        finally:
            os._exit(0)
    os.close(writing)
    with contextlib.suppress(OSError):  # the child does the same, in either order
        os.setpgid(child, child)
    text, ran = _read(reading, time.monotonic() + job["seconds"])
    for kill in (os.killpg, os.kill):  # the child may have left its group
        with contextlib.suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if made:
        shutil.rmtree(made, ignore_errors=True)
    return {"ran": ran, "outputs": _outputs(text)}


def _run_candidate(folder: str, job: dict[str, Any], writing: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (int(job["seconds"]) + 1,) * 2)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    os.chdir(folder)
    sys.path.insert(0, os.getcwd())
    sys.dont_write_bytecode = True
    for path, functions in job["calls"].items():
        space: dict[str, Any] = {"__name__": path.rpartition(".")[0], "__file__": path}
        try:
            with open(path) as file:
                exec(compile(file.read(), path, "exec"), space)
        except BaseException:  # noqa: BLE001 - also SystemExit: a file that ends the process has no functions
            space = {}
        for name in functions:
            values = [_called(space.get(name), x) for x in job["inputs"]]
            os.write(writing, (json.dumps([name, values]) + "\n").encode())


def _called(function: Any, x: int) -> int | None:
    try:
        value = function(x)
        return value if type(value) is int and abs(value) < 10**12 else None
    except BaseException:  # noqa: BLE001 - whatever a candidate raises is its result
        return None


def _read(reading: int, deadline: float) -> tuple[bytes, str]:
    """Return what the child wrote until it closed the pipe, and how that ended."""
    parts: list[bytes] = []
    size = 0
    try:
        while size <= MOST_BYTES:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([reading], [], [], left)[0]:
                return b"".join(parts), "timed_out"
            part = os.read(reading, 65536)
            if not part:
                return b"".join(parts), "completed"
            parts.append(part)
            size += len(part)
        return b"".join(parts), "output_truncated"
    finally:
        os.close(reading)


def _outputs(text: bytes) -> dict[str, list[Any]]:
    outputs: dict[str, list[Any]] = {}
    for line in text.splitlines():
        try:
            name, values = json.loads(line)
            outputs[str(name)] = list(values)
        # The candidate can write to the pipe; what is no result counts as none.
        except (ValueError, TypeError, RecursionError):
            continue
    return outputs


def main() -> None:
    """Run the job on standard input, or with ``--serve`` one job a line."""
    if sys.argv[1:] == ["--serve"]:
        for line in sys.stdin:
            sys.stdout.write(json.dumps(run(json.loads(line))) + "\n")
            sys.stdout.flush()
    else:
        sys.stdout.write(json.dumps(run(json.load(sys.stdin))) + "\n")


if __name__ == "__main__":
    main()
