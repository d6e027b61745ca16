"""``headrace sandbox``: which sandboxes work on this machine, what is missing, and how fast they fork."""

import asyncio
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.deploy.terminal import print_json, print_line

if TYPE_CHECKING:
    from headrace.agents.sandbox.availability import Availability
    from headrace.agents.sandbox.speed import Times

ROUNDS = 20


@click.command("sandbox")
@click.option("--store", type=click.Path(file_okay=False), help="Folder for snapshots; else a temporary one.")
@click.option("--rounds", type=click.IntRange(0, 10_000), default=ROUNDS, show_default=True, help="Forks to measure.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--remove-unreferenced", is_flag=True, help="Remove the snapshots of --store but those of --keep.")
@click.option("--keep", multiple=True, metavar="ID", help="Snapshot that --remove-unreferenced keeps; repeatable.")
def command(store: str | None, rounds: int, as_json: bool, remove_unreferenced: bool, keep: tuple[str, ...]) -> None:
    """Show which sandboxes work on this machine; for the others why not, and the command that mends it.

    Forks are measured with 'overlay', or with 'local' where that does not work.
    """
    if remove_unreferenced:
        if store is None:
            raise click.UsageError("--remove-unreferenced needs --store: the folder that was given to the providers.")
        _remove(Path(store), keep)
        return
    if keep:
        raise click.UsageError("--keep is for --remove-unreferenced.")
    if store is not None:
        found, measured, times = asyncio.run(_look(Path(store), rounds))
    else:
        with tempfile.TemporaryDirectory(prefix="headrace-sandbox-") as folder:
            found, measured, times = asyncio.run(_look(Path(folder), rounds))
    if as_json:
        shown: dict[str, Any] = {"providers": [asdict(each) for each in found], "measured": measured}
        print_json(shown | {"ms": {name: asdict(each) for name, each in times.items()}}, indent=1)
        return
    for each in found:
        print_line(f"{each.provider:<8} {'works' if each.works else 'no':<6} {each.message}")
    for name, each_time in times.items():
        print_line(f"{measured} {name:<15} p50 {each_time.p50_ms:8.1f} ms   p95 {each_time.p95_ms:8.1f} ms")


async def _look(store: Path, rounds: int) -> "tuple[list[Availability], str, dict[str, Times]]":
    from headrace.agents.sandbox.availability import available
    from headrace.agents.sandbox.local import Local
    from headrace.agents.sandbox.overlay import Overlay
    from headrace.agents.sandbox.speed import measure

    found = await available(store)
    if rounds < 2:
        return found, "", {}
    if next(each.works for each in found if each.provider == "overlay"):
        overlay = await Overlay.create(store / "overlay")
        try:
            return found, "overlay", await measure(overlay, rounds)
        finally:
            overlay.close()
    local = Local(store / "local", warn=False)
    try:
        return found, "local", await measure(local, rounds)
    finally:
        local.store.close()


def _remove(folder: Path, keep: tuple[str, ...]) -> None:
    from headrace.agents.sandbox.store import Store

    if not (folder / "snapshots").is_dir():
        raise click.UsageError(f"{folder} is no store of snapshots: it has no folder 'snapshots'.")
    store = Store(folder)
    try:
        unknown = [each for each in keep if not store.has(each)]
        if unknown:
            raise click.UsageError(f"{folder} has no snapshot {', '.join(unknown)}: nothing was removed.")
        print_line(f"{store.remove_unreferenced(set(keep))} layers removed from {folder}")
    finally:
        store.close()
