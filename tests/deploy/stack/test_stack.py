"""The stack with light parts: order, readiness, deaths, restarts, failure, and the state for other shells."""

import asyncio
import errno
import os
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.deploy.configuration.settings import Settings
from headrace.deploy.errors import StackError
from headrace.deploy.processes.process import Process
from headrace.deploy.stack import supervisor
from headrace.deploy.stack.stack import Stack, running_stack
from headrace.deploy.stack.state import State, address_of, is_locked, locked, read_state
from headrace.deploy.stack.supervisor import StateChange, backoff_s

Light = Callable[..., Process]


async def until(holds: Callable[[], bool], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while True:
            if holds():
                return
            await asyncio.sleep(0.02)


def pid_of(stack: Stack, name: str) -> int:
    pid = stack.parts[name].pid
    assert pid
    return pid


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_part_starts_after_its_needs_are_ready_and_stops_before_them(settings: Settings, light: Light) -> None:
    seen: list[tuple[str, State]] = []
    parts = (light("log"), light("reader", needs=("log",)), light("other"))

    def record(progress: StateChange) -> None:
        seen.append((progress.part, progress.state))

    async with running_stack(settings, on_progress=record, processes=parts) as stack:
        assert {part.state for part in stack.parts.values()} == {State.READY}
        pids = [pid_of(stack, name) for name in stack.parts]
    assert seen.index(("log", State.READY)) < seen.index(("reader", State.STARTING))
    assert seen.index(("other", State.STARTING)) < seen.index(("log", State.READY))  # In parallel.
    assert seen.index(("reader", State.STOPPED)) < seen.index(("log", State.STOPPED))
    assert not any(map(is_alive, pids))


async def test_another_shell_sees_addresses_and_states_while_it_runs(settings: Settings, light: Light) -> None:
    async with running_stack(settings, processes=(light("sink"),)) as stack:
        state = read_state(settings.data)
        assert state.ready
        assert state.parts == stack.parts
        assert state.pid == os.getpid()
    assert not is_locked(settings.data)
    with pytest.raises(StackError, match=rf"No stack runs on {settings.data}: `headrace up`"):
        read_state(settings.data)


async def test_a_second_stack_on_the_same_folder_is_refused(settings: Settings, light: Light) -> None:
    async with running_stack(settings, processes=(light("sink"),)) as stack:
        with pytest.raises(StackError, match=r"already runs on .*: .*headrace down.*--data"):
            async with running_stack(settings, processes=(light("sink"),)):
                pass
        assert stack.parts["sink"].state is State.READY
        assert read_state(settings.data).ready


async def test_a_part_killed_with_sigkill_is_restarted(settings: Settings, light: Light) -> None:
    reported: list[StateChange] = []
    async with running_stack(settings, on_progress=reported.append, processes=(light("sink"),)) as stack:
        first = pid_of(stack, "sink")
        stack.kill_part("sink")
        await until(lambda: stack.parts["sink"].restarts == 1 and stack.parts["sink"].state is State.READY)
        assert pid_of(stack, "sink") != first
    death = next(progress for progress in reported if progress.state is State.RESTARTING)
    assert f"sink (process {first}) was killed by signal {int(signal.SIGKILL)}" in death.message


async def test_a_part_restarts_only_after_its_needs_are_ready_again(settings: Settings, light: Light) -> None:
    seen: list[tuple[str, State]] = []
    parts = (light("log"), light("reader", needs=("log",)))

    def record(progress: StateChange) -> None:
        seen.append((progress.part, progress.state))

    async with running_stack(settings, on_progress=record, processes=parts) as stack:
        seen.clear()
        stack.kill_part("log")
        stack.kill_part("reader")
        await until(lambda: all(part.restarts == 1 and part.state is State.READY for part in stack.parts.values()))
    assert seen.index(("log", State.READY)) < seen.index(("reader", State.STARTING))


async def test_a_part_that_keeps_dying_fails_with_the_end_of_its_log(
    settings: Settings, light: Light, ready_then: Callable[[str], str]
) -> None:
    reported: list[StateChange] = []
    dies = light("sink", ready_then("time.sleep(0.1); raise SystemExit('the disk is full')"))
    few = settings.model_copy(update={"max_restarts": 1})
    async with running_stack(few, on_progress=reported.append, processes=(dies, light("other"))) as stack:
        await until(lambda: stack.parts["sink"].state is State.FAILED)
        assert stack.parts["other"].state is State.READY
        assert read_state(settings.data).parts["sink"].state is State.FAILED
    failure = next(progress for progress in reported if progress.state is State.FAILED)
    assert "exited with status 1" in failure.message
    assert "the disk is full" in failure.message
    assert "sink died 2 times in a minute" in failure.message


async def test_a_part_that_does_not_start_fails_the_stack_and_leaves_no_process(
    settings: Settings, light: Light
) -> None:
    pids: list[int] = []
    stacks: list[Stack] = []

    def record(progress: StateChange) -> None:
        if progress.part == "other" and progress.state is State.READY:
            pids.append(read_state(settings.data).parts["other"].pid or 0)

    parts = (light("other"), light("sink", "raise SystemExit('no such table')", needs=("other",)))
    with pytest.raises(StackError, match=r"(?s)sink \(process \d+\) exited with status 1\. The end of .*no such table"):
        async with running_stack(settings, on_progress=record, processes=parts) as stack:
            stacks.append(stack)
    assert not stacks
    assert pids
    assert not any(map(is_alive, pids))
    assert not is_locked(settings.data)


async def test_a_part_that_takes_too_long_is_reported_with_the_setting(settings: Settings, light: Light) -> None:
    hurried = settings.model_copy(update={"start_timeout_s": 0.5})
    with pytest.raises(StackError, match=r"sink was not ready within 0\.5 s \(HEADRACE_START_TIMEOUT_S\)"):
        async with running_stack(hurried, processes=(light("sink", "import time; time.sleep(600)"),)):
            pass


async def test_a_bug_in_the_supervision_is_raised(settings: Settings, light: Light) -> None:
    async def broken(settings: Settings, report: Callable[[str], None]) -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        async with running_stack(settings, processes=(Process("sink", "", command=broken),)):  # type: ignore[arg-type]
            pass


async def test_a_part_can_be_stopped_and_started_by_a_call(settings: Settings, light: Light) -> None:
    async with running_stack(settings, processes=(light("sink"),)) as stack:
        pid = pid_of(stack, "sink")
        await stack.stop_part("sink")
        assert stack.parts["sink"].state is State.STOPPED
        assert not is_alive(pid)
        with pytest.raises(StackError, match="sink does not run: its state is stopped"):
            stack.kill_part("sink")
        await stack.start_part("sink")
        assert stack.parts["sink"].state is State.READY
        with pytest.raises(StackError, match="This stack does not run trainer; its parts are sink"):
            await stack.stop_part("trainer")


async def test_cancelling_the_start_leaves_no_process(settings: Settings, light: Light) -> None:
    started = asyncio.Event()
    parts = (light("slow", "import time; time.sleep(600)"),)

    async def up() -> None:
        async with running_stack(settings, on_progress=lambda _: started.set(), processes=parts):
            pass

    starting = asyncio.create_task(up())
    await started.wait()
    await until(lambda: read_state(settings.data).parts["slow"].state is State.STARTING)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not is_locked(settings.data)


async def test_an_address_is_the_given_one_the_setting_or_that_of_the_running_stack(
    settings: Settings, light: Light, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(settings.data)
    with pytest.raises(StackError, match=r"No address of kafka is known: .*headrace up.*HEADRACE_KAFKA"):
        address_of("kafka", data=folder)
    mine = settings.model_copy(update={"kafka": "mine:1"})

    async def answers(settings: Settings) -> None:
        """Return successfully."""

    kafka = Process("kafka", "", command=light("kafka").command, external=answers)
    async with running_stack(mine, processes=(kafka, light("reader", needs=("kafka",)))) as stack:
        assert stack.parts["kafka"].state is State.EXTERNAL
        assert stack.addresses == {"kafka": "mine:1"}
        assert address_of("kafka", data=folder) == "mine:1"
        monkeypatch.setenv("HEADRACE_KAFKA", "set:1")
        assert address_of("kafka", data=folder) == "set:1"
        assert address_of("kafka", "given:1", folder) == "given:1"


def test_pauses_between_restarts_double_up_to_a_limit() -> None:
    assert [backoff_s(deaths) for deaths in range(1, 8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


async def test_output_of_an_earlier_process_is_not_shown(
    settings: Settings, light: Light, ready_then: Callable[[str], str]
) -> None:
    settings.logs.mkdir(parents=True)
    (settings.logs / "sink.log").write_text("trouble of last week\n")
    dies = light("sink", "raise SystemExit('trouble of today')")
    with pytest.raises(StackError, match="trouble of today") as raised:
        async with running_stack(settings, processes=(dies,)):
            pass
    assert "last week" not in str(raised.value)
    assert (settings.logs / "sink.log").read_text().startswith("trouble of last week")


async def test_a_full_disk_is_reported_and_parts_wait_for_free_space(
    settings: Settings, light: Light, ready_then: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[StateChange] = []
    room = settings.data / "room"
    monkeypatch.setattr(supervisor, "ROOM_POLL_S", 0.02)
    monkeypatch.setattr(
        supervisor, "full_disk", lambda data: None if room.exists() else "The disk is full: free some space"
    )
    dies = "import pathlib\nwhile not pathlib.Path({!r}).exists(): raise SystemExit('no space')\ntime.sleep(600)"
    few = settings.model_copy(update={"max_restarts": 1})
    began = ready_then("time.sleep(0.3)\n" + dies.format(str(room)))
    async with running_stack(few, on_progress=reported.append, processes=(light("sink", began),)) as stack:
        await until(lambda: stack.parts["sink"].state is State.RESTARTING)
        room.touch()
        await until(lambda: stack.parts["sink"].state is State.READY)
        restarting = [progress.message for progress in reported if progress.state is State.RESTARTING]
        assert restarting[0].startswith("The disk is full: free some space; sink is then restarted.\nsink (process ")


async def test_the_state_is_overwritten_in_place_on_a_full_disk(
    settings: Settings, light: Light, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    reported: list[str] = []
    async with running_stack(settings, processes=(light("sink"),), on_note=reported.append) as stack:
        monkeypatch.setattr(os, "replace", full)
        stack.kill_part("sink")
        await until(lambda: stack.parts["sink"].restarts == 1 and stack.parts["sink"].state is State.READY)
        assert read_state(settings.data).parts == stack.parts
        assert reported == []


async def test_the_state_of_a_killed_stack_is_not_taken_for_the_next_stacks(settings: Settings, light: Light) -> None:
    async with running_stack(settings, processes=(light("sink"),)):
        left = (settings.data / "stack.json").read_text()
    (settings.data / "stack.json").write_text(left)
    with locked(settings.data), pytest.raises(StackError, match="No stack runs"):
        read_state(settings.data)


async def test_a_password_in_an_address_is_not_stored_and_must_be_given_again(settings: Settings, light: Light) -> None:
    with_password = settings.model_copy(update={"clickhouse": "http://u:canary@127.0.0.1:1"})
    here = replace(light("clickhouse"), external=lambda _: asyncio.sleep(0))
    async with running_stack(with_password, processes=(here, light("sink"))) as stack:
        assert stack.addresses["clickhouse"] == "http://u:canary@127.0.0.1:1"
        assert read_state(settings.data).addresses["clickhouse"] == "http://***@127.0.0.1:1"
        assert "canary" not in (settings.data / "stack.json").read_text()
        with pytest.raises(StackError, match=r"at http://\*\*\*@127.* set HEADRACE_CLICKHOUSE here"):
            address_of("clickhouse", data=str(settings.data))


@pytest.mark.parametrize(("native", "module", "said"), [(True, None, 1), (False, None, 0), (True, object(), 0)])
async def test_a_missing_extension_module_is_said_once(
    native: bool,
    module: object,
    said: int,
    settings: Settings,
    light: Callable[..., Process],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.deploy.stack.stack.SPEEDUPS", module)
    parts = (replace(light("one"), native=native), replace(light("other"), native=native))
    notes: list[str] = []
    async with running_stack(settings, processes=parts, on_note=notes.append):
        pass
    assert len([note for note in notes if "Install a C++ compiler" in note]) == said


async def test_options_of_parts_that_are_left_out_are_said(settings: Settings, light: Light) -> None:
    parts = tuple(replace(light(name), configure=lambda _: None) for name in ("sink", "gateway"))
    given = settings.model_copy(update={"options": {"gateway": {"idle_s": 60}, "sink": {"linger_s": 1}}})
    notes: list[str] = []
    async with running_stack(given, ("gateway",), processes=parts, on_note=notes.append):
        pass
    assert [note for note in notes if "gateway" in note] == [
        "Options of parts that this stack does not run: gateway.idle_s."
    ]
