"""The SDK's queue and thread in a process: limits, close, fork, and failures to start."""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.agents import sender as sender_module
from headrace.agents.client_log import THREAD_NAME
from headrace.agents.sdk import Headrace
from tests.agents.sdk_helpers import NOWHERE, until


def test_a_full_queue_drops_and_counts_events() -> None:
    headrace = Headrace(NOWHERE, source="test", queue_size=3, flush_deadline_s=0, spool_bytes=0)
    t = headrace.trajectory(task_id="q", agent="a")
    headrace.flush(0.1)  # the running thread is held: an event that it is encoding would be in neither queue
    assert headrace._sender._gate.hold(time.monotonic() + 20)
    for _ in range(5):
        t.model_called("m")
    stats = headrace.stats
    assert (stats.emitted, stats.queued, stats.sent, stats.dropped) == (6, 3, 0, {"queue_full": 3})
    headrace._sender._gate.release()
    headrace.close()
    stats = headrace.stats
    assert (stats.emitted, stats.queued, stats.dropped) == (6, 0, {"queue_full": 3, "unsent_at_close": 3})


@pytest.mark.parametrize("limits", [{"queue_size": 40}, {"queue_bytes": 20_000}])
def test_events_that_neither_disk_nor_memory_takes_are_dropped_for_a_reason_of_their_own(
    limits: dict[str, Any], tmp_path: Path
) -> None:
    headrace = Headrace(
        NOWHERE, source="test", flush_deadline_s=0, spool_folder=tmp_path / "spool", spool_bytes=30_000, **limits
    )
    t = headrace.trajectory(task_id="q", agent="a")
    for _ in range(200):
        t.model_called("m", finish_reason="x" * 500)
        until(lambda: not headrace._sender._queue)
    headrace._sender._gate.hold(time.monotonic() + 20)
    stats = headrace.stats
    headrace._sender._gate.release()
    assert set(stats.dropped) == {"spool_full"}
    assert stats.spooled > 0
    assert stats.emitted == 201 == stats.queued + stats.spooled + stats.dropped["spool_full"]
    headrace.close()
    left, dropped = headrace.stats, headrace.stats.dropped
    assert left.emitted == 201 == left.spooled + dropped["spool_full"] + dropped["unsent_at_close"]


