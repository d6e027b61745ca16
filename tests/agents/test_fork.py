"""A fork pauses the sender's thread where it holds no lock; parent and child continue with their own events."""

import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.agents import sender as sender_module
from headrace.agents.sdk import Headrace
from headrace.agents.sender_loop import GATES, Gate, hold_all, release_all

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@pytest.fixture
def headrace() -> Iterator[Headrace]:
    sdk = Headrace("localhost:9", source="test", flush_deadline_s=0)
    yield sdk
    sdk.close()


def in_a_child(question: Callable[[], bool]) -> bool:
    """Return the answer of a forked child."""
    if (child := os.fork()) == 0:
        answer = False
        try:
            answer = question()
        finally:
            os._exit(not answer)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Held:
    """A lock like those of libraries: each call of ``function`` holds it briefly."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.lock = threading.Lock()
        self.taken = threading.Event()
        self.function = function

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        with self.lock:
            self.taken.set()
            time.sleep(0.1)
            return self.function(*arguments, **keywords)

    def is_free(self) -> bool:
        return self.lock.acquire(timeout=1.0)


def test_a_lock_held_by_the_resolver_is_free_in_the_child(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(socket.getaddrinfo)
    monkeypatch.setattr(socket, "getaddrinfo", held)
    headrace.trajectory(task_id="q", agent="a")
    assert held.taken.wait(10)
    assert in_a_child(held.is_free)


def test_a_lock_held_by_the_encoder_is_free_in_the_child(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(sender_module.encode_note)
    monkeypatch.setattr(sender_module, "encode_note", held)
    headrace.trajectory(task_id="q", agent="a")
    assert held.taken.wait(10)
    assert in_a_child(held.is_free)


def test_importing_the_sdk_initialises_libraries() -> None:
    """In a new interpreter: importing the SDK loads the codec for names."""
    code = "import headrace.agents.sdk, sys; sys.exit('encodings.idna' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_child_uses_other_ids_than_its_parent(headrace: Headrace) -> None:
    inherited = headrace.trajectory(task_id="q", agent="a")
    of_parent = set(headrace._sender._tails)

    def has_own_ids() -> bool:
        own, sub = headrace.trajectory(task_id="q", agent="a"), inherited.subagent("s", task_id="q")._sub
        return not any(each.id.endswith(tail) for each in (own, sub) for tail in of_parent)

    assert in_a_child(has_own_ids)
    of_the_next = headrace.trajectory(task_id="q", agent="a").id
    assert any(of_the_next.endswith(tail) for tail in of_parent)


def test_events_of_a_collected_sdk_s_trajectory_are_counted_in_the_child(tmp_path: Path) -> None:
    """Its sender is the parent's, too: without a thread in the child, events would wait there for ever, uncounted."""
    trajectory = Headrace("127.0.0.1:9", source="test", spool_folder=tmp_path).trajectory(task_id="q", agent="a")
    gc.collect()
    sender = trajectory._sender

    def counts_them() -> bool:
        trajectory.model_called("m")
        return sender.stats().dropped == {"forked": 1} and sender.stats().queued == 1  # the parent's

    assert in_a_child(counts_them)
    trajectory.model_called("m")
    assert (sender.stats().queued, sender.stats().dropped) == (2, {})
    assert not sender.close(0.1)
    assert in_a_child(lambda: sender.stats().dropped == {}), "a closed one is left as it is"


def test_the_parent_continues_after_a_fork(headrace: Headrace) -> None:
    for number in range(20):
        headrace.trajectory(task_id=f"q{number}", agent="a")
        assert in_a_child(lambda: not GATES)
    headrace.flush(0.2)
    assert headrace._sender._taken == 20, "its thread was released each time"
    assert [gate.hold(time.monotonic() + 5) for gate in GATES] == [True]
    for gate in GATES:
        gate.release()


