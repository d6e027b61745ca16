"""A trajectory as a page of text: what the model read and said, turn by turn. Pure.

Segment 0: 63 tokens, 6 of them sampled by version 4
  context
    <task> capital of ada <agent>
  turn 0, version 4, mean log-probability −0.31
    search ada capital <end>
    · tool search(query='ada capital') → ok in 0.002 s: c12
    · sub-agent helper started, trajectory t-2
"""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from statistics import fmean
from typing import Any

from headrace.deploy.transcript.decoding import Decode, decoded, texts_of
from headrace.deploy.transcript.messages import has_messages, message_text
from headrace.deploy.transcript.pieces import Piece, Stretch, by_logprob, by_version, events_of, logprobs_of, pieces_of
from headrace.deploy.transcript.refolded import Note, NoteKind
from headrace.schemas.events import ModelCalled
from headrace.schemas.records.trajectory import Segment, Trajectory, Turn
from headrace.trainer.provenance.versions import spans


class Colouring(StrEnum):
    """What the colour of sampled text stands for."""

    VERSION = "version"
    """The policy version that sampled it."""
    LOGPROB = "logprob"
    """Its log-probability under the policy that sampled it, in four bands."""
    ADVANTAGE = "advantage"
    """The trajectory's advantage, which is the same for all its tokens."""
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


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of each text is printed; what is left out is said. ``None``: all of it."""

    context_characters: int | None
    """Most characters of a stretch of context, which is shortened in the middle."""
    note_characters: int | None
    """Most characters of anything beside the tokens: a tool call with its result, a summary, a message."""
    sampled_tokens: int | None = None
    """Most tokens of a stretch of sampled text: its first ones."""
    lines: int | None = None
    """Most lines."""
    remedy: str = ""
    """What prints the rest of a shortened text, as a clause of a sentence."""


WHOLE = Limits(None, None)
SHORT = Limits(600, 4_000, remedy="; --full prints them")
BRIEF = Limits(200, 300, sampled_tokens=300, lines=40)
"""For lists of many trajectories: at most 40 lines each."""


@dataclass(frozen=True, slots=True)
class _Style:
    """How text is made of tokens."""

    decode: Decode | None
    colouring: Colouring
    limits: Limits
    advantage: float | None = None


def transcript(
    trajectory: Trajectory,
    decode: Decode | None,
    colouring: Colouring,
    limits: Limits = SHORT,
    notes: Sequence[Note] = (),
    advantage: float | None = None,
) -> list[Line]:
    """Returns the page, within ``limits``. A trajectory without tokens is printed as its messages, and without
    ``decode`` one that has them for all tokens (:func:`has_messages`); otherwise tokens without ``decode`` are printed
    as ids. ``notes`` say what the record does not: sub-agents, the texts of summaries. ``advantage``:
    of the trajectory, if it is known.
    """
    lines = _page(trajectory, _Style(decode, colouring, limits, advantage), notes)
    return _bounded(lines, limits, f"`headrace show {trajectory.trajectory_id}` prints the rest")


def plain_texts(lines: Iterable[Line]) -> list[str]:
    """Returns ``lines`` without what their colours stand for."""
    return ["".join(fragment.text for fragment in line) for line in lines]


def _bounded(lines: Iterable[Line], limits: Limits, rest: str) -> list[Line]:
    """Returns at most ``limits.lines`` of ``lines``; the last one says ``rest`` if there are more."""
    if limits.lines is None:
        return list(lines)
    shown = list(islice(lines, limits.lines + 1))
    if len(shown) > limits.lines:
        shown[limits.lines - 1 :] = [[Fragment(f"  … {rest}", Kind.HEADING)]]
    return shown


def call_text(call: ModelCalled, decode: Decode | None, colouring: Colouring, limits: Limits) -> list[Line]:
    """Returns a model call's new context and its answer, within ``limits``; its messages if it has no tokens, or if
    they are known and there is no ``decode``.
    """
    rest = "`headrace show` with the trajectory's id prints the rest"
    if call.sampled_ids is None or (decode is None and call.messages):
        said = _one_version(each.version for each in call.version_spans) if colouring is Colouring.VERSION else None
        return _bounded((line for each in call.messages or () for line in _message(each, limits, said)), limits, rest)
    context, sampled = call.context_ids or array("i"), call.sampled_ids
    segment = Segment(
        token_ids=array("i", [*context, *sampled]),
        loss_mask=[*[0] * len(context), *[1] * len(sampled)],
        logprobs=call.logprobs,
        version_spans=call.version_spans,
    )
    style, lines = _Style(decode, colouring, limits), list[Line]()
    if context:
        lines += _text(segment, Piece(0, None, 0, len(context)), style)
    if sampled:
        lines += _text(segment, Piece(0, None, len(context), len(segment.token_ids), 0), style)
    return _bounded(lines, limits, rest)


def note_lines(note: Note, limits: Limits) -> list[Line]:
    """Returns what happened in a turn, a line for each line of its text."""
    named = note.kind.value if note.kind is not NoteKind.SUBAGENT else "sub-agent"
    own = f", trajectory {note.trajectory_id}" if note.trajectory_id else ""
    rest = "`headrace show` with the trajectory's id prints the rest"
    return _bounded(_event(f"{named} {note.text}{own}", limits), limits, rest)


def _page(trajectory: Trajectory, style: _Style, notes: Sequence[Note]) -> Iterator[Line]:
    noted: defaultdict[int, list[Note]] = defaultdict(list)
    for note in notes:
        noted[note.turn].append(note)
    shown: set[int] = set()
    current = -1
    pieces = pieces_of(trajectory)
    as_messages = style.decode is None and has_messages(trajectory)
    for piece in () if as_messages else pieces:
        segment = trajectory.segments[piece.segment]
        if piece.segment != current:
            current = piece.segment
            yield [Fragment(_segment_title(current, segment), Kind.HEADING)]
        yield [Fragment(f"  {_piece_title(segment, piece)}", Kind.HEADING)]
        yield from _text(segment, piece, style)
        if piece.turn is not None and piece.turn not in shown:
            shown.add(piece.turn)
            yield from _events(trajectory.turns[piece.turn], noted[piece.turn], style.limits)
    # Turns without tokens: calls of a closed model beside those of the policy, turns that only called a tool.
    sampled = {piece.turn: piece for piece in reversed(pieces) if piece.turn is not None} if as_messages else {}
    for index in range(len(trajectory.turns)):
        if index not in shown:
            yield from _told(trajectory, index, sampled.get(index), noted[index], style)


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


def _text(segment: Segment, piece: Piece, style: _Style) -> list[Line]:
    """Returns the piece's text, indented, with its line ends as lines."""
    if not piece.is_sampled:
        text = decoded(segment, piece.start, piece.end, style.decode)
        return _lines([Fragment(_shortened(text, style.limits.context_characters, style.limits), Kind.CONTEXT)])
    most = style.limits.sampled_tokens
    left_out = 0 if most is None else max(piece.end - piece.start - most, 0)
    piece = replace(piece, end=piece.end - left_out)
    match style.colouring:
        case Colouring.VERSION:
            stretches = by_version(segment, piece)
        case Colouring.LOGPROB:
            stretches = by_logprob(segment, piece)
        case Colouring.ADVANTAGE:
            stretches = [Stretch(piece.start, piece.end, style.advantage)]
        case Colouring.NONE:
            stretches = [Stretch(piece.start, piece.end, None)]
    fragments = _fragments(segment, piece, stretches, style.decode)
    rest = [Fragment(f" … [{left_out:,} more tokens]", Kind.CONTEXT)] if left_out else []
    return _lines([*fragments, *rest])


