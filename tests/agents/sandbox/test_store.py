"""Snapshots outlive the process that took them; the store is bounded, and removal keeps what is in use."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.agents.sandbox.overlay import MAX_LAYERS, Overlay
from headrace.agents.sandbox.protocol import Snapshot, SnapshotKind, SnapshotUnknown, StoreFull
from headrace.agents.sandbox.store import Bounds, Store, remove_folder
from tests.agents.sandbox.conftest import SMALL

TAKES_A_SNAPSHOT = """
import asyncio, sys
from pathlib import Path
from headrace.agents.sandbox.overlay import Overlay

async def main():
    provider = await Overlay.create(Path(sys.argv[1]))
    sandbox = await provider.start({"f": b"from the other process"})
    await sandbox.write("g", b"")
    print((await sandbox.snapshot()).id, flush=True)
    await sandbox.execute(["sleep", "300"], timeout_s=300)

asyncio.run(main())
"""


def reference(snapshot_id: str) -> Snapshot:
    return Snapshot(snapshot_id, SnapshotKind.FILES, None, None, 0)


async def test_a_snapshot_is_restored_in_another_process_after_the_first_was_killed(overlay: Overlay) -> None:
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", TAKES_A_SNAPSHOT, overlay.store.root, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    snapshot_id = (await other.stdout.readline()).decode().strip()
    abandoned = [path for path in (overlay.store.root / "sandboxes").iterdir() if path != overlay.store.process]
    other.send_signal(signal.SIGKILL)
    await other.wait()
    sandbox = await overlay.restore(reference(snapshot_id), SMALL)
    assert await sandbox.read("f") == b"from the other process"
    assert (await sandbox.execute(["ls"])).stdout == b"f\ng\n"
    assert len(abandoned) == 1
    assert overlay.store.remove_abandoned() == 1
    assert not abandoned[0].exists()
    assert overlay.store.process.exists()


async def test_unreferenced_snapshots_are_removed_and_those_in_use_stay(overlay: Overlay) -> None:
    sandbox = await overlay.start({"f": b"0"}, SMALL)
    first = await sandbox.snapshot()
    await sandbox.write("f", b"1")
    second = await sandbox.snapshot()
    await sandbox.write("f", b"2")
    third = await sandbox.snapshot()
    running = await overlay.restore(second, SMALL)
    await sandbox.stop()
    assert overlay.store.remove_unreferenced({first.id}) >= 1
    kept = await overlay.restore(first, SMALL)
    assert await kept.read("f") == b"0"
    assert (await running.execute(["cat", "f"])).stdout == b"1"
    for removed in (second, third):
        with pytest.raises(SnapshotUnknown, match="removed"):
            await overlay.restore(removed, SMALL)
    await running.stop()
    await kept.stop()
    overlay.store.remove_unreferenced(())
    assert list((overlay.store.root / "layers").iterdir()) == []


async def test_a_full_store_says_which_bound_and_the_sandbox_goes_on(overlay: Overlay) -> None:
    sandbox = await overlay.start({}, SMALL)
    overlay.store.bounds = Bounds(max_bytes=1000)
    await sandbox.write("f", bytes(2000))
    with pytest.raises(StoreFull, match="max_bytes"):
        await sandbox.snapshot()
    assert (await sandbox.execute(["cat", "f"])).stdout == bytes(2000)
    overlay.store.bounds = Bounds(max_snapshots=1)
    with pytest.raises(StoreFull, match="max_snapshots"):
        await sandbox.snapshot()
    overlay.store.bounds = Bounds(min_free_bytes=2**62)
    with pytest.raises(StoreFull, match="min_free_bytes"):
        await sandbox.snapshot()


async def test_a_full_store_takes_nothing_from_a_sandbox_whose_layers_would_be_merged(overlay: Overlay) -> None:
    sandbox = await overlay.start({}, SMALL)
    for number in range(MAX_LAYERS - 1):
        await sandbox.write(f"f{number}", b"")
        await sandbox.snapshot()
    await sandbox.write("last", b"work")
    overlay.store.bounds = Bounds(max_snapshots=1)
    with pytest.raises(StoreFull, match="max_snapshots"):
        await sandbox.snapshot()
    assert await sandbox.read("last") == b"work"
    assert not list(overlay.store.process.glob("layer-*"))
    overlay.store.bounds = Bounds()
    (fork,) = await sandbox.fork(await sandbox.snapshot(), 1)
    assert (await fork.execute(["cat", "last", "f0"])).stdout == b"work"


DAMAGES = (b"", b"{", b"[]", b"{}", b"\xff", b'{"id": "0", "layers": [], "bytes": 0}', b"null")


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_description_costs_its_own_snapshot_only(overlay: Overlay, damage: bytes) -> None:
    sandbox = await overlay.start({"f": b"0"}, SMALL)
    kept = await sandbox.snapshot()
    await sandbox.write("f", b"1")
    damaged = await sandbox.snapshot()
    description = overlay.store.root / "snapshots" / f"{damaged.id}.json"
    description.write_bytes(damage)
    Store(overlay.store.root).close()
    assert await (await overlay.restore(kept)).read("f") == b"0"
    with pytest.raises(SnapshotUnknown, match="damaged"):
        await overlay.restore(damaged)
    other = await overlay.restore(kept)
    await other.write("f", b"1")
    assert (await other.snapshot()).id == damaged.id  # the same work writes the description again
    assert await (await overlay.restore(damaged)).read("f") == b"1"
    description.write_bytes(damage)
    overlay.store.remove_unreferenced({kept.id})
    assert [found.id for found in overlay.store.snapshots()] == [kept.id]
    assert not description.exists()


async def test_a_snapshot_without_its_layers_is_an_error(overlay: Overlay) -> None:
    sandbox = await overlay.start({}, SMALL)
    await sandbox.write("f", b"1")
    snapshot = await sandbox.snapshot()
    remove_folder(overlay.store.layer(overlay.store.manifest(snapshot.id).layers[-1]))
    with pytest.raises(SnapshotUnknown, match="lost layers"):
        await overlay.restore(snapshot)


@pytest.mark.parametrize("snapshot_id", ["../x", "", "a" * 5000, "é", "A" * 64, "0\n"])
async def test_a_forged_id_is_unknown(overlay: Overlay, snapshot_id: str) -> None:
    with pytest.raises(SnapshotUnknown):
        await overlay.restore(reference(snapshot_id))


def test_a_snapshot_of_another_provider_is_refused_with_its_name(folder: Path) -> None:
    store = Store(folder)
    (store.root / "snapshots" / "ab.json").write_text(
        '{"id":"ab","provider":"local","kind":"files","parent":null,"layers":["x"],"bytes":1}'
    )
    with pytest.raises(SnapshotUnknown, match="local"):
        store.find("ab", "overlay")
    store.close()


def test_the_work_of_a_running_process_is_not_abandoned(folder: Path) -> None:
    first = Store(folder)
    second = Store(folder)
    assert first.process.exists()
    first.close()
    assert not first.process.exists()
    assert second.process.exists()
    second.close()


ROOTLESS = """
import asyncio, concurrent.futures.thread, os, sys
from pathlib import Path
from headrace.agents.sandbox.overlay import Overlay
from headrace.agents.sandbox.protocol import Limits