def test_after_closing_events_are_counted_and_nothing_raises(headrace: Headrace) -> None:
    t = headrace.trajectory(task_id="q", agent="a")
    headrace.close(0)
    t.model_called("m")
    headrace.feedback("t", "accepted", 1.0)
    assert headrace.close() is True
    assert headrace.stats.dropped == {"unsent_at_close": 1, "closed": 2}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"bootstrap": "nowhere"}, "bootstrap"),
        ({"bootstrap": "a:1,b"}, "bootstrap"),
        ({"bootstrap": "http://localhost:9092"}, "bootstrap is 'http://localhost:9092': expected host:port"),
        ({"bootstrap": "SASL_SSL://broker:9093"}, "bootstrap"),
        ({"bootstrap": "broker:99999"}, "bootstrap"),
        ({"source": ""}, "source"),
        ({"queue_size": 0}, "queue_size"),
        ({"max_event_bytes": 0}, "max_event_bytes"),
        ({"spool_bytes": -1}, "spool_bytes"),
        ({"stats_interval_s": 0.0}, "stats_interval_s"),
        ({"masking": ["email"]}, r"masking is of type list: expected Masking\(\.\.\.\)"),
        ({"masking": "email"}, "masking is of type str"),
        ({"kafka_options": ["acks"]}, "kafka_options is of type list: expected a dict"),
        ({"kafka_options": {"nonsense": 1}}, "'nonsense'.*expected"),
        ({"kafka_options": {"request_timout_ms": 1}}, "'request_timout_ms'.*expected 'request_timeout_ms'"),
        ({"kafka_options": {"bootstrap_servers": "a:1"}}, "pass the address as the first argument"),
        ({"kafka_options": {"linger_ms": "5"}}, "'linger_ms'.*expected a number"),
        ({"kafka_options": {"acks": 1}}, "acks=1 not supported if enable_idempotence=True"),
        ({"kafka_options": {"security_protocol": "TLS"}}, "security_protocol"),
    ],
)
def test_invalid_settings_are_refused_at_construction(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Headrace(**{"bootstrap": NOWHERE, "source": "test"} | settings)


async def test_producer_settings_that_can_work_are_accepted_inside_an_event_loop_too() -> None:
    options = {"acks": 1, "enable_idempotence": False, "request_timeout_ms": 5_000, "compression_type": None}
    Headrace(NOWHERE, source="test", kafka_options=options).close()


def test_the_default_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_KAFKA", raising=False)
    with pytest.raises(ValueError, match=r"no Kafka address.*HEADRACE_KAFKA"):
        Headrace(source="test")
    monkeypatch.setenv("HEADRACE_KAFKA", "broker-1:9092, [::1]:9092")
    Headrace(source="test").close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_its_own_sender_and_drops_events_of_the_parent_s_trajectories(headrace: Headrace) -> None:
    inherited = headrace.trajectory(task_id="q", agent="a")
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        inherited.model_called("m")
        headrace.trajectory(task_id="q2", agent="a")
        headrace.flush(0.1)
        os.write(write, headrace.stats.model_dump_json().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b'"emitted":2,"sent":0,"queued":1,"spooled":0,"replayed":0,"adopted":0,"dropped":{"forked":1}' in os.read(
        read, 1000
    )
    assert headrace.stats.dropped == {}


def test_a_worker_of_celery_closes_the_sdk_before_it_ends(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes end with ``os._exit``. A fake signal replaces Celery, which is not a dependency."""
    receivers: list[Callable[..., object]] = []
    signal = SimpleNamespace(connect=lambda receiver, weak: receivers.append(receiver))
    monkeypatch.setitem(sys.modules, "celery.signals", SimpleNamespace(worker_process_shutdown=signal))
    headrace.trajectory(task_id="q", agent="a")
    for receiver in receivers:
        receiver(signal=signal, sender="worker@host", pid=os.getpid(), exitcode=0)
    headrace.trajectory(task_id="q", agent="a")
    assert headrace.stats.dropped == {"unsent_at_close": 1, "closed": 1}


def test_if_the_thread_cannot_be_started_events_wait_for_the_next_attempt(
    headrace: Headrace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, threads_left = threading.Thread.start, False

    def start_if_any_are_left(thread: threading.Thread) -> None:
        if not threads_left:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_if_any_are_left)
    monkeypatch.setattr(sender_module, "START_AGAIN_S", 0.05)
    t = headrace.trajectory(task_id="q", agent="a")
    t.model_called("m")
    assert headrace.flush(0.1) is False
    assert (headrace.stats.emitted, headrace.stats.queued, headrace.stats.dropped) == (2, 2, {}), (
        "counted once, as queued"
    )
    threads_left = True
    time.sleep(0.06)
    t.model_called("m")
    headrace.flush(0.3)
    assert headrace._sender._taken == 3, "all waiting events were encoded"
    assert (headrace.stats.emitted, headrace.stats.queued, headrace.stats.dropped) == (3, 3, {})
    until(lambda: "cannot be started (RuntimeError: can't start new thread)" in caplog.text)


def test_concurrent_first_events_start_one_sender(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = headrace._sender
    monkeypatch.setattr(sender_module, "START_AGAIN_S", 0.0)
    for _ in range(3):
        sender._start()
    assert headrace.flush(5)
    until(lambda: sum(thread.name == THREAD_NAME for thread in sender_threads(sender)) == 1)


def sender_threads(sender: sender_module.Sender) -> list[threading.Thread]:
    """Return the threads that run ``sender``."""
    return [each for each in threading.enumerate() if getattr(each, "_target", None) == sender._run]
