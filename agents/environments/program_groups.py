"""Groups of attempts for a program that plays the agent itself: sessions, budget, epochs, and a restart.

    settings = GroupSettings(attempts=8, concurrency=64, epochs=3, begun=Path("begun.txt"))
    await run_groups(tasks, settings, sessions, room, about=about, attempt=attempt)

A group begins when the trainer's budget has room for it and all of its attempts have a place among those in flight: a
session that waits for one longer than the gateway's ``idle_s`` would be ended. The name of each group that has begun is
appended to a file, and a program that is started again leaves those out.
"""

import argparse
import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from headrace.agents.backpressure import Backpressure
from headrace.agents.environments.rollouts import AlwaysRoom, Room
from headrace.agents.environments.sessions import (
    GatewayFailed,
    Session,
    SessionLost,
    Sessions,
    abort_session,
    open_group,
)
from headrace.schemas.events import Purpose
from headrace.schemas.ids import uuid7

_log = logging.getLogger(__name__)


class _Task(Protocol):
    @property
    def task_id(self) -> str: ...


TaskT = TypeVar("TaskT", bound=_Task)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Which attempts are made. An invalid setting raises ``ValueError`` naming it."""

    attempts: int = 1
    """Attempts of a task in an epoch; more than one form a group."""
    concurrency: int = 8
    """Attempts in flight, at least those of a group."""
    epochs: int = 1
    """Groups of each task."""
    begun: Path | None = None
    """File with the names of the groups that have begun, one a line; ``None``: a restart begins anew."""

    def __post_init__(self) -> None:
        for name in ("attempts", "concurrency", "epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.concurrency < self.attempts:
            raise ValueError(
                f"concurrency is {self.concurrency}: it must be at least attempts, {self.attempts}, because those of a "
                "group begin together"
            )


async def run_groups(
    tasks: Sequence[TaskT],
    settings: GroupSettings,
    sessions: Sessions,
    room: Room,
    *,
    about: Callable[[TaskT], Mapping[str, Any]],
    attempt: Callable[[TaskT, Session], Awaitable[Mapping[str, Any]]],
    purpose: Purpose = Purpose.TRAIN,
) -> int:
    """Run all groups, in the order of the tasks, epoch after epoch; returns how many began.

    ``about`` has the fields of ``POST /sessions`` for a task; ``purpose`` and those of its group are added. ``attempt``
    makes an attempt and returns the body with which its session ends; what goes wrong in one attempt must not raise.
    Raises ``ExceptionGroup`` of :class:`GatewayFailed`; attempts in flight are then ended as aborted.
    """
    begun = _names_in(settings.begun)
    slots, count = asyncio.Semaphore(settings.concurrency), 0

    async def one(task: TaskT, session: Session) -> None:
        try:
            try:
                body = await attempt(task, session)
            except BaseException:
                await abort(session)
                raise
            try:
                await sessions.end(session, body)
            except SessionLost as error:
                _log.warning("an attempt at %s is lost: %s", task.task_id, error)
        finally:
            slots.release()

    async def abort(session: Session) -> None:
        await abort_session(sessions, session)

    async with asyncio.TaskGroup() as running:
        for epoch in range(settings.epochs):
            for task in tasks:
                name = f"{epoch} {task.task_id}"
                if name in begun:
                    continue
                for _ in range(settings.attempts):
                    await slots.acquire()
                await room.room()
                members = await open_group(
                    sessions,
                    {**about(task), "purpose": purpose.value, **_group(settings.attempts)},
                    settings.attempts,
                    abort,
                )
                room.opened([member.trajectory_id for member in members])
                if settings.begun is not None:
                    with settings.begun.open("a") as file:
                        file.write(f"{name}\n")
                count += 1
                for member in members:
                    running.create_task(one(task, member))
    return count


def _group(size: int) -> dict[str, Any]:
    """Fields of ``POST /sessions`` for a group; an attempt alone is none."""
    return {"group_id": str(uuid7()), "group_size": size} if size > 1 else {}


def _names_in(file: Path | None) -> frozenset[str]:
    return frozenset(file.read_text().splitlines()) if file is not None and file.is_file() else frozenset()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of :class:`GroupSettings` and of the budget to a program's ``parser``."""
    parser.add_argument("--attempts", type=int, default=1, help="attempts per task and epoch, which form a group")
    parser.add_argument("--concurrency", type=int, default=8, help="attempts at a time, at least those of a group")
    parser.add_argument("--epochs", type=int, default=1, help="groups per task")
    parser.add_argument("--begun", type=Path, metavar="FILE", help="names of begun groups, which a restart leaves out")
    parser.add_argument("--timeout", type=float, default=1800.0, metavar="S", help="seconds an attempt may take")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="broker with the trainer's budget: groups wait for it")
    parser.add_argument("--run", default="default", help="training run whose budget applies, with --kafka")
    parser.add_argument("--max-groups", type=int, default=64, help="most open groups, whatever the budget")


def settings_of(options: argparse.Namespace) -> GroupSettings:
    """Return the settings in the options of :func:`add_options`. Raises ``ValueError``."""
    return GroupSettings(options.attempts, options.concurrency, options.epochs, options.begun)


@asynccontextmanager
async def room_of(options: argparse.Namespace) -> AsyncIterator[Room]:
    """Follow the trainer's budget inside the block, if the options name a broker."""
    if options.kafka is None:
        yield AlwaysRoom()
        return
    async with Backpressure(options.kafka, run=options.run, limit=options.max_groups) as room:
        yield room


def run_program(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], Awaitable[None]],
    argv: Sequence[str] | None,
    *,
    at_least_one: Sequence[str],
) -> None:
    """Read the options and ``run``. A problem of theirs, or of the gateway, ends the process with its message.

    ``at_least_one``: names of the options that must be at least 1.
    """
    options = parser.parse_args(argv)
    for name in at_least_one:
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")

    async def ran() -> None:
        await run(options)

    problem = None
    try:
        asyncio.run(ran())
    except* (ValueError, GatewayFailed) as errors:  # no corpus, no index, no tasks, options that contradict each other
        problem = errors.exceptions[0]
    if problem is not None:
        sys.exit(str(problem))
