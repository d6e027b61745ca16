"""What the fold counts as held is what its process grows by, within a fifth: its bounds are bounds of memory.

Each load runs in a process of its own, on both ways: with the extension module and without. The count is one, so that
both close the same trajectories; that is why it is not exact for either.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.streams.native.built import needs_speedups

PROGRAM = Path(__file__).with_name("memory_program.py")
LOADS = ("small", "single", "headers", "repeated", "large", "unreadable", "closed", "remembering")


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("way", ["plain", pytest.param("native", marks=needs_speedups)])
def test_what_is_counted_is_what_the_process_grows_by(load: str, way: str) -> None:
    done = subprocess.run([sys.executable, str(PROGRAM), way, load], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert found["grown"] > 10_000_000, "too little to tell"
    assert 0.8 < found["counted"] / found["grown"] < 1.2, found
