"""A trajectory as JSON for the page that shows it: stretches of text with what their colour may stand for. Pure.

{"segments": [{"tokens": 63, "sampled": 6}],
 "pieces": [{"segment": 0, "turn": null, "tokens": 57, "fragments": [{"text": "<task> capital of ada <agent>"}]},
            {"segment": 0, "turn": 0, "tokens": 6, "logprob": -0.31,
             "fragments": [{"text": "search ada capital <end>", "version": 4, "band": -1.0}]}],
 "turns": [{"turn": 0, "tools": [{"tool": "search", "status": "ok", …}], "notes": […]}]}

Every text is bounded: the page asks for the whole one.
"""

import json
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from headrace.deploy.transcript.decoding import Decode, decoded, texts_of
from headrace.deploy.transcript.messages import has_messages, message_text
from headrace.deploy.transcript.pieces import Piece, Stretch, by_logprob, by_version, logprobs_of, pieces_of
from headrace.deploy.transcript.refolded import Note, Refolded
from headrace.schemas.records.trajectory import Segment, ToolUse, Turn


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of each text is sent; what is cut is said."""

    context_tokens: int = 1200
    """Most tokens of a stretch of context: half of them from its start, half from its end."""
    characters: int = 4_000
    """Most characters of another text: a tool's result, a message."""
    all_tokens: int = 400_000
    """Most tokens of all stretches together; those after it have no text."""


SHORT = Bounds()
WHOLE = Bounds(context_tokens=200_000, characters=1_000_000)


def told(found: Refolded, decode: Decode | None, bounds: Bounds = SHORT) -> dict[str, Any]:
    """Returns the text of ``found``: of its tokens; of its messages where there are no tokens, and without ``decode``
    if it has them for all tokens (:func:`has_messages`). Otherwise tokens without ``decode`` are shown as ids.
    """
    trajectory, left = found.trajectory, bounds.all_tokens
    pieces = []
    with_tokens: set[int] = set()
    as_messages = decode is None and has_messages(trajectory)
    versions: defaultdict[int | None, set[int]] = defaultdict(set)
    for piece in pieces_of(trajectory):
        segment = trajectory.segments[piece.segment]
        if as_messages:
            stretches = by_version(segment, piece)
            versions[piece.turn] |= {int(each.value) for each in stretches if each.value is not None}
            continue
        pieces.append(_piece(segment, piece, decode, bounds if left > 0 else None))
        left -= piece.end - piece.start
        with_tokens.update([piece.turn] if piece.turn is not None else [])
    notes: defaultdict[int, list[Note]] = defaultdict(list)
    for note in found.notes:
        notes[note.turn].append(note)
    return {
        "segments": [
            {"tokens": len(each.token_ids), "sampled": each.loss_mask.tobytes().count(1)}
            for each in trajectory.segments
        ],
        "pieces": pieces,
        "turns": [
            _turn(index, turn, notes[index], bounds, has_tokens=index in with_tokens)
            | {"versions": sorted(versions[index])}
            for index, turn in enumerate(trajectory.turns)
        ],
        "is_text": decode is not None or as_messages,
    }


def sampled_texts(found: Refolded, decode: Decode | None, most_tokens: int = 600) -> list[dict[str, Any]]:
    """Returns what the model said in each turn, and its tools in a line each, to compare attempts with one another.

    Of a turn without tokens it is the text of its answers, and of all turns where :func:`told` shows messages.
    """
    trajectory = found.trajectory
    said: defaultdict[int, str] = defaultdict(str)
    for piece in () if decode is None and has_messages(trajectory) else pieces_of(trajectory):
        if piece.is_sampled and piece.turn is not None:
            end = min(piece.end, piece.start + most_tokens)
            cut = f" … [{piece.end - end:,} more tokens]" if end < piece.end else ""
            said[piece.turn] += decoded(trajectory.segments[piece.segment], piece.start, end, decode) + cut
    texts = []
    for index, turn in enumerate(trajectory.turns):
        answers = [message_text(each) for each in turn.messages or () if each.get("role") == "assistant"]
        texts.append(
            {
                "turn": index,
                "text": _cut(said[index] if index in said else "\n".join(answers), SHORT.characters),
                "tokens": turn.sampled_tokens,
                "tools": [_cut(_call(use), 300) for use in turn.tools],
            }
        )
    return texts


