"""The merged view that headrace computes is the one that the kernel shows, after any sequence of changes."""

import contextlib
import json
import os
import random

import pytest

from headrace.agents.sandbox.layers import merge, read_merged
from headrace.agents.sandbox.overlay import MAX_LAYERS, Overlay, OverlaySandbox
from headrace.agents.sandbox.protocol import FileMissing, PathRefused
from tests.agents.sandbox.conftest import SMALL

LIST = """
import json, os
found = {}
for place, folders, names in os.walk("."):
    for name in names:
        path = os.path.normpath(os.path.join(place, name))
        found[path] = None if os.path.islink(path) else open(path).read()
    for name in folders:
        found[os.path.normpath(os.path.join(place, name))] = None
print(json.dumps(found))
"""
"""Prints the content of each file by its path; null for folders and symbolic links."""

CHANGES = (
    "echo {n} > a",
    "rm -rf d",
    "mkdir -p d/e && echo {n} > d/e/f",
    "rm -rf d && mkdir d && echo {n} > d/g",
    "mv d c 2>/dev/null || true",
    "mv c d 2>/dev/null || true",
    "rm -rf a && mkdir a && echo {n} > a/b",
    "rm -rf a && ln -s d a",
    "rm -rf d && echo {n} > d",
    "mkdir -p d; chmod 700 d",
)


async def kernel_view(sandbox: OverlaySandbox) -> dict[str, str | None]:
    result = await sandbox.execute(["python3", "-c", LIST])
    assert result.exit_code == 0, result.stderr
    found: dict[str, str | None] = json.loads(result.stdout)
    return found


def read_or_none(layers: list[str], path: str) -> bytes | None:
    try:
        return read_merged(layers, path.split("/"), 1000)
    except (FileMissing, PathRefused):
        return None


@pytest.mark.parametrize("seed", range(4))
async def test_reading_agrees_with_the_kernel(overlay: Overlay, seed: int) -> None:
    draw = random.Random(seed)
    sandbox = await overlay.start({"a": b"0", "d/e/f": b"0", "d/x": b"0"}, SMALL)
    paths = {"a", "a/b", "d", "d/e/f", "d/g", "d/x", "c/x", "c/e/f"}
    for n in range(6):
        change = draw.choice(CHANGES).format(n=n)
        await sandbox.execute(["sh", "-c", change])
        written = draw.choice(["a", "d/e/h", "c/x"])
        with contextlib.suppress(PathRefused):  # a folder, or below a file: what the view says is compared below
            await sandbox.write(written, f"{n}".encode())
        seen = await kernel_view(sandbox)
        for path in paths | set(seen):
            content = seen.get(path)
            expected = None if content is None else content.encode()
            assert read_or_none(sandbox.layers, path) == expected, (change, written, path)
        if draw.random() < 0.7:
            await sandbox.snapshot()
    snapshot = await sandbox.snapshot()
    manifest = overlay.store.manifest(snapshot.id)
    copy = overlay.store.new_layer()
    merge([os.fspath(overlay.store.layer(name)) for name in reversed(manifest.layers)], copy, overlay.user)
    seen = await kernel_view(sandbox)
    walked = {os.path.relpath(os.path.join(place, name), copy) for place, d, f in os.walk(copy) for name in [*d, *f]}
    assert walked == set(seen)


async def test_many_snapshots_are_merged_into_one_layer(overlay: Overlay) -> None:
    sandbox = await overlay.start({"first": b"", "gone": b""}, SMALL)
    await sandbox.execute(["rm", "gone"])
    snapshot = await sandbox.snapshot()
    for number in range(MAX_LAYERS + 2):
        await sandbox.write(f"f{number}", b"")
        snapshot = await sandbox.snapshot()
    assert len(overlay.store.manifest(snapshot.id).layers) < MAX_LAYERS
    (fork,) = await sandbox.fork(snapshot, 1)
    assert isinstance(fork, OverlaySandbox)
    assert set(await kernel_view(fork)) == {"first", *(f"f{number}" for number in range(MAX_LAYERS + 2))}
