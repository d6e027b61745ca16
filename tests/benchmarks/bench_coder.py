"""Attempts per second at the coder's tasks, without a model: what sandboxes and tests cost.

    python -m tests.benchmarks.bench_coder [--tasks 16] [--group 8] [--concurrency 8] [--json PATH]

The scripted player without mistakes makes ``--group`` attempts at each of ``--tasks`` training tasks, ``--concurrency``
at a time. It reads, edits, runs tests and submits, so that every attempt runs the tests at least twice, the verdict
included. One run measures three ways, one after another:

- cold: each attempt starts a sandbox with the task's files (``overlay``), and an interpreter for each run of the tests;
- forked: the same in forks of one snapshot per task;
- warm: no sandbox; a process that has the runner loaded forks a child for each run of the tests (``warm_runner.py``,
  which isolates nothing but crashes).

``player alone`` runs the tests in the player's own process: the cost of harness and script.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from time import perf_counter, process_time

from headrace.agents.coder import vocabulary as words
from headrace.agents.coder.demonstrations import Mistakes, Script
from headrace.agents.coder.grading import Outputs
from headrace.agents.coder.harness import Done, Harness, TestRun
from headrace.agents.coder.sandboxed_tests import run_in_sandbox
from headrace.agents.coder.tasks import Split, Task, make_task, task_id
from headrace.agents.coder.trusted_run import run_trusted
from headrace.agents.coder.warm_runner import WarmRunner
from headrace.agents.sandbox.overlay import Overlay
from headrace.agents.sandbox.protocol import Sandbox, Snapshot

FLAWLESS = Mistakes(**dict.fromkeys(Mistakes.__dataclass_fields__, 0.0))

Tests = Callable[[Harness, TestRun], Awaitable[tuple[Outputs, str | None]]]
Write = Callable[[str, bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Speed:
    """One way, over all attempts."""

    attempts_per_s: float
    p50_ms: float
    p95_ms: float
    test_runs: int
    solved: float
    """Share of attempts with the full outcome: 1, or the figure is of something else."""


async def _nowhere(path: str, content: bytes) -> None:
    """Write no file: there is no sandbox."""


async def play(task: Task, seed: int, tests: Tests, write: Write = _nowhere) -> tuple[float, int]:
    """Play an attempt; return its outcome and how often tests ran."""
    harness, runs = Harness(task), 0
    script = Script(harness, Random(seed), FLAWLESS)
    harness.observe()
    while True:
        step = harness.act(words.encode_words((*script.choose(), words.END)))
        if isinstance(step, TestRun):
            runs += 1
            step = harness.tested(*await tests(harness, step))
        observation = step.observation if isinstance(step, Done) else step
        if observation is not None and observation.written is not None:
            await write(observation.written, harness.repository.text(observation.written))
        if isinstance(step, Done):
            return step.outcome or 0.0, runs
        script.see(step)


async def measured(
    tasks: list[Task], group: int, concurrency: int, one: Callable[[Task, int], Awaitable[tuple[float, int]]]
) -> Speed:
    """Time ``group`` attempts at each task."""
    slots, taken = asyncio.Semaphore(concurrency), list[tuple[float, float, int]]()

    async def attempt(task: Task, seed: int) -> None:
        async with slots:
            began = perf_counter()
            outcome, runs = await one(task, seed)
            taken.append((1000 * (perf_counter() - began), outcome, runs))

    began = perf_counter()
    async with asyncio.TaskGroup() as running:
        for task in tasks:
            for seed in range(group):
                running.create_task(attempt(task, seed))
    seconds = perf_counter() - began
    cuts = statistics.quantiles([each[0] for each in taken], n=20, method="inclusive")
    solved = statistics.mean(each[1] == 1.0 for each in taken)
    return Speed(len(taken) / seconds, cuts[9], cuts[18], sum(each[2] for each in taken), solved)


async def run(task_count: int, group: int, concurrency: int) -> dict[str, Speed]:
    """Attempts per second by way."""
    tasks = [make_task(task_id(Split.TRAIN, number)) for number in range(task_count)]
    found: dict[str, Speed] = {}

    async def alone(task: Task, seed: int) -> tuple[float, int]:
        async def tests(harness: Harness, run: TestRun) -> tuple[Outputs, str | None]:
            return run_trusted(harness.repository, run.calls, run.inputs), None

        return await play(task, seed, tests)

    found["player alone"] = await measured(tasks, group, concurrency, alone)
    with WarmRunner() as runner:

        async def warm(task: Task, seed: int) -> tuple[float, int]:
            async def tests(harness: Harness, run: TestRun) -> tuple[Outputs, str | None]:
                return runner.run(run, harness.repository.texts())

            return await play(task, seed, tests)

        found["warm"] = await measured(tasks, group, 1, warm)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        overlay = await Overlay.create(Path(folder))
        snapshots: dict[str, asyncio.Task[tuple[Sandbox, Snapshot]]] = {}

        async def inside(sandbox: Sandbox, task: Task, seed: int) -> tuple[float, int]:
            async def tests(harness: Harness, run: TestRun) -> tuple[Outputs, str | None]:
                return await run_in_sandbox(sandbox, run)

            try:
                return await play(task, seed, tests, sandbox.write)
            finally:
                await sandbox.stop()

        async def cold(task: Task, seed: int) -> tuple[float, int]:
            return await inside(await overlay.start(task.broken.texts()), task, seed)

        async def first(task: Task) -> tuple[Sandbox, Snapshot]:
            sandbox = await overlay.start(task.broken.texts())
            return sandbox, await sandbox.snapshot()

        async def forked(task: Task, seed: int) -> tuple[float, int]:
            name = task.task_id
            if name not in snapshots:
                snapshots[name] = asyncio.create_task(first(task))
            parent, snapshot = await snapshots[name]
            return await inside((await parent.fork(snapshot, 1))[0], task, seed)

        found["overlay, cold"] = await measured(tasks, group, concurrency, cold)
        found["overlay, forked"] = await measured(tasks, group, concurrency, forked)
        overlay.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    load, began = os.getloadavg()[0], process_time()
    found = asyncio.run(run(arguments.tasks, arguments.group, arguments.concurrency))
    print(f"load before: {load:.1f}, cores: {os.cpu_count()}, {process_time() - began:.1f} s of this process")
    for way, speed in found.items():
        print(
            f"{way:<16} {speed.attempts_per_s:8.1f} attempts/s   p50 {speed.p50_ms:8.1f} ms   "
            f"p95 {speed.p95_ms:8.1f} ms   {speed.test_runs} runs of tests, {speed.solved:.0%} solved"
        )
    if arguments.json:
        shown = {way: asdict(speed) for way, speed in found.items()}
        arguments.json.write_text(json.dumps({"load": load, "ways": shown}, indent=1))


if __name__ == "__main__":
    main()
