"""The text of any record that has tokens, or that names a trajectory: for lists of records.

The I/O layer: it reads the trajectories that records name.
"""

from collections.abc import Collection, Mapping

from headrace.deploy.transcript.decoding import Decode
from headrace.deploy.transcript.log_decoders import LogDecoders, NoTokenizer
from headrace.deploy.transcript.messages import has_messages
from headrace.deploy.transcript.page import BRIEF, Colouring, Fragment, Kind, Line, call_text, note_lines, transcript
from headrace.deploy.transcript.reading import read_members, read_trajectories
from headrace.deploy.transcript.refolded import note_of
from headrace.deploy.transcript.siblings import siblings
from headrace.schemas.events import ContextSummarized, ModelCalled
from headrace.schemas.kafka.read_back import Place
from headrace.schemas.model import Record
from headrace.schemas.records.group import Rejection, TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory
from headrace.trainer.admission.admission import place_of
from headrace.trainer.provenance.log_reader import LogReader

WITH_TEXT: Collection[type[Record]] = (ModelCalled, ContextSummarized, Trajectory, Reward, TrainingGroup, Rejection)
"""Types of records that have a text here."""


_INDENT = Fragment("  ", Kind.CONTEXT)


class RecordText:
    """Makes texts of records, at most :data:`page.BRIEF` of each trajectory."""

    def __init__(self, log: LogReader, decoders: LogDecoders, run: str | None = None) -> None:
        """Reads trajectories from ``log``. ``run``: of events, which do not all name theirs."""
        self._log = log
        self._decoders = decoders
        self._run = run

    async def of(self, record: Record) -> list[Line]:
        """Returns the text of ``record``; no line if it has none.

        Without a tokenizer it is that of its messages, if it has them for all tokens; else ``StackError`` is raised.
        """
        match record:
            case ModelCalled():
                named = next((span.run for span in record.version_spans if span.run), self._run)
                has_tokens = record.sampled_ids is not None
                decode = await self._decode(named, has_messages=bool(record.messages)) if has_tokens else None
                return call_text(record, decode, Colouring.VERSION, BRIEF)
            case ContextSummarized():
                note = note_of(record, 0)
                return [] if note is None else note_lines(note, BRIEF)
            case Trajectory():
                return await self._trajectory(record)
            case TrainingGroup():
                group = await read_members(self._log, record)
                sampled = [each.record for each in group.attempts if each.record is not None and each.record.segments]
                told = all(map(has_messages, sampled))
                decode = await self._decode(record.run or self._run, has_messages=told) if sampled else None
                return [_line(each) for each in siblings(group, None, decode)]
            case Reward() | Rejection():
                texts = await self.at({place_of(record.trajectory): record.trajectory_id})
                return texts[record.trajectory_id]
            case _:
                return []

    async def at(self, places: Mapping[Place, str]) -> dict[str, list[Line]]:
        """Returns the texts of the trajectories whose records are at ``places`` (place → id), by id, or that a record
        is gone. All are in memory together.
        """
        found = await read_trajectories(self._log, places)
        texts = {}
        for place, id in places.items():
            gone = f"Its record, trajectories {place[0]}:{place[1]}, has expired or cannot be read."
            texts[id] = await self._trajectory(found[id]) if id in found else [_line(gone)]
        return texts

    async def _trajectory(self, record: Trajectory) -> list[Line]:
        run = record.started.run if record.started else self._run
        decode = await self._decode(run, has_messages=has_messages(record)) if record.segments else None
        return [[_INDENT, *line] for line in transcript(record, decode, Colouring.VERSION, BRIEF)]

    async def _decode(self, run: str | None, *, has_messages: bool) -> Decode | None:
        """Returns the decoder of ``run``; ``None`` if there is none and messages say what the tokens do."""
        try:
            return await self._decoders.of(run)
        except NoTokenizer:
            if has_messages:
                return None
            raise


def _line(text: str) -> Line:
    return [_INDENT, Fragment(text, Kind.CONTEXT)]
