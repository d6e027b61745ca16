"""Processes reuse the memory of a commit or insert for the next one."""

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


INSERTS, COLUMNS, COLUMN_BYTES = 32, 8, 2 * 1024 * 1024

SINK_PROGRAM = f"""
import gc, resource
import pyarrow
from headrace.streams.memory import fit_memory_to_inserts
fit_memory_to_inserts()
def insert():
    columns = [pyarrow.allocate_buffer({COLUMN_BYTES}) for _ in range({COLUMNS})]
    for column in columns:
        memoryview(column).cast("B")[::{PAGE}] = bytes({COLUMN_BYTES // PAGE})
insert()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({INSERTS}):
    insert()
print(gc.get_freeze_count() > 0, pyarrow.default_memory_pool().backend_name, end=" ")
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc is set on Linux")
def test_an_insert_reuses_the_pages_of_the_previous_one() -> None:
    run = subprocess.run([sys.executable, "-c", SINK_PROGRAM], check=True, capture_output=True, text=True)
    output = run.stdout.split()
    assert output[:2] == ["True", "system"]
    of_one_insert = COLUMNS * COLUMN_BYTES // PAGE
    # Without malloc's settings INSERTS times as many. Aligned blocks leave gaps, so that up to one and a half inserts'
    # more are requested at first, depending on where the heap begins.
    assert int(output[2]) < 4 * of_one_insert


SINK_PROCESS = """
import pyarrow
from headrace.deploy.configuration.settings import Settings
from headrace.deploy.processes.sink import SINK
from headrace.streams.clickhouse import sink
async def run_sink(config, *, stop, ready):
    print(pyarrow.default_memory_pool().backend_name)
sink.run_sink = run_sink
SINK.run(Settings(kafka="localhost:1", clickhouse="http://localhost:1"))
"""


def test_the_sinks_process_has_these_settings() -> None:
    run = subprocess.run([sys.executable, "-c", SINK_PROCESS], check=False, capture_output=True, text=True)
    assert run.stdout.split() == ["system"], run.stderr
