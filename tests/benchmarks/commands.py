"""Commands of headrace on a log, run as a user runs them; the start of Python is included."""

import asyncio
import sys
from time import monotonic

import psutil

from headrace.deploy.system.children import Child, Command, end_of, wait_for_exit
from tests.benchmarks.cluster import Cluster, cpu_s, memory_mb
from tests.benchmarks.contender import Sample

_POLL_S = 0.02


async def timed(kafka: Cluster, count: int, *arguments: str) -> Sample:
    """Run ``headrace ARGUMENTS`` on ``kafka``, whose log has ``count`` records to read; ``memory_mb`` is the peak.

    Raises ``RuntimeError`` if the command fails.
    """
    log = kafka.folder / f"{arguments[0]}.log"
    argv = (sys.executable, "-m", "headrace.deploy.cli", *arguments, "--kafka", kafka.bootstrap)
    begun, broker = monotonic(), cpu_s([kafka.broker])
    child = Child(Command(argv, {"HEADRACE_CACHE": str(kafka.folder / "cache")}), log)
    try:
        process, used, memory = psutil.Process(child.pid), 0.0, 0.0
        while child.poll() is None:
            try:
                used, memory = cpu_s([process]), max(memory, memory_mb([process]))
            except psutil.Error:  # The process ended between the two calls.
                break
            await asyncio.sleep(_POLL_S)
        status = await wait_for_exit(child)
    finally:
        child.kill()
    if status:
        raise RuntimeError(f"headrace {' '.join(arguments)} ended with status {status}:\n{end_of(log, 40)}")
    return Sample(count, monotonic() - begun, used, cpu_s([kafka.broker]) - broker, memory)
