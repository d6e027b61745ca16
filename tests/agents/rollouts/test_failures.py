"""Attempts that fail by themselves: the others continue, until too many in a row have failed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from headrace.agents.policy import PolicyError
from headrace.agents.rollouts.config import RolloutConfig
from headrace.agents.rollouts.sampler import run_evaluation
from headrace.agents.sandbox.protocol import SandboxError, SnapshotUnknown
from tests.agents.rollouts.toy import ToyTask

CONFIG = RolloutConfig("127.0.0.1:1", "http://127.0.0.1:1", "run", concurrency=1, max_failures=3)


@dataclass
class OneAttempt:
    trajectory_id: str
    error: Exception | None
    begun: list[str]

    async def run(self) -> None:
        self.begun.append(self.trajectory_id)
        if self.error:
            raise self.error


class Attempts:
    """Attempts that fail as the errors given for them say, in order."""

    def __init__(self, *errors: Exception | None) -> None:
        self._errors = iter(errors)
        self.begun: list[str] = []

    async def prepare(self, task: ToyTask, *, temperature: float, start: Mapping[str, Any]) -> OneAttempt:
        return OneAttempt(task.task_id, next(self._errors), self.begun)


async def evaluated(*errors: Exception | None) -> list[str]:
    attempts, tasks = Attempts(*errors), [ToyTask(str(number)) for number in range(len(errors))]
    await run_evaluation(CONFIG, attempts, tasks, greedy=True)
    return attempts.begun


@pytest.mark.parametrize("error", [PolicyError("the engine is gone"), SandboxError("its processes did not end")])
async def test_an_engine_or_a_sandbox_that_fails_costs_its_attempt(error: Exception) -> None:
    assert await evaluated(error, None, error, error, None) == ["0", "1", "2", "3", "4"]


async def test_too_many_failures_in_a_row_end_the_sampler() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await evaluated(PolicyError("one"), SandboxError("two"), PolicyError("three"))
    assert [str(error) for error in raised.value.exceptions] == ["three"]


@pytest.mark.parametrize("error", [SnapshotUnknown("removed"), ValueError("a fault of the program")])
async def test_what_no_other_attempt_could_do_better_ends_it_at_once(error: Exception) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await evaluated(error)
    assert raised.value.exceptions == (error,)


def test_failures_are_bounded() -> None:
    with pytest.raises(ValueError, match="max_failures is 0: it must be at least 1"):
        replace(CONFIG, max_failures=0)
