"""A trajectory as a page of text: what the model read and said, turn by turn. Pure.

Segment 0: 63 tokens, 6 of them sampled by version 4
  context
    <task> capital of ada <agent>
  turn 0, version 4, mean log-probability −0.31
    search ada capital <end>
    · tool search(query='ada capital') → ok in 0.002 s: c12
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from headrace.deploy.transcript.decoding import Decode, decoded, texts_of
from headrace.deploy.transcript.messages import message_text
from headrace.deploy.transcript.pieces import Piece, Stretch, by_logprob, by_version, events_of, logprobs_of, pieces_of
from headrace.schemas.records.trajectory import Segment, Trajectory, Turn
from headrace.trainer.provenance.versions import spans


class Colouring(StrEnum):
    """What the colour of sampled text stands for."""

    VERSION = "version"
    """The policy version that sampled it."""
    LOGPROB = "logprob"
    """Its log-probability under the policy that sampled it, in four bands."""
    NONE = "none"
    """Nothing: sampled text has one colour."""


class Kind(StrEnum):
    """What a fragment of a line is."""

    HEADING = "heading"
    CONTEXT = "context"
    SAMPLED = "sampled"
    EVENT = "event"


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of a line."""

    text: str
    """Its text, without line ends."""
    kind: Kind
    """What it is."""
    value: float | None = None
    """Of sampled text: what its colour stands for (:class:`Stretch`)."""


Line = list[Fragment]


def transcript(
    trajectory: Trajectory, decode: Decode | None, colouring: Colouring, context_characters: int | None
) -> list[Line]:
    """Returns the page. Without ``decode`` tokens are printed as ids; contexts longer than ``context_characters`` are
    shortened in the middle, unless it is ``None``. A trajectory without tokens is printed as its messages.
    """
    if not trajectory.segments:
        return _messages(trajectory)
    lines: list[Line] = []
    shown: set[int] = set()
    current = -1
    for piece in pieces_of(trajectory):
        segment = trajectory.segments[piece.segment]
        if piece.segment != current:
            current = piece.segment
            lines.append([Fragment(_segment_title(current, segment), Kind.HEADING)])
        lines.append([Fragment(f"  {_piece_title(segment, piece)}", Kind.HEADING)])
        lines += _text(segment, piece, decode, colouring, context_characters)
        if piece.turn is not None and piece.turn not in shown:
            shown.add(piece.turn)
            lines += _events(trajectory.turns[piece.turn])
    # Turns without tokens: calls of a closed model beside those of the policy, turns that only called a tool.
    for index, turn in enumerate(trajectory.turns):
        if index not in shown:
            lines += _told(index, turn)
    return lines


def _segment_title(number: int, segment: Segment) -> str:
    sampled = segment.loss_mask.tobytes().count(1)
    versions = sorted({span.version for span in segment.version_spans if span.version is not None})
    by = f" by version {spans(versions)}" if versions else ""
    return f"Segment {number}: {len(segment.token_ids):,} tokens, {sampled:,} of them sampled{by}"


def _piece_title(segment: Segment, piece: Piece) -> str:
    if not piece.is_sampled:
        return "context"
    versions = sorted({int(each.value) for each in by_version(segment, piece) if each.value is not None})
    values = logprobs_of(segment, piece)
    parts = [
        "sampled" if piece.turn is None else f"turn {piece.turn}",
        f"version {spans(versions)}" if versions else "version unknown",
        f"mean log-probability {fmean(values):.2f}" if values else "",
    ]
    return ", ".join(part for part in parts if part)


def _text(
    segment: Segment, piece: Piece, decode: Decode | None, colouring: Colouring, context_characters: int | None
) -> list[Line]:
    """Returns the piece's text, indented, with its line ends as lines."""
    if not piece.is_sampled:
        text = decoded(segment, piece.start, piece.end, decode)
        return _lines([Fragment(_shortened(text, context_characters), Kind.CONTEXT)])
    match colouring:
        case Colouring.VERSION:
            stretches = by_version(segment, piece)
        case Colouring.LOGPROB:
            stretches = by_logprob(segment, piece)
        case Colouring.NONE:
            stretches = [Stretch(piece.start, piece.end, None)]
    return _lines(_fragments(segment, piece, stretches, decode))


def _fragments(segment: Segment, piece: Piece, stretches: Sequence[Stretch], decode: Decode | None) -> list[Fragment]:
    """Returns the text of each stretch; of all together, in one colour, if the decoder allows no other."""
    texts = texts_of(segment, stretches, decode)
    if texts is None:
        value = stretches[0].value if len({each.value for each in stretches}) == 1 else None
        return [Fragment(decoded(segment, piece.start, piece.end, decode), Kind.SAMPLED, value)]
    return [Fragment(text, Kind.SAMPLED, each.value) for text, each in zip(texts, stretches, strict=True)]


def _shortened(text: str, most: int | None) -> str:
    if most is None or len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … [{len(text) - 2 * half:,} characters; --full prints them] … {text[-half:]}"


def _lines(fragments: Sequence[Fragment]) -> list[Line]:
    """Returns ``fragments`` as indented lines: line ends inside them begin new lines."""
    lines: list[Line] = [[]]
    for fragment in fragments:
        first, *rest = fragment.text.split("\n")
        for index, part in enumerate([first, *rest]):
            if index:
                lines.append([])
            if part:
                lines[-1].append(Fragment(part, fragment.kind, fragment.value))
    while len(lines) > 1 and not lines[-1]:
        lines.pop()
    return [[Fragment("    ", Kind.CONTEXT), *line] for line in lines]


def _events(turn: Turn) -> list[Line]:
    return [[Fragment(f"    · {line}", Kind.EVENT)] for text in events_of(turn) for line in text.split("\n")]


def _messages(trajectory: Trajectory) -> list[Line]:
    """Returns a trajectory without tokens."""
    return [line for index, turn in enumerate(trajectory.turns) for line in _told(index, turn)]


def _told(index: int, turn: Turn) -> list[Line]:
    """Returns a turn by its messages; nothing if it has neither messages nor events."""
    lines: list[Line] = []
    for message in turn.messages or ():
        kind = Kind.SAMPLED if message.get("role") == "assistant" else Kind.CONTEXT
        lines += _lines([Fragment(f"{message.get('role', '?')}: {message_text(message)}", kind)])
    lines += _events(turn)
    return [[Fragment(f"  turn {index}", Kind.HEADING)], *lines] if lines else []
