"""Runs concurrent attempts at tasks: groups for training, as fast as the trainer consumes them, or an evaluation.

A group is eight attempts at one training task. New groups begin only within the trainer's budget (``backpressure``), so
that samples are still fresh when they are trained. What is attempted is a :class:`TaskSource`, who makes the attempts
an :class:`Attempts`: the sampler is the same for every system. Which groups exist is read from the log (``journal``),
so a sampler that was killed continues where it was.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Generic

from headrace.agents.backpressure import READS as CONCLUSIONS
from headrace.agents.backpressure import Backpressure
from headrace.agents.policy import PolicyError
from headrace.agents.rollouts.attempts import Attempt, Attempts, Forks, Restarts, TaskT
from headrace.agents.rollouts.config import RolloutConfig
from headrace.agents.rollouts.fork import ForkedGroup, ForkPoint, forked_task
from headrace.agents.rollouts.journal import LABEL, BegunGroup, Journal, Place, read_journal
from headrace.agents.rollouts.progress import FOLLOWED, Progress
from headrace.agents.rollouts.restoration import restoration
from headrace.agents.rollouts.rollout_metrics import AttemptEnd, Restored, RolloutMetrics, SamplingReport
from headrace.agents.rollouts.tasks import TaskSource
from headrace.agents.sandbox.protocol import SandboxError, SnapshotUnknown
from headrace.schemas.events import Purpose
from headrace.schemas.ids import uuid7

log = logging.getLogger(__name__)

READS = (*CONCLUSIONS, *FOLLOWED)
"""Topics that a sampler follows. At its start it also reads what it wrote to ``events``."""


async def run_rollouts(
    config: RolloutConfig, source: TaskSource[TaskT], attempts: Attempts[TaskT], *, stop: asyncio.Event
) -> SamplingReport:
    """Attempt training tasks in groups until ``stop``, or until every task was attempted; return what was done.

    First the half-done groups of an ended sampler of the same name are completed. Attempts in flight at ``stop`` are
    completed, so that their groups are complete. An attempt that fails because of the engine or its sandbox becomes a
    failed trajectory of its group; after ``max_failures`` consecutive ones an ``ExceptionGroup`` of ``PolicyError`` and
    ``SandboxError`` is raised.
    """
    began, metrics = time.monotonic(), RolloutMetrics(source.levels)
    progress = Progress(config, source.levels, metrics)
    async with AsyncExitStack() as stack:
        runner = _Runner(config, metrics)
        backpressure = await stack.enter_async_context(
            Backpressure(
                config.bootstrap,
                run=config.run,
                limit=config.max_groups,
                share=config.share,
                zero_variance=config.zero_variance,
                feedback=progress.add,
                feedback_from=FOLLOWED,
            )
        )
        progress.observe(backpressure)
        journal = await read_journal(config.bootstrap, config.run, config.sampler)
        progress.restore(journal)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        groups = _Groups(config, source, attempts, backpressure, progress)
        left = await groups.restored(journal)
        del journal  # of all groups of the run
        for attempt in left:
            await runner.slot()
            group.create_task(runner.run(attempt))
        while not progress.is_exhausted and await _has_room(backpressure, stop, metrics):
            for attempt in await groups.begin():
                await runner.slot()
                group.create_task(runner.run(attempt))
    return metrics.report(seconds=time.monotonic() - began, levels=progress.visited, is_exhausted=progress.is_exhausted)


async def run_evaluation(
    config: RolloutConfig,
    attempts: Attempts[TaskT],
    tasks: Sequence[TaskT],
    *,
    greedy: bool,
    labels: Mapping[str, Any] | None = None,
) -> list[str]:
    """Make one attempt at each of ``tasks``, marked as an evaluation that must never be trained on; return their ids.

    With ``greedy`` the likeliest token is always chosen, otherwise tokens are sampled at temperature 1. The
    trajectory's task labels contain the mode as ``evaluation``, along with ``labels``.
    """
    temperature, name = (0.0, "greedy") if greedy else (1.0, "sampled")
    runner, trajectory_ids = _Runner(config, RolloutMetrics(())), []
    async with asyncio.TaskGroup() as group:
        for task in tasks:
            await runner.slot()
            start = {"purpose": Purpose.EVALUATE, "task": {**task.facts, **(labels or {}), "evaluation": name}}
            attempt = await attempts.prepare(task, temperature=temperature, start=start)
            trajectory_ids.append(attempt.trajectory_id)
            group.create_task(runner.run(attempt))
    return trajectory_ids


async def run_fork(
    config: RolloutConfig, source: TaskSource[TaskT], attempts: Forks[TaskT], point: ForkPoint, *, count: int
) -> ForkedGroup:
    """Continue a recorded attempt ``count`` times from ``point``, as a group of its own; return the group.

    The group does not wait for the trainer's budget. Raises :class:`headrace.agents.rollouts.fork.CannotFork`, and
    ``ExceptionGroup`` as :func:`run_rollouts` does; one of ``SnapshotUnknown`` if the point's snapshot is gone.
    """
    task, metrics, group_id = forked_task(source, point), RolloutMetrics(()), uuid7()
    runner = _Runner(config, metrics)
    start = point.start(group_id, count)
    members = [await attempts.fork(task, point, temperature=1.0, start=start) for _ in range(count)]
    async with asyncio.TaskGroup() as group:
        for attempt in members:
            await runner.slot()
            group.create_task(runner.run(attempt))
    made = metrics.report(seconds=0.0, levels=(), is_exhausted=False).attempts
    return ForkedGroup(group_id, tuple(each.trajectory_id for each in members), made.get(AttemptEnd.FAILED, 0))


class _Groups(Generic[TaskT]):
    """Begins groups, and completes those of an ended sampler."""

    def __init__(
        self,
        config: RolloutConfig,
        source: TaskSource[TaskT],
        attempts: Attempts[TaskT],
        backpressure: Backpressure,
        progress: Progress,
    ) -> None:
        self._config = config
        self._source = source
        self._attempts = attempts
        self._backpressure = backpressure
        self._progress = progress

    async def begin(self) -> list[Attempt]:
        """Return the attempts of the next group, which counts as open."""
        place = self._progress.next_place()
        task = self._source.training(place.number, place.level)
        group_id, size = uuid7(), self._config.group_size
        members = await asyncio.gather(*(self._member(task, group_id, size, place, each) for each in range(size)))
        self._backpressure.opened([each.trajectory_id for each in members])
        self._progress.began(group_id, place, size)
        return list(members)

    async def restored(self, journal: Journal) -> list[Attempt]:
        """Return the attempts that complete the groups in the log, in the order of their tasks.

        They do not wait for room, because they were begun within a budget; after the trainer's last step nothing is
        completed.
        """
        found = []
        for group in sorted(journal.groups.values(), key=lambda each: (each.place.epoch, each.place.number)):
            found += await self._completing(group)
        return found

    async def _completing(self, group: BegunGroup) -> list[Attempt]:
        metrics, attempts = self._progress.metrics, self._attempts
        metrics.restored(Restored.KEPT, len(group.ended))
        if group.is_finished and not group.running:
            return []
        within_s = self._config.restore_within_s if self._backpressure.allowed else 0.0
        plan = restoration(
            group,
            now_ms=time.time_ns() // 1_000_000,
            within_ms=round(within_s * 1000),
            restarts=isinstance(attempts, Restarts),
        )
        if isinstance(attempts, Restarts):
            for left in plan.abandon:
                attempts.abandon(left)
                metrics.restored(Restored.ABANDONED)
        if not plan.resume and not plan.add:
            return []
        task = self._source.training(group.place.number, group.place.level)
        if task.task_id != group.task_id:
            raise ValueError(
                f"group {group.group_id} attempts {group.task_id}, and number {group.place.number} is now "
                f"{task.task_id}: a run's tasks must not change, so use another run"
            )
        members: list[Attempt] = []
        replaced: list[int] = []
        if isinstance(attempts, Restarts):
            for left in plan.resume:
                attempt = attempts.resume(task, left, temperature=1.0)
                if attempt is None:
                    attempts.abandon(left)
                    replaced.append(left.place.member)
                else:
                    members.append(attempt)
        metrics.restored(Restored.RESUMED, len(members))
        metrics.restored(Restored.REPLACED, len(replaced))
        metrics.restored(Restored.ADDED, len(plan.add))
        members += [
            await self._member(task, group.group_id, group.size, group.place, member)
            for member in sorted((*replaced, *plan.add))
        ]
        if members:
            # Those that ended are left out: what concluded them may have been published already.
            self._backpressure.opened([each.trajectory_id for each in members])
            self._progress.followed(group.group_id, group.place, group.size)
        return members

    async def _member(self, task: TaskT, group_id: str, size: int, place: Place, member: int) -> Attempt:
        start = {
            "group_id": group_id,
            "group_size": size,
            "task": {**task.facts, LABEL: place.of_member(member).label},
        }
        return await self._attempts.prepare(task, temperature=1.0, start=start)


class _Runner:
    """Limits the attempts in flight, and the consecutive failures."""

    def __init__(self, config: RolloutConfig, metrics: RolloutMetrics) -> None:
        self._max_failures = config.max_failures
        self._metrics = metrics
        self._slots = asyncio.Semaphore(config.concurrency)
        self._failures = 0
        """Number of consecutive attempts that failed because of the engine or their sandbox."""

    async def slot(self) -> None:
        """Wait until one more attempt may be in flight; ``run`` releases the slot."""
        await self._slots.acquire()

    async def run(self, attempt: Attempt) -> None:
        """Run an attempt."""
        try:
            await attempt.run()
            self._failures = 0
            self._metrics.ended(AttemptEnd.MADE)
        except SnapshotUnknown:  # no other attempt from it could succeed
            raise
        except (PolicyError, SandboxError) as error:
            self._failures += 1
            self._metrics.ended(AttemptEnd.FAILED)
            log.warning("attempt %s failed: %s", attempt.trajectory_id, error)
            if self._failures >= self._max_failures:
                raise
        finally:
            self._slots.release()


async def _has_room(backpressure: Backpressure, stop: asyncio.Event, metrics: RolloutMetrics) -> bool:
    """Wait until another group may begin, or for ``stop``; return whether it may begin."""
    began = time.monotonic()
    waiting, stopped = asyncio.create_task(backpressure.room()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((waiting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            return False
        await waiting
        return True
    finally:
        metrics.waited(time.monotonic() - began)
        for each in (waiting, stopped):
            each.cancel()
        await asyncio.gather(waiting, stopped, return_exceptions=True)
