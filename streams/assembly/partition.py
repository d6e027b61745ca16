"""One partition of the assembler without I/O: folds records, and determines what to send and to commit.

The I/O layer repeats: ``take`` records; in one transaction send ``pending`` and commit what ``sent`` returns. After a
crash :meth:`PartitionAssembly.resume` continues from the last commit and sends nothing twice.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence

from aiokafka import TopicPartition

from headrace.schemas.records.dead_letter import DeadLetterError
from headrace.streams.assembly.assemble import conclude, dead_letter_output
from headrace.streams.assembly.batch_outputs import batch_outputs
from headrace.streams.assembly.fold import PartitionFold
from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.assembly.history import UnusableRecord
from headrace.streams.assembly.recovery import CommitMetadata
from headrace.streams.assembly.remembered import Emitted
from headrace.streams.assembly.trajectory_record import SOURCE
from headrace.streams.assembly.trajectory_writer import is_left_to_python
from headrace.streams.dead_letters.build import time_of
from headrace.streams.dead_letters.raised import position_of, raised_alert
from headrace.streams.raw import LogRecord, Outgoing


class PartitionAssembly:
    """The fold of one partition, with its offsets in input and output."""

    def __init__(
        self, fold: PartitionFold, *, position: int, sent_before: int, outputs: deque[int], end: int, letters: int
    ) -> None:
        """Made by :meth:`resume`."""
        self.fold = fold
        self.position = position
        """Next input offset to take."""
        self.pending: list[Outgoing] = []
        """What is to be sent with the next commit, in order."""
        self.pending_bytes = 0
        """Payload of ``pending``."""
        self.trajectories = 0
        """Trajectories closed since the start."""
        self.native_fallbacks = 0
        """Trajectories that the extension module left to Python because it lags behind the models."""
        self.dead_letters: Counter[DeadLetterError] = Counter()
        """Dead letters since the start, by error."""
        self._sent_before = sent_before  # dead letters of input offsets before this one were sent already
        self._outputs = outputs  # offsets of the records of the latest closed trajectories
        self._outputs_left_out = 0  # how many that the fold counts were before them
        self._output_end = end
        self._letters_end = letters

    @classmethod
    def resume(
        cls,
        limits: FoldLimits,
        checkpoint: CommitMetadata | None,
        outputs: Iterable[Emitted],
        *,
        position: int,
        output_end: int,
        letters_end: int = -1,
    ) -> "PartitionAssembly":
        """Continue at ``position``, the committed offset; ``outputs`` are the trajectories from ``checkpoint.output``
        to ``output_end``. Without a checkpoint, stream time and dead letters start from zero, and ``letters_end`` takes
        the place of :attr:`CommitMetadata.letters`.
        """
        written: dict[tuple[bytes, int], Emitted] = {}
        for emitted in outputs:  # another group's assembler may have written the same records
            written.setdefault((emitted.remembered.subject, emitted.first), emitted)
        fold = PartitionFold(
            limits,
            stream_ms=checkpoint.stream_ms if checkpoint else 0,
            position=position,
            written=written.values(),
        )
        return cls(
            fold,
            position=position,
            sent_before=checkpoint.next if checkpoint else position,
            outputs=deque(emitted.offset for emitted in written.values()),
            end=output_end,
            letters=checkpoint.letters if checkpoint else letters_end,
        )

    def take(self, record: LogRecord) -> None:
        """Fold the next record."""
        for outcome in self.fold.arrive(record):
            if isinstance(outcome, UnusableRecord):
                dead = [outcome] if outcome.record.offset >= self._sent_before else []
            else:
                trajectory, dead = conclude(outcome)
                self.trajectories += 1
                self.native_fallbacks += is_left_to_python(outcome)
                self._put(trajectory)
            for found in dead:
                self.dead_letters[found.error.error] += 1
                self._put(dead_letter_output(found))
            self._alert(dead)
        self.position = record.offset + 1

    def take_all(self, records: Sequence[LogRecord]) -> Iterator[None]:
        """Fold the list ``records``; yields after each record that may have made output."""
        index = 0
        while True:
            begin, index = index, self.fold.take_ordinary(records, index)
            if index > begin:
                self.position = records[index - 1].offset + 1
            if index == len(records):
                return
            self.take(records[index])
            index += 1
            yield

    def skip(self, place: TopicPartition, offsets: range) -> None:
        """Continue after the batch at ``offsets``, which cannot be decompressed."""
        if offsets.start >= self._sent_before:
            self.dead_letters[DeadLetterError.OVERSIZE] += 1
            for outgoing in batch_outputs(place, offsets, self.fold.stream_ms):
                self._put(outgoing)
        self.position = offsets.stop

    def warn(self, alert: Outgoing) -> None:
        """Send ``alert`` with the next commit."""
        self._put(alert)

    def _alert(self, dead: Sequence[UnusableRecord]) -> None:
        """Add an alert if the code raised for a trajectory, about its first event."""
        first = next((each for each in dead if each.error.error is DeadLetterError.RAISED), None)
        if first is not None:
            place = position_of(first.record)
            self._put(raised_alert(first.error, SOURCE, time_of(first.record), **place))

    def _put(self, outgoing: Outgoing) -> None:
        self.pending.append(outgoing)
        self.pending_bytes += len(outgoing.message.value)

    def sent(self, trajectory_offsets: Iterable[int], letter_offsets: Iterable[int] = ()) -> tuple[int, CommitMetadata]:
        """Note that ``pending`` was sent, its trajectories and dead letters to these offsets; returns the input offset
        to commit and its metadata. Both must become durable together with what was sent.
        """
        self._letters_end = max([self._letters_end, *(offset + 1 for offset in letter_offsets)])
        for offset in trajectory_offsets:
            self._outputs.append(offset)
            self._output_end = offset + 1
        needed = self.fold.needed_count - self.fold.limits.remember
        while self._outputs and self._outputs_left_out < needed:
            self._outputs.popleft()
            self._outputs_left_out += 1
        self.pending = []
        self.pending_bytes = 0
        self._sent_before = max(self._sent_before, self.position)
        offset, stream_ms = self.fold.resume_point(self.position)
        output = self._outputs[0] if self._outputs else self._output_end
        return offset, CommitMetadata(
            next=self._sent_before, stream_ms=stream_ms, output=output, letters=self._letters_end
        )