def _piece(segment: Segment, piece: Piece, decode: Decode | None, bounds: Bounds | None) -> dict[str, Any]:
    length = piece.end - piece.start
    about: dict[str, Any] = {"segment": piece.segment, "turn": piece.turn, "tokens": length, "fragments": []}
    if piece.is_sampled:
        values = logprobs_of(segment, piece)
        about["logprob"] = fmean(values) if values else None
    if bounds is None:
        return about | {"cut": length}
    if piece.is_sampled:
        return about | {"fragments": _fragments(segment, piece, decode)}
    if length <= bounds.context_tokens:
        return about | {"fragments": [{"text": decoded(segment, piece.start, piece.end, decode)}]}
    half = bounds.context_tokens // 2
    ends = ((piece.start, piece.start + half), (piece.end - half, piece.end))
    fragments = [{"text": decoded(segment, start, end, decode)} for start, end in ends]
    return about | {"fragments": fragments, "cut": length - 2 * half}


def _fragments(segment: Segment, piece: Piece, decode: Decode | None) -> list[dict[str, Any]]:
    """Returns the piece in stretches of one version and one band of log-probabilities."""
    versions, bands = by_version(segment, piece), by_logprob(segment, piece)
    stretches = [Stretch(start, end, None) for start, end in pairwise(_edges(versions, bands))]
    texts = texts_of(segment, stretches, decode)
    if texts is None:
        return [{"text": decoded(segment, piece.start, piece.end, decode), **_values(piece.start, versions, bands)}]
    return [{"text": text, **_values(each.start, versions, bands)} for text, each in zip(texts, stretches, strict=True)]


def _edges(*stretches: Sequence[Stretch]) -> list[int]:
    return sorted({edge for each in stretches for stretch in each for edge in (stretch.start, stretch.end)})


def _values(start: int, versions: Sequence[Stretch], bands: Sequence[Stretch]) -> dict[str, Any]:
    """Returns version and band of the token at ``start``; −∞, which JSON lacks, as the lowest finite number."""
    version, band = _value_at(start, versions), _value_at(start, bands)
    return {"version": version, "band": -1e9 if band == -math.inf else band}


def _value_at(token: int, stretches: Sequence[Stretch]) -> float | None:
    """Returns the value of the stretch with ``token``, if there is one; ``stretches`` ascend. A long answer has as many
    stretches as tokens, and each is looked up."""
    at = bisect_right(stretches, token, key=lambda each: each.start) - 1
    return stretches[at].value if at >= 0 and token < stretches[at].end else None


def _turn(index: int, turn: Turn, notes: Sequence[Note], bounds: Bounds, *, has_tokens: bool) -> dict[str, Any]:
    messages = [] if has_tokens else turn.messages or []
    return {
        "turn": index,
        "sampled": turn.sampled_tokens,
        "finish_reason": turn.finish_reason,
        "snapshot": turn.snapshot_id,
        "messages": [
            {"role": str(each.get("role", "?")), "text": _cut(message_text(each), bounds.characters)}
            for each in messages
        ],
        "tools": [_tool(use, bounds) for use in turn.tools],
        "notes": [
            {"kind": note.kind, "text": _cut(note.text, bounds.characters), "trajectory_id": note.trajectory_id}
            for note in notes
        ],
    }


def _tool(use: ToolUse, bounds: Bounds) -> dict[str, Any]:
    return {
        "tool": use.tool,
        "arguments": _cut(_arguments(use.arguments), bounds.characters),
        "status": use.status,
        "error": use.error_class,
        "result": None if use.result is None else _cut(_text(use.result), bounds.characters),
        "seconds": use.latency_s,
    }


def _call(use: ToolUse) -> str:
    status = "no return" if use.status is None else str(use.status)
    return f"{use.tool}({_arguments(use.arguments)}) → {status}"


def _arguments(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … [{len(text) - 2 * half:,} characters] … {text[-half:]}"
