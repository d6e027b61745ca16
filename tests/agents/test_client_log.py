"""An outage does not flood the host's log."""

import logging
import threading

import pytest

from headrace.agents.client_log import THREAD_NAME, LogRateLimit, from_sdk_thread
from headrace.agents.sdk import Headrace


def line(text: str, *values: object, thread: str = THREAD_NAME) -> logging.LogRecord:
    record = logging.LogRecord("aiokafka", logging.ERROR, "client.py", 1, text, values, None)
    record.threadName = thread
    return record


def test_a_message_of_one_template_is_logged_once_per_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr("headrace.agents.client_log.time.monotonic", lambda: now)
    limit = LogRateLimit(from_sdk_thread)
    assert limit.filter(line("no connection to %s", "a"))
    assert not limit.filter(line("no connection to %s", "b"))
    assert limit.filter(line("no metadata"))
    now += 61
    assert limit.filter(line("no connection to %s", "a"))


def test_the_host_s_own_use_of_the_client_is_not_limited() -> None:
    limit = LogRateLimit(from_sdk_thread)
    assert all(limit.filter(line("no connection", thread="MainThread")) for _ in range(5))


def test_an_unavailable_broker_causes_few_lines_in_the_host_s_log(caplog: pytest.LogCaptureFixture) -> None:
    with Headrace("127.0.0.1:9", source="test", flush_deadline_s=0) as headrace:
        headrace.trajectory(task_id="q", agent="a")
        headrace.flush(2.0)
    assert len(caplog.records) < 10
    assert not any(thread.name == THREAD_NAME for thread in threading.enumerate())
