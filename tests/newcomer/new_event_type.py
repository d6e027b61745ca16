"""Run in a tree in which `memory.written` was added: one such event from the SDK to its row and its line, as JSON."""

import json
import sys

from headrace.agents.encoding import Note, encode_note
from headrace.agents.sdk import Headrace
from headrace.agents.sender import Sender
from headrace.deploy.tail.line import line
from headrace.deploy.tail.record import decode_record
from headrace.schemas.wire import Message
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.partition import PartitionAssembly
from headrace.streams.assembly.trajectory_writer import LAG
from headrace.streams.clickhouse.columns import arrow_table
from headrace.streams.clickhouse.rows import RowOrigin, to_rows
from headrace.streams.native.available import SPEEDUPS
from headrace.streams.raw import StoredRecord


def emitted() -> list[Message]:
    """The events that an agent's SDK would send; here they end in the queue."""
    notes: list[Note] = []
    Sender.put = lambda _, note: notes.append(Note(*note))  # type: ignore[method-assign, assignment, return-value]
    headrace = Headrace("localhost:9", source="newcomer")
    with headrace.trajectory(task_id="task", agent="a", trajectory_id="t-1") as t:
        t.model_called(model="m", messages=[{"role": "assistant", "content": "hello"}])
        t.memory_written("ada", "Works at the mill.")  # type: ignore[attr-defined]
        t.end(outcome=1.0)
    return [encode_note(note, "newcomer", 1 << 20).message for note in notes]


def main() -> None:
    records = [
        StoredRecord("events", 0, offset, 1_700_000_000_000, message.key, message.value, message.headers)
        for offset, message in enumerate(emitted())
    ]
    assembly = PartitionAssembly.resume(FoldLimits(), None, [], position=0, output_end=0)
    for _ in assembly.take_all(records):
        pass
    seen = decode_record(records[2])
    assert seen.envelope is not None
    assert seen.payload is not None
    ((table, row),) = to_rows(
        seen.envelope, seen.payload, RowOrigin(0, 2, records[2].timestamp), records[2].value or b""
    )
    arrow = arrow_table(table, [row])
    found = {
        "sent": [[each.topic.name, json.loads(each.message.value)] for each in assembly.pending],
        "fallbacks": assembly.native_fallbacks,
        "lag": sorted(LAG.types),
        "module": SPEEDUPS is not None,
        "row": {name: arrow.column(name)[0].as_py() for name in ("type", "trajectory_id", "seq", "payload")},
        "line": line(seen).text,
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
