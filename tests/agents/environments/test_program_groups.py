"""Groups of a program's attempts: sessions, the trainer's budget, epochs, and what a restart leaves out."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.agents.environments.program_groups import GroupSettings, run_groups
from headrace.agents.environments.rollouts import AlwaysRoom
from headrace.agents.environments.sessions import GatewayFailed, Session, SessionLost
from headrace.schemas.events import Purpose


@dataclass(frozen=True)
class Task:
    task_id: str


TASKS = [Task("a"), Task("b"), Task("c")]


class Gateway:
    """Sessions that are only noted."""

    def __init__(self, *, fails_after: int | None = None) -> None:
        self.opened: list[Mapping[str, Any]] = []
        self.ended: list[tuple[str, Mapping[str, Any]]] = []
        self._fails_after = fails_after

    async def open(self, about: Mapping[str, Any]) -> Session:
        if self._fails_after is not None and len(self.opened) >= self._fails_after:
            raise GatewayFailed("the gateway is away")
        self.opened.append(about)
        return Session(f"s{len(self.opened)}", f"t{len(self.opened)}", "http://g/v1")

    async def end(self, session: Session, body: Mapping[str, Any]) -> None:
        self.ended.append((session.session, body))
        if body.get("status") == "lost":
            raise SessionLost("it was idle")


class Budget:
    """Room for one group at a time, which its last attempt makes."""

    def __init__(self) -> None:
        self.free, self.groups = asyncio.Semaphore(1), list[list[str]]()

    async def room(self) -> None:
        await self.free.acquire()

    def opened(self, trajectory_ids: list[str]) -> None:
        self.groups.append(trajectory_ids)


def about(task: Task) -> dict[str, Any]:
    return {"task_id": task.task_id}


async def completed(task: Task, session: Session) -> dict[str, Any]:
    return {"status": "completed"}


async def test_each_task_is_a_group_in_every_epoch() -> None:
    gateway = Gateway()
    assert (
        await run_groups(TASKS, GroupSettings(2, 4, epochs=2), gateway, AlwaysRoom(), about=about, attempt=completed)
        == 6
    )
    assert [each["task_id"] for each in gateway.opened] == [name for name in "abcabc" for _ in range(2)]
    groups = [each["group_id"] for each in gateway.opened]
    assert (groups[::2], len(set(groups))) == (groups[1::2], 6)
    assert {each["group_size"] for each in gateway.opened} == {2}
    assert [body for _, body in gateway.ended] == [{"status": "completed"}] * 12


async def test_an_attempt_alone_is_no_group() -> None:
    gateway = Gateway()
    await run_groups(TASKS[:1], GroupSettings(), gateway, AlwaysRoom(), about=about, attempt=completed)
    assert gateway.opened == [{"task_id": "a", "purpose": "train"}]


async def test_an_evaluation_is_opened_as_one() -> None:
    gateway = Gateway()
    settings = GroupSettings(2, 2)
    await run_groups(TASKS, settings, gateway, AlwaysRoom(), about=about, attempt=completed, purpose=Purpose.EVALUATE)
    assert {each["purpose"] for each in gateway.opened} == {"evaluate"}


async def test_a_group_begins_when_the_budget_has_room_for_it() -> None:
    gateway, budget, in_flight, most = Gateway(), Budget(), 0, 0

    async def attempt(task: Task, session: Session) -> dict[str, Any]:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0)
        in_flight -= 1
        if not in_flight:
            budget.free.release()
        return {"status": "completed"}

    await run_groups(TASKS, GroupSettings(2, 64), gateway, budget, about=about, attempt=attempt)
    assert budget.groups == [["t1", "t2"], ["t3", "t4"], ["t5", "t6"]]
    assert most == 2


async def test_a_restart_leaves_out_the_groups_that_have_begun(tmp_path: Path) -> None:
    settings = GroupSettings(2, 2, epochs=2, begun=tmp_path / "begun.txt")
    first = Gateway(fails_after=5)
    with pytest.raises(ExceptionGroup) as raised:
        await run_groups(TASKS, settings, first, AlwaysRoom(), about=about, attempt=completed)
    assert [str(each) for each in raised.value.exceptions] == ["the gateway is away"]
    assert first.ended[-1] == ("s5", {"status": "aborted"})  # half of a group
    second = Gateway()
    await run_groups(TASKS, settings, second, AlwaysRoom(), about=about, attempt=completed)
    assert [each["task_id"] for each in second.opened[::2]] == ["c", "a", "b", "c"]


async def test_a_session_that_the_gateway_has_ended_ends_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway()

    async def attempt(task: Task, session: Session) -> dict[str, Any]:
        return {"status": "lost"}

    assert await run_groups(TASKS, GroupSettings(), gateway, AlwaysRoom(), about=about, attempt=attempt) == 3
    assert caplog.messages == [f"an attempt at {name} is lost: it was idle" for name in "abc"]


@pytest.mark.parametrize("settings", [{"attempts": 0}, {"epochs": 0}, {"attempts": 8, "concurrency": 4}])
def test_settings_that_cannot_be_met_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        GroupSettings(**settings)
