"""Child processes with lifelines: no process is left behind, whichever dies first."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.deploy.system.children import Child, Command, bound_log, end_of, run_to_end, stop, wait_for_exit

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="subreapers are Linux'")

FAMILY = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
        time.sleep(600)
    open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
    time.sleep(600)
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
"""
"""Three generations, each in its own session; each writes its process id to a file. The first then runs a script."""

SUPERVISOR = """
import sys, time
from pathlib import Path
from headrace.deploy.system.children import Child, Command
child = Child(Command((sys.executable, "-I", "-S", "-c", sys.argv[1], sys.argv[2])), Path(sys.argv[3]))
time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(holds: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def python(script: str, *arguments: str) -> Command:
    return Command((sys.executable, "-I", "-S", "-c", script, *arguments))


def family(file: Path) -> list[int]:
    """Returns the three process ids, once all of them have been written."""
    assert eventually(lambda: file.exists() and len(file.read_text().split()) == 3)
    return [int(line) for line in file.read_text().split()]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "part.log"


def test_output_goes_to_the_log_and_the_status_is_that_of_the_command(log: Path) -> None:
    child = Child(python("import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(7)"), log)
    assert child.wait(20) == 7
    assert log.read_text() == "out\nerr\n"


def test_a_command_killed_by_a_signal_ends_with_128_and_the_signal(log: Path) -> None:
    child = Child(python("import time; time.sleep(600)"), log)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(20) == 128 + signal.SIGKILL


def test_a_missing_program_ends_with_127_and_is_reported(log: Path) -> None:
    child = Child(Command(("/no/such/program",)), log)
    assert child.wait(20) == 127
    assert "/no/such/program" in end_of(log)


def test_the_environment_is_inherited_with_additions_and_removals(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("UNSET", "1")
    show = "import os; print(os.environ.get('KEPT'), os.environ.get('UNSET'), os.environ.get('ADDED'))"
    Child(Command(python(show).argv, {"ADDED": "2"}, unset=("UNSET",)), log).wait(20)
    assert log.read_text() == "1 None 2\n"


def test_sigkill_of_the_supervisor_leaves_no_descendant(tmp_path: Path, log: Path) -> None:
    pids = tmp_path / "pids"
    argv = [sys.executable, "-c", SUPERVISOR, FAMILY + "time.sleep(600)", str(pids), str(log)]
    supervisor = subprocess.Popen(argv)
    members = family(pids)
    assert all(map(is_alive, members))
    supervisor.kill()
    supervisor.wait()
    assert eventually(lambda: not any(map(is_alive, members)))


def test_sigkill_of_the_command_leaves_no_descendant(tmp_path: Path, log: Path) -> None:
    pids = tmp_path / "pids"
    child = Child(python(FAMILY + "time.sleep(600)", str(pids)), log)
    members = family(pids)
    child.kill_command()
    assert child.wait(20) == 128 + signal.SIGKILL
    assert not any(map(is_alive, members))


def test_a_command_that_ends_by_itself_leaves_no_descendant(tmp_path: Path, log: Path) -> None:
    pids = tmp_path / "pids"
    child = Child(python(FAMILY + "time.sleep(0.5)", str(pids)), log)
    members = family(pids)
    assert child.wait(20) == 0
    assert not any(map(is_alive, members))


def test_sigkill_of_the_lifeline_kills_the_command(log: Path) -> None:
    child = Child(python("import time; time.sleep(600)"), log)
    lifeline = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(lifeline, signal.SIGKILL)
    assert eventually(lambda: not is_alive(child.pid))


def test_a_command_may_finish_after_sigterm(log: Path) -> None:
    finish = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(print('finished'))); print('up', flush=True)"
    )
    child = Child(python(finish + "\ntime.sleep(600)"), log)
    assert eventually(lambda: "up" in end_of(log))
    assert child.stop(grace_s=20) == 0
    assert "finished" in end_of(log)


async def test_a_command_that_ignores_sigterm_is_killed_after_the_grace(log: Path) -> None:
    child = Child(python("import signal, time; signal.signal(15, 1); print('up', flush=True); time.sleep(600)"), log)
    assert await asyncio.to_thread(eventually, lambda: "up" in end_of(log))
    assert await stop(child, grace_s=0.2) == 128 + signal.SIGKILL
    assert not is_alive(child.pid)


async def test_cancelling_run_to_end_kills_the_command(tmp_path: Path, log: Path) -> None:
    pids = tmp_path / "pids"
    running = asyncio.create_task(run_to_end(python(FAMILY + "time.sleep(600)", str(pids)), log))
    members = await asyncio.to_thread(family, pids)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not any(map(is_alive, members))


async def test_the_exit_can_be_awaited(log: Path) -> None:
    assert await wait_for_exit(Child(python("raise SystemExit(3)"), log)) == 3


def test_the_end_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(10_000)))
    assert end_of(log, lines=2) == "line 9998\nline 9999"
    assert end_of(tmp_path / "missing") == ""


def test_a_log_is_truncated_while_a_process_writes_to_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"a" * 100)
        bound_log(log, max_bytes=100)
        assert log.stat().st_size == 100
        bound_log(log, max_bytes=99)
        writer.write(b"b")
    assert log.read_bytes() == b"b"
    assert (tmp_path / "log.1").read_bytes() == b"a" * 100
