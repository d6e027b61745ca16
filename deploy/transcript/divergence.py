"""Where the attempts of a group part: the first turn in which they did not say and do the same. Pure.

turn     0                 1                    2
t-1      search ada        read c12             answer c12
t-2      search ada        read c12             answer c3        they part at turn 2
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headrace.deploy.transcript.messages import message_text
from headrace.deploy.transcript.pieces import pieces_of
from headrace.schemas.records.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Act:
    """What the policy said and did in a turn."""

    token_ids: tuple[int, ...]
    """Tokens that it sampled."""
    text: str
    """Text of its answer, of a turn without tokens."""
    tools: tuple[str, ...]
    """Tools that it called, with arguments."""


Acts: TypeAlias = Sequence[Act]


def acts_of(trajectory: Trajectory) -> list[Act]:
    """Returns what the policy said and did in each turn."""
    tokens: dict[int, list[int]] = {}
    for piece in pieces_of(trajectory):
        if piece.is_sampled and piece.turn is not None:
            ids = trajectory.segments[piece.segment].token_ids[piece.start : piece.end]
            tokens.setdefault(piece.turn, []).extend(ids)
    acts = []
    for index, turn in enumerate(trajectory.turns):
        sampled = tokens.get(index, [])
        said = [message_text(each) for each in turn.messages or () if each.get("role") == "assistant"]
        calls = tuple(f"{use.tool} {sorted(use.arguments.items(), key=lambda each: each[0])}" for use in turn.tools)
        acts.append(Act(tuple(sampled), "" if sampled else "\n".join(said), calls))
    return acts


def parts_at(one: Acts, other: Acts) -> int | None:
    """Returns the first turn in which two attempts differ; the length of the shorter one if it is the beginning of the
    other; ``None`` if they are equal.
    """
    for turn, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return turn
    return None if len(one) == len(other) else min(len(one), len(other))


def all_part_at(attempts: Sequence[Acts]) -> int | None:
    """Returns the first turn in which not all attempts are equal; ``None`` if all are, or there are fewer than two."""
    turns = [turn for each in attempts[1:] if (turn := parts_at(attempts[0], each)) is not None]
    return min(turns, default=None)
