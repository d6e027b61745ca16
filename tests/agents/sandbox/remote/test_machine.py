"""The protocol on top of a shell and files, with a machine that is a folder here and a real shell."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.agents.sandbox.protocol import (
    FileMissing,
    Outcome,
    PathRefused,
    SandboxError,
    SandboxStopped,
    SnapshotKind,
    SnapshotUnsupported,
    TooLarge,
)
from headrace.agents.sandbox.remote.machine import Remote
from tests.agents.sandbox.conftest import SMALL


class FolderMachine:
    """A machine whose work folder is a folder of this one."""

    def __init__(self, service: "FolderService", number: int) -> None:
        self.id = f"machine-{number}"
        self.root = service.root / self.id
        self.work = str(self.root / "work")
        self.service = service
        self.stopped = 0

    async def run(self, command: str, timeout_s: float) -> str:
        process = await asyncio.create_subprocess_exec("sh", "-c", command, stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(timeout_s):
            printed, _ = await process.communicate()
        return printed.decode()

    async def upload(self, path: str, content: bytes) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)

    async def download(self, path: str) -> bytes:
        return Path(path).read_bytes()

    async def snapshot(self, kind: SnapshotKind) -> str:
        name = f"snapshot-{len(self.service.machines)}-{len(list(self.service.root.iterdir()))}"
        shutil.copytree(self.work, self.service.root / name)
        return name

    async def stop(self) -> None:
        self.stopped += 1


class FolderService:
    name = "folder"
    kinds = frozenset({SnapshotKind.FILES})

    def __init__(self, root: Path) -> None:
        self.root = root
        self.machines: list[FolderMachine] = []
        self.most = 10

    async def create(self, snapshot_id: str | None) -> FolderMachine:
        if len(self.machines) == self.most:
            raise SandboxError("folder: no more machines")
        machine = FolderMachine(self, len(self.machines))
        machine.root.mkdir()
        if snapshot_id:
            shutil.copytree(self.root / snapshot_id, machine.work)
        self.machines.append(machine)
        return machine


@pytest.fixture
def service(tmp_path: Path) -> FolderService:
    return FolderService(tmp_path)


async def test_commands_have_arguments_a_folder_input_and_binary_output(service: FolderService) -> None:
    sandbox = await Remote(service).start({"src/main.py": b"import sys; print(sys.argv[1:], sys.stdin.read())"}, SMALL)
    result = await sandbox.execute(["python3", "main.py", "a b", "$(id)", "'"], cwd="src", stdin=b"typed")
    assert result.stdout == b"""['a b', '$(id)', "'"] typed\n"""
    assert (result.exit_code, result.outcome) == (0, Outcome.COMPLETED)
    result = await sandbox.execute(["sh", "-c", "printf '\\377\\000'; echo no >&2; exit 3"])
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"\xff\0", b"no\n")


async def test_time_and_output_are_bounded_on_the_machine(service: FolderService) -> None:
    sandbox = await Remote(service).start({}, SMALL)
    assert (await sandbox.execute(["sleep", "60"], timeout_s=0.5)).outcome is Outcome.TIMED_OUT
    assert (await sandbox.execute(["sh", "-c", "kill -9 $$"])).exit_code == 128 + 9
    result = await (await Remote(service).start({}, replace(SMALL, file_bytes=2**20))).execute(["yes"])
    assert (len(result.stdout), result.outcome) == (SMALL.output_bytes, Outcome.OUTPUT_TRUNCATED)


async def test_files_are_written_and_read_but_not_links_and_folders(service: FolderService) -> None:
    sandbox = await Remote(service).start({"d/f": b"0"}, SMALL)
    await sandbox.write("d/g", b"1")
    assert await sandbox.read("d/f") + await sandbox.read("d/g") == b"01"
    await sandbox.execute(["sh", "-c", "ln -s /etc/passwd link; mkfifo pipe; head -c 2000000 /dev/zero > big"])
    for path in ("link", "pipe", "d"):
        with pytest.raises(PathRefused):
            await sandbox.read(path)
    await sandbox.write("link", b"mine")
    assert await sandbox.read("link") == b"mine"
    with pytest.raises(FileMissing):
        await sandbox.read("missing")
    with pytest.raises(TooLarge):
        await sandbox.read("big")
    with pytest.raises(PathRefused):
        await sandbox.write("../x", b"")


async def test_forks_start_from_a_snapshot_whose_parent_is_named(service: FolderService) -> None:
    sandbox = await Remote(service).start({"f": b"0"}, SMALL)
    first = await sandbox.snapshot()
    await sandbox.write("f", b"1")
    second = await sandbox.snapshot()
    forks = await sandbox.fork(first, 2)
    assert [await fork.read("f") for fork in forks] == [b"0", b"0"]
    assert (first.parent, second.parent, first.sha256) == (None, first.id, None)
    assert (await forks[0].snapshot()).parent == first.id
    with pytest.raises(SnapshotUnsupported, match="files"):
        await sandbox.snapshot(SnapshotKind.MEMORY)


async def test_if_one_fork_fails_the_others_are_stopped(service: FolderService) -> None:
    sandbox = await Remote(service).start({}, SMALL)
    snapshot = await sandbox.snapshot()
    service.most = 3
    with pytest.raises(SandboxError, match="no more machines"):
        await sandbox.fork(snapshot, 3)
    assert [machine.stopped for machine in service.machines] == [0, 1, 1]


async def test_a_stopped_sandbox_refuses_and_is_removed_once(service: FolderService) -> None:
    sandbox = await Remote(service).start({}, SMALL)
    await sandbox.stop()
    await sandbox.stop()
    assert service.machines[0].stopped == 1
    with pytest.raises(SandboxStopped):
        await sandbox.execute(["true"])


async def test_a_machine_that_prints_something_else_is_an_error(service: FolderService) -> None:
    sandbox = await Remote(service).start({}, SMALL)
    with pytest.raises(SandboxError, match="did not run"):
        await sandbox.execute(["true"], cwd="missing")


async def test_masks_are_refused_because_they_cannot_be_kept(service: FolderService) -> None:
    with pytest.raises(PathRefused, match="masked"):
        await Remote(service).start({}, replace(SMALL, masked=("/usr/bin/env",)))
    assert service.machines == []