def test_a_fork_waits_for_a_thread_no_longer_than_the_limit() -> None:
    gate = Gate()
    let_go = threading.Event()

    def work() -> None:
        gate.enter()
        let_go.wait(30)
        gate.leave()

    thread = threading.Thread(target=work)
    thread.start()
    while not gate.busy_since:
        time.sleep(0.001)
    assert gate.hold(time.monotonic() + 0.05) is False
    let_go.set()
    thread.join()
    assert gate.hold(time.monotonic() + 5) is True
    gate.release()


def test_a_thread_that_forks_does_not_wait_for_itself() -> None:
    gate = Gate()
    gate.enter()
    began = time.monotonic()
    assert gate.hold(began + 30) is False
    assert time.monotonic() - began < 20, "the limit only detects a wait"
    gate.leave()


def is_free(gate: Gate) -> bool:
    """Return whether another thread can enter ``gate``."""
    passed = threading.Event()

    def work() -> None:
        gate.enter()
        passed.set()
        gate.leave()

    threading.Thread(target=work, daemon=True).start()
    return passed.wait(2)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    GATES.add(gate)
    yield gate
    GATES.discard(gate)


def test_a_fork_between_the_hooks_of_another_fork_releases_the_sender(gate: Gate) -> None:
    """A signal handler may fork between the hooks of the SDK and those of other modules."""
    hold_all()
    assert in_a_child(lambda: not GATES)
    assert not is_free(gate), "the outer fork is still in progress"
    release_all()
    assert is_free(gate)


FORKS_IN_A_HOOK = """
import gc
import os
import headrace.agents.sender_loop as sender_loop
import concurrent.futures.thread

class Forks(sender_loop.Gate):
    def hold(self, deadline):
        if not hasattr(self, "forked"):
            self.forked = True
            if not os.fork():
                os._exit(0)
            os.wait()
        return super().hold(deadline)

sender_loop.GATES.add(Forks())
if not os.fork():
    os._exit(0)
os.wait()
"""


def test_a_fork_in_a_hook_does_not_deadlock_if_an_executor_is_imported_later() -> None:
    assert subprocess.run([sys.executable, "-c", FORKS_IN_A_HOOK], timeout=120, check=False).returncode == 0


class ForksWhenHeld(Gate):
    def hold(self, deadline: float) -> bool:
        held = super().hold(deadline)
        if threading.current_thread() is threading.main_thread() and not getattr(self, "forked", False):
            self.forked = True
            assert in_a_child(lambda: True)
        return held


def test_a_fork_between_the_gates_of_another_fork_releases_the_sender() -> None:
    gates = [ForksWhenHeld(), ForksWhenHeld()]
    GATES.update(gates)
    began = time.monotonic()
    try:
        assert in_a_child(lambda: not GATES)
        assert [is_free(each) for each in gates] == [True, True]
        assert time.monotonic() - began < 20, "the limit only detects waits for its own thread, a second each"
    finally:
        GATES.difference_update(gates)


class InterruptedWhenHeld(Gate):
    def hold(self, deadline: float) -> bool:
        super().hold(deadline)
        raise KeyboardInterrupt


def test_a_fork_whose_hooks_are_interrupted_releases_the_sender() -> None:
    """Ctrl+C: the interpreter prints the exception of a hook and forks anyway."""
    gates = [InterruptedWhenHeld(), InterruptedWhenHeld()]
    GATES.update(gates)
    try:
        with pytest.raises(KeyboardInterrupt):
            hold_all()
        release_all()
        assert [is_free(each) for each in gates] == [True, True]
    finally:
        GATES.difference_update(gates)


def test_a_fork_without_its_first_hook_is_not_an_error(gate: Gate) -> None:
    """Programs in C that fork themselves may run only the hooks of child and parent (uWSGI)."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(release_all).result()
    assert is_free(gate)


@pytest.mark.kafka
def test_children_forked_at_random_moments_send_and_so_does_their_parent(kafka: str) -> None:
    """In a new interpreter, without earlier use of any library: the failures occurred about 100 ms after its start."""
    argv = [sys.executable, "-m", "tests.chaos.forks", "--parents", "60", "--kafka", kafka]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
