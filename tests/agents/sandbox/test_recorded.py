"""Snapshots, forks and restores are events of the trajectory, with what a reader needs to restore them."""

import warnings
from pathlib import Path

from headrace.agents.encoding import Note, encode_note
from headrace.agents.sandbox.local import Local
from headrace.agents.sandbox.protocol import Snapshot, SnapshotKind
from headrace.agents.sandbox.recorded import restore_recorded, start_recorded
from headrace.agents.sdk import Headrace
from headrace.schemas.events import EnvironmentForked, EnvironmentRestored, EnvironmentSnapshotted
from tests.agents.sdk_helpers import kinds


async def test_each_is_one_event_and_leads_back_to_the_snapshot(
    headrace: Headrace, notes: list[Note], folder: Path
) -> None:
    provider = Local(folder, warn=False)
    first = headrace.trajectory(task_id="q", agent="a")
    sandbox = await start_recorded(provider, first, {"f": b"0"})
    base = await sandbox.snapshot()
    await sandbox.write("f", b"1")
    taken = await sandbox.snapshot()
    await sandbox.fork(taken, 2)
    second = headrace.trajectory(task_id="q", agent="a")
    await restore_recorded(provider, second, taken, source_trajectory_id=first.id)

    names = "trajectory.started environment.snapshotted environment.snapshotted environment.forked"
    assert kinds(notes) == [*names.split(), "trajectory.started", "environment.restored"]
    values = [encode_note(note, "s", 10_000).message.value for note in notes]
    snapshotted = EnvironmentSnapshotted.model_validate_json(values[2])
    assert (snapshotted.snapshot_id, snapshotted.parent_id, snapshotted.sha256) == (taken.id, base.id, taken.sha256)
    assert snapshotted.provider == "local"
    assert snapshotted.ms > 0
    forked = EnvironmentForked.model_validate_json(values[3])
    assert (forked.snapshot_id, forked.forks) == (taken.id, 2)
    restored = EnvironmentRestored.model_validate_json(values[5])
    assert (restored.snapshot_id, restored.source_trajectory_id) == (taken.id, first.id)
    found = Snapshot(snapshotted.snapshot_id, SnapshotKind(snapshotted.kind), None, None, 0)
    assert await (await provider.restore(found)).read("f") == b"1"
    provider.store.close()


async def test_the_provider_without_isolation_says_so(folder: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Local(folder).store.close()
    assert ["does not isolate" in str(warning.message) for warning in caught] == [True]
