"""The fold's memory count is within a fifth of its process's growth, so its bounds are bounds of memory.

Each load runs in a process of its own, with and without the extension module. Both use the same count, so that both
close the same trajectories; therefore it is exact for neither.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.streams.native.built import needs_speedups

PROGRAM = Path(__file__).with_name("memory_program.py")
LOADS = ("small", "large", "closed", "unreadable")
MORE_LOADS = ("single", "headers", "repeated", "remembering")


@pytest.mark.parametrize("load", [*LOADS, *(pytest.param(load, marks=pytest.mark.nightly) for load in MORE_LOADS)])
@pytest.mark.parametrize("way", ["plain", pytest.param("native", marks=needs_speedups)])
def test_counted_memory_matches_the_growth_of_the_process(load: str, way: str) -> None:
    done = subprocess.run([sys.executable, str(PROGRAM), way, load], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert found["grown"] > 10_000_000, "too little to tell"
    assert 0.8 < found["counted"] / found["grown"] < 1.2, found
