"""A process that ends right after a call of the object store is not aborted by obstore's threads."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.schemas.objects import ending
from headrace.schemas.objects.store import ObjectStore

_ENDS_AFTER_A_CALL = """
import asyncio, os, sys
from headrace.schemas.objects.store import ObjectStore
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
asyncio.run(ObjectStore(sys.argv[1]).create_if_absent(f"created/by/{os.getpid()}", b"content"))
"""

_PROCESSES = 24
"""Without the wait, about half of them abort beside the busy ones below."""


@pytest.mark.skipif(sys.platform != "linux", reason="pins processes to one core, and reads /proc")
def test_processes_that_end_right_after_a_call_end_without_an_error(tmp_path: Path) -> None:
    busy = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass"
    rivals = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(4)]
    try:
        endings = [
            subprocess.run([sys.executable, "-c", _ENDS_AFTER_A_CALL, tmp_path.as_uri()], check=False).returncode
            for _ in range(_PROCESSES)
        ]
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()
    assert endings == [0] * _PROCESSES
    assert len(list((tmp_path / "created" / "by").iterdir())) == _PROCESSES


def test_the_runtimes_threads_are_found_by_their_name(tmp_path: Path) -> None:
    asyncio.run(ObjectStore(tmp_path.as_uri()).create_if_absent("one", b"1"))
    until = time.monotonic() + 10
    while not (states := ending.thread_states("tokio-rt-worker")) or set(states) - set("SI"):
        assert time.monotonic() < until, states
        time.sleep(0.01)
    assert ending.thread_states("no thread has it") == []


def test_a_thread_that_never_rests_does_not_keep_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(ending, "thread_states", lambda name: asked.append(name) or ["R"])
    monkeypatch.setattr(ending, "_MOST_S", 0.05)
    began = time.monotonic()
    ending._wait_until_idle()
    assert time.monotonic() - began >= 0.05
    assert len(asked) >= 2


def test_threads_have_to_rest_for_three_pauses_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter([["S"], ["S", "S"], ["S", "R"], ["S"], ["I", "S"], [], ["S"]])
    monkeypatch.setattr(ending, "thread_states", lambda name: next(states))
    ending._wait_until_idle()
    assert list(states) == [["S"]]
