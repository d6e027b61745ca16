"""An operator that processes the records of its partition; those that it cannot process become dead letters. No I/O."""

import logging

from headrace.schemas.topics import DEAD_LETTERS
from headrace.schemas.wire import UnreadableRecord
from headrace.streams.dead_letters.build import dead_letter_message, time_of
from headrace.streams.dead_letters.raised import raised
from headrace.streams.interruptions import INTERRUPTIONS
from headrace.streams.raw import LogRecord, Outgoing
from headrace.streams.runtime.processor import Effects, Operator
from headrace.streams.typed_record import check_time

logger = logging.getLogger(__name__)


class OperatorRun:
    """One operator and the dead letters of its records."""

    def __init__(self, source: str, operator: Operator, *, strict: bool) -> None:
        """``source`` names the processor in dead letters. ``strict``: an exception of the operator is raised instead of
        becoming a dead letter, for a person who tries it out.
        """
        self.operator = operator
        self._source = source
        self._strict = strict
        self._letters: list[Outgoing] = []

    def process(self, record: LogRecord) -> None:
        """Process the next record."""
        try:
            check_time(record)
            self.operator.process(record)
        except UnreadableRecord as error:
            logger.warning(
                "%s: %s[%d]@%d is a dead letter: %s",
                self._source, record.topic, record.partition, record.offset, error,
            )  # fmt: skip
            self._letters.append(Outgoing(DEAD_LETTERS, dead_letter_message(record, error), time_of(record)))
        except (MemoryError, *INTERRUPTIONS):
            raise
        except BaseException as error:
            if self._strict:
                raise
            logger.exception("%s raised for %s[%d]@%d", self._source, record.topic, record.partition, record.offset)
            self._letters += raised(record, error, self._source)

    def flush(self) -> tuple[Effects, list[Outgoing]]:
        """The operator's effects since the last call, and all records to write: its own, then dead letters."""
        effects = self.operator.flush()
        letters, self._letters = self._letters, []
        return effects, [*effects.outgoing, *letters]
