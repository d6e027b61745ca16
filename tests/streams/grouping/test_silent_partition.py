"""Groups time out while partitions of trajectories are silent."""

import time
from pathlib import Path

import pytest

from headrace.deploy.system.children import end_of
from headrace.schemas.records.group import Reason, Rejection
from headrace.schemas.topics import REJECTED, REWARDS, TRAJECTORIES
from headrace.schemas.wire import decode
from tests.streams.attempts import attempt, trajectory_message
from tests.streams.test_workers import produce, records, until, worker


@pytest.mark.kafka
@pytest.mark.parametrize("pause_s", [0.3, 3.0])
def test_a_silent_partition_does_not_stop_the_timeouts_of_groups(kafka: str, tmp_path: Path, pause_s: float) -> None:
    """Rewards flow into every partition, all from one partition of trajectories; the other three are silent.

    With the short pause a record is nearly always in transit; with the long one, which is shorter than the grace period
    of an idle partition, nearly never.
    """
    name = f"quiet-{pause_s}"

    def flow(number: int) -> None:
        later = [attempt(f"flow-{pause_s}-{number}-{each}", group=None) for each in range(20)]
        messages = [trajectory_message(each) for each in later]
        produce(kafka, TRAJECTORIES, messages, partition=0)

    with worker(kafka, tmp_path, group_timeout_s=5) as running:
        first = attempt(f"{name}-1", group=f"{name}-g", size=2)
        produce(kafka, TRAJECTORIES, [trajectory_message(first)], partition=0)
        until(lambda: bool(records(kafka, REWARDS, f"{name}-1")), "it is scored", running.log)
        begin, number = time.monotonic(), 0
        while not records(kafka, REJECTED, f"{name}-1"):
            assert time.monotonic() < begin + 90, end_of(running.log)
            flow(number := number + 1)
            time.sleep(pause_s)
    (found,) = records(kafka, REJECTED, f"{name}-1")
    _, rejection = decode(found.headers, found.value)
    assert isinstance(rejection, Rejection)
    assert rejection.reason is Reason.INCOMPLETE_GROUP
