"""Assemble as an operator: events in, trajectories and dead letters out, by :class:`PartitionAssembly`.

It has no state topic; its state is rebuilt from ``events``. Live it runs in batches (``partition_runner.py``), with
committed offset and metadata as its checkpoint; ``drive`` runs it record by record.
"""

from headrace.streams.assembly.partition import PartitionAssembly
from headrace.streams.raw import LogRecord
from headrace.streams.rules import Rules
from headrace.streams.runtime.processor import Effects, Operator, Start
from headrace.streams.runtime.state import SetAside


class AssembleOperator(Operator):
    """One partition of ``events``. Stream time comes from its records, which include ``clock.ticked``."""

    def __init__(self, assembly: PartitionAssembly) -> None:
        """``assembly``: the restored state."""
        self._assembly = assembly

    def process(self, record: LogRecord) -> None:
        """Fold an event. Never raises because of its content."""
        self._assembly.take(record)

    def tick_times(self, until_ms: int) -> list[int]:
        """Returns the times of the ``clock.ticked`` records needed for everything open to time out by ``until_ms``."""
        fold = self._assembly.fold
        return fold.limits.tick_times(fold.stream_ms, until_ms) if fold.open_count else [until_ms]

    def flush(self) -> Effects:
        """Returns trajectories, dead letters and alerts."""
        outgoing = list(self._assembly.pending)
        self._assembly.sent(())
        return Effects(outgoing)


def restore_assemble(rules: Rules, start: Start) -> tuple[AssembleOperator, list[SetAside]]:
    """Returns the operator of a partition of ``events``, from its start."""
    return AssembleOperator(PartitionAssembly.resume(rules.fold, None, [], position=0, output_end=0)), []
