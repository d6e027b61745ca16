"""The benchmark of the coder's attempts, in small: every way solves the tasks, or its time is of something else."""

import os

import pytest

from headrace.agents.sandbox.protocol import ProviderUnavailable
from tests.benchmarks.bench_coder import run


async def test_every_way_solves_the_tasks_and_is_timed() -> None:
    try:
        found = await run(task_count=2, group=1, concurrency=2)
    except ProviderUnavailable as error:
        if "CI" in os.environ:
            raise
        pytest.skip(str(error))
    assert set(found) == {"player alone", "warm", "overlay, cold", "overlay, forked"}
    assert {speed.solved for speed in found.values()} == {1.0}
    assert len({speed.test_runs for speed in found.values()}) == 1
    assert all(speed.attempts_per_s > 0 and speed.p50_ms <= speed.p95_ms for speed in found.values())
