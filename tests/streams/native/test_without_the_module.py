"""Without the extension module the same log gives the same result, in another process that cannot import it."""

import asyncio
import hashlib
import subprocess
import sys

import pytest

from headrace.deploy.system.ports import HOST, free_port
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.assembly.arrival import arrival_of
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.partition import PartitionAssembly
from headrace.streams.clickhouse import sink
from headrace.streams.clickhouse.batches import convert
from headrace.streams.clickhouse.sink_config import SinkConfig
from headrace.streams.raw import StoredRecord
from tests.streams.builders import event, log, session, started

PROGRAM = """
import sys
sys.modules["headrace.streams.native.speedups"] = None
from tests.streams.native.test_without_the_module import digest_of_a_log, digest_of_columns
from headrace.streams.native.available import SPEEDUPS
print(SPEEDUPS, digest_of_a_log(), digest_of_columns())
"""


def digest_of_a_log() -> str:
    """Digest of the output for a whole trajectory, one with a gap, and one that silence closes."""
    whole, silent = session("s1", "ask", "tool", "ask"), session("s3", "ask")[:-1]
    late = [*session("s2", "ask", "tool")[:2], *session("s2", "ask", "tool")[3:]]
    assembly = PartitionAssembly.resume(FoldLimits(max_open=2), None, [], position=0, output_end=0)
    for _ in assembly.take_all(log([*silent, *whole, *late, *session("s4", "ask"), *whole[:2]])):
        pass
    assert assembly.trajectories >= 3
    return hashlib.sha256(repr(assembly.pending).encode()).hexdigest()


def digest_of_columns() -> str:
    """Digest of the rows of a session, of its trajectory, and of a record that has none."""
    facts = [*log(session("s1", "ask", "tool", "prune")), event("s1", 9, started(), value=b"")]
    assembled = EXAMPLES[Trajectory.TYPE]
    trajectory = StoredRecord("trajectories", 0, 7, 1, b"t", assembled.message.value, assembled.message.headers)
    batch = convert([*map(arrival_of, facts), trajectory])
    assert [table.name for table, _ in batch.tables] == ["events", "trajectories"]
    assert len(batch.unreadable) == 1
    rows = [(rows.schema.to_string(), rows.to_pylist()) for _, rows in batch.tables]
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def test_the_same_log_gives_the_same_result_without_the_module() -> None:
    printed = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout.split()
    assert printed == ["None", digest_of_a_log(), digest_of_columns()]


async def test_the_sink_reports_a_start_without_the_module(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sink, "SPEEDUPS", None)
    stop = asyncio.Event()
    stop.set()
    config = SinkConfig(f"{HOST}:{free_port()}", f"http://{HOST}:{free_port()}")
    await sink.run_sink(config, stop=stop, ready=lambda: None)
    assert caplog.text.count("was not built") == 1
