"""Two trainers that begin one run at the same time, each with an empty checkpoint folder: one of them continues."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.schemas.objects.store import ObjectConflict
from headrace.schemas.topics import STEPS, WEIGHTS
from headrace.trainer import loop
from headrace.trainer.checkpoints.checkpoint import CheckpointError
from headrace.trainer.coordination.lead import Leader
from headrace.trainer.loop import TrainerConfig, run_trainer
from headrace.trainer.publishing.announcer import TrainerReplaced
from headrace.trainer.step_effects import Effect
from tests.trainer.builders import UNCHECKED, tiny_model
from tests.trainer.feed import feed_groups, records
from tests.trainer.running import payloads, train_until

pytestmark = pytest.mark.kafka

PATIENCE_S = 240
"""Timeout for a busy machine, in seconds."""


class Died(Exception):
    """A trainer's process died there."""


Twins = Callable[[str], tuple[TrainerConfig, TrainerConfig]]


@pytest.fixture
def twins(kafka: str, tmp_path: Path, base: Path) -> Twins:
    """Two trainers of a run that share the object store alone."""

    def _twins(run: str) -> tuple[TrainerConfig, TrainerConfig]:
        settings: dict[str, Any] = {"groups_per_step": 2, "max_staleness": 100, "threads": 1, "plausibility": UNCHECKED}
        one, two = (
            TrainerConfig(kafka, run, base, tmp_path / name, f"file://{tmp_path}/objects", **settings)
            for name in ("one", "two")
        )
        return one, two

    return _twins


async def versions(kafka: str, run: str) -> list[int]:
    return [each.version for each in payloads(await records(kafka, WEIGHTS, run))]


async def until_version(kafka: str, run: str, version: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if version in await versions(kafka, run):
                return
            await asyncio.sleep(0.2)


async def the_one_that_ends(tasks: list["asyncio.Task[None]"]) -> "asyncio.Task[None]":
    done, _ = await asyncio.wait(tasks, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
    (ended,) = done
    return ended


@pytest.fixture(autouse=True)
def one_model_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers cannot load two models at once in one process; two trainers are two processes elsewhere."""
    lock, open_learner = threading.Lock(), Leader.open_learner

    def alone(self: Leader, *arguments: Any) -> Any:
        with lock:
            return open_learner(self, *arguments)

    monkeypatch.setattr(Leader, "open_learner", alone)


@pytest.mark.parametrize("number", range(2))
async def test_of_two_trainers_that_begin_a_run_together_exactly_one_continues(
    kafka: str, twins: Twins, number: int
) -> None:
    run = f"twins-{number}"
    await feed_groups(kafka, list("abcd"), run=run)
    stop = asyncio.Event()
    tasks = [asyncio.create_task(run_trainer(each, stop=stop, ready=lambda: None)) for each in twins(run)]
    ended = await the_one_that_ends(tasks)
    assert isinstance(ended.exception(), TrainerReplaced | CheckpointError)
    assert "another run" in str(ended.exception())
    await until_version(kafka, run, 2)
    (going,) = (task for task in tasks if task is not ended)
    assert not going.done()
    stop.set()
    await asyncio.wait_for(going, PATIENCE_S)
    assert await versions(kafka, run) == [0, 1, 2]
    assert [step.step for step in payloads(await records(kafka, STEPS, run))] == [1, 2]


async def test_a_late_claim_does_not_disturb_the_running_trainer(
    kafka: str, twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    await feed_groups(kafka, list("abcd"), run="late")
    late, early = twins("late")
    asked, may_go_on = asyncio.Event(), asyncio.Event()
    newest_published = loop.newest_published

    async def slowly(*arguments: Any, **options: Any) -> Any:
        said = await newest_published(*arguments, **options)
        if not asked.is_set():
            asked.set()
            await may_go_on.wait()
        return said

    monkeypatch.setattr(loop, "newest_published", slowly)
    stop = asyncio.Event()
    tardy = asyncio.create_task(run_trainer(late, stop=stop, ready=lambda: None))
    await asyncio.wait_for(asked.wait(), PATIENCE_S)
    going = asyncio.create_task(run_trainer(early, stop=stop, ready=lambda: None))
    await until_version(kafka, "late", 1)
    may_go_on.set()
    assert await the_one_that_ends([tardy, going]) is tardy
    with pytest.raises(CheckpointError, match=r"is empty.*choose another run"):
        await tardy
    await feed_groups(kafka, list("ef"), run="late")
    await until_version(kafka, "late", 3)
    stop.set()
    await asyncio.wait_for(going, PATIENCE_S)
    assert await versions(kafka, "late") == [0, 1, 2, 3]


async def test_a_trainer_replaced_before_it_published_does_not_continue_with_another_model(
    kafka: str, twins: Twins, tmp_path: Path
) -> None:
    first, second = twins("based")
    first = replace(first, model_dir=tiny_model(tmp_path / "other", seed=1))

    def die(effect: Effect, version: int) -> None:
        if effect is Effect.CHECKPOINTED:
            raise Died("died")

    with pytest.raises(Died):
        await run_trainer(first, stop=asyncio.Event(), ready=lambda: None, reached=die)
    await train_until(second, 0)
    with pytest.raises(ObjectConflict, match="choose another run"):
        await train_until(first, 1)
    await train_until(second, 0, effect="uploaded")  # its own version 0 is no obstacle
    assert await versions(kafka, "based") == [0]
