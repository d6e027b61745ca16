"""An operator error ends a Faust worker with one sentence in the log and without a traceback."""

import asyncio
import logging
from pathlib import Path

import pytest

from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.operator_error import OperatorError
from headrace.streams.faust_shell.faust_app import OneLineErrors, _CommittedConsumerThread
from headrace.streams.faust_shell.worker import state_topic
from headrace.streams.runtime.owned_partition import create_state_topic
from tests.streams.test_workers import worker


def record_of(error: BaseException) -> logging.LogRecord:
    return logging.LogRecord(
        "mode", logging.ERROR, __file__, 1, "Crashed reason=%r", (error,), (type(error), error, None)
    )


def test_an_operator_error_is_logged_once_and_other_errors_keep_their_traceback() -> None:
    errors, mendable, ours = OneLineErrors(), OperatorError("make the topic anew"), ValueError("planted")
    record = record_of(mendable)
    assert errors.filter(record)
    assert record.getMessage() == "make the topic anew"
    assert record.exc_info is None
    assert not errors.filter(record_of(mendable))
    record = record_of(ours)
    assert errors.filter(record)
    assert record.exc_info
    assert record.exc_info[1] is ours


def test_a_consumer_thread_that_has_ended_is_stopped_without_an_error() -> None:
    thread = object.__new__(_CommittedConsumerThread)
    thread.thread_loop = asyncio.new_event_loop()
    thread.thread_loop.close()
    thread._stopped = asyncio.Event()
    thread._stopped_set()


@pytest.mark.kafka
def test_a_worker_without_offsets_logs_only_the_fix(kafka: str, tmp_path: Path) -> None:
    async def lose() -> None:
        await create_state_topic(kafka, state_topic("group"), partitions=4, about="Open groups.")
        async with open_producer(kafka) as producer:
            await producer.send_and_wait(state_topic("group"), b"{}", b"g", 1)

    asyncio.run(lose())
    with worker(kafka, tmp_path, processors=["group"]) as running:
        assert running.wait(60) == 1
    (log,) = tmp_path.glob("worker-*.log")
    text = log.read_text()
    assert text.count("--group headrace-group --topic rewards:1 --reset-offsets") == 1
    assert "Traceback" not in text