def _fragments(segment: Segment, piece: Piece, stretches: Sequence[Stretch], decode: Decode | None) -> list[Fragment]:
    """Returns the text of each stretch; of all together, in one colour, if the decoder allows no other."""
    texts = texts_of(segment, stretches, decode)
    if texts is None:
        value = stretches[0].value if len({each.value for each in stretches}) == 1 else None
        return [Fragment(decoded(segment, piece.start, piece.end, decode), Kind.SAMPLED, value)]
    return [Fragment(text, Kind.SAMPLED, each.value) for text, each in zip(texts, stretches, strict=True)]


def _shortened(text: str, most: int | None, limits: Limits) -> str:
    if most is None or len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … [{len(text) - 2 * half:,} characters{limits.remedy}] … {text[-half:]}"


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


def _events(turn: Turn, notes: Sequence[Note], limits: Limits) -> list[Line]:
    """Returns what happened in ``turn`` besides its tokens. Its ``notes`` say more of prunes and summaries than it."""
    noted = {note.kind for note in notes}
    lines: list[Line] = []
    for text in events_of(turn, has_prunes=NoteKind.PRUNE in noted, has_summary=NoteKind.SUMMARY in noted):
        lines += _event(text, limits)
    for note in notes:
        lines += note_lines(note, limits)
    return lines


def _event(text: str, limits: Limits) -> list[Line]:
    parts = _shortened(text, limits.note_characters, limits).split("\n")
    return [[Fragment(f"    {'  ' if number else '· '}{part}", Kind.EVENT)] for number, part in enumerate(parts)]


def _message(message: Mapping[str, Any], limits: Limits, value: float | None = None) -> list[Line]:
    """Returns a message; ``value``: what the colour of an answer stands for."""
    kind = Kind.SAMPLED if message.get("role") == "assistant" else Kind.CONTEXT
    text = f"{message.get('role', '?')}: {message_text(message)}"
    return _lines([Fragment(_shortened(text, limits.note_characters, limits), kind, value)])


def _told(
    trajectory: Trajectory, index: int, sampled: Piece | None, notes: Sequence[Note], style: _Style
) -> list[Line]:
    """Returns a turn by its messages; nothing if it has neither messages nor events. ``sampled``: its tokens, for the
    title and the colour."""
    turn, title, value = trajectory.turns[index], f"turn {index}", None
    if sampled is not None:
        segment = trajectory.segments[sampled.segment]
        title = _piece_title(segment, sampled)
        if style.colouring is Colouring.ADVANTAGE:
            value = style.advantage
        elif style.colouring is Colouring.VERSION:
            value = _one_version(each.value for each in by_version(segment, sampled))
    lines = [line for message in turn.messages or () for line in _message(message, style.limits, value)]
    lines += _events(turn, notes, style.limits)
    return [[Fragment(f"  {title}", Kind.HEADING)], *lines] if lines else []


def _one_version(versions: Iterable[float | None]) -> float | None:
    """Returns the version of all tokens; ``None`` if there are several or none."""
    found = {*versions}
    return found.pop() if len(found) == 1 else None
