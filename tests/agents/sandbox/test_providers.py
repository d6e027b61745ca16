"""What every provider does: commands, files, limits, snapshots and forks."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.agents.sandbox.local import Local
from headrace.agents.sandbox.overlay import Overlay
from headrace.agents.sandbox.protocol import (
    CommandRefused,
    FileMissing,
    Outcome,
    PathRefused,
    SandboxStopped,
    Snapshot,
    SnapshotKind,
    SnapshotUnknown,
    SnapshotUnsupported,
    TooLarge,
)
from tests.agents.sandbox.conftest import SMALL

Either = Local | Overlay


async def test_a_command_has_arguments_a_folder_and_input(provider: Either) -> None:
    sandbox = await provider.start({"src/main.py": b"import sys; print(sys.argv[1], sys.stdin.read())"}, SMALL)
    result = await sandbox.execute(["python3", "main.py", "a b"], cwd="src", stdin=b"typed")
    assert (result.exit_code, result.stdout, result.outcome) == (0, b"a b typed\n", Outcome.COMPLETED)
    assert result.ms > 0


async def test_exit_codes_and_errors_are_the_commands_own(provider: Either) -> None:
    sandbox = await provider.start({}, SMALL)
    failed = await sandbox.execute(["sh", "-c", "echo no >&2; exit 3"])
    assert (failed.exit_code, failed.stderr, failed.outcome) == (3, b"no\n", Outcome.COMPLETED)
    missing = await sandbox.execute(["no-such-program"])
    assert missing.exit_code == 127
    assert b"no-such-program" in missing.stderr
    assert (await sandbox.execute(["sh", "-c", "kill -9 $$"])).exit_code == 128 + 9


@pytest.mark.parametrize("command", [[], [""], ["echo", "a\0b"], ["echo", "x" * 200_000], ["echo", "\ud800"]])
async def test_a_command_that_no_system_can_start_is_refused(provider: Either, command: list[str]) -> None:
    sandbox = await provider.start({}, SMALL)
    with pytest.raises(CommandRefused):
        await sandbox.execute(command)


async def test_a_long_command_is_run(provider: Either) -> None:
    sandbox = await provider.start({}, SMALL)
    result = await sandbox.execute(["python3", "-c", "import sys; print(len(sys.argv[1]))", "x" * 119_000])
    assert result.stdout == b"119000\n"


async def test_environment_variables_are_not_inherited(provider: Either, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    sandbox = await provider.start({}, SMALL)
    assert b"secret" not in (await sandbox.execute(["env"])).stdout


async def test_a_command_in_a_missing_folder_is_an_error(provider: Either) -> None:
    sandbox = await provider.start({}, SMALL)
    with pytest.raises(FileMissing, match="nowhere"):
        await sandbox.execute(["true"], cwd="nowhere")
    with pytest.raises(PathRefused):
        await sandbox.execute(["true"], cwd="../..")


async def test_a_command_is_killed_after_its_time_with_what_it_has_printed(provider: Either) -> None:
    sandbox = await provider.start({}, SMALL)
    result = await sandbox.execute(["sh", "-c", "echo begun; sleep 60"], timeout_s=1)
    assert (result.exit_code, result.stdout, result.outcome) == (None, b"begun\n", Outcome.TIMED_OUT)
    assert (await sandbox.execute(["echo", "next"])).stdout == b"next\n"


async def test_cpu_time_is_bounded(provider: Either) -> None:
    sandbox = await provider.start({}, replace(SMALL, cpu_s=1))
    assert (await sandbox.execute(["python3", "-c", "while True: pass"])).outcome is Outcome.CPU_EXHAUSTED


async def test_output_beyond_the_bound_is_dropped_and_the_command_goes_on(provider: Either) -> None:
    sandbox = await provider.start({}, SMALL)
    result = await sandbox.execute(["python3", "-c", "print('x' * 5000); open('done', 'w').close()"])
    assert (result.exit_code, len(result.stdout), result.outcome) == (0, 4096, Outcome.OUTPUT_TRUNCATED)
    assert await sandbox.read("done") == b""


async def test_endless_output_ends_the_command(provider: Either) -> None:
    sandbox = await provider.start({}, SMALL)
    result = await sandbox.execute(["yes"])
    assert (result.exit_code, len(result.stdout), result.outcome) == (None, 4096, Outcome.OUTPUT_TRUNCATED)


async def test_what_is_written_to_the_disk_is_bounded(provider: Either) -> None:
    sandbox = await provider.start({}, SMALL)
    fills = "import time\nfor i in range(99):\n open(f'f{i}', 'wb').write(bytes(1 << 20))\n time.sleep(0.1)"
    assert (await sandbox.execute(["python3", "-c", fills])).outcome is Outcome.DISK_FULL
    with pytest.raises(TooLarge):
        await sandbox.snapshot()
    assert (await sandbox.execute(["sh", "-c", "sleep 0.5; rm f*"])).outcome is Outcome.COMPLETED
    assert (await sandbox.snapshot()).kind is SnapshotKind.FILES
    many = await sandbox.execute(["sh", "-c", "for i in $(seq 300); do : > $i; done"])
    assert many.outcome is Outcome.DISK_FULL


async def test_holes_in_files_count_as_written(provider: Either) -> None:
    sandbox = await provider.start({}, SMALL)
    holes = await sandbox.execute(["sh", "-c", "for i in $(seq 50); do truncate -s 1000000 $i; done"])
    assert holes.outcome is Outcome.DISK_FULL
    with pytest.raises(TooLarge):
        await sandbox.snapshot()


async def test_names_that_no_file_can_have_are_refused(provider: Either) -> None:
    sandbox = await provider.start({}, SMALL)
    for path in ("a" * 300, "a" * 300 + "/b", "é" * 200):
        with pytest.raises(PathRefused, match="255"):
            await sandbox.read(path)
        with pytest.raises(PathRefused, match="255"):
            await sandbox.write(path, b"")
        with pytest.raises(PathRefused, match="255"):
            await sandbox.execute(["true"], cwd=path)


async def test_a_command_runs_in_no_folder_behind_a_link(provider: Either) -> None:
    sandbox = await provider.start({"f": b""}, SMALL)
    await sandbox.execute(["ln", "-s", "/etc", "link"])
    for cwd in ("link", "link/x", "f"):
        with pytest.raises(PathRefused):
            await sandbox.execute(["pwd"], cwd=cwd)


async def test_a_file_is_bounded_in_size(provider: Either) -> None:
    sandbox = await provider.start({}, replace(SMALL, file_bytes=1000))
    result = await sandbox.execute(
        [
            "python3",
            "-c",
            "import os; os.write(os.open('f', os.O_CREAT | os.O_WRONLY), bytes(2000)); open('f', 'ab', 0).write(b'x')",
        ]
    )
    assert result.exit_code == 1
    assert b"File too large" in result.stderr


async def test_files_are_written_with_their_folders_and_read(provider: Either) -> None:
    sandbox = await provider.start({"a/b.txt": b"old"}, SMALL)
    assert await sandbox.read("a/b.txt") == b"old"
    await sandbox.write("a/b.txt", b"new")
    await sandbox.write("c/d/e.txt", b"deep")
    result = await sandbox.execute(["sh", "-c", "cat a/b.txt c/d/e.txt && echo more >> c/d/e.txt && rm a/b.txt"])
    assert result.stdout == b"newdeep"
    assert await sandbox.read("c/d/e.txt") == b"deepmore\n"
    with pytest.raises(FileMissing):
        await sandbox.read("a/b.txt")
    await sandbox.write("a/b.txt", b"again")
    assert await sandbox.read("a/b.txt") == b"again"


async def test_an_executable_file_stays_executable_when_it_is_written(provider: Either, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("#!/bin/sh\necho one")
    (tmp_path / "run").chmod(0o755)
    sandbox = await provider.start(tmp_path, SMALL)
    assert (await sandbox.execute(["./run"])).stdout == b"one\n"
    await sandbox.write("run", b"#!/bin/sh\necho two")
    assert (await sandbox.execute(["./run"])).stdout == b"two\n"


async def test_files_larger_than_the_bound_are_not_read_or_written(provider: Either) -> None:
    sandbox = await provider.start({}, SMALL)
    await sandbox.execute(["sh", "-c", "head -c 2000000 /dev/zero > big"])
    with pytest.raises(TooLarge, match="read_bytes"):
        await sandbox.read("big")
    with pytest.raises(TooLarge, match="read_bytes"):
        await sandbox.write("big", bytes(2_000_000))


async def test_links_fifos_and_folders_are_not_read_and_not_followed(provider: Either) -> None:
    sandbox = await provider.start({}, SMALL)
    await sandbox.execute(["sh", "-c", "ln -s /etc/passwd link; ln -s /etc out; mkfifo pipe; mkdir d"])
    for path in ("link", "out/passwd", "pipe", "d"):
        with pytest.raises(PathRefused):
            await asyncio.wait_for(sandbox.read(path), 5)
    with pytest.raises(PathRefused):
        await sandbox.write("out/x", b"")
    with pytest.raises(PathRefused):
        await sandbox.write("d", b"")
    passwd = Path("/etc/passwd").read_bytes()
    for path in ("link", "pipe"):  # what is there is replaced, not written through
        await sandbox.write(path, b"mine")
        assert await sandbox.read(path) == b"mine"
    assert Path("/etc/passwd").read_bytes() == passwd


async def test_forks_start_from_the_snapshot_and_go_their_own_ways(provider: Either) -> None:
    sandbox = await provider.start({"f": b"0", "gone": b""}, SMALL)
    await sandbox.execute(["sh", "-c", "echo 1 > f; rm gone; mkdir d; echo x > d/x"])
    snapshot = await sandbox.snapshot()
    await sandbox.write("f", b"after")
    forks = await sandbox.fork(snapshot, 3)
    for number, fork in enumerate(forks):
        assert (await fork.execute(["sh", "-c", f"ls; cat f; echo {number} > f; rm -r d"])).stdout == b"d\nf\n1\n"
    assert [await fork.read("f") for fork in forks] == [b"0\n", b"1\n", b"2\n"]
    assert await sandbox.read("f") == b"after"
    assert await (await provider.restore(snapshot)).read("d/x") == b"x\n"
    assert len({sandbox.id, *(fork.id for fork in forks)}) == 4


async def test_snapshots_name_their_parents_and_the_same_work_has_the_same_digest(provider: Either) -> None:
    sandbox = await provider.start({"f": b"0"}, SMALL)
    first = await sandbox.snapshot()
    one, other = await sandbox.fork(first, 2)
    await one.write("g", b"1")
    await other.execute(["sh", "-c", "printf 1 > g"])
    a, b = await one.snapshot(), await other.snapshot()
    assert (first.parent, a.parent, b.parent) == (None, first.id, first.id)
    assert a.id == b.id
    assert a.sha256 == b.sha256 != first.sha256
    await other.write("g", b"2")
    assert (await other.snapshot()).sha256 != b.sha256


async def test_a_private_umask_of_the_process_changes_nothing(provider: Either) -> None:
    digests = []
    for umask in (0o022, 0o077):
        os.umask(umask)
        sandbox = await provider.start({"f": b"0"}, SMALL)
        assert (await sandbox.execute(["sh", "-c", "mkdir d && printf 1 > d/g && cat f"])).stdout == b"0"
        digests.append((await sandbox.snapshot()).sha256)
    assert digests[0] == digests[1]


async def test_without_changes_the_snapshot_is_the_one_before(provider: Either) -> None:
    sandbox = await provider.start({"f": b"0"}, SMALL)
    first = await sandbox.snapshot()
    await sandbox.execute(["cat", "f"])
    again = await sandbox.snapshot()
    assert (again.id, again.parent) == (first.id, first.parent)


async def test_a_snapshot_that_is_not_in_the_store_is_an_error(provider: Either) -> None:
    for name in ("0" * 64, "../../etc/passwd", ""):
        with pytest.raises(SnapshotUnknown):
            await provider.restore(Snapshot(name, SnapshotKind.FILES, None, None, 0))


async def test_memory_is_no_part_of_their_snapshots(provider: Either) -> None:
    sandbox = await provider.start({}, SMALL)
    with pytest.raises(SnapshotUnsupported, match="runsc"):
        await sandbox.snapshot(SnapshotKind.MEMORY)


async def test_a_stopped_sandbox_refuses_and_leaves_nothing(provider: Either) -> None:
    sandbox = await provider.start({}, SMALL)
    await sandbox.stop()
    await sandbox.stop()
    for use in (sandbox.execute(["true"]), sandbox.read("f"), sandbox.write("f", b""), sandbox.snapshot()):
        with pytest.raises(SandboxStopped):
            await use
    assert [path.name for path in provider.store.process.iterdir()] == ["alive"]


async def test_a_cancelled_command_is_killed(provider: Either) -> None:
    sandbox = await provider.start({}, SMALL)
    task = asyncio.ensure_future(sandbox.execute(["sh", "-c", "sleep 1; touch late"]))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(1)
    with pytest.raises(FileMissing):
        await sandbox.read("late")


async def test_concurrent_calls_of_one_sandbox_run_one_after_another(provider: Either) -> None:
    sandbox = await provider.start({}, SMALL)
    step = ["sh", "-c", "test ! -e busy && touch busy && sleep 0.1 && rm busy"]
    results = await asyncio.gather(*(sandbox.execute(step) for _ in range(3)))
    assert [result.exit_code for result in results] == [0, 0, 0]
