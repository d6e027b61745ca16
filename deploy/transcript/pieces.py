"""A trajectory's tokens, cut where the model's turns begin and end. Pure.

Piece(segment=0, turn=None, start=0, end=57)                     context: the task, tool results
Piece(segment=0, turn=0, start=57, end=63, sampled_from=0)       what the model sampled in its first turn
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile

from headrace.schemas.records.trajectory import Segment, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring tokens of a segment that are all context, or that one turn sampled."""

    segment: int
    """Index of the segment."""
    turn: int | None
    """Index of the turn that sampled it; ``None`` for context, and for tokens whose turn the record does not name."""
    start: int
    """First token, in the segment's ``token_ids``."""
    end: int
    """One past the last token."""
    sampled_from: int | None = None
    """Index of its first token among the segment's sampled tokens; ``None`` for context."""

    @property
    def is_sampled(self) -> bool:
        """Whether the model sampled it."""
        return self.sampled_from is not None


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring sampled tokens that share a property, such as a policy version."""

    start: int
    """First token, in the segment's ``token_ids``."""
    end: int
    """One past the last token."""
    value: float | None
    """The property: a version, or the lower bound of a band of log-probabilities (−∞ for the last one); ``None`` if it
    is unknown."""


LOGPROB_FLOORS = (-0.1, -1.0, -3.0)
"""Lower bounds of the bands of log-probabilities, in nats: 0.9, a third and a twentieth of probability."""


def pieces_of(trajectory: Trajectory) -> list[Piece]:
    """Returns all tokens of ``trajectory`` as pieces, segment by segment, in order.

    Turns that follow each other without context between them are told apart by their number of sampled tokens. Records
    of older releases do not name a turn's segment; with a single segment that is no loss, with several the sampled
    pieces name no turn.
    """
    found: list[Piece] = []
    sampling = _turns_by_segment(trajectory)
    for number, segment in enumerate(trajectory.segments):
        turns = iter(sampling.get(number, ()))
        turn, left, sampled, position = None, 0, 0, 0
        for is_sampled, run in groupby(segment.loss_mask.tobytes()):
            length = sum(1 for _ in run)
            if not is_sampled:
                found.append(Piece(number, None, position, position + length))
                position += length
                continue
            while length:
                if not left:
                    turn, left = next(turns, (None, length))
                part = min(length, left)
                found.append(Piece(number, turn, position, position + part, sampled))
                position, sampled, length, left = position + part, sampled + part, length - part, left - part
    return found


def _turns_by_segment(trajectory: Trajectory) -> Mapping[int, Sequence[tuple[int, int]]]:
    """Returns index and number of sampled tokens of the turns that sampled something, by their segment."""
    found: dict[int, list[tuple[int, int]]] = {}
    alone = 0 if len(trajectory.segments) == 1 else None
    for index, turn in enumerate(trajectory.turns):
        segment = alone if turn.segment is None else turn.segment
        if turn.sampled_tokens and segment is not None:
            found.setdefault(segment, []).append((index, turn.sampled_tokens))
    return found


def by_version(segment: Segment, piece: Piece) -> list[Stretch]:
    """Returns the stretches of a sampled ``piece`` by the policy version that sampled them."""
    if piece.sampled_from is None:
        return []
    first, count = piece.sampled_from, piece.end - piece.start
    spans = segment.version_spans
    if not spans:
        return [Stretch(piece.start, piece.end, None)]
    shift, begin = piece.start - first, bisect_right(spans, first, key=lambda each: each.end)
    return [
        Stretch(max(span.start, first) + shift, min(span.end, first + count) + shift, span.version)
        for span in takewhile(lambda each: each.start < first + count, (spans[at] for at in range(begin, len(spans))))
    ]


def by_logprob(segment: Segment, piece: Piece) -> list[Stretch]:
    """Returns the stretches of a sampled ``piece`` by the band of :data:`LOGPROB_FLOORS` of their log-probabilities."""
    if piece.sampled_from is None:
        return []
    if segment.logprobs is None:
        return [Stretch(piece.start, piece.end, None)]
    values = logprobs_of(segment, piece)
    stretches, position = [], piece.start
    for band, run in groupby(values, key=_band):
        length = sum(1 for _ in run)
        stretches.append(Stretch(position, position + length, band))
        position += length
    return stretches


def logprobs_of(segment: Segment, piece: Piece) -> Sequence[float]:
    """Returns the log-probabilities of a sampled ``piece`` in nats; empty if they are unknown, or for context."""
    if segment.logprobs is None or piece.sampled_from is None:
        return []
    return list(segment.logprobs[piece.sampled_from : piece.sampled_from + piece.end - piece.start])


def _band(logprob: float) -> float:
    return next((floor for floor in LOGPROB_FLOORS if logprob >= floor), -math.inf)


def events_of(turn: Turn, *, has_prunes: bool = False, has_summary: bool = False) -> list[str]:
    """Returns what happened in ``turn`` besides its tokens, a text each: tools, prunes, a summary, a snapshot.

    ``has_prunes``, ``has_summary``: these are said elsewhere, and left out.
    """
    lines = []
    for use in turn.tools:
        arguments = ", ".join(f"{name}={value!r}" for name, value in use.arguments.items())
        status = "no return" if use.status is None else use.status.value
        cause = "" if use.error_class is None else f" ({use.error_class.value})"
        took = "" if use.latency_s is None else f" in {use.latency_s:.3g} s"
        result = "" if use.result is None else f": {use.result}"
        lines.append(f"tool {use.tool}({arguments}) → {status}{cause}{took}{result}")
    if turn.pruned_ids and not has_prunes:
        lines.append(f"pruned {', '.join(turn.pruned_ids)}")
    if turn.summarized and not has_summary:
        lines.append("summarised its context")
    if turn.snapshot_id is not None:
        lines.append(f"snapshot {turn.snapshot_id}")
    if turn.finish_reason not in (None, "stop", "tool_calls"):
        lines.append(f"finished by {turn.finish_reason}")
    return lines
