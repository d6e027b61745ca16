"""Sandboxes beside what they replace: copying the folder, and running the command without isolation.

    python -m tests.benchmarks.bench_sandbox [--rounds 100] [--runsc-rounds 10] [--json PATH]

One run measures all of it, one operation after another: each provider's start, snapshot, fork and commands
(``agents/sandbox/speed.py``), ``cp -a`` of the same 50 files, and a bare subprocess with the same command. Percentiles
over the rounds. The stores are in one folder, on the disk of the temporary folder.
"""

import argparse
import asyncio
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

from headrace.agents.sandbox.local import Local
from headrace.agents.sandbox.overlay import Overlay
from headrace.agents.sandbox.protocol import ProviderUnavailable, SnapshotKind
from headrace.agents.sandbox.runsc import Runsc
from headrace.agents.sandbox.speed import COMMAND, FILES, Times, measure


async def bare(*command: str | Path, cwd: Path) -> float:
    """Milliseconds of a subprocess without any isolation."""
    began = perf_counter()
    process = await asyncio.create_subprocess_exec(*command, cwd=cwd)
    await process.wait()
    assert process.returncode == 0
    return 1000 * (perf_counter() - began)


async def without_sandbox(folder: Path, rounds: int) -> dict[str, Times]:
    """``cp -a`` of the files, and the command in the copy."""
    source = folder / "source"
    for name, content in FILES.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    copies, commands = [], []
    for number in range(rounds):
        copies.append(await bare("cp", "-a", source, folder / f"copy{number}", cwd=folder))
        commands.append(await bare(*COMMAND, cwd=folder / f"copy{number}"))
    return {"cp -a": Times.of(copies), "command": Times.of(commands)}


async def run(rounds: int, runsc_rounds: int) -> dict[str, dict[str, Times]]:
    """Times by provider and method."""
    found: dict[str, dict[str, Times]] = {}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        found["bare"] = await without_sandbox(folder, rounds)
        overlay = await Overlay.create(folder / "overlay")
        found["overlay"] = await measure(overlay, rounds)
        overlay.groups = None
        found["overlay, no control groups"] = await measure(overlay, rounds)
        overlay.close()
        local = Local(folder / "local", warn=False)
        found["local"] = await measure(local, rounds)
        local.store.close()
        if runsc_rounds:
            try:
                runsc = await Runsc.create(folder / "runsc")
            except ProviderUnavailable as error:
                print(f"runsc is left out: {error}")
            else:
                found["runsc, memory"] = await measure(runsc, runsc_rounds, SnapshotKind.MEMORY)
                await runsc.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--runsc-rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    found = asyncio.run(run(arguments.rounds, arguments.runsc_rounds))
    print(f"load before: {load:.1f}, cores: {os.cpu_count()}")
    for provider, times in found.items():
        for method, each in times.items():
            print(f"{provider:<28} {method:<15} p50 {each.p50_ms:8.2f} ms   p95 {each.p95_ms:8.2f} ms")
    if arguments.json:
        shown = {provider: {name: asdict(each) for name, each in times.items()} for provider, times in found.items()}
        arguments.json.write_text(json.dumps({"load": load, "ms": shown}, indent=1))


if __name__ == "__main__":
    main()
