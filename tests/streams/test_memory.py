"""An assembler process reuses the memory of a commit for the next one."""

import subprocess
import sys

import pytest

COMMITS, BATCHES, BATCH_BYTES, PAGE = 32, 8, 2 * 1024 * 1024, 4096

PROGRAM = f"""
import gc, resource
from headrace.streams.memory import fit_memory_to_folds
fit_memory_to_folds()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({COMMITS}):
    batches = [bytearray({BATCH_BYTES}) for _ in range({BATCHES})]
    del batches
print(gc.get_freeze_count() > 0, gc.get_threshold()[0], resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc is set on Linux")
def test_the_output_of_a_commit_reuses_the_pages_of_the_previous_one() -> None:
    output = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout.split()
    assert output[:2] == ["True", "20000"]
    of_one_commit = BATCHES * BATCH_BYTES // PAGE
    assert int(output[2]) < 2 * of_one_commit  # with default settings COMMITS times as many
