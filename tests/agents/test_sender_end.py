"""The end of a sender that is interrupted, or ended twice: what was not sent is on disk all the same."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from headrace.agents import delivery as delivery_module
from headrace.agents import sender as sender_module
from headrace.agents.delivery import EventDelivery
from headrace.agents.sdk import Headrace
from headrace.agents.sender import Sender
from headrace.agents.sender_config import SenderConfig
from headrace.agents.spool_segments import left_on_disk

KAFKA = "127.0.0.1:9"
"""Nothing listens there."""

PROGRAM = """
import logging, os, signal, sys, threading, time
from headrace.agents.sdk import Headrace

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts programs in the background without it
logging.basicConfig()
headrace = Headrace({kafka!r}, source="interrupted", spool_folder=sys.argv[1], flush_deadline_s=3600)


def interrupt_in_close():
    while headrace._sender.refusal is None:
        time.sleep(0.01)
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)


threading.Thread(target=interrupt_in_close, daemon=True).start()
{ending}
"""

WORK = """
    with headrace.trajectory(task_id="t", agent="a") as t:
        with t.tool("search") as call:
            call.result = 1
"""


def on_disk(folder: Path) -> int:
    losses: list[object] = []
    found = list(left_on_disk(folder, SenderConfig(KAFKA, "any").cluster, losses.append))
    assert losses == []
    return len(found)


@pytest.mark.parametrize(
    "ending",
    [f"with headrace:{WORK}", f"if True:{WORK}"],
    ids=["in the with block's end", "in the exit"],
)
def test_a_second_ctrl_c_while_the_sdk_closes_loses_nothing(ending: str, tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(PROGRAM.format(kafka=KAFKA, ending=ending))
    done = subprocess.run(  # the limit only detects a wait for the rest of the flush
        [sys.executable, str(script), str(tmp_path / "spool")], capture_output=True, text=True, timeout=400, check=False
    )
    assert "KeyboardInterrupt" in done.stderr
    assert "Task was destroyed" not in done.stderr
    assert on_disk(tmp_path / "spool") == 4, "start, call, result and end"


def emit(headrace: Headrace) -> None:
    with headrace.trajectory(task_id="t", agent="a"):
        pass


def test_an_exit_waits_for_a_daemon_thread_that_closes(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(
        f"""
import sys, threading, time
from headrace.agents.sdk import Headrace

headrace = Headrace({KAFKA!r}, source="ended by a thread", spool_folder=sys.argv[1], flush_deadline_s=1)
with headrace.trajectory(task_id="t", agent="a"):
    pass
threading.Thread(target=headrace.close, daemon=True).start()
while headrace._sender.refusal is None:
    time.sleep(0.01)
"""
    )
    subprocess.run([sys.executable, str(script), str(tmp_path / "spool")], timeout=400, check=True)
    assert on_disk(tmp_path / "spool") == 2


def test_a_flush_ends_when_another_thread_has_closed(tmp_path: Path) -> None:
    headrace = Headrace(KAFKA, source="flushed and closed", spool_folder=tmp_path / "spool")
    emit(headrace)
    flushed: list[bool] = []
    flushing = threading.Thread(target=lambda: flushed.append(headrace.flush(300)))
    flushing.start()
    loop = headrace._sender._thread_and_loop()[1]
    while not any("_wait_until_flushed" in repr(task) for task in asyncio.all_tasks(loop)):
        time.sleep(0.01)
    assert not headrace.close(0.1)
    flushing.join(60)
    assert flushed == [False]
    assert headrace.close()
    assert headrace.stats.spooled == 2


def test_events_are_counted_once_if_two_threads_close(tmp_path: Path) -> None:
    headrace = Headrace(KAFKA, source="closed twice", spool_bytes=0)
    emit(headrace)
    closing = [threading.Thread(target=headrace.close, args=(0.5,)) for _ in range(2)]
    for each in closing:
        each.start()
    for each in closing:
        each.join(60)
    stats = headrace.stats
    assert (stats.emitted, stats.queued, stats.dropped) == (2, 0, {"unsent_at_close": 2})


def test_a_close_in_a_signal_handler_during_another_one_ends_both(tmp_path: Path) -> None:
    headrace = Headrace(KAFKA, source="closed by a handler", spool_folder=tmp_path / "spool")
    emit(headrace)
    inner: list[bool] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: inner.append(headrace.close(0.5)))
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        assert not headrace.close(1.0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert inner == [False]
    assert (on_disk(tmp_path / "spool"), headrace.stats.dropped) == (2, {})


def test_an_exception_out_of_the_flush_still_ends_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headrace = Headrace(KAFKA, source="interrupted", spool_folder=tmp_path / "spool")
    emit(headrace)

    def interrupted(sender: Sender, timeout_s: float) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Sender, "flush", interrupted)
        with pytest.raises(KeyboardInterrupt):
            headrace.close()
    assert (headrace.stats.queued, headrace.stats.spooled, headrace.stats.dropped) == (0, 2, {})
    assert headrace.close(), "it is closed already"


def test_a_thread_that_does_not_end_keeps_its_events_and_the_statistics_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "CLOSE_S", 0.5)
    released, spool_the_rest = threading.Event(), Sender._spool_the_rest

    def hang(sender: Sender) -> None:
        released.wait(60)
        spool_the_rest(sender)

    monkeypatch.setattr(Sender, "_spool_the_rest", hang)
    headrace = Headrace(KAFKA, source="hanging", spool_folder=tmp_path / "spool")
    emit(headrace)
    assert not headrace.close(0.1)
    assert (headrace.stats.queued, headrace.stats.dropped) == (0, {"unsent_at_close": 2})
    released.set()
    thread = headrace._sender._thread_and_loop()[0]
    assert thread is not None
    thread.join(60)
    assert on_disk(tmp_path / "spool") == 2, "late, but not lost"
    assert (headrace.stats.queued, headrace.stats.spooled) == (0, 2)


def test_the_thread_has_time_for_all_that_it_may_wait_for() -> None:
    stopping = 4 * delivery_module.STOP_TIMEOUT_S
    waits = sender_module.STATS_S + stopping + sender_module.FINISH_S + sender_module.END_S
    assert waits < sender_module.CLOSE_S


def test_a_cancellation_out_of_the_client_does_not_end_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    async def connect(delivery: EventDelivery) -> AIOKafkaProducer:
        started.append(1)
        if len(started) == 1:
            raise asyncio.CancelledError
        return await asyncio.Event().wait()  # type: ignore[return-value]

    monkeypatch.setattr(EventDelivery, "_connect", connect)
    monkeypatch.setattr(sender_module, "RESTART_S", 0.01)
    headrace = Headrace(KAFKA, source="cancelled", spool_folder=tmp_path / "spool")
    emit(headrace)
    deadline = time.monotonic() + 60
    while len(started) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(started) == 2
    headrace.close(0.1)
    assert (headrace.stats.spooled, headrace.stats.dropped) == (2, {})