os.setgroups([]); os.setgid(65534); os.setuid(65534)

async def main():
    provider = await Overlay.create(Path(sys.argv[1]))
    assert provider.groups is None and provider.user is None
    sandbox = await provider.start({"f": b"0"}, Limits(processes=24, memory_bytes=1 << 28))
    assert (await sandbox.execute(["sh", "-c", "cat f; echo 1 > f; mkdir -m 000 closed"])).stdout == b"0"
    fork, = await sandbox.fork(await sandbox.snapshot(), 1)
    assert await fork.read("f") == b"1\\n"
    bomb = await fork.execute(["python3", "-c", "import os, time\\nwhile True:\\n  if os.fork() == 0: time.sleep(60)"])
    assert b"BlockingIOError" in bomb.stderr, bomb
    hog = await fork.execute(["python3", "-c", "bytearray(1 << 30)"])
    assert b"MemoryError" in hog.stderr, hog
    assert (await fork.execute(["test", "-e", "/etc/passwd"])).exit_code == 1
    await sandbox.stop(); await fork.stop(); provider.close()

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run without root already")
def test_it_works_without_root_and_without_control_groups(overlay: Overlay, folder: Path) -> None:
    os.chmod(folder, 0o711)
    rootless = folder / "rootless"
    rootless.mkdir()
    os.chown(rootless, 65534, 65534)
    ran = subprocess.run([sys.executable, "-c", ROOTLESS, rootless], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
